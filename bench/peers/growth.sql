-- For what grows. The rows of leases and of the bare UPDATE are added by the program.
CREATE EXTENSION lock_ext;
CREATE TABLE bare (
    token bigint NOT NULL, grants bigint NOT NULL, acquired_at timestamptz NOT NULL, renewed_at timestamptz NOT NULL,
    ttl interval NOT NULL, holder_role name NOT NULL, name text COLLATE "C" PRIMARY KEY, holder text COLLATE "C" NOT NULL,
    expires_at timestamptz, released_at timestamptz, completed_until timestamptz, request uuid
) WITH (
    fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0
);
INSERT INTO bare
    SELECT 1, 1, now(), now(), '1 d', 'postgres', name, 'bench', now() + '1 d' FROM (VALUES ('handover'), ('held'), ('day')) AS names (name);
CREATE TABLE plain (id bigserial PRIMARY KEY, v int, token bigint);
CREATE TABLE fenced (LIKE plain INCLUDING ALL);
SELECT lease_acquire('held', 'bench', '1 d'), lease_acquire('day', 'bench', '1 d');
SELECT lease_release('free', lease_acquire('free', 'bench', '1 d'));
SELECT fence_attach('fenced', 'held');
