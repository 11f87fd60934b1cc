# frozen_string_literal: true

# [lease]
# A lease that a thread of its own extends. The connection pool needs one connection more for it.
class Lease
  class Lost < StandardError; end

  attr_reader :name, :token

  # The block gets the lease, and nil is the answer where another node has it or the work is done.
  def self.hold(name, holder, ttl)
    deadline = now + ttl
    token = value('SELECT lease_acquire(?, ?, make_interval(secs => ?))', name, holder, ttl)
    return unless token

    lease = new(name, token, ttl, deadline)
    begin
      yield lease
    ensure
      lease.stop
    end
  end

  # A transaction that writes under the token.
  def transaction
    raise Lost, "lease #{name} with token #{token} is lost" unless held?

    ActiveRecord::Base.transaction do
      Lease.value('SELECT lease_fence(?, ?)', name, token)
      yield
    end
  end

  def held?
    Lease.now < @deadline
  end

  def stop
    @mutex.synchronize { @stopped = true }
    @wake.signal
    @heartbeat.join(@ttl)
  end

  def self.value(sql, *arguments)
    values(sql, *arguments).first
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

  def initialize(name, token, ttl, deadline)
    @name = name
    @token = token
    @ttl = ttl
    @deadline = deadline
    @mutex = Mutex.new
    @wake = ConditionVariable.new
    @heartbeat = Thread.new { beat }
  end

  # Releases it too: the worker's own connection may be what has failed.
  def beat
    extend_lease while held? && !stopped_within?(@ttl / 3.0)
    Lease.value('SELECT lease_release(?, ?)', name, token)
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
