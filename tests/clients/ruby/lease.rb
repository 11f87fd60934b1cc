# frozen_string_literal: true

# [lease]
require 'active_record'
require 'pg'

# A lease that a thread of its own extends. The connection pool needs one connection more for it.
class Lease
  # Stop, and never try again with the same token.
  class Lost < StandardError; end

  attr_reader :name, :token, :holder

  # The block gets the lease, and nil is the answer where another node has it or the work is done. Work that has not called
  # `held?` or `transaction` for longer than limit hangs, and is not waited for: the lease expires.
  def self.hold(name, holder, ttl, limit: 10 * ttl)
    deadline = now + ttl
    token = value('SELECT lease_acquire(?, ?, make_interval(secs => ?))', name, holder, ttl)
    return unless token

    # A predecessor that is frozen in an open transaction cannot commit any more, but keeps its row locks.
    value('SELECT count(*) FROM lease_evict(?, ?)', name, token)
    lease = new(name, token, holder, ttl, limit, deadline)
    begin
      yield lease
    ensure
      lease.stop
    end
  end

  # Why nil was the answer.
  def self.status(name)
    state, holder, done = values('SELECT state, holder, completed_until FROM lease_status WHERE name = ?', name)
    return "done already, until #{done}" if state == 'completed'

    holder && state == 'held' ? "#{holder} has it" : 'somebody else has it'
  end

  # A transaction that writes under the token.
  def transaction
    raise Lost, "lease #{name} with token #{token} could not be extended" unless held?

    ActiveRecord::Base.transaction do
      Lease.value('SELECT lease_fence(?, ?)', name, token)
      yield
    end
  rescue ActiveRecord::StatementInvalid => e
    result = e.cause.result if e.cause.is_a?(PG::Error)
    raise unless result && %w[LX001 LX002].include?(result.error_field(PG::Result::PG_DIAG_SQLSTATE))

    raise Lost, result.error_field(PG::Result::PG_DIAG_MESSAGE_DETAIL)
  end

  def held?
    @worked = Lease.now
    Lease.now < @deadline
  end

  def stop
    @mutex.synchronize { @stopped = true }
    @wake.signal
    @heartbeat.join(@ttl)
  end

  def self.value(sql, *arguments)
    values(sql, *arguments)&.first
  end

  # Not by select_value, which would answer the second heartbeat from Rails' query cache.
  def self.values(sql, *arguments)
    ActiveRecord::Base.connection_pool.with_connection do |connection|
      connection.execute(ActiveRecord::Base.sanitize_sql_array([sql, *arguments])).values.first
    end
  end

  def self.now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  private

  def initialize(name, token, holder, ttl, limit, deadline)
    @name = name
    @token = token
    @holder = holder
    @ttl = ttl
    @limit = limit
    @deadline = deadline
    @worked = Lease.now
    @mutex = Mutex.new
    @wake = ConditionVariable.new
    @heartbeat = Thread.new { beat }
  end

  # Releases it too: the worker's own connection may be what has failed.
  def beat
    extend_lease while Lease.now < [@deadline, @worked + @limit].min && !stopped_within?(@ttl / 3.0)
    Lease.value('SELECT lease_release(?, ?)', name, token) if @stopped
  rescue ActiveRecord::ActiveRecordError
    nil # It ends by its time to live.
  end

  def extend_lease
    asked = Lease.now
    @deadline = Lease.value('SELECT lease_extend(?, ?)', name, token) ? asked + @ttl : asked
  rescue ActiveRecord::ActiveRecordError
    nil # No answer is no loss: it is tried again until the deadline.
  end

  def stopped_within?(seconds)
    @mutex.synchronize { @stopped || (@wake.wait(@mutex, seconds) && @stopped) }
  end
end
# [end lease]
