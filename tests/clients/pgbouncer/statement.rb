# frozen_string_literal: true

# PgBouncer in statement mode: a client has a session for one query message, and no transaction blocks over several of them.
require_relative 'pooled'

stack = Stack.new('pgbouncer-statement', Pooler::VERSION)
admin = fresh_database('client_pgbouncer_statement')
pooler = Pooler.new('statement', admin.db)

common_scenarios(stack, pooler, admin)
pooled_scenarios(stack, pooler, admin)

stack.scenario('transaction_blocks') do
  disconnected('transaction blocks not allowed in statement pooling mode') { pooler.connect.exec('BEGIN') }
end

# Several statements in one simple query message are one transaction, with and without BEGIN and COMMIT around them. It has no parameters.
stack.scenario('fenced_transaction') do
  client = pooler.connect
  token = acquire_anew(admin, client, 'job')
  client.exec("SELECT lease_fence('job', #{token}); INSERT INTO entry VALUES (10, 100); INSERT INTO entry VALUES (11, 100)")
  client.exec("BEGIN; SELECT lease_fence('job', #{token}); INSERT INTO entry VALUES (12, 100); COMMIT")
  equal(3, rows(admin, "id BETWEEN 10 AND 19 AND token = #{token}"))
  # lease_fence alone is a transaction of its own, and PostgreSQL warns.
  client.exec("SELECT lease_fence('job', #{token})")
  check(pooler.last_notice.include?('lease_fence() has no effect outside of a transaction block'), pooler.last_notice)
  refused('LX003') { client.exec('INSERT INTO entry VALUES (13, 100)') }
end

# With parameters: a pipeline that ends with one Sync.
stack.scenario('fenced_pipeline') do
  client = pooler.connect
  token = acquire_anew(admin, client, 'job')
  pipeline = lambda do |id, given|
    client.enter_pipeline_mode
    client.send_query_params('SELECT lease_fence($1, $2)', ['job', given])
    client.send_query_params('INSERT INTO entry VALUES ($1, 100)', [id])
    client.pipeline_sync
    results = []
    until (result = client.get_result)&.result_status == PG::PGRES_PIPELINE_SYNC
      results << result if result
    end
    client.exit_pipeline_mode
    results.map { |one| one.error_field(PG::Result::PG_DIAG_SQLSTATE) }.compact
  end
  equal([], pipeline.call(14, token))
  take_over(admin, 'job')
  equal(['LX001'], pipeline.call(15, token))
  equal([1, 0], [rows(admin, "id = 14 AND token = #{token}"), rows(admin, 'id = 15')])
end

stack.scenario('refused_write') do
  client = pooler.connect
  stale = acquire_anew(admin, client, 'job')
  take_over(admin, 'job')
  fence = "SELECT lease_fence('job', #{stale}); INSERT INTO entry VALUES (20, 100)"
  refused('LX001') { client.exec(fence) }
  equal('1', value(client, 'SELECT 1'), 'the connection is usable')
  # With BEGIN the failed transaction is left open, which PgBouncer does not allow: the connection is closed, the SQLSTATE is gone, and at times
  # the text as well.
  disconnected('transaction blocks not allowed') { client.exec("BEGIN; #{fence}; COMMIT") }
  equal(0, rows(admin, 'id = 20'))
end

stack.scenario('refused_commit') do
  [
    ['', ''],
    ['BEGIN;', '; COMMIT']
  ].each do |before, after|
    client = pooler.connect
    token = acquire_anew(admin, client, 'job')
    # The query waits between its write and its commit, until the lease is another's.
    admin.exec('SELECT pg_advisory_lock(1)')
    client.send_query("#{before} SELECT lease_fence('job', #{token}); INSERT INTO entry VALUES (21, 100);
                       SELECT pg_advisory_xact_lock(1) #{after}")
    until_true('the write') { value(admin, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == '1' }
    take_over(admin, 'job')
    admin.exec('SELECT pg_advisory_unlock(1)')
    refused('LX001') { client.get_last_result }
    equal([0, '1'], [rows(admin, 'id = 21'), value(client, 'SELECT 1')])
  end
end

stack.scenario('checkpoint') do
  client = pooler.connect
  token = acquire_anew(admin, client, 'job')
  work = lambda do |id|
    "SELECT lease_fence('job', #{token}); INSERT INTO entry VALUES (#{id}, 100);
     SELECT lease_checkpoint('job', #{token}, '{\"after\": #{id}}')"
  end
  client.exec(work.call(40))
  refused('22012') { client.exec("#{work.call(41)}; SELECT 1 / 0") }
  equal(['{"after": 40}', 0], [value(client, "SELECT lease_checkpoint('job')"), rows(admin, 'id = 41')])
end

stack.scenario('lost_connection') do
  client = pooler.connect
  token = acquire_anew(admin, client, 'job')
  admin.exec('SELECT pg_advisory_lock(1)')
  client.send_query("SELECT lease_fence('job', #{token}); INSERT INTO entry VALUES (30, 100); SELECT pg_advisory_xact_lock(1)")
  until_true('the write') { value(admin, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == '1' }
  value(admin, "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
  admin.exec('SELECT pg_advisory_unlock(1)')
  disconnected('terminating connection due to administrator command') { client.get_last_result }
  equal(0, rows(admin, 'id = 30'))
  client = pooler.connect
  client.exec("SELECT lease_fence('job', #{token}); INSERT INTO entry VALUES (30, 100)")
  equal(1, rows(admin, "id = 30 AND token = #{token}"), 'with the same lease')
end

stack.finish
