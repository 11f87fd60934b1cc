# frozen_string_literal: true

# Every function of the README, in its order of use: what is sent, as one simple query, and its last answer.
FUNCTIONS = [
  ['lease_acquire', "SELECT lease_acquire('f', 'node-1', '60 s', request => '6f1b1f0a-0000-4000-8000-000000000001')", '1'],
  ['lease_acquire', "SELECT lease_acquire('f', 'node-1', '60 s', request => '6f1b1f0a-0000-4000-8000-000000000001')", '1'],
  ['lease_acquire', "SELECT lease_acquire('f', 'node-2', '60 s', wait => '50 ms')", nil],
  ['lease_acquire', "SELECT lease_acquire('g', 'node-1', '60 s', min_hold => '1 s', pause => '1 s')", '2'],
  ['lease_extend', "SELECT lease_extend('f', 1) > now()", 't'],
  ['lease_extend', "SELECT lease_extend('f', 1, '90 s') > now() + '80 s'", 't'],
  ['lease_extend_many', "SELECT count(expires_at) FROM lease_extend_many('{f, g}', '{1, 2}')", '2'],
  ['lease_extend_many', "SELECT count(expires_at) FROM lease_extend_many('{f, g}', '{1, 2}', '90 s')", '2'],
  ['lease_is_current', "SELECT lease_is_current('f', 1)", 't'],
  ['lease_elect', "SELECT lease_elect('leader', 'node-1', '60 s')", '3'],
  ['lease_elect', "SELECT lease_elect('leader', 'node-1', '60 s', 3)", '3'],
  ['lease_release', "SELECT lease_release('leader', 3)", 't'],
  ['lease_acquire_session', "SELECT lease_acquire_session('s', 'node-1')", '4'],
  ['lease_checkpoint', "SELECT lease_checkpoint('f', 1, '{\"after\": 1}')", ''],
  ['lease_checkpoint', "SELECT lease_checkpoint('f')", '{"after": 1}'],
  ['fence_attach', "CREATE TABLE t (id int, token bigint); SELECT fence_attach('t', 'f')", ''],
  ['lease_fence', "BEGIN; SELECT lease_fence('f', 1); INSERT INTO t VALUES (1); COMMIT; SELECT count(*) FROM t", '1'],
  ['lease_fence', "SELECT lease_fence('f', 1, hold => true); INSERT INTO t VALUES (2) RETURNING id", '2'],
  ['fenced_update', "SELECT fenced_update('t', 1, '{\"id\": 2}', '{\"id\": 3}')", '1'],
  ['fenced_update', "SELECT fenced_update('t', 1, '{\"id\": 3}', '{\"id\": 4}', 'f')", '1'],
  ['fence_check', "CREATE TABLE u (id int, token bigint); CREATE TRIGGER zz BEFORE INSERT ON u FOR EACH ROW EXECUTE FUNCTION " \
                  "fence_check('f', 'token'); INSERT INTO u VALUES (1, 1) RETURNING id", '1'],
  ['fence_detach', "SELECT fence_detach('t'); DELETE FROM t; SELECT count(*) FROM t", '0'],
  ['lease_evict', "SELECT count(*) FROM lease_evict('f', 1)", '0'],
  ['lease_evict', "SELECT count(*) FROM lease_evict('f')", '0'],
  ['once', "SELECT once('key')", 't'],
  ['once', "SELECT once('key')", 'f'],
  ['once_forget', "SELECT once_forget('1 day')", '0'],
  ['fence_observe', "SELECT fence_observe('etcd', 7)", ''],
  ['fence_forget', "SELECT fence_forget('etcd')", 't'],
  ['lease_complete', "SELECT lease_complete('f', 1, until => 'tomorrow')", 't'],
  ['lease_force_release', "SELECT lease_force_release('f')", 't'],
  ['lease_prune', "SELECT lease_prune('1 day')", '0'],
  ['lease_raise_token_floor', 'SELECT lease_raise_token_floor(10)', '10'],
  ['lease_status', "SELECT count(*) FROM lease_status WHERE name = 'f'", '1'],
  ['lease_waiter', 'SELECT count(*) FROM lease_waiter', '0'],
  ['lease_writer', 'SELECT count(*) FROM lease_writer', '0'],
  ['fence_status', "SELECT count(*) FROM fence_status WHERE table_name = 'u'::regclass AND hole IS NULL", '1']
].freeze

# Each call comes from a session that has seen none of the others.
def call_all_functions(pooler, admin)
  all = admin.exec("SELECT DISTINCT proname FROM pg_depend JOIN pg_proc p ON p.oid = objid
                    WHERE classid = 'pg_proc'::regclass AND deptype = 'e' AND pronamespace = 'public'::regnamespace
                      AND refclassid = 'pg_extension'::regclass
                      AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lock_ext')").column_values(0)
  equal([], all - FUNCTIONS.map(&:first), 'functions that are not called here')
  FUNCTIONS.each do |name, statements, answer|
    pooler.new_sessions
    client = pooler.connect
    equal(answer, client.exec(statements).getvalue(0, 0), "#{name} by #{statements}")
    client.close
  end
end
