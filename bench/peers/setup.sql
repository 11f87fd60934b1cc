-- What the calls work on, in each system of PostgreSQL's: rows that are held, 1,000 for each of 32 clients, rows to acquire, one
-- that somebody else holds, tables to write to.
CREATE EXTENSION lock_ext;

-- The floor: a table like lock_ext's own, for the bare UPDATE.
CREATE TABLE bare (
    token bigint NOT NULL, grants bigint NOT NULL, acquired_at timestamptz NOT NULL, renewed_at timestamptz NOT NULL,
    ttl interval NOT NULL, holder_role name NOT NULL, name text COLLATE "C" PRIMARY KEY, holder text COLLATE "C" NOT NULL,
    expires_at timestamptz, released_at timestamptz, completed_until timestamptz, request uuid
) WITH (fillfactor = 50);

-- A lease as it is written by hand.
CREATE TABLE hand (name text PRIMARY KEY, holder text NOT NULL, token bigint NOT NULL, expires_at timestamptz NOT NULL)
    WITH (fillfactor = 50);
CREATE FUNCTION hand_acquire(wanted text, who text, ttl interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE granted bigint;
BEGIN
    INSERT INTO hand AS h VALUES (wanted, who, 1, now() + ttl)
        ON CONFLICT (name) DO UPDATE SET holder = who, token = h.token + 1, expires_at = now() + ttl WHERE h.expires_at <= now()
        RETURNING token INTO granted;
    RETURN granted;
END $$;
CREATE FUNCTION hand_extend(wanted text, mine bigint, ttl interval) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE until timestamptz;
BEGIN
    UPDATE hand SET expires_at = now() + ttl WHERE name = wanted AND token = mine AND expires_at > now() RETURNING expires_at INTO until;
    RETURN until;
END $$;
CREATE FUNCTION hand_release(wanted text, mine bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE hand SET expires_at = now() WHERE name = wanted AND token = mine AND expires_at > now();
    RETURN FOUND;
END $$;
CREATE FUNCTION nothing(name text, holder text, ttl interval) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';

-- ShedLock's table, as its documentation gives it for PostgreSQL.
CREATE TABLE shedlock (
    name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name)
);

CREATE TEMPORARY TABLE held AS
    SELECT 'beat-' || client || '-' || i AS name, client, i FROM generate_series(0, 31) AS client, generate_series(1, 1000) AS i
    UNION ALL SELECT 'held', NULL, NULL;
CREATE TEMPORARY TABLE free AS
    SELECT 'job-' || client || '-' || i AS name FROM generate_series(0, 63) AS client, generate_series(0, 15) AS i;
INSERT INTO bare
    SELECT 1, 1, now(), now(), '1 d', 'postgres', name, 'bench', now() + '1 d' FROM (SELECT name FROM held UNION ALL TABLE free) AS names;
INSERT INTO hand SELECT name, 'bench', 1, now() + '1 d' FROM held UNION ALL SELECT name, 'bench', 1, now() FROM free;
INSERT INTO shedlock
    SELECT name, timezone('utc', now()) + '1 d', timezone('utc', now()), 'bench' FROM held
    UNION ALL SELECT name, timezone('utc', now()), timezone('utc', now()), 'bench' FROM free;
SELECT count(lease_acquire(name, 'bench', '1 d')) FROM held;
SELECT count(lease_release(name, lease_acquire(name, 'bench', '1 d'))) FROM free;
CREATE TABLE tenure AS
    SELECT client, string_agg(name, ',' ORDER BY i) AS names, string_agg(token::text, ',' ORDER BY i) AS tokens
      FROM held JOIN lock_ext.lease USING (name) WHERE client IS NOT NULL GROUP BY client;

-- Fenced in each way, and as it is written by hand: a trigger for each row, without a lock and with one.
CREATE TABLE plain (id bigserial PRIMARY KEY, v int, token bigint);
CREATE TABLE fenced (LIKE plain INCLUDING ALL);
CREATE TABLE stamped (LIKE plain INCLUDING ALL);
CREATE TABLE by_hand (LIKE plain INCLUDING ALL);
CREATE TABLE by_hand_locked (LIKE plain INCLUDING ALL);
SELECT fence_attach('fenced', 'held'), fence_attach('stamped', 'held', 'token');
CREATE FUNCTION hand_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.token IS DISTINCT FROM (SELECT token FROM hand WHERE name = 'held') THEN
        RAISE EXCEPTION 'stale token';
    END IF;
    RETURN NEW;
END $$;
CREATE FUNCTION hand_check_locked() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE latest bigint;
BEGIN
    SELECT token INTO latest FROM hand WHERE name = 'held' FOR SHARE;
    IF NEW.token IS DISTINCT FROM latest THEN
        RAISE EXCEPTION 'stale token';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER hand_check BEFORE INSERT ON by_hand FOR EACH ROW EXECUTE FUNCTION hand_check();
CREATE TRIGGER hand_check BEFORE INSERT ON by_hand_locked FOR EACH ROW EXECUTE FUNCTION hand_check_locked();
-- The token of `held` is not 1, as it is in the tables above.
UPDATE hand SET token = (SELECT token FROM lock_ext.lease WHERE name = 'held') WHERE name = 'held';

-- For the hand-over, where the row of the bare UPDATEs has this name.
INSERT INTO bare SELECT 1, 1, now(), now(), '1 h', 'postgres', 'handover', 'bench', now() + '1 h';
-- No checkpoint: the first change of a page after one is dearer than the next.
VACUUM ANALYZE;
