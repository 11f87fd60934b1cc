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
