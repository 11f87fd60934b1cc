-- The private schema. Nobody but the owner has rights on its tables: the functions read and write them directly.
CREATE SCHEMA lock_ext;

-- One row a name. Columns of fixed width that are never null come first. Nothing but the name is indexed: with an index
-- on a time every heartbeat would write it, and no update could be a heap-only one.
CREATE TABLE lock_ext.lease (
    token           bigserial   NOT NULL,
    grants          bigint      NOT NULL,
    acquired_at     timestamptz NOT NULL,
    renewed_at      timestamptz NOT NULL,
    ttl             interval    NOT NULL,
    holder_role     name        NOT NULL,
    name            text COLLATE pg_catalog."C" NOT NULL,
    holder          text COLLATE pg_catalog."C" NOT NULL,
    expires_at      timestamptz,
    released_at     timestamptz,
    completed_until timestamptz,
    request         uuid,
    not_before      timestamptz,
    pause           interval,
    session_pid     integer,
    CONSTRAINT lease_pkey PRIMARY KEY (name)
) USING heap WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 5000
);
-- A row is at most a third of a page: never compressed, never out of line.
ALTER TABLE lock_ext.lease ALTER COLUMN name SET STORAGE PLAIN;
ALTER TABLE lock_ext.lease ALTER COLUMN holder SET STORAGE PLAIN;
-- JSON readers keep whole numbers up to 2^53 - 1.
ALTER SEQUENCE lock_ext.lease_token_seq MAXVALUE 9007199254740991;
-- Gives the numbers, and that one counts along, so that it is seen when somebody has set it back; see src/token.rs.
CREATE SEQUENCE lock_ext.token_guard;
-- Not a count: it keeps where the last token was drawn, which no rollback may take back.
CREATE SEQUENCE lock_ext.token_origin;

-- A row for each token that saved one, so that a new holder never waits for its predecessor's.
CREATE TABLE lock_ext.lease_checkpoint (
    token      bigint      NOT NULL,
    saved_at   timestamptz NOT NULL,
    name       text COLLATE pg_catalog."C" NOT NULL,
    saver_role name        NOT NULL,
    state      jsonb       NOT NULL,
    CONSTRAINT lease_checkpoint_pkey PRIMARY KEY (name, token)
) USING heap WITH (fillfactor = 70);

CREATE TABLE lock_ext.once_key (
    done_at timestamptz NOT NULL,
    key     text COLLATE pg_catalog."C" NOT NULL,
    CONSTRAINT once_key_pkey PRIMARY KEY (key)
) USING heap;

CREATE TABLE lock_ext.observed_token (
    token       bigint      NOT NULL,
    observed_at timestamptz NOT NULL,
    resource    text COLLATE pg_catalog."C" NOT NULL,
    CONSTRAINT observed_token_pkey PRIMARY KEY (resource)
) USING heap WITH (fillfactor = 70);
ALTER TABLE lock_ext.observed_token ALTER COLUMN resource SET STORAGE PLAIN;

-- All of it is dumped, sequences on their own: else a restored database would give out its numbers again. But not the guard, which a restore into
-- the same database must not set back.
SELECT pg_catalog.pg_extension_config_dump('lock_ext.lease', '');
SELECT pg_catalog.pg_extension_config_dump('lock_ext.lease_token_seq', '');
SELECT pg_catalog.pg_extension_config_dump('lock_ext.token_origin', '');
SELECT pg_catalog.pg_extension_config_dump('lock_ext.lease_checkpoint', '');
SELECT pg_catalog.pg_extension_config_dump('lock_ext.once_key', '');
SELECT pg_catalog.pg_extension_config_dump('lock_ext.observed_token', '');
