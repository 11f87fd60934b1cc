-- All of it in one transaction: no lease. Each statement has a bound, on the server, where timeout(1) does not reach.
SET statement_timeout = '9min';
-- A node that is frozen in the middle keeps the others waiting for this long.
SET idle_in_transaction_session_timeout = '1min';
-- A statement whose psql is gone is ended.
SET client_connection_check_interval = '10s';

-- The day is the database's, in a zone with a name. psql -v day=2026-11-29 makes up for another one.
\if :{?day}
\else
SELECT (now() AT TIME ZONE 'Europe/Berlin')::date AS day \gset
\endif

BEGIN;
SELECT once('nightly-report:' || :'day') AS mine \gset
\if :mine
INSERT INTO report SELECT :'day', count(*) FROM player;
COMMIT;
\echo nightly-report: :day is done
\else
ROLLBACK;
\echo nightly-report: :day was done already
\endif
