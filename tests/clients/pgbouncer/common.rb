# frozen_string_literal: true

require_relative 'pooler'
require_relative 'functions'

# What goes the same way in every mode, as each call is one statement.

# Of what was told in a message only the text is there, and no SQLSTATE, when the connection is closed as well.
def disconnected(text, &block)
  error = error_of(PG::ConnectionBad, &block)
  equal(nil, sqlstate(error), 'SQLSTATE')
  check(error.message.include?(text), error.message)
end

def refused(code, &block)
  error = error_of(PG::Error, &block)
  equal(code, sqlstate(error), error.message)
end

def acquire(client, lease, ttl = '60 s')
  value(client, 'SELECT lease_acquire($1, $2, $3)', lease, 'node-1', ttl).to_i
end

# For one that writes, from nobody else's hands.
def acquire_anew(admin, client, lease)
  value(admin, 'SELECT lease_force_release($1)', lease)
  acquire(client, lease)
end

def rows(admin, condition)
  value(admin, "SELECT count(*) FROM entry WHERE #{condition}").to_i
end

def common_scenarios(stack, pooler, admin)
  stack.after_each = -> { pooler.close_clients }

  # First, as it names its tokens.
  stack.scenario('functions') { call_all_functions(pooler, admin) }

  admin.exec('CREATE TABLE entry (id int PRIMARY KEY, amount int, token bigint)')

  stack.scenario('migration') do
    client = pooler.connect
    client.exec("SET LOCAL lock_timeout = '2 s'; SELECT fence_attach('entry', 'job', 'token')")
    fences = "SELECT count(*) FROM fence_status WHERE table_name = 'entry'::regclass AND hole IS NULL"
    equal('1', value(admin, fences), 'up')
    value(client, "SELECT fence_detach('entry')")
    equal('0', value(admin, fences), 'down')
    value(client, "SELECT fence_attach('entry', 'job', 'token')")
  end

  stack.scenario('grant') do
    client = pooler.connect
    token = acquire(client, 'natural')
    pooler.new_sessions
    equal(nil, value(client, 'SELECT lease_acquire($1, $2, $3)', 'natural', 'node-2', '30 s'), 'held by another')
    equal('t', value(client, 'SELECT lease_release($1, $2)', 'natural', token), 'released in another session')
  end

  stack.scenario('heartbeat') do
    worker = pooler.connect
    token = acquire(worker, 'beat', '1.5 s')
    granted_until = now + 1.5
    worker.send_query('SELECT pg_sleep(2.5)')
    heartbeat = pooler.connect
    while worker.consume_input || worker.is_busy
      break unless worker.is_busy

      check(value(heartbeat, 'SELECT lease_extend($1, $2)', 'beat', token), 'lost')
      sleep(0.1)
    end
    worker.get_last_result
    check(now > granted_until, 'the work was longer than the time to live')
    equal('t', value(heartbeat, 'SELECT lease_is_current($1, $2)', 'beat', token))
  end

  stack.scenario('fenced_column') do
    client = pooler.connect
    token = acquire_anew(admin, client, 'job')
    client.exec_params('INSERT INTO entry VALUES (1, 100, $1)', [token])
    client.exec_params('UPDATE entry SET amount = 200, token = $1', [token])
    equal('1', value(client, 'SELECT fenced_update($1, $2, $3, $4)', 'entry', token, '{"id": 1}', '{"amount": 300}'))
    refused('LX003') { client.exec('UPDATE entry SET amount = 1') }
    equal('300', value(admin, 'SELECT amount FROM entry'))
    take_over(admin, 'job')
    refused('LX001') { client.exec_params('UPDATE entry SET amount = 1, token = $1', [token]) }
    refused('LX001') { value(client, 'SELECT fenced_update($1, $2, $3, $4)', 'entry', token, '{"id": 1}', '{"amount": 1}') }
  end

  stack.scenario('once') do
    client = pooler.connect
    equal('t', value(client, "SELECT once('payout')"))
    pooler.new_sessions
    equal('f', value(client, "SELECT once('payout')"))
  end

  stack.scenario('wait_timeout') do
    acquire(admin, 'busy')
    wait = "SELECT lease_acquire('busy', 'node-1', '30 s', wait => '30 s')"
    waiting = pooler.connect
    canceller = Thread.new do
      wait_for_waiters(admin, 'busy', 1)
      waiting.cancel
    end
    refused('57014') { waiting.exec(wait) }
    canceller.join
    wait_for_waiters(admin, 'busy', 0)
    # In one string it is one transaction in every mode.
    refused('57014') { waiting.exec("SET LOCAL statement_timeout = '200 ms'; #{wait}") }
    wait_for_waiters(admin, 'busy', 0)
    equal('1', value(waiting, 'SELECT 1'), 'the connection is usable')

    # A client that vanishes: PgBouncer closes the server connection, which is what takes it out of the line.
    waiting.send_query(wait)
    wait_for_waiters(admin, 'busy', 1)
    waiting.close
    wait_for_waiters(admin, 'busy', 0)
  end
end
