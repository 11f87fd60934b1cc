# frozen_string_literal: true

# PgBouncer in transaction mode: a client has a session from BEGIN to COMMIT, or for one statement.
require_relative 'pooled'

stack = Stack.new('pgbouncer-transaction', Pooler::VERSION)
admin = fresh_database('client_pgbouncer_transaction')
pooler = Pooler.new('transaction', admin.db)

def fenced(client, lease, token)
  client.transaction do
    client.exec_params('SELECT lease_fence($1, $2)', [lease, token])
    yield
  end
end

common_scenarios(stack, pooler, admin)
pooled_scenarios(stack, pooler, admin)

stack.scenario('fenced_transaction') do
  client = pooler.connect
  other = pooler.connect
  token = acquire_anew(admin, client, 'job')
  fenced(client, 'job', token) do
    client.exec('INSERT INTO entry VALUES (10, 100)')
    # Another client's statement in the meantime is in another session, and carries no token.
    refused('LX003') { other.exec('INSERT INTO entry VALUES (11, 100)') }
    client.exec('INSERT INTO entry VALUES (12, 100)')
  end
  refused('LX003') { client.exec('INSERT INTO entry VALUES (13, 100)') }
  equal(2, rows(admin, "id BETWEEN 10 AND 19 AND token = #{token}"))
end

stack.scenario('refused_write') do
  client = pooler.connect
  stale = acquire_anew(admin, client, 'job')
  take_over(admin, 'job')
  refused('LX001') { fenced(client, 'job', stale) { client.exec('INSERT INTO entry VALUES (20, 100)') } }
  equal([0, '1'], [rows(admin, 'id = 20'), value(client, 'SELECT 1')])
end

stack.scenario('refused_commit') do
  client = pooler.connect
  token = acquire_anew(admin, client, 'job')
  written = false
  refused('LX001') do
    fenced(client, 'job', token) do
      client.exec('INSERT INTO entry VALUES (21, 100)')
      written = true
      take_over(admin, 'job')
    end
  end
  equal([true, 0, '1'], [written, rows(admin, 'id = 21'), value(client, 'SELECT 1')])
end

stack.scenario('checkpoint') do
  client = pooler.connect
  token = acquire(client, 'chunks')
  save = ->(after) { client.exec_params('SELECT lease_checkpoint($1, $2, $3)', ['chunks', token, "{\"after\": #{after}}"]) }
  fenced(client, 'chunks', token) { save.call(2) }
  client.exec('BEGIN')
  save.call(4)
  client.close
  equal('{"after": 2}', value(pooler.connect, "SELECT lease_checkpoint('chunks')"))
end

# The server's connection is cut: PgBouncer tells the client, and closes its connection as well.
stack.scenario('lost_connection') do
  client = pooler.connect
  token = acquire_anew(admin, client, 'job')
  client.exec('BEGIN')
  client.exec_params('SELECT lease_fence($1, $2)', ['job', token])
  client.exec('INSERT INTO entry VALUES (30, 100)')
  value(admin, 'SELECT pg_terminate_backend($1, 5000)', value(client, 'SELECT pg_backend_pid()'))
  disconnected('terminating connection due to administrator command') { client.exec('INSERT INTO entry VALUES (31, 100)') }
  equal(0, rows(admin, 'id IN (30, 31)'))
  client = pooler.connect
  fenced(client, 'job', token) { client.exec('INSERT INTO entry VALUES (30, 100)') }
  equal(1, rows(admin, "id = 30 AND token = #{token}"), 'with the same lease')
end

stack.scenario('evict') do
  frozen = pooler.connect
  token = acquire_anew(admin, frozen, 'job')
  frozen.exec('BEGIN')
  frozen.exec_params('SELECT lease_fence($1, $2)', ['job', token])
  frozen.exec('UPDATE entry SET amount = 1 WHERE id = 30')
  pid = value(frozen, 'SELECT pg_backend_pid()')
  admin.exec("SELECT lease_force_release('job')")
  client = pooler.connect
  successor = acquire(client, 'job')
  equal([pid], client.exec_params('SELECT lease_evict($1, $2)', ['job', successor]).column_values(0), 'the evicted session')
  # The row is free.
  fenced(client, 'job', successor) { client.exec('UPDATE entry SET amount = 2 WHERE id = 30') }
  disconnected('terminating connection due to administrator command') { frozen.exec('COMMIT') }
  equal('2', value(admin, 'SELECT amount FROM entry WHERE id = 30'))
  # The pool has its two connections again.
  Array.new(2) { pooler.connect }.each { |one| one.exec('BEGIN; SELECT 1') }
end

# Its server connection is closed, so that nobody gets it with an open transaction in it.
stack.scenario('vanished_client') do
  client = pooler.connect
  token = acquire_anew(admin, client, 'job')
  client.exec('BEGIN')
  client.exec_params('SELECT lease_fence($1, $2)', ['job', token])
  client.exec('UPDATE entry SET amount = 3 WHERE id = 30')
  pid = value(client, 'SELECT pg_backend_pid()')
  client.close
  until_true('the end of the session') { value(admin, 'SELECT count(*) FROM pg_stat_activity WHERE pid = $1', pid) == '0' }
  equal(%w[2 0], [value(admin, 'SELECT amount FROM entry WHERE id = 30'), value(admin, 'SELECT count(*) FROM lease_writer')])
end

stack.finish
