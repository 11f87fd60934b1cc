# frozen_string_literal: true

# The pg gem.
require_relative 'harness'
include Checks

DATABASE = 'client_ruby_pg'
stack = Stack.new('ruby-pg', PG::VERSION)
admin = fresh_database(DATABASE)

def connect
  PG.connect(dbname: DATABASE)
end

def acquire(connection, lease, ttl = '30 s')
  connection.exec_params('SELECT lease_acquire($1, $2, $3)', [lease, 'node-1', ttl]).getvalue(0, 0)&.to_i
end

def fenced(connection, lease, token)
  connection.transaction do
    connection.exec_params('SELECT lease_fence($1, $2)', [lease, token])
    yield
  end
end

admin.exec('CREATE TABLE reward (player bigint PRIMARY KEY, amount int NOT NULL, token bigint)')
admin.exec("SELECT fence_attach('reward', 'job', 'token')")
db = connect

stack.scenario('grant') do
  equal('1', value(db, 'SELECT lease_acquire($1, $2, $3)', 'natural', 'node-1', '30 s'), 'as text')
  equal(nil, acquire(db, 'natural'), 'held by another')
  # Parameters go without a type, so that a number is a number of seconds.
  acquire(db, 'seconds', 30)
  equal('00:00:30', value(db, "SELECT ttl FROM lease_status WHERE name = 'seconds'"), 'ttl')

  typed = connect
  typed.type_map_for_queries = PG::BasicTypeMapForQueries.new(typed)
  typed.type_map_for_results = PG::BasicTypeMapForResults.new(typed)
  equal(3, typed.exec_params('SELECT lease_acquire($1, $2, $3)', ['typed', 'node-1', 30]).getvalue(0, 0), 'with type maps')

  # In a database of its own, as a floor is never lowered.
  top = fresh_database('client_ruby_pg_top')
  value(top, 'SELECT lease_raise_token_floor($1)', (2**53) - 12)
  token = acquire(top, 'top')
  equal((2**53) - 11, token, 'a token near the top')
  check(value(top, 'SELECT lease_extend($1, $2)', 'top', token), 'a token near the top is extended')
  top.exec('CREATE TABLE foreign_token (token bigint)')
  top.exec_params('INSERT INTO foreign_token VALUES ($1)', [(2**63) - 1])
  equal((2**63) - 1, value(top, 'SELECT token FROM foreign_token').to_i, 'bigint')
  typed.close
  top.close
end

stack.scenario('heartbeat') do
  ttl = 1.5
  deadline = now + ttl
  token = acquire(db, 'beat', ttl)
  granted_until = deadline
  beats = 0
  stop = false
  heartbeat = Thread.new do
    own = connect
    until stop
      asked = now
      held = value(own, 'SELECT lease_extend($1, $2)', 'beat', token)
      deadline = held ? asked + ttl : 0
      break unless held

      beats += 1
      sleep(ttl / 10)
    end
    own.close
  end
  # Busy for longer than the time to live, with the driver's thread waiting for the answer.
  db.exec('SELECT pg_sleep(2.5)')
  check(now > granted_until, 'the work was longer than the time to live')
  check(now < deadline, 'the deadline was moved on')
  check(beats > 2, "#{beats} extensions beside one statement")
  equal('t', value(db, 'SELECT lease_is_current($1, $2)', 'beat', token))
  take_over(admin, 'beat')
  until_true('the loss is noticed') { deadline.zero? }
  stop = true
  heartbeat.join
end

stack.scenario('fenced_transaction') do
  token = acquire(db, 'job')
  fenced(db, 'job', token) { db.exec('INSERT INTO reward (player, amount) VALUES (1, 100)') }
  equal(token.to_s, value(admin, 'SELECT token FROM reward WHERE player = 1'), 'stamped')
  error = error_of(PG::ServerError) { db.exec('UPDATE reward SET amount = 1') }
  equal('LX003', sqlstate(error))
end

stack.scenario('fenced_column') do
  token = value(db, "SELECT token FROM lease_status WHERE name = 'job'").to_i
  db.exec_params('INSERT INTO reward VALUES ($1, $2, $3)', [2, 100, token])
  changed = db.exec_params('UPDATE reward SET amount = $1, token = $2 WHERE player = 2', [200, token])
  equal(1, changed.cmd_tuples, 'rows')
  equal('LX003', sqlstate(error_of(PG::ServerError) { db.exec('UPDATE reward SET amount = 1 WHERE player = 2') }))
end

stack.scenario('refused_write') do
  stale = value(db, "SELECT token FROM lease_status WHERE name = 'job'").to_i
  token = take_over(admin, 'job')
  [
    -> { fenced(db, 'job', stale) { db.exec('INSERT INTO reward VALUES (9, 9)') } },
    -> { db.exec_params('UPDATE reward SET amount = 9, token = $1 WHERE player = 2', [stale]) }
  ].each do |write|
    error = error_of(PG::Error, &write)
    equal(PG::ServerError, error.class, 'the class for an SQLSTATE that the driver has no class for')
    equal('LX001', sqlstate(error))
    check(!error.is_a?(PG::TransactionRollback), 'no serialization failure, which programs retry')
    check(error.result.error_field(PG::Result::PG_DIAG_MESSAGE_DETAIL).include?("token #{token} was granted later"), error.message)
  end
  equal('200', value(admin, 'SELECT amount FROM reward WHERE player = 2'))
end

stack.scenario('refused_commit') do
  admin.exec("SELECT lease_force_release('job')")
  token = acquire(db, 'job')
  written = false
  error = error_of(PG::ServerError) do
    fenced(db, 'job', token) do
      db.exec('INSERT INTO reward (player, amount) VALUES (3, 100)')
      written = true
      take_over(admin, 'job')
    end
  end
  check(written, 'it was refused before the commit')
  equal('LX001', sqlstate(error))
  equal(PG::PQTRANS_IDLE, db.transaction_status, 'after the refused commit')
  equal('0', value(admin, 'SELECT count(*) FROM reward WHERE player = 3'))
end

stack.scenario('once') do
  once = -> { value(db, 'SELECT once($1)', 'payout:2026-11-29') }
  seen = nil
  error_of(ZeroDivisionError) do
    db.transaction do
      seen = once.call
      1 / 0
    end
  end
  equal('t', seen, 'in a transaction that is rolled back')
  equal('t', once.call, 'after it')
  equal('f', once.call, 'again')
end

stack.scenario('checkpoint') do
  doomed = connect
  token = acquire(doomed, 'chunks')
  fenced(doomed, 'chunks', token) do
    doomed.exec_params('SELECT lease_checkpoint($1, $2, $3)', ['chunks', token, '{"after_player": 2}'])
  end
  doomed.exec('BEGIN')
  doomed.exec_params('SELECT lease_checkpoint($1, $2, $3)', ['chunks', token, '{"after_player": 4}'])
  value(admin, 'SELECT pg_terminate_backend($1, 5000)', doomed.backend_pid)
  equal('{"after_player": 2}', value(db, 'SELECT lease_checkpoint($1)', 'chunks'))
end

stack.scenario('wait_timeout') do
  value(admin, "SELECT lease_acquire('busy', 'other', '60 s')")
  wait = "SELECT lease_acquire('busy', 'node-1', '30 s', wait => '30 s')"
  waiting = connect

  waiting.exec("SET statement_timeout = '200 ms'")
  equal('57014', sqlstate(error_of(PG::QueryCanceled) { waiting.exec(wait) }), 'statement_timeout')
  waiting.exec('RESET statement_timeout')
  wait_for_waiters(admin, 'busy', 0)

  canceller = Thread.new do
    wait_for_waiters(admin, 'busy', 1)
    waiting.cancel
  end
  equal('57014', sqlstate(error_of(PG::QueryCanceled) { waiting.exec(wait) }), 'cancel')
  canceller.join
  wait_for_waiters(admin, 'busy', 0)

  # Ruby's own timeout leaves the statement to the server, so cancel it.
  error_of(Timeout::Error) { Timeout.timeout(0.3) { waiting.exec(wait) } }
  waiting.cancel
  waiting.discard_results
  wait_for_waiters(admin, 'busy', 0)
  equal('1', value(waiting, 'SELECT 1'), 'the connection is usable')
  equal(nil, value(waiting, "SELECT lease_acquire('busy', 'node-1', '30 s', wait => '100 ms')"), 'the wait ran out')
end

stack.scenario('lost_connection') do
  admin.exec("SELECT lease_force_release('job')")
  cut = connect
  token = acquire(cut, 'job')
  error = error_of(PG::Error) do
    fenced(cut, 'job', token) do
      cut.exec('INSERT INTO reward (player, amount) VALUES (4, 100)')
      value(admin, 'SELECT pg_terminate_backend($1, 5000)', cut.backend_pid)
      cut.exec('INSERT INTO reward (player, amount) VALUES (5, 100)')
    end
  end
  check(error.is_a?(PG::ConnectionBad) || error.is_a?(PG::UnableToSend), "#{error.class}: #{error.message}")
  equal(nil, sqlstate(error), 'what the server said is in the text only')
  equal('0', value(admin, 'SELECT count(*) FROM reward WHERE player IN (4, 5)'))
  cut.reset
  fenced(cut, 'job', token) { cut.exec('INSERT INTO reward (player, amount) VALUES (4, 100)') }
  equal(token.to_s, value(admin, 'SELECT token FROM reward WHERE player = 4'), 'with the same lease')
end

stack.skip('migration', 'the driver has no migration tool, see activerecord')
stack.finish
