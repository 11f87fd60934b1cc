-- A fence as most people write it: a BEFORE trigger that compares the token with the current one by a plain SELECT. It takes no lock, reads
-- through the transaction's snapshot and does not look again before the commit. The names are those of the extension, so that the
-- workload is the same to the letter.
CREATE SCHEMA lock_ext;

CREATE TABLE lock_ext.lease (
    name text PRIMARY KEY,
    token bigint NOT NULL,
    holder text NOT NULL,
    expires_at timestamptz
);
INSERT INTO lock_ext.lease VALUES ('j', 0, '', NULL);

CREATE TABLE lock_ext.lease_checkpoint (
    name text,
    token bigint,
    state jsonb NOT NULL,
    PRIMARY KEY (name, token)
);

CREATE FUNCTION lease_acquire(name text, holder text, ttl interval) RETURNS bigint LANGUAGE sql
AS $$
    UPDATE lock_ext.lease AS l SET token = l.token + 1, holder = $2, expires_at = clock_timestamp() + ttl
     WHERE l.name = $1 AND (l.expires_at IS NULL OR l.expires_at <= clock_timestamp())
    RETURNING l.token
$$;

CREATE FUNCTION lease_extend(name text, token bigint, ttl interval) RETURNS timestamptz LANGUAGE sql
AS $$
    UPDATE lock_ext.lease AS l SET expires_at = clock_timestamp() + ttl
     WHERE l.name = $1 AND l.token = $2 AND l.expires_at > clock_timestamp()
    RETURNING l.expires_at
$$;

CREATE FUNCTION lease_release(name text, token bigint) RETURNS boolean LANGUAGE sql
AS $$
    WITH ended AS (
        UPDATE lock_ext.lease AS l SET expires_at = NULL
         WHERE l.name = $1 AND l.token = $2 AND l.expires_at IS NOT NULL
        RETURNING true
    )
    SELECT EXISTS (SELECT FROM ended)
$$;

CREATE FUNCTION lease_complete(name text, token bigint, until timestamptz) RETURNS boolean LANGUAGE sql
AS 'SELECT lease_release(name, token)';

CREATE FUNCTION lease_force_release(name text) RETURNS boolean LANGUAGE sql
AS 'SELECT lease_release($1, (SELECT l.token FROM lock_ext.lease AS l WHERE l.name = $1))';

CREATE FUNCTION lease_prune(idle interval) RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';

CREATE FUNCTION refuse_unless_current(name text, token bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF token IS DISTINCT FROM
        (SELECT l.token FROM lock_ext.lease AS l WHERE l.name = $1 AND l.expires_at IS NOT NULL)
    THEN
        RAISE EXCEPTION 'token % is not current', token USING ERRCODE = 'LX001';
    END IF;
END
$$;

CREATE FUNCTION lease_fence(name text, token bigint, hold boolean DEFAULT false) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM refuse_unless_current(name, token), set_config('fence.token', token::text, true);
END
$$;

CREATE FUNCTION lease_checkpoint(name text, token bigint, state jsonb) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM refuse_unless_current(name, token);
    INSERT INTO lock_ext.lease_checkpoint VALUES ($1, $2, $3)
        ON CONFLICT ON CONSTRAINT lease_checkpoint_pkey DO UPDATE SET state = excluded.state;
END
$$;

CREATE FUNCTION fence_check() RETURNS trigger LANGUAGE plpgsql
AS $$
DECLARE
    carried bigint := nullif(current_setting('fence.token', true), '');
BEGIN
    IF TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' AND TG_NARGS = 2 THEN
        carried := coalesce(carried, NEW.written_under);
        NEW.written_under := carried;
    END IF;
    PERFORM refuse_unless_current(TG_ARGV[0], carried);
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;

CREATE FUNCTION fence_attach(target regclass, lease text DEFAULT 'j', token_column text DEFAULT NULL, lease_column text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    arguments text := concat_ws(', ', quote_literal(lease), quote_literal(token_column));
BEGIN
    EXECUTE format('CREATE TRIGGER zz_row BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION fence_check(%s)',
                   target, arguments);
    EXECUTE format('CREATE TRIGGER zz_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fence_check(%s)',
                   target, arguments);
END
$$;

CREATE FUNCTION fenced_update(target regclass, token bigint, filter jsonb, changes jsonb) RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    carried text := current_setting('fence.token', true);
    updated bigint;
BEGIN
    PERFORM set_config('fence.token', token::text, true);
    EXECUTE format('UPDATE %s SET %s WHERE %s', target,
                   (SELECT string_agg(format('%I = %L', key, value), ', ') FROM jsonb_each_text(changes)),
                   (SELECT string_agg(format('%I = %L', key, value), ' AND ') FROM jsonb_each_text(filter)));
    GET DIAGNOSTICS updated = ROW_COUNT;
    PERFORM set_config('fence.token', carried, true);
    RETURN updated;
END
$$;

CREATE TABLE lock_ext.observed_token (resource text PRIMARY KEY, token bigint NOT NULL);

CREATE FUNCTION fence_observe(resource text, token bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF token < (SELECT o.token FROM lock_ext.observed_token AS o WHERE o.resource = $1) THEN
        RAISE EXCEPTION 'token % is not the highest', token USING ERRCODE = 'LX001';
    END IF;
    INSERT INTO lock_ext.observed_token VALUES ($1, $2)
        ON CONFLICT ON CONSTRAINT observed_token_pkey DO UPDATE SET token = excluded.token;
END
$$;
