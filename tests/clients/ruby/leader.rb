# frozen_string_literal: true

# [leader]
require_relative 'lease'

# Calls the block again and again while this node leads, each term with a lease, and so a token, of its own.
class Leader
  def self.run(name, holder, ttl: 15, &work)
    loop do
      term(name, holder, ttl, &work)
      sleep(ttl / 3.0)
    end
  end

  def self.term(name, holder, ttl, &work)
    Lease.hold(name, holder, ttl) do |lease|
      attempt(lease, &work) while lease.held?
    end
  rescue Lease::Lost, ActiveRecord::ActiveRecordError => e
    warn "#{name}: #{e.class}: #{e.message}"
    ActiveRecord::Base.clear_active_connections! # the next one is looked at before it is used
  end

  # An error of the source outside is no reason to give up.
  def self.attempt(lease)
    yield lease
  rescue Lease::Lost, ActiveRecord::ActiveRecordError
    raise
  rescue StandardError => e
    warn "#{lease.name}: #{e.class}: #{e.message}"
    sleep(1)
  end
end
# [end leader]

# [prices]
class Price < ActiveRecord::Base
  def self.copy(lease, source)
    price = source.call
    lease.transaction { create!(amount: price) }
  end
end
# [end prices]
