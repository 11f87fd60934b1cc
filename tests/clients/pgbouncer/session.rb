# frozen_string_literal: true

# PgBouncer in session mode: a client has a session until it disconnects, and with two of them for each node the pool has to be as large.
require_relative 'common'

stack = Stack.new('pgbouncer-session', Pooler::VERSION)
admin = fresh_database('client_pgbouncer_session')
pooler = Pooler.new('session', admin.db)
common_scenarios(stack, pooler, admin)

stack.scenario('fenced_transaction') do
  client = pooler.connect
  token = acquire_anew(admin, client, 'job')
  client.transaction do
    client.exec_params('SELECT lease_fence($1, $2)', ['job', token])
    client.exec('INSERT INTO entry VALUES (10, 100)')
  end
  equal(1, rows(admin, "id = 10 AND token = #{token}"))
end

stack.scenario('refused_write') do
  client = pooler.connect
  stale = acquire_anew(admin, client, 'job')
  take_over(admin, 'job')
  refused('LX001') { client.exec("BEGIN; SELECT lease_fence('job', #{stale}); INSERT INTO entry VALUES (20, 100); COMMIT") }
  client.close
  equal(0, rows(admin, 'id = 20'))
end

stack.scenario('refused_commit') do
  client = pooler.connect
  token = acquire_anew(admin, client, 'job')
  client.exec("BEGIN; SELECT lease_fence('job', #{token}); INSERT INTO entry VALUES (21, 100)")
  take_over(admin, 'job')
  refused('LX001') { client.exec('COMMIT') }
  client.close
  equal(0, rows(admin, 'id = 21'))
end

stack.scenario('checkpoint') do
  client = pooler.connect
  token = acquire(client, 'chunks')
  client.exec("SELECT lease_checkpoint('chunks', #{token}, '{\"after\": 2}')")
  client.exec("BEGIN; SELECT lease_checkpoint('chunks', #{token}, '{\"after\": 4}')")
  client.close
  equal('{"after": 2}', value(admin, "SELECT lease_checkpoint('chunks')"))
end

stack.scenario('lost_connection') do
  client = pooler.connect
  token = acquire_anew(admin, client, 'job')
  client.exec("BEGIN; SELECT lease_fence('job', #{token}); INSERT INTO entry VALUES (30, 100)")
  value(admin, 'SELECT pg_terminate_backend($1, 5000)', value(client, 'SELECT pg_backend_pid()'))
  disconnected('terminating connection due to administrator command') { client.exec('COMMIT') }
  equal(0, rows(admin, 'id = 30'))
  client = pooler.connect
  client.exec("BEGIN; SELECT lease_fence('job', #{token}); INSERT INTO entry VALUES (30, 100); COMMIT")
end

# The reset query, DISCARD ALL, ends it when the client goes.
stack.scenario('session_lease') do
  client = pooler.connect
  token = value(client, "SELECT lease_acquire_session('bound', 'node-1')")
  pooler.command('RECONNECT') # does not touch a session that has a client
  check(value(client, "SELECT lease_extend('bound', $1)", token), 'while the client is there')
  client.close
  until_true('the end of the lease') { value(admin, "SELECT state FROM lease_status WHERE name = 'bound'") == 'free' }

  # Without a reset query the next client has it.
  pooler.command("SET server_reset_query = ''")
  client = pooler.connect
  value(client, "SELECT lease_acquire_session('bound', 'node-1')")
  pid = value(client, 'SELECT pg_backend_pid()')
  client.close
  client = pooler.connect
  equal([pid, 'held'], [value(client, 'SELECT pg_backend_pid()'), value(admin, "SELECT state FROM lease_status WHERE name = 'bound'")])
  pooler.command("SET server_reset_query = 'DISCARD ALL'")
end

stack.scenario('prepared_statements') do
  client = pooler.connect
  token = acquire(client, 'prepared')
  client.prepare('beat', 'SELECT lease_extend($1, $2)')
  check(client.exec_prepared('beat', ['prepared', token]).getvalue(0, 0), 'by name')
end

stack.scenario('notify') do
  listener = pooler.connect
  listener.exec('LISTEN lock_ext')
  client = pooler.connect
  client.exec('SET lock_ext.notify = on')
  acquire(client, 'told')
  told = nil
  until_true('the notification') { listener.wait_for_notify(1) { |_, _, payload| told = payload } }
  check(told.include?('"told"'), told)
  client.close
  client = pooler.connect
  equal('off', value(client, 'SHOW lock_ext.notify'), 'after the reset')
end

# A node that has a connection for its work and none for its heartbeat: the pool is full.
stack.scenario('clients_fill_the_pool') do
  clients = Array.new(2) { pooler.connect.tap { |client| value(client, 'SELECT 1') } }
  token = acquire(clients.first, 'full')
  heartbeat = pooler.connect
  heartbeat.send_query_params('SELECT lease_extend($1, $2)', ['full', token])
  until_true('the heartbeat waits for a client to leave') { pooler.waiting == 1 }
  clients.last.close
  check(heartbeat.get_last_result.getvalue(0, 0), 'and is answered')
end

stack.finish
