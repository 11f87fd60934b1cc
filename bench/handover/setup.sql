-- A table like lock_ext's own, for the bare UPDATEs.
CREATE EXTENSION lock_ext;
CREATE TABLE bare (
    token bigint NOT NULL, grants bigint NOT NULL, acquired_at timestamptz NOT NULL, renewed_at timestamptz NOT NULL,
    ttl interval NOT NULL, holder_role name NOT NULL, name text COLLATE "C" PRIMARY KEY, holder text COLLATE "C" NOT NULL,
    expires_at timestamptz, released_at timestamptz, completed_until timestamptz, request uuid
) WITH (fillfactor = 50);
INSERT INTO bare SELECT 1, 1, now(), now(), '1 h', 'postgres', 'handover', 'bench', now() + '1 h';
