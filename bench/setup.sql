-- What the benchmark's scripts work on: a lease for heartbeats, names to acquire, a table like lock_ext's own for the bare UPDATE.
CREATE EXTENSION lock_ext;
CREATE TABLE bare (
    token bigint NOT NULL, grants bigint NOT NULL, acquired_at timestamptz NOT NULL, renewed_at timestamptz NOT NULL,
    ttl interval NOT NULL, holder_role name NOT NULL, name text COLLATE "C" PRIMARY KEY, holder text COLLATE "C" NOT NULL,
    expires_at timestamptz, released_at timestamptz, completed_until timestamptz, request uuid
) WITH (fillfactor = 50);
INSERT INTO bare
    SELECT 1, 1, now(), now(), '1 h', 'postgres', 'heartbeat-' || i, 'bench', now() + '1 h' FROM generate_series(1, 100) AS i;
SELECT count(lease_acquire('heartbeat-' || i, 'bench', '1 h')) FROM generate_series(1, 100) AS i;
SELECT count(lease_acquire('many-' || c || '-' || i, 'bench', '1 h')) FROM generate_series(0, 7) AS c, generate_series(1, 1000) AS i;
SELECT count(lease_release(name, lease_acquire(name, 'bench', '1 h')))
    FROM (SELECT 'acquire-' || n AS name FROM generate_series(0, 15999) AS n) AS names;
CREATE TABLE tenure AS
    SELECT split_part(name, '-', 2)::int AS client, array_agg(name ORDER BY name) AS names, array_agg(token ORDER BY name) AS tokens
      FROM lease_status WHERE name LIKE 'many-%' GROUP BY 1;
CREATE TABLE plain (id bigserial PRIMARY KEY, v int);
CREATE TABLE fenced (id bigserial PRIMARY KEY, v int);
SELECT fence_attach('fenced', 'heartbeat-1');
CREATE TABLE stamped_plain (id bigserial PRIMARY KEY, v int, token bigint);
CREATE TABLE stamped (id bigserial PRIMARY KEY, v int, token bigint);
SELECT fence_attach('stamped', 'heartbeat-1', 'token');
-- For statements of 100,000 rows, a table each, since all grow alike.
CREATE TABLE bulk_plain (id bigserial PRIMARY KEY, v int, token bigint);
INSERT INTO bulk_plain (v, token) SELECT v, 1 FROM generate_series(1, 100000) AS v;
CREATE TABLE bulk_fenced (LIKE bulk_plain INCLUDING ALL);
CREATE TABLE bulk_column (LIKE bulk_plain INCLUDING ALL);
CREATE TABLE bulk_trigger (LIKE bulk_plain INCLUDING ALL);
INSERT INTO bulk_fenced TABLE bulk_plain;
INSERT INTO bulk_column TABLE bulk_plain;
INSERT INTO bulk_trigger TABLE bulk_plain;
SELECT fence_attach('bulk_fenced', 'heartbeat-1'), fence_attach('bulk_column', 'heartbeat-1', 'token');
-- What PostgreSQL itself takes for a trigger that does next to nothing.
CREATE TRIGGER nothing BEFORE UPDATE ON bulk_trigger FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
VACUUM ANALYZE;
CHECKPOINT;
