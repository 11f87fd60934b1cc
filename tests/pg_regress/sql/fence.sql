-- A fenced table from the attachment to the refusals.
CREATE TABLE paid (player int PRIMARY KEY, amount int NOT NULL);
SELECT fence_attach('paid', 'payer');
SELECT lease_acquire('payer', 'a', '1 min') AS token \gset
\set SHOW_CONTEXT never
INSERT INTO paid VALUES (1, 100);
\echo :SQLSTATE
BEGIN;
SELECT lease_fence('payer', :token);
INSERT INTO paid VALUES (1, 100);
UPDATE paid SET amount = 200;
COMMIT;
TABLE paid;
-- Superseded at the statement.
SELECT lease_force_release('payer');
BEGIN;
SELECT lease_fence('payer', :token);
ROLLBACK;
SELECT lease_acquire('payer', 'b', '1 min') > :token AS is_higher;
-- Ended by another session between the write and the commit.
SELECT token FROM lease_status WHERE name = 'payer' \gset
BEGIN;
SELECT lease_fence('payer', :token);
INSERT INTO paid VALUES (2, 100);
\! "$LOCK_EXT_PGBIN/psql" -qXAtd lock_ext_regress -c "SELECT lease_force_release('payer')"
COMMIT;
\echo :SQLSTATE
SELECT count(*) FROM paid;
BEGIN;
SELECT lease_fence('payer', :token);
ROLLBACK;
-- By column.
CREATE TABLE shipped (id int PRIMARY KEY, state text, token bigint NOT NULL);
SELECT fence_attach('shipped', 'shipper', token_column => 'token');
SELECT lease_acquire('shipper', 'a', '1 min') AS token \gset
INSERT INTO shipped VALUES (1, 'new', :token);
INSERT INTO shipped VALUES (2, 'new', NULL);
\echo :SQLSTATE
UPDATE shipped SET state = 'sent', token = :token - 1;
\echo :SQLSTATE
UPDATE shipped SET state = 'sent', token = :token;
SELECT fenced_update('shipped', :token, '{"id": 1}', '{"state": "back"}') AS rows;
SELECT id, state FROM shipped;
SELECT table_name, lease, token_column, carried_by, hole FROM fence_status ORDER BY table_name::text COLLATE "C", hole;
SELECT fence_detach('paid'), fence_detach('shipped');
DROP TABLE paid, shipped;
