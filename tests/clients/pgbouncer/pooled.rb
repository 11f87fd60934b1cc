# frozen_string_literal: true

require 'json'
require_relative 'common'

# What goes the same way where the next call may come from another session: in transaction and in statement mode.
def pooled_scenarios(stack, pooler, admin)
  # The trap: those who wait have all connections of the pool, and the holder can neither extend nor release.
  stack.scenario('waiters_fill_the_pool') do
    holder = pooler.connect
    token = acquire(holder, 'crowd')
    waiters = Array.new(5) { pooler.connect }
    waiters.each { |waiter| waiter.send_query("SELECT lease_acquire('crowd', 'waiter', '50 ms', wait => '20 s')") }
    until_true('two waiters in line, three for a connection') { pooler.waiting == 3 }
    wait_for_waiters(admin, 'crowd', 2)
    holder.send_query_params('SELECT lease_extend($1, $2)', ['crowd', token])
    until_true('the heartbeat waits for a connection as well') { pooler.waiting == 4 }
    # Its time runs out.
    value(admin, "SELECT lease_extend('crowd', $1, '1 ms')", token)
    equal(nil, holder.get_last_result.getvalue(0, 0), 'lost, by a heartbeat that was sent in time')
    waiters.each(&:get_last_result)
  end

  stack.scenario('waiters_in_a_pool_of_their_own') do
    holder = pooler.connect
    token = acquire(holder, 'orderly')
    waiters = Array.new(5) { pooler.connect('line') }
    waiters.each { |waiter| waiter.send_query("SELECT lease_acquire('orderly', 'waiter', '50 ms', wait => '20 s')") }
    wait_for_waiters(admin, 'orderly', 5)
    check(value(holder, 'SELECT lease_extend($1, $2)', 'orderly', token), 'the heartbeat is answered')
    equal('t', value(holder, 'SELECT lease_release($1, $2)', 'orderly', token), 'and so is the release')
    tokens = waiters.map { |waiter| waiter.get_last_result.getvalue(0, 0) }
    equal(5, tokens.compact.uniq.size, 'the waiters that were granted it')
  end

  # PgBouncer's own limit, two minutes by default: longer than a time to live may be.
  stack.scenario('query_wait_timeout') do
    value(admin, "SELECT lease_acquire('full', 'other', '60 s')")
    waiters = Array.new(2) { pooler.connect }
    waiters.each { |waiter| waiter.send_query("SELECT lease_acquire('full', 'waiter', '50 ms', wait => '20 s')") }
    wait_for_waiters(admin, 'full', 2)
    pooler.command('SET query_wait_timeout = 1')
    client = pooler.connect
    disconnected('query_wait_timeout') { client.exec("SELECT lease_extend('full', 1)") }
    pooler.command('SET query_wait_timeout = 120')
    waiters.each(&:close)
    wait_for_waiters(admin, 'full', 0)
  end

  # The trap: the lease is the server connection's, which stays when the client goes, and may go when the client stays.
  stack.scenario('session_lease') do
    pooler.new_sessions
    client = pooler.connect
    token = value(client, "SELECT lease_acquire_session('bound', 'node-1')")
    pid = value(admin, "SELECT session_pid FROM lease_status WHERE name = 'bound'")
    client.close
    other = pooler.connect
    equal(pid, value(other, 'SELECT pg_backend_pid()'), 'the next client has the session')
    equal(nil, value(other, "SELECT lease_acquire_session('bound', 'node-2')"), 'and is not granted the lease once more')
    equal('held', value(admin, "SELECT state FROM lease_status WHERE name = 'bound'"), 'without its client')
    refused('55000') { admin.exec_params("SELECT lease_release('bound', $1)", [token]) }
    equal('t', value(other, "SELECT lease_release('bound', $1)", token), 'released by a client that has not acquired it')

    token = value(other, "SELECT lease_acquire_session('bound', 'node-2')")
    # As server_idle_timeout and server_lifetime do, in the middle of the holder's work.
    pooler.new_sessions
    until_true('the end of the session') { value(admin, "SELECT state FROM lease_status WHERE name = 'bound'") == 'free' }
    equal(nil, value(other, "SELECT lease_extend('bound', $1)", token), 'lost')
  end

  stack.scenario('session_lease_with_reset') do
    pooler.command('SET server_reset_query_always = 1')
    client = pooler.connect
    token = value(client, "SELECT lease_acquire_session('reset', 'node-1')")
    check(token, 'a token is answered')
    equal(nil, value(client, "SELECT lease_extend('reset', $1)", token), 'and is lost at once')
    equal('free', value(admin, "SELECT state FROM lease_status WHERE name = 'reset'"))
    pooler.command('SET server_reset_query_always = 0')
  end

  stack.scenario('session_lease_refused') do
    admin.exec("SET client_min_messages = warning; DROP ROLE IF EXISTS #{Pooler::ROLE}; CREATE ROLE #{Pooler::ROLE} LOGIN")
    admin.exec(File.read("#{__dir__}/rights.sql"))
    client = pooler.connect('app_role')
    refused('42501') { client.exec("SELECT lease_acquire_session('bound', 'node-1')") }
    check(acquire(client, 'with-a-time'), 'a lease with a time to live')
    client.close
    pooler.command('KILL app_role')
    pooler.command('RESUME app_role')
    admin.exec("SELECT lease_force_release('with-a-time')")
    admin.exec("DROP ROLE #{Pooler::ROLE}")
  end

  stack.scenario('prepared_statements') do
    pooler.new_sessions
    client = pooler.connect
    token = acquire(client, 'prepared')
    client.prepare('beat', 'SELECT lease_extend($1, $2)')
    check(client.exec_prepared('beat', ['prepared', token]).getvalue(0, 0), 'while the session is the same')
    refused('42P05') { pooler.connect.prepare('beat', 'SELECT lease_extend($1, $2)') }
    pooler.new_sessions
    refused('26000') { client.exec_prepared('beat', ['prepared', token]) }
    # Without a name they are prepared and run in one go.
    check(client.exec_params('SELECT lease_extend($1, $2)', ['prepared', token]).getvalue(0, 0), 'without a name')
  end

  stack.scenario('settings') do
    pooler.new_sessions
    client = pooler.connect
    client.exec('SET lock_ext.notify = on')
    other = pooler.connect
    equal('on', value(other, 'SHOW lock_ext.notify'), 'a SET is for whoever gets the session next')
    other.exec('RESET lock_ext.notify')
    disconnected('unsupported startup parameter: options') { pooler.connect('app', options: '-c lock_ext.notify=on') }
    # An expired token writes, unless the transaction says otherwise.
    token = acquire_anew(admin, client, 'job')
    value(admin, "SELECT lease_extend('job', $1, '1 ms')", token)
    wait_for_expiry(admin, 'job')
    write = "INSERT INTO entry VALUES (50, 100, #{token})"
    refused('LX002') { client.exec("SET LOCAL lock_ext.strict_expiry = on; #{write}") }
    client.exec(write)
  end

  stack.scenario('notify') do
    admin.exec("ALTER DATABASE #{admin.db} SET lock_ext.notify = on")
    pooler.new_sessions
    admin.exec('LISTEN lock_ext')
    client = pooler.connect
    listener = pooler.connect
    listener.exec('LISTEN lock_ext') # is accepted
    token = acquire(client, 'told')
    told = nil
    until_true('the notification') { admin.wait_for_notify(1) { |_, _, payload| told = payload } }
    equal({ 'event' => 'grant', 'lease' => 'told', 'token' => token }, JSON.parse(told), 'to a session that is not pooled')
    equal(nil, listener.wait_for_notify(0.2), 'to a client of the pooler')
    admin.exec("UNLISTEN *; ALTER DATABASE #{admin.db} RESET lock_ext.notify")
    pooler.new_sessions
  end
end
