-- The install script of 0.1.0 as it was generated, without the notes of the generator. Never edited.

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

-- All of it is dumped. The sequence on its own: else a restored database would give out its numbers again.
SELECT pg_catalog.pg_extension_config_dump('lock_ext.lease', '');
SELECT pg_catalog.pg_extension_config_dump('lock_ext.lease_token_seq', '');
SELECT pg_catalog.pg_extension_config_dump('lock_ext.lease_checkpoint', '');
SELECT pg_catalog.pg_extension_config_dump('lock_ext.once_key', '');
SELECT pg_catalog.pg_extension_config_dump('lock_ext.observed_token', '');

-- The functions that act with the rights of their caller. Their bodies name every object with its schema and use no operator of
-- the search_path, which is not set here: the caller's own triggers must see it as it is.

CREATE FUNCTION fence_check() RETURNS trigger
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'fence_check_wrapper';

CREATE FUNCTION fence_attach(target regclass, lease text DEFAULT NULL, token_column text DEFAULT NULL, lease_column text DEFAULT NULL)
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    AS $$
DECLARE
    fence_check CONSTANT pg_catalog.oid := '@extschema@.fence_check()'::pg_catalog.regprocedure;
    raise_floor CONSTANT pg_catalog.oid := '@extschema@.lease_raise_token_floor(bigint)'::pg_catalog.regprocedure;
    statements pg_catalog.text[] :=
        lock_ext.attach_statements(fence_check, '@extschema@', target, lease, token_column, lease_column);
    statement pg_catalog.text;
    highest bigint;
BEGIN
    IF token_column IS NOT NULL THEN
        EXECUTE pg_catalog.format('SELECT pg_catalog.max(%I) FROM %s', token_column, target) INTO highest;
        IF lock_ext.tokens_are_ahead(target, highest, pg_catalog.has_function_privilege(raise_floor, 'EXECUTE')) THEN
            PERFORM @extschema@.lease_raise_token_floor(highest);
        END IF;
    END IF;
    FOREACH statement IN ARRAY statements LOOP
        EXECUTE statement;
    END LOOP;
END
$$;

CREATE FUNCTION fence_detach(target regclass) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    AS $$
DECLARE
    fence_check CONSTANT pg_catalog.oid := '@extschema@.fence_check()'::pg_catalog.regprocedure;
    statement pg_catalog.text;
BEGIN
    FOREACH statement IN ARRAY lock_ext.detach_statements(fence_check, target) LOOP
        EXECUTE statement;
    END LOOP;
END
$$;

CREATE FUNCTION fenced_update(target regclass, token bigint, filter jsonb, changes jsonb, lease text, all_rows boolean DEFAULT false)
    RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    AS $$
DECLARE
    filter_type CONSTANT pg_catalog.text := pg_catalog.jsonb_typeof(filter);
    changes_type CONSTANT pg_catalog.text := pg_catalog.jsonb_typeof(changes);
    filtered CONSTANT pg_catalog.text[] :=
        CASE WHEN filter_type OPERATOR(pg_catalog.=) 'object'
        THEN ARRAY(SELECT pg_catalog.jsonb_object_keys(filter)) END;
    compared CONSTANT pg_catalog.text[] :=
        CASE WHEN filter_type OPERATOR(pg_catalog.=) 'object'
        THEN ARRAY(SELECT pg_catalog.jsonb_object_keys(pg_catalog.jsonb_strip_nulls(filter))) END;
    changed CONSTANT pg_catalog.text[] :=
        CASE WHEN changes_type OPERATOR(pg_catalog.=) 'object'
        THEN ARRAY(SELECT pg_catalog.jsonb_object_keys(changes)) END;
    statement CONSTANT pg_catalog.text :=
        lock_ext.update_statement(target, filter_type, filtered, compared, changes_type, changed, all_rows);
    carried CONSTANT bigint := lock_ext.carry(lease, token);
    updated bigint;
BEGIN
    EXECUTE statement USING filter, changes;
    GET DIAGNOSTICS updated = ROW_COUNT;
    IF updated OPERATOR(pg_catalog.=) 0 THEN
        -- Nothing was found, so nothing was converted: a value that its column refuses is an error all the same.
        EXECUTE lock_ext.conversion_statement(target, filtered, changed) USING filter, changes;
    END IF;
    PERFORM lock_ext.carry_again(lease, carried);
    RETURN updated;
END
$$;

CREATE FUNCTION fenced_update(target regclass, token bigint, filter jsonb, changes jsonb, all_rows boolean DEFAULT false)
    RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    AS $$
DECLARE
    fence_check CONSTANT pg_catalog.oid := '@extschema@.fence_check()'::pg_catalog.regprocedure;
BEGIN
    RETURN @extschema@.fenced_update(target, token, filter, changes, lock_ext.attached_lease(fence_check, target), all_rows);
END
$$;

CREATE  FUNCTION "fence_forget"(
	"resource" text /* Option < Text > */
) RETURNS bool /* bool */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'fence_forget_wrapper';

CREATE  FUNCTION "fence_observe"(
	"resource" text, /* Option < Text > */
	"token" bigint /* Option < i64 > */
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'fence_observe_wrapper';

CREATE  FUNCTION "lease_acquire"(
	"name" text, /* Option < Text > */
	"holder" text, /* Option < Text > */
	"ttl" interval, /* Option < Interval > */
	"wait" interval DEFAULT '0', /* Option < Interval > */
	"request" uuid DEFAULT NULL, /* Option < pgrx :: Uuid > */
	"min_hold" interval DEFAULT '0', /* Option < Interval > */
	"pause" interval DEFAULT '0' /* Option < Interval > */
) RETURNS bigint /* Option < i64 > */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_acquire_wrapper';

CREATE  FUNCTION "lease_acquire_session"(
	"name" text, /* Option < Text > */
	"holder" text, /* Option < Text > */
	"wait" interval DEFAULT '0' /* Option < Interval > */
) RETURNS bigint /* Option < i64 > */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_acquire_session_wrapper';

CREATE  FUNCTION "lease_checkpoint"(
	"name" text, /* Option < Text > */
	"token" bigint, /* Option < i64 > */
	"state" jsonb /* Option < Jsonb > */
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_checkpoint_wrapper';

CREATE  FUNCTION "lease_checkpoint"(
	"name" text /* Option < Text > */
) RETURNS jsonb /* Option < Jsonb > */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_checkpoint_read_wrapper';

CREATE  FUNCTION "lease_complete"(
	"name" text, /* Option < Text > */
	"token" bigint, /* Option < i64 > */
	"until" timestamp with time zone DEFAULT 'infinity' /* Option < TimestampWithTimeZone > */
) RETURNS bool /* bool */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_complete_wrapper';

CREATE  FUNCTION "lease_elect"(
	"name" text, /* Option < Text > */
	"holder" text, /* Option < Text > */
	"ttl" interval, /* Option < Interval > */
	"token" bigint DEFAULT NULL, /* Option < i64 > */
	"min_hold" interval DEFAULT '0', /* Option < Interval > */
	"pause" interval DEFAULT '0' /* Option < Interval > */
) RETURNS bigint /* Option < i64 > */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_elect_wrapper';

CREATE  FUNCTION "lease_evict"(
	"name" text, /* Option < Text > */
	"token" bigint /* Option < i64 > */
) RETURNS SETOF INT /* i32 */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_evict_wrapper';

CREATE  FUNCTION "lease_evict"(
	"name" text /* Option < Text > */
) RETURNS SETOF INT /* i32 */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_evict_any_wrapper';

CREATE  FUNCTION "lease_extend"(
	"name" text, /* Option < Text > */
	"token" bigint /* Option < i64 > */
) RETURNS timestamp with time zone /* Option < TimestampWithTimeZone > */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_extend_wrapper';

CREATE  FUNCTION "lease_extend"(
	"name" text, /* Option < Text > */
	"token" bigint, /* Option < i64 > */
	"ttl" interval /* Option < Interval > */
) RETURNS timestamp with time zone /* Option < TimestampWithTimeZone > */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_extend_for_wrapper';

CREATE  FUNCTION "lease_extend_many"(
	"names" text[], /* :: std :: option :: Option < Vec < Option < Text > > > */
	"tokens" bigint[] /* :: std :: option :: Option < Vec < Option < i64 > > > */
) RETURNS TABLE (
	"name" text,  /* Option < Text > */
	"token" bigint,  /* Option < i64 > */
	"expires_at" timestamp with time zone  /* Option < TimestampWithTimeZone > */
)
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_extend_many_wrapper';

CREATE  FUNCTION "lease_extend_many"(
	"names" text[], /* :: std :: option :: Option < Vec < Option < Text > > > */
	"tokens" bigint[], /* :: std :: option :: Option < Vec < Option < i64 > > > */
	"ttl" interval /* Option < Interval > */
) RETURNS TABLE (
	"name" text,  /* Option < Text > */
	"token" bigint,  /* Option < i64 > */
	"expires_at" timestamp with time zone  /* Option < TimestampWithTimeZone > */
)
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_extend_many_for_wrapper';

CREATE  FUNCTION "lease_fence"(
	"name" text, /* Option < Text > */
	"token" bigint, /* Option < i64 > */
	"hold" bool DEFAULT false /* Option < bool > */
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_fence_wrapper';

CREATE  FUNCTION "lease_force_release"(
	"name" text /* Option < Text > */
) RETURNS bool /* bool */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_force_release_wrapper';

CREATE  FUNCTION "lease_is_current"(
	"name" text, /* Option < Text > */
	"token" bigint /* Option < i64 > */
) RETURNS bool /* bool */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_is_current_wrapper';

CREATE  FUNCTION "lease_prune"(
	"idle" interval /* Option < Interval > */
) RETURNS bigint /* i64 */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_prune_wrapper';

CREATE  FUNCTION "lease_raise_token_floor"(
	"floor" bigint /* Option < i64 > */
) RETURNS bigint /* i64 */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_raise_token_floor_wrapper';

CREATE  FUNCTION "lease_release"(
	"name" text, /* Option < Text > */
	"token" bigint /* Option < i64 > */
) RETURNS bool /* bool */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'lease_release_wrapper';

CREATE  FUNCTION "once"(
	"key" text /* Option < Text > */
) RETURNS bool /* bool */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'once_wrapper';

CREATE  FUNCTION "once_forget"(
	"older_than" interval /* Option < Interval > */
) RETURNS bigint /* i64 */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'once_forget_wrapper';

CREATE SCHEMA IF NOT EXISTS lock_ext; /* lock_ext::private::lock_ext */

CREATE  FUNCTION lock_ext."writers"() RETURNS TABLE (
	"name" text,  /* Text */
	"pid" INT,  /* Option < i32 > */
	"token" bigint,  /* i64 */
	"superseded" bool  /* bool */
)
STRICT VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'writers_wrapper';

CREATE  FUNCTION lock_ext."attach_statements"(
	"function" oid, /* Option < pg_sys :: Oid > */
	"schema" text, /* Option < Text > */
	"table" oid, /* Option < pg_sys :: Oid > */
	"lease" text, /* Option < Text > */
	"token_column" text, /* Option < Text > */
	"lease_column" text /* Option < Text > */
) RETURNS text[] /* Vec < Text > */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'attach_statements_wrapper';

CREATE  FUNCTION lock_ext."carry"(
	"lease" text, /* Option < Text > */
	"token" bigint /* Option < i64 > */
) RETURNS bigint /* Option < i64 > */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'carry_wrapper';

CREATE  FUNCTION lock_ext."tokens_are_ahead"(
	"table" oid, /* Option < pg_sys :: Oid > */
	"highest" bigint, /* Option < i64 > */
	"may_raise" bool /* Option < bool > */
) RETURNS bool /* bool */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'tokens_are_ahead_wrapper';

CREATE  FUNCTION lock_ext."status"() RETURNS TABLE (
	"name" text,  /* Text */
	"state" TEXT,  /* & '_ str */
	"holder" text,  /* Option < Text > */
	"holder_role" text,  /* Option < Text > */
	"token" bigint,  /* i64 */
	"acquired_at" timestamp with time zone,  /* TimestampWithTimeZone */
	"expires_at" timestamp with time zone,  /* Option < TimestampWithTimeZone > */
	"remaining" interval,  /* Option < Interval > */
	"ttl" interval,  /* Option < Interval > */
	"session_pid" INT,  /* Option < i32 > */
	"completed_until" timestamp with time zone,  /* Option < TimestampWithTimeZone > */
	"grants" bigint,  /* i64 */
	"waiters" bigint,  /* i64 */
	"writers" bigint  /* i64 */
)
STRICT VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'status_wrapper';

CREATE  FUNCTION lock_ext."detach_statements"(
	"function" oid, /* Option < pg_sys :: Oid > */
	"table" oid /* Option < pg_sys :: Oid > */
) RETURNS text[] /* Vec < Text > */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'detach_statements_wrapper';

CREATE  FUNCTION lock_ext."carry_again"(
	"lease" text, /* Option < Text > */
	"token" bigint /* Option < i64 > */
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'carry_again_wrapper';

CREATE  FUNCTION lock_ext."trigger_arguments"(
	"tgargs" bytea /* :: std :: option :: Option < Vec < u8 > > */
) RETURNS text[] /* Vec < Text > */
IMMUTABLE PARALLEL SAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'trigger_arguments_wrapper';

CREATE  FUNCTION lock_ext."update_statement"(
	"table" oid, /* Option < pg_sys :: Oid > */
	"filter_type" TEXT, /* Option < String > */
	"filter" text[], /* :: std :: option :: Option < Vec < Text > > */
	"values" text[], /* :: std :: option :: Option < Vec < Text > > */
	"changes_type" TEXT, /* Option < String > */
	"changes" text[], /* :: std :: option :: Option < Vec < Text > > */
	"all_rows" bool /* Option < bool > */
) RETURNS text /* Text */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'update_statement_wrapper';

CREATE  FUNCTION lock_ext."observed"() RETURNS TABLE (
	"resource" text,  /* Text */
	"token" bigint,  /* i64 */
	"observed_at" timestamp with time zone  /* TimestampWithTimeZone */
)
STRICT VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'observed_wrapper';

CREATE  FUNCTION lock_ext."attached_lease"(
	"function" oid, /* Option < pg_sys :: Oid > */
	"table" oid /* Option < pg_sys :: Oid > */
) RETURNS text /* Text */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'attached_lease_wrapper';

CREATE  FUNCTION lock_ext."waiters"() RETURNS TABLE (
	"name" text,  /* Text */
	"pid" INT,  /* i32 */
	"place" bigint,  /* i64 */
	"since" timestamp with time zone  /* Option < TimestampWithTimeZone > */
)
STRICT VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'waiters_wrapper';

CREATE VIEW lease_status AS
    SELECT s.name,
           s.state,
           s.holder,
           s.holder_role::pg_catalog.name AS holder_role,
           s.token,
           s.acquired_at,
           s.expires_at,
           s.remaining,
           s.ttl,
           s.session_pid,
           s.completed_until,
           s.grants,
           s.waiters,
           s.writers
      FROM lock_ext.status() AS s;

CREATE VIEW lease_waiter AS
    SELECT w.name, w.pid, w.place, w.since
      FROM lock_ext.waiters() AS w
     ORDER BY w.name, w.place;

CREATE VIEW lease_session AS
    SELECT s.name,
           s.holder,
           s.token,
           s.session_pid AS pid,
           a.client_addr,
           a.state,
           CASE WHEN pg_catalog.starts_with(a.state, 'idle') THEN a.state_change END AS idle_since
      FROM lock_ext.status() AS s
      LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) s.session_pid
     WHERE s.session_pid IS NOT NULL;

CREATE VIEW lease_writer AS
    SELECT w.name,
           w.pid,
           w.token,
           w.superseded,
           a.xact_start AS since
      FROM lock_ext.writers() AS w
      LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) w.pid;

-- A fence is all the triggers with the same arguments on a table and on what is below it. What each of these tables needs is
-- compared with what it has. (Operators are looked up when the view is made, and the types are exact, so that pg_catalog's are found.)
CREATE VIEW fence_status AS
    WITH RECURSIVE fence_trigger AS (
        SELECT t.tgrelid AS member,
               t.tgargs AS args,
               t.tgname AS name,
               t.tgtype::integer AS kind,
               t.tgenabled AS enabled,
               t.tgenabled IN ('O', 'A') AND t.tgqual IS NULL AND pg_catalog.cardinality(t.tgattr::smallint[]) = 0
                   AND t.tgtype::integer & 2 = 2 AS is_whole,
               t.tgparentid <> 0::oid AS is_copy
          FROM pg_catalog.pg_trigger AS t
         WHERE t.tgfoid = '@extschema@.fence_check()'::pg_catalog.regprocedure::oid
    ), tree AS (
        SELECT DISTINCT t.member AS root, t.args, t.member
          FROM fence_trigger AS t
         WHERE NOT t.is_copy
        UNION
        SELECT tree.root, tree.args, i.inhrelid
          FROM tree
          JOIN pg_catalog.pg_inherits AS i ON i.inhparent = tree.member
    ), fence AS (
        SELECT tree.root, tree.args, a.lease, a.token_column, a.lease_column,
               a.token_column IS NOT NULL OR a.lease_column IS NOT NULL AS is_by_row
          FROM tree
         CROSS JOIN LATERAL (
            SELECT NULLIF(b.arguments[1], '') AS lease,
                   NULLIF(b.arguments[2], '') AS token_column,
                   NULLIF(b.arguments[3], '') AS lease_column
              FROM (SELECT lock_ext.trigger_arguments(tree.args) AS arguments) AS b
         ) AS a
         WHERE tree.root = tree.member
           AND NOT EXISTS (SELECT FROM tree AS above
                            WHERE above.member = tree.member AND above.args = tree.args AND above.root <> tree.root)
    ), member AS (
        SELECT f.root,
               f.args,
               f.is_by_row,
               c.oid AS member,
               c.relkind AS kind,
               f.is_by_row OR c.relkind = 'p' OR EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = c.oid) AS needs_row,
               CASE WHEN c.oid = f.root THEN ''
                    ELSE pg_catalog.concat(CASE WHEN c.relispartition THEN 'partition ' ELSE 'child ' END, c.oid::pg_catalog.regclass, ': ')
               END AS place
          FROM fence AS f
          JOIN tree AS t ON t.root = f.root AND t.args = f.args
          JOIN pg_catalog.pg_class AS c ON c.oid = t.member
         WHERE c.relpersistence <> 't' OR c.oid = f.root
    ), open_event AS (
        SELECT m.root, m.args, m.member, m.place, e.event, e.bit, e.place AS event_place
          FROM member AS m
         CROSS JOIN (VALUES (1, 'INSERT', 4), (2, 'UPDATE', 16), (3, 'DELETE', 8), (4, 'TRUNCATE', 32)) AS e(place, event, bit)
         WHERE (m.kind <> 'f' OR e.event <> 'TRUNCATE')
           AND NOT EXISTS (SELECT FROM fence_trigger AS t
                            WHERE t.member = m.member AND t.args = m.args AND t.is_whole AND t.kind & e.bit <> 0
                              AND CASE WHEN e.event = 'TRUNCATE' THEN t.kind & 1 = 0 ELSE NOT m.needs_row OR t.kind & 1 = 1 END)
    ), hole AS (
        SELECT o.root,
               o.args,
               pg_catalog.concat(o.place, pg_catalog.string_agg(o.event, ', ' ORDER BY o.event_place),
                   CASE pg_catalog.count(*) WHEN 1 THEN ' is open' ELSE ' are open' END) AS hole
          FROM open_event AS o
         WHERE NOT EXISTS (SELECT FROM fence_trigger AS t
                            WHERE t.member = o.member AND t.args = o.args AND NOT t.is_whole AND t.kind & o.bit <> 0)
         GROUP BY o.root, o.args, o.member, o.place
        UNION ALL
        SELECT m.root,
               m.args,
               pg_catalog.concat(m.place, 'trigger ', pg_catalog.quote_ident(t.name), ' ',
                   CASE t.enabled WHEN 'D' THEN 'is disabled'
                                  WHEN 'R' THEN 'fires in replica sessions only'
                                  ELSE 'is not for every row and column' END)
          FROM member AS m
          JOIN fence_trigger AS t ON t.member = m.member AND t.args = m.args AND NOT t.is_whole
         WHERE EXISTS (SELECT FROM open_event AS o WHERE o.root = m.root AND o.args = m.args AND o.member = m.member AND t.kind & o.bit <> 0)
        UNION ALL
        SELECT m.root,
               m.args,
               pg_catalog.concat(m.place, 'trigger ', pg_catalog.quote_ident(t.tgname), ' fires after the fence and can change the row')
          FROM member AS m
          JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = m.member
         WHERE m.is_by_row
           AND t.tgenabled IN ('O', 'A')
           AND NOT t.tgisinternal
           AND t.tgtype::integer & 3 = 3
           AND t.tgtype::integer & 20 <> 0
           AND NOT EXISTS (SELECT FROM fence_trigger AS f
                            WHERE f.member = m.member AND f.args = m.args AND f.is_whole AND f.kind & 1 = 1 AND f.name >= t.tgname
                              AND f.kind & t.tgtype::integer & 20 = t.tgtype::integer & 20)
        UNION ALL
        SELECT m.root, m.args, pg_catalog.concat(m.place, 'column ', pg_catalog.quote_ident(n.name), ' does not exist, so that every write is refused')
          FROM member AS m
          JOIN fence AS f ON f.root = m.root AND f.args = m.args
         CROSS JOIN LATERAL (VALUES (f.token_column), (f.lease_column)) AS n(name)
         WHERE n.name IS NOT NULL
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
                            WHERE a.attrelid = m.member AND a.attname = n.name AND a.attnum > 0 AND NOT a.attisdropped)
        UNION ALL
        SELECT m.root, m.args,
               pg_catalog.concat(m.place, 'a foreign table, whose rows can be changed where they are, and are committed there before the check')
          FROM member AS m
         WHERE m.kind = 'f'
        UNION ALL
        SELECT m.root,
               m.args,
               pg_catalog.concat(m.place, 'roles that log in can alter the table: ',
                   pg_catalog.string_agg(pg_catalog.quote_ident(r.rolname), ', ' ORDER BY r.rolname))
          FROM member AS m
          JOIN pg_catalog.pg_class AS c ON c.oid = m.member
          JOIN pg_catalog.pg_class AS root ON root.oid = m.root
          JOIN pg_catalog.pg_roles AS r ON r.rolcanlogin AND NOT r.rolsuper AND pg_catalog.pg_has_role(r.oid, c.relowner, 'MEMBER')
         WHERE m.member = m.root OR c.relowner <> root.relowner
         GROUP BY m.root, m.args, m.member, m.place
        UNION ALL
        SELECT f.root, f.args, s.hole
          FROM fence AS f
         CROSS JOIN (
            SELECT 'session_replication_role of this session is replica' AS hole
             WHERE pg_catalog.current_setting('session_replication_role') = 'replica'
            UNION ALL
            SELECT pg_catalog.concat('session_replication_role is replica for ',
                       CASE d.setrole WHEN 0::oid THEN 'all roles' ELSE 'role ' || d.setrole::pg_catalog.regrole::text END)
              FROM pg_catalog.pg_db_role_setting AS d
             WHERE EXISTS (SELECT FROM pg_catalog.unnest(d.setconfig) AS s(setting)
                            WHERE pg_catalog.lower(s.setting) = 'session_replication_role=replica')
               AND d.setdatabase IN (0::oid, (SELECT b.oid FROM pg_catalog.pg_database AS b WHERE b.datname = pg_catalog.current_database()))
            UNION ALL
            SELECT pg_catalog.concat('session_replication_role is replica in function ', p.oid::pg_catalog.regprocedure)
              FROM pg_catalog.pg_proc AS p
             WHERE EXISTS (SELECT FROM pg_catalog.unnest(p.proconfig) AS s(setting)
                            WHERE pg_catalog.lower(s.setting) = 'session_replication_role=replica')
            UNION ALL
            SELECT pg_catalog.concat('session_replication_role can be set by ',
                       CASE a.grantee WHEN 0::oid THEN 'all roles' ELSE 'role ' || a.grantee::pg_catalog.regrole::text END)
              FROM pg_catalog.pg_parameter_acl AS p
             CROSS JOIN LATERAL pg_catalog.aclexplode(p.paracl) AS a
             WHERE p.parname = 'session_replication_role'
               AND a.privilege_type = 'SET'
               AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = a.grantee AND r.rolsuper)
         ) AS s
         WHERE EXISTS (SELECT FROM fence_trigger AS t WHERE t.member = f.root AND t.args = f.args AND t.enabled <> 'A')
    )
    SELECT f.root::pg_catalog.regclass AS table_name,
           f.lease,
           f.token_column,
           f.lease_column,
           CASE WHEN f.token_column IS NULL THEN 'transaction' ELSE 'transaction or column' END AS carried_by,
           h.hole
      FROM fence AS f
      JOIN (SELECT root, args, NULL AS hole FROM fence
            UNION ALL
            SELECT root, args, hole FROM hole) AS h ON h.root = f.root AND h.args = f.args
     ORDER BY f.root::pg_catalog.regclass::text, f.args, h.hole NULLS FIRST;

CREATE VIEW fence_observed AS
    SELECT o.resource, o.token, o.observed_at
      FROM lock_ext.observed() AS o;

CREATE  FUNCTION lock_ext."conversion_statement"(
	"table" oid, /* Option < pg_sys :: Oid > */
	"filter" text[], /* :: std :: option :: Option < Vec < Text > > */
	"changes" text[] /* :: std :: option :: Option < Vec < Text > > */
) RETURNS text /* Text */
VOLATILE PARALLEL UNSAFE
LANGUAGE c /* Rust */
AS 'MODULE_PATHNAME', 'conversion_statement_wrapper';

-- Rights. The schema may be used, since the functions in SQL name what is in it; its tables have no rights for anybody.
GRANT USAGE ON SCHEMA lock_ext TO PUBLIC;
GRANT SELECT ON lease_status, lease_session, lease_waiter, lease_writer, fence_status, fence_observed TO PUBLIC;

-- Administration: to be granted to whom it is for.
REVOKE ALL ON FUNCTION lease_evict(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION lease_force_release(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION lease_prune(interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION lease_raise_token_floor(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION fence_forget(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION once_forget(interval) FROM PUBLIC;

-- Comments: arguments, what is returned, NULL, errors, locks.
COMMENT ON SCHEMA lock_ext IS 'private objects of the extension lock_ext';

COMMENT ON TABLE lock_ext.lease IS 'one row a lease name; read and written by the functions of lock_ext only';
COMMENT ON COLUMN lock_ext.lease.token IS 'fencing token of the last grant';
COMMENT ON COLUMN lock_ext.lease.grants IS 'how often the lease was granted';
COMMENT ON COLUMN lock_ext.lease.acquired_at IS 'when the last grant was made, by the clock of the server';
COMMENT ON COLUMN lock_ext.lease.renewed_at IS 'when the expiry was set last, by the grant or by an extension';
COMMENT ON COLUMN lock_ext.lease.ttl IS 'time to live of the last grant';
COMMENT ON COLUMN lock_ext.lease.holder_role IS 'role that acquired it; only its members extend, release, complete or write under it';
COMMENT ON COLUMN lock_ext.lease.name IS 'name of the lease, compared byte for byte';
COMMENT ON COLUMN lock_ext.lease.holder IS 'text for people that the holder gave; it proves nothing';
COMMENT ON COLUMN lock_ext.lease.expires_at IS 'when the grant expires; null: nobody holds the lease';
COMMENT ON COLUMN lock_ext.lease.released_at IS 'when it was released, completed or ended by force; null: it is granted';
COMMENT ON COLUMN lock_ext.lease.completed_until IS 'nobody is granted the lease before';
COMMENT ON COLUMN lock_ext.lease.request IS 'request that the grant answered';
COMMENT ON COLUMN lock_ext.lease.not_before IS 'minimum hold: nobody else is granted the lease before, even after a release; null: none';
COMMENT ON COLUMN lock_ext.lease.pause IS 'for how long after an expiry, or an end by force, nobody is granted the lease; null: none';
COMMENT ON COLUMN lock_ext.lease.session_pid IS 'process id of the session that the grant is bound to; null: it has a time to live';
COMMENT ON SEQUENCE lock_ext.lease_token_seq IS 'fencing tokens, of all names together';

COMMENT ON TABLE lock_ext.lease_checkpoint IS 'progress saved under a lease; the row of the highest token counts';
COMMENT ON COLUMN lock_ext.lease_checkpoint.token IS 'fencing token that it was saved under';
COMMENT ON COLUMN lock_ext.lease_checkpoint.saved_at IS 'when it was saved';
COMMENT ON COLUMN lock_ext.lease_checkpoint.name IS 'name of the lease';
COMMENT ON COLUMN lock_ext.lease_checkpoint.saver_role IS 'role that saved it';
COMMENT ON COLUMN lock_ext.lease_checkpoint.state IS 'what was saved';

COMMENT ON TABLE lock_ext.once_key IS 'keys whose work is done';
COMMENT ON COLUMN lock_ext.once_key.done_at IS 'when the key was marked';
COMMENT ON COLUMN lock_ext.once_key.key IS 'the key, compared byte for byte';

COMMENT ON TABLE lock_ext.observed_token IS 'highest tokens seen of resources whose tokens another system issues';
COMMENT ON COLUMN lock_ext.observed_token.token IS 'the highest one';
COMMENT ON COLUMN lock_ext.observed_token.observed_at IS 'when it was seen first';
COMMENT ON COLUMN lock_ext.observed_token.resource IS 'name of the resource, compared byte for byte';

COMMENT ON FUNCTION lease_acquire(text, text, interval, interval, uuid, interval, interval) IS
'Acquires a lease: gives the fencing token of a new grant, or NULL if somebody else holds the lease or is before us in line, it is completed, or the wait ran out.
name, holder: 1 to 1024 bytes; the holder is a text for people. ttl: time to live, 1 ms to lock_ext.max_ttl, no months. wait: how long to stand in line, first come first served; zero asks once.
request: an identity of this call; repeated after a lost answer it gives the same token again while that grant is current. NULL: none. min_hold: nobody else is granted the lease before that time is over, even after a release. pause: nobody is granted it for that long after it expired or was ended by force. Every other NULL is an error (22004).
The grant counts from its commit, which is synchronous. In an open transaction others are refused the lease until that ends.
Errors: 22004, 22023, 22001, 25006; while waiting 55P03 (lock_timeout), 57014, 40P01, as for any lock wait. Locks: a refusal takes none; a grant waits for transactions that wrote under the lease and are just committing; a wait is one for the lock of the line.';

COMMENT ON FUNCTION lease_acquire_session(text, text, interval) IS
'Acquires a lease that lasts as long as the session: no time to live, no heartbeat. It ends when the session does, for whatever reason, or with DISCARD ALL or pg_advisory_unlock_all; from then on its token is refused. Only its own session may release it (55000). Not for transaction poolers.
Arguments, NULL, errors and locks as for lease_acquire.';

COMMENT ON FUNCTION lease_elect(text, text, interval, bigint, interval, interval) IS
'One call for a leader''s heartbeat, whoever calls: with the current token it extends the lease and gives the token back; without, with another or with NULL it acquires the lease or gives NULL: not the leader.
Arguments, errors and locks as for lease_acquire and lease_extend; never waits in line. 22023 for a lease that is bound to a session.';

COMMENT ON FUNCTION lease_extend(text, bigint) IS
'Extends a lease by the time to live of its grant: gives the new expiry, now plus that time, or NULL: the lease is lost (superseded, released, completed, expired, never granted).
It never acquires and never changes the token. Unless it is a statement of its own in autocommit, the answer comes at once and takes hold with the commit; if the token is superseded by then, the commit fails (LX001).
Errors: 22004 for NULL, 22023, 22001, 25006, 42501 if the lease is another role''s. Locks: waits for another change of the same lease that is being committed, never for transactions that write under it.';

COMMENT ON FUNCTION lease_extend(text, bigint, interval) IS
'Extends a lease by another time to live than the one of its grant, which may also be shorter. ttl: 1 ms to lock_ext.max_ttl, no months; NULL is an error (22004). Otherwise as lease_extend(text, bigint).';

COMMENT ON FUNCTION lease_extend_many(text[], bigint[]) IS
'Extends many leases in one call, each by the time to live of its grant: a row for each, in the order given, with a NULL expiry for a lost one. names, tokens: equally long, no NULL in them (22004, 22023). Otherwise as lease_extend.';
COMMENT ON FUNCTION lease_extend_many(text[], bigint[], interval) IS
'Extends many leases in one call by the given time to live. Otherwise as lease_extend_many(text[], bigint[]).';

COMMENT ON FUNCTION lease_release(text, bigint) IS
'Releases a lease: true if the token was current, also when expired; false otherwise, and nothing changes. From then on the token is refused as a fence.
Unless it is a statement of its own in autocommit, the answer comes at once and takes hold with the commit; if the token is superseded by then, the commit fails (LX001). What the same transaction wrote before stays allowed.
Errors: 22004 for NULL, 22023, 22001, 25006, 42501. Locks: as a statement of its own it waits for transactions that wrote under the lease and are just committing, and for one that holds it (lease_fence with hold).';

COMMENT ON FUNCTION lease_complete(text, bigint, timestamptz) IS
'Releases a lease, and nobody acquires it before "until": ''infinity'' for never again. NULL is an error (22004). Otherwise as lease_release.';

COMMENT ON FUNCTION lease_is_current(text, bigint) IS
'May the holder rely on it: is the token the current one, and not expired? Errors: 22004 for NULL, 22023, 22001, 42501; 25006 on a standby, whose answer would be old. Locks: none.';

COMMENT ON FUNCTION lease_checkpoint(text, bigint, jsonb) IS
'Saves progress under the current token, in this transaction. It survives hand-overs. Errors: LX001 if the token is not current, at the call or at the commit; LX002 with lock_ext.strict_expiry; 22004 for NULL, 22023, 22001, 25006, 42501.
Locks: as a write under the lease; waits for another transaction that saves under the same token.';
COMMENT ON FUNCTION lease_checkpoint(text) IS
'The last checkpoint of a lease, or NULL if there is none. For members of the role that saved it and of the one that holds the lease (42501). Errors: 22004 for NULL, 22023, 22001. Locks: none.';

COMMENT ON FUNCTION lease_fence(text, bigint, boolean) IS
'The rest of this transaction writes under the token. Every write to a table that is fenced by the lease is checked when it happens and again before the commit.
hold: from the first write to the end of the transaction a take-over waits (default false: the transaction fails if it is superseded before it commits).
Errors: LX001 if the token is not current; LX002 with lock_ext.strict_expiry; 22004 for NULL, 22023, 22001, 25006 on a standby, 42501. Locks: none by itself; the first write takes two entries of the lock table that block nobody.';

COMMENT ON FUNCTION fence_check() IS
'Trigger function that refuses writes that do not carry the current token of a lease. Arguments: the lease; a column of type bigint that holds tokens; a column that names the lease of each row, and then the first argument is what comes before its value. What is not there is an empty string or left out.
Without columns: BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE FOR EACH STATEMENT, or FOR EACH ROW where rows can be reached through another table. With one: BEFORE INSERT OR UPDATE OR DELETE FOR EACH ROW, in one trigger, and one more BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE FOR EACH STATEMENT, which refuses TRUNCATE and a statement without a token that finds no row.
Errors: LX001, LX002, LX003 (no token), 42501, 22004 for a row that names no lease, 39P01 for a trigger that is made otherwise.';

COMMENT ON FUNCTION fence_attach(regclass, text, text, text) IS
'Puts the fence of a lease on a table that the caller owns, and on its partitions or children: rows and TRUNCATE. Again with the same arguments changes nothing but what is missing, with others replaces.
lease: the one lease of the table; with lease_column what comes before the value of that column, NULL for nothing. token_column: a bigint column that is stamped with the token of each write and may carry it; NULL: none. lease_column: a column, of any type, that names the lease of each row; NULL: none.
Errors: 42501, 42809 for what is no ordinary or partitioned table, 42703, 42804 for another type or a generated column, 22004, 22023, 22001; 55000 if the column holds tokens above all granted ones, or the table is a partition that has its fence from above. Locks: as CREATE TRIGGER, on each table.';
COMMENT ON FUNCTION fence_detach(regclass) IS
'Takes every fence off a table that the caller owns, and off its partitions or children. Errors: 42501, 22004; 55000 for a partition that has its fence from above. Locks: as DROP TRIGGER, on each table.';

COMMENT ON FUNCTION fenced_update(regclass, bigint, jsonb, jsonb, text, boolean) IS
'One UPDATE under a token, with the rights of the caller: gives the number of rows. filter: columns and the values that they must equal, null for IS NULL; {} is an error unless all_rows is true. changes: columns and their new values. lease: the lease of the token.
A filter that matches nothing gives 0. Errors: LX001, LX002, 22004 for NULL, 22023, 42703, 42501, and those of UPDATE itself, unchanged. Locks: as UPDATE.';
COMMENT ON FUNCTION fenced_update(regclass, bigint, jsonb, jsonb, boolean) IS
'The same for the lease that the table is fenced by; 55000 if it is not, or if its rows have leases of their own.';

COMMENT ON FUNCTION fence_observe(text, bigint) IS
'This transaction acts under a token that another system has issued for a resource (an etcd revision, a ZooKeeper zxid, a lease of another database). Commits only if nobody has committed under a higher one; then the token is the highest seen, and lower ones are refused. Rolls back with its transaction or savepoint.
resource: 1 to 1024 bytes; token: any bigint. Errors: LX001 if a higher token was committed, at the call or at the commit; 22004 for NULL, 22023, 22001, 25006. Locks: none at the call; the commit waits for others under the same resource that are just committing or prepared.';

COMMENT ON FUNCTION fence_forget(text) IS
'Forgets the highest token of a resource: true if there was one. For a system that begins its tokens anew, or after a token that was never issued. Lower tokens are accepted again. Not for PUBLIC. Errors: 22004 for NULL, 22023, 22001, 25006. Locks: waits for transactions that observed the resource and are just committing or prepared.';

COMMENT ON FUNCTION once(text) IS
'True for exactly one committed transaction for each key, false for all later ones; rolls back with its transaction. key: 1 to 1024 bytes. Errors: 22004 for NULL, 22023, 22001, 25006.
Locks: waits for another transaction that has the same key and is not decided yet, as an INSERT into a unique index does.';
COMMENT ON FUNCTION once_forget(interval) IS
'Forgets the keys that were marked longer ago, and gives their number. Their work may then be done again. Not for PUBLIC. Errors: 22004 for NULL, 22023, 25006.';

COMMENT ON FUNCTION lease_evict(text, bigint) IS
'For the present holder: ends the sessions whose open transactions still write under another token of the lease, and gives their process ids. Such a transaction cannot commit, but it keeps its row locks until it ends.
Errors: LX001 if the token is not current, 25001 if its grant is not committed, 22004 for NULL, 22023, 22001, 25006, 42501. Locks: none.';
COMMENT ON FUNCTION lease_evict(text) IS
'The same without a token, for administrators; ends also the session whose open transaction is acquiring, extending or ending the lease. Not for PUBLIC.';
COMMENT ON FUNCTION lease_force_release(text) IS
'Ends the grant or the completion of a lease, whoever holds it: true if there was one. Its token is refused from then on. Not for PUBLIC. Errors: 22004 for NULL, 22023, 22001, 25006. Locks: as lease_release.';
COMMENT ON FUNCTION lease_prune(interval) IS
'Removes the leases that nobody has held or completed for that time, with their checkpoints, and gives their number. Tokens go on rising. Not for PUBLIC. Errors: 22004 for NULL, 22023, 25006.';
COMMENT ON FUNCTION lease_raise_token_floor(bigint) IS
'Every token that is granted from now on is above the floor: for a database whose tables hold tokens of an earlier one. Gives the floor now in force. Not for PUBLIC. Errors: 22004 for NULL, 22023, 25006. Locks: waits for open transactions that were granted a lease.';

COMMENT ON VIEW lease_status IS 'the leases of the roles that the caller belongs to, all for members of pg_monitor; a released one stays listed until it is pruned';
COMMENT ON COLUMN lease_status.name IS 'name of the lease';
COMMENT ON COLUMN lease_status.state IS 'held, expired, free or completed';
COMMENT ON COLUMN lease_status.holder IS 'text that the holder gave; null if nobody holds it';
COMMENT ON COLUMN lease_status.holder_role IS 'role that acquired it; null if nobody holds it';
COMMENT ON COLUMN lease_status.token IS 'fencing token of the last grant';
COMMENT ON COLUMN lease_status.acquired_at IS 'when the last grant was made';
COMMENT ON COLUMN lease_status.expires_at IS 'when the grant expires; null if nobody holds it';
COMMENT ON COLUMN lease_status.remaining IS 'time until then, zero if it is expired';
COMMENT ON COLUMN lease_status.ttl IS 'time to live of the last grant';
COMMENT ON COLUMN lease_status.session_pid IS 'process id of the session that the lease is bound to; null for a lease with a time to live';
COMMENT ON COLUMN lease_status.completed_until IS 'nobody acquires it before; null if it is not completed';
COMMENT ON COLUMN lease_status.grants IS 'how often it was granted';
COMMENT ON COLUMN lease_status.waiters IS 'number of sessions that wait in line for it';
COMMENT ON COLUMN lease_status.writers IS 'number of open transactions that have written under it';

COMMENT ON VIEW lease_waiter IS 'sessions that wait in line for a lease; which leases as in lease_status';
COMMENT ON COLUMN lease_waiter.name IS 'name of the lease';
COMMENT ON COLUMN lease_waiter.pid IS 'process id of the session';
COMMENT ON COLUMN lease_waiter.place IS 'place in line, 1 for the head, who is granted the lease next';
COMMENT ON COLUMN lease_waiter.since IS 'since when it waits; for the head of the line since its statement began';

COMMENT ON VIEW lease_session IS 'leases that are bound to a session, with what that session does; which leases as in lease_status';
COMMENT ON COLUMN lease_session.name IS 'name of the lease';
COMMENT ON COLUMN lease_session.holder IS 'text that the holder gave';
COMMENT ON COLUMN lease_session.token IS 'fencing token of the grant';
COMMENT ON COLUMN lease_session.pid IS 'process id of the session, for pg_terminate_backend';
COMMENT ON COLUMN lease_session.client_addr IS 'address of its client; null for a local one, or if the caller may not see it';
COMMENT ON COLUMN lease_session.state IS 'what the session does, as in pg_stat_activity';
COMMENT ON COLUMN lease_session.idle_since IS 'since when it is idle; null if it is not';

COMMENT ON VIEW lease_writer IS 'open transactions that have written under a lease; which leases as in lease_status';
COMMENT ON COLUMN lease_writer.name IS 'name of the lease';
COMMENT ON COLUMN lease_writer.pid IS 'process id of the session; null for a prepared transaction';
COMMENT ON COLUMN lease_writer.token IS 'fencing token that it writes under';
COMMENT ON COLUMN lease_writer.superseded IS 'true if the token is no longer current: the transaction cannot commit';
COMMENT ON COLUMN lease_writer.since IS 'when the transaction began; null if the caller may not see it';

COMMENT ON VIEW fence_status IS 'the fences of this database, as the catalog has them: a row each, and one more for each hole; for everybody';
COMMENT ON COLUMN fence_status.table_name IS 'table that the fence was attached to';
COMMENT ON COLUMN fence_status.lease IS 'its lease; with a lease column what comes before the column''s value, null for nothing';
COMMENT ON COLUMN fence_status.token_column IS 'column that holds the token of the last write of each row; null: none';
COMMENT ON COLUMN fence_status.lease_column IS 'column that names the lease of each row; null: one lease for the table';
COMMENT ON COLUMN fence_status.carried_by IS 'what a write carries its token by: transaction (lease_fence), or transaction or column';
COMMENT ON COLUMN fence_status.hole IS 'a way past the fence, naming the partition or child that it is at; null in the row of the fence itself';

COMMENT ON VIEW fence_observed IS 'highest tokens of resources that fence_observe was told of; for members of pg_monitor';
COMMENT ON COLUMN fence_observed.resource IS 'name of the resource';
COMMENT ON COLUMN fence_observed.token IS 'highest token that a transaction committed under';
COMMENT ON COLUMN fence_observed.observed_at IS 'when that was';

COMMENT ON FUNCTION lock_ext.observed() IS 'rows of fence_observed';
COMMENT ON FUNCTION lock_ext.status() IS 'rows of lease_status';
COMMENT ON FUNCTION lock_ext.writers() IS 'rows of lease_writer';
COMMENT ON FUNCTION lock_ext.waiters() IS 'rows of lease_waiter';
COMMENT ON FUNCTION lock_ext.attach_statements(oid, text, oid, text, text, text) IS 'statements that fence_attach executes';
COMMENT ON FUNCTION lock_ext.detach_statements(oid, oid) IS 'statements that fence_detach executes';
COMMENT ON FUNCTION lock_ext.trigger_arguments(bytea) IS 'arguments of a trigger, as fence_status shows them';
COMMENT ON FUNCTION lock_ext.tokens_are_ahead(oid, bigint, boolean) IS 'tells fence_attach whether to raise the token floor';
COMMENT ON FUNCTION lock_ext.attached_lease(oid, oid) IS 'lease that a table is fenced by';
COMMENT ON FUNCTION lock_ext.update_statement(oid, text, text[], text[], text, text[], boolean) IS 'statement that fenced_update executes';
COMMENT ON FUNCTION lock_ext.conversion_statement(oid, text[], text[]) IS 'statement that lets fenced_update refuse a value although it found no row';
COMMENT ON FUNCTION lock_ext.carry(text, bigint) IS 'lets the writes of fenced_update carry a token; gives what they carried before';
COMMENT ON FUNCTION lock_ext.carry_again(text, bigint) IS 'restores what the writes carried before fenced_update';
