-- A lease from its grant to its end.
SELECT lease_acquire('job', 'a', '1 min') AS token;
SELECT lease_acquire('job', 'b', '1 min') AS refused;
SELECT name, holder, token, state, ttl, grants FROM lease_status;
SELECT lease_extend('job', 1) > now() AS extended, lease_extend('job', 1, '2 min') > now() + interval '1 min' AS longer, lease_extend('job', 99) AS lost;
SELECT name, token, expires_at > now() AS extended FROM lease_extend_many(ARRAY['job', 'job', 'other'], ARRAY[1, 99, 1]);
SELECT lease_is_current('job', 1) AS one, lease_is_current('job', 2) AS two;
SELECT lease_checkpoint('job', 1, '{"done": 10}');
SELECT lease_release('job', 99) AS not_his, lease_release('job', 1) AS released, lease_release('job', 1) AS again;
SELECT lease_acquire('job', 'b', '1 min', request => '00000000-0000-0000-0000-000000000001') AS token;
SELECT lease_acquire('job', 'b', '1 min', request => '00000000-0000-0000-0000-000000000001') AS the_same;
SELECT lease_complete('job', 2, now() + interval '1 day') AS completed;
SELECT lease_acquire('job', 'c', '1 min') AS done_for_today;
SELECT state FROM lease_status;
SELECT once('key') AS first, once('key') AS second;
-- A grant that rolls back leaves nothing.
BEGIN;
SELECT lease_acquire('other', 'a', '1 min') IS NOT NULL AS granted;
ROLLBACK;
SELECT name FROM lease_status ORDER BY name COLLATE "C";
-- Bound to the session.
SELECT lease_acquire_session('mine', 'a') IS NOT NULL AS granted;
SELECT name, state, expires_at FROM lease_status WHERE name = 'mine';
SELECT lease_release('mine', token) AS released FROM lease_status WHERE name = 'mine';
-- What has no meaning is an error, never a silent NULL.
\set SHOW_CONTEXT never
SELECT lease_acquire(NULL, 'a', '1 min');
\echo :SQLSTATE
SELECT lease_acquire('', 'a', '1 min');
\echo :SQLSTATE
SELECT lease_acquire(repeat('x', 1025), 'a', '1 min');
\echo :SQLSTATE
SELECT lease_acquire('job', 'a', '0');
\echo :SQLSTATE
SELECT lease_acquire('job', 'a', '1 month');
\echo :SQLSTATE
SELECT lease_acquire('job', 'a', '8 days');
\echo :SQLSTATE
SELECT lease_extend('job', NULL);
\echo :SQLSTATE
SELECT lease_release(NULL, 1);
\echo :SQLSTATE
BEGIN READ ONLY;
SELECT lease_acquire('job', 'a', '1 min');
\echo :SQLSTATE
ROLLBACK;
