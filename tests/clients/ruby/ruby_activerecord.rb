# frozen_string_literal: true

# ActiveRecord, without Rails around it.
require 'active_record'
require_relative 'harness'
require_relative 'migration'
require_relative 'daily_reward'
require_relative 'recipes'
require 'yaml'
include Checks

DATABASE = 'client_activerecord'
stack = Stack.new('activerecord', ActiveRecord.version)
admin = fresh_database(DATABASE)
ActiveRecord::Migration.verbose = false

def connect(database)
  config = YAML.load_file('database.yml')['production']
  ActiveRecord::Base.establish_connection(config.merge('host' => ENV.fetch('PGHOST'), 'port' => ENV.fetch('PGPORT'),
                                                       'username' => ENV.fetch('PGUSER'), 'database' => database))
end
connect(DATABASE)

def db
  ActiveRecord::Base.connection
end

# The SQLSTATE of what ActiveRecord raised, as an application finds it.
# [sqlstate]
def sqlstate(error)
  cause = error.is_a?(PG::Error) ? error : error.cause
  cause.result&.error_field(PG::Result::PG_DIAG_SQLSTATE) if cause.is_a?(PG::Error)
end
# [end sqlstate]

def acquire(lease, ttl = 30)
  Lease.value('SELECT lease_acquire(?, ?, make_interval(secs => ?))', lease, 'node-1', ttl)
end

def fenced(lease, token)
  ActiveRecord::Base.transaction do
    Lease.value('SELECT lease_fence(?, ?)', lease, token)
    yield
  end
end

# What an application's usual helper for conflicts does.
def retrying
  attempts = 0
  begin
    attempts += 1
    yield attempts
  rescue ActiveRecord::TransactionRollbackError, ActiveRecord::LockWaitTimeout
    retry if attempts < 3
    raise
  end
end

class Entry < ActiveRecord::Base
  attr_reader :after

  after_commit { @after = :commit }
  after_rollback { @after = :rollback }
end

admin.exec('CREATE TABLE entries (id bigserial PRIMARY KEY, amount int, token bigint)')
admin.exec("SELECT fence_attach('entries', 'job', 'token')")

stack.scenario('grant') do
  select = ->(*values) { ActiveRecord::Base.sanitize_sql_array(['SELECT lease_acquire(?, ?, ?)', *values]) }
  equal(1, db.select_value(select.call('natural', 'node-1', '30 s')), 'a string')
  equal(nil, db.select_value(select.call('natural', 'node-2', '30 s')), 'held by another')
  equal(2, db.select_value(select.call('iso', 'node-1', 30.seconds.iso8601)), 'an ISO 8601 duration')
  # A Duration and a number are quoted as a number, for which there is no cast.
  [30, 30.seconds].each do |ttl|
    error = error_of(ActiveRecord::StatementInvalid) { db.select_value(select.call('number', 'node-1', ttl)) }
    equal('42883', sqlstate(error))
    check(acquire("make-#{ttl.class}", ttl), 'make_interval')
  end
  equal(5, db.exec_query('SELECT lease_acquire($1, $2, $3)', 'Lease', ['bound', 'node-1', 30]).rows[0][0], 'a bound number')

  # Of a heartbeat that goes through the query cache, only the first one reaches the server.
  asked = -> { db.select_value('SELECT clock_timestamp()::text') }
  ActiveRecord::Base.cache do
    equal(asked.call, asked.call, 'select_value with the query cache')
    uncached = Array.new(2) { Lease.value('SELECT clock_timestamp()::text') }
    check(uncached.uniq.size == 2, 'Lease.value is cached')
  end

  top = fresh_database('client_activerecord_top')
  value(top, 'SELECT lease_raise_token_floor($1)', (2**53) - 12)
  top.exec('CREATE TABLE entries (id bigserial PRIMARY KEY, amount int, token bigint)')
  connect('client_activerecord_top')
  token = acquire('top')
  equal((2**53) - 11, token, 'a token near the top')
  check(Lease.value('SELECT lease_extend(?, ?)', 'top', token), 'a token near the top is extended')
  entry = Entry.create!(token: (2**63) - 1)
  equal((2**63) - 1, Entry.find(entry.id).token, 'a bigint attribute')
  connect(DATABASE)
  top.close
end

stack.scenario('heartbeat') do
  lost = false
  Lease.hold('beat', 'node-1', 1.5) do |lease|
    granted_until = now + 1.5
    db.execute('SELECT pg_sleep(2.5)')
    check(now > granted_until && lease.held?, 'held after a statement that was longer than the time to live')
    equal('t', value(admin, 'SELECT lease_is_current($1, $2)', 'beat', lease.token))
    take_over(admin, 'beat')
    until_true('the loss is noticed') { !lease.held? }
    error_of(Lease::Lost) { lease.transaction { raise 'work that nobody holds the lease for' } }
    lost = true
  end
  check(lost, 'the block was not called')
  # The connections have the bounds of database.yml.
  bounds = db.raw_connection.conninfo_hash.values_at(:connect_timeout, :keepalives_idle, :keepalives_interval, :tcp_user_timeout)
  equal(%w[10 10 5 10000], bounds, 'the bounds of a connection')
  equal('5min 10s', %w[statement_timeout client_connection_check_interval].map { |name| db.select_value("SHOW #{name}") }.join(' '))
  equal(nil, Lease.hold('beat', 'node-1', 30) { raise 'held by another' })
end

stack.scenario('heartbeat_without_answer') do
  # No answer at all, as from a server that is cut off: the lease's row cannot be written.
  Lease.hold('deaf', 'node-1', 0.3) do |lease|
    admin.exec('BEGIN; LOCK TABLE lock_ext.lease IN ACCESS EXCLUSIVE MODE')
    until_true('the own deadline') { !lease.held? }
    admin.exec('COMMIT')
  end
end

stack.scenario('fenced_transaction') do
  token = acquire('job')
  entry = fenced('job', token) { Entry.create!(amount: 100) }
  equal(:commit, entry.after)
  equal(token, entry.reload.token, 'stamped')
  fenced('job', token) { entry.update!(amount: 200) }
  fenced('job', token) { entry.destroy! }
  error = error_of(ActiveRecord::StatementInvalid) { Entry.create!(amount: 1) }
  equal('LX003', sqlstate(error))
end

stack.scenario('fenced_column') do
  token = value(admin, "SELECT token FROM lease_status WHERE name = 'job'").to_i
  entry = Entry.create!(amount: 100, token: token)
  # save sends what has changed, and the token has not.
  error = error_of(ActiveRecord::StatementInvalid) { entry.update!(amount: 200, token: token) }
  equal('LX003', sqlstate(error))
  # [column]
  entry.token = token
  entry.token_will_change! # sent also where it is the same
  entry.update!(amount: 200)
  # [end column]
  equal([200, token], Entry.where(id: entry.id).pick(:amount, :token))
end

stack.scenario('refused_write') do
  stale = value(admin, "SELECT token FROM lease_status WHERE name = 'job'").to_i
  entry = Entry.create!(amount: 100, token: stale)
  token = take_over(admin, 'job')
  [
    -> { fenced('job', stale) { entry.update!(amount: 300) } },
    -> { Entry.create!(amount: 300, token: stale) }
  ].each do |write|
    attempts = 0
    error = error_of(StandardError) { retrying { |n| attempts = n and write.call } }
    equal(ActiveRecord::StatementInvalid, error.class, 'the class, which is of no kind that is retried')
    equal(PG::ServerError, error.cause.class, 'the class of the cause')
    equal('LX001', sqlstate(error))
    equal(1, attempts, 'attempts')
    check(error.message.include?("token #{token} was granted later"), error.message)
  end
  equal('0', value(admin, 'SELECT count(*) FROM entries WHERE amount = 300'))
end

stack.scenario('refused_commit') do
  value(admin, "SELECT lease_force_release('job')")
  token = acquire('job')
  entry = nil
  attempts = 0
  error = error_of(StandardError) do
    retrying do |n|
      attempts = n
      fenced('job', token) do
        entry = Entry.create!(amount: 400)
        take_over(admin, 'job')
      end
    end
  end
  check(entry, 'it was refused before the commit')
  equal([ActiveRecord::StatementInvalid, 'LX001', 1], [error.class, sqlstate(error), attempts])
  equal([:rollback, false, nil], [entry.after, entry.persisted?, entry.id], 'the object')
  equal(0, Entry.where(amount: 400).count, 'on the same connection')
end

recipes(stack, admin)

stack.scenario('wait_timeout') do
  value(admin, "SELECT lease_acquire('busy', 'other', '60 s')")
  wait = "SELECT lease_acquire('busy', 'node-1', '30 s', wait => '30 s')"
  error = error_of(ActiveRecord::QueryCanceled) do
    ActiveRecord::Base.transaction do
      db.execute("SET LOCAL statement_timeout = '200 ms'")
      db.execute(wait)
    end
  end
  equal('57014', sqlstate(error))
  wait_for_waiters(admin, 'busy', 0)

  raw = db.raw_connection
  canceller = Thread.new do
    wait_for_waiters(admin, 'busy', 1)
    raw.cancel
  end
  error_of(ActiveRecord::QueryCanceled) { db.execute(wait) }
  canceller.join
  wait_for_waiters(admin, 'busy', 0)
  equal(1, db.select_value('SELECT 1'), 'the connection is usable')
  equal(nil, db.select_value("SELECT lease_acquire('busy', 'node-1', '30 s', wait => '100 ms')"), 'the wait ran out')
end

stack.scenario('lost_connection') do
  value(admin, "SELECT lease_force_release('job')")
  token = acquire('job')
  error = error_of(ActiveRecord::ActiveRecordError) do
    fenced('job', token) do
      Entry.create!(amount: 500)
      value(admin, 'SELECT pg_terminate_backend($1, 5000)', db.raw_connection.backend_pid)
      Entry.create!(amount: 501)
    end
  end
  equal([ActiveRecord::StatementInvalid, nil], [error.class, sqlstate(error)])
  check(error.cause.is_a?(PG::ConnectionBad) || error.cause.is_a?(PG::UnableToSend), error.cause.class.to_s)
  equal('0', value(admin, 'SELECT count(*) FROM entries WHERE amount >= 500'))
  ActiveRecord::Base.clear_active_connections! # the next one is looked at before it is used
  fenced('job', token) { Entry.create!(amount: 500) }
  equal(token, Entry.find_by(amount: 500).token, 'with the same lease')
end

stack.scenario('migration') do
  fences = -> { value(admin, "SELECT count(*) FROM fence_status WHERE table_name::text = 'rewards' AND lease = 'daily-reward' AND hole IS NULL") }
  equal('1', fences.call, 'up')
  equal('LX003', sqlstate(error_of(ActiveRecord::StatementInvalid) { Reward.delete_all }))
  # schema.rb has no triggers, so a database that is loaded from it has no fence.
  schema = StringIO.new
  ActiveRecord::SchemaDumper.dump(db, schema)
  check(schema.string.include?('enable_extension "lock_ext"'), 'the extension is in schema.rb')
  check(!schema.string.include?('fence'), 'a fence is in schema.rb, so that structure.sql is not needed')
  CreateRewards.migrate(:down)
  equal('0', fences.call, 'down')
  equal(nil, value(admin, "SELECT to_regclass('rewards')"))
  CreateRewards.migrate(:up)
  equal('1', fences.call, 'up again')
end

stack.finish
