-- A line for each object. Triggers that call fence_check are what the calls are to make.
SELECT x FROM (
    SELECT concat_ws(' ', 'class', oid::regclass, relkind, relowner::regrole, relacl, relchecks, relnatts, relrowsecurity, relpersistence, reloptions) AS x
      FROM pg_class WHERE relnamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname ~ '^pg_(temp|toast_temp)')
    UNION ALL SELECT concat_ws(' ', 'column', attrelid::regclass, attnum, attname, atttypid::regtype, attnotnull, atthasdef, attisdropped, attacl)
      FROM pg_attribute WHERE attrelid >= 16384
    UNION ALL SELECT concat_ws(' ', 'function', oid::regprocedure, proowner::regrole, md5(prosrc), proacl, proconfig) FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', 'other functions', count(*), sum(hashtext(concat(oid, proname, proowner, prosrc, proacl, proconfig)))) FROM pg_proc WHERE oid < 16384
    UNION ALL SELECT concat_ws(' ', 'type', oid, typname, typowner) FROM pg_type
    UNION ALL SELECT concat_ws(' ', 'schema', nspname, nspowner::regrole, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_(temp|toast_temp)'
    UNION ALL SELECT concat_ws(' ', 'role', rolname, rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolbypassrls)
      FROM pg_roles WHERE starts_with(rolname, current_database()) OR rolsuper
    UNION ALL SELECT concat_ws(' ', 'setting', setrole, setconfig) FROM pg_db_role_setting
      WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL SELECT concat_ws(' ', 'constraint', conrelid::regclass, conname, contype, pg_get_constraintdef(oid)) FROM pg_constraint WHERE conrelid <> 0 AND contype <> 't'
    UNION ALL SELECT concat_ws(' ', 'rule', ev_class::regclass, rulename) FROM pg_rewrite
    UNION ALL SELECT concat_ws(' ', 'trigger', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger WHERE tgfoid <> 'public.fence_check()'::regprocedure
    UNION ALL SELECT concat_ws(' ', 'policy', polname) FROM pg_policy
    UNION ALL SELECT concat_ws(' ', 'extension', extname, extversion) FROM pg_extension
    UNION ALL SELECT concat_ws(' ', 'canary', t::text) FROM fuzz.canary AS t
    UNION ALL SELECT concat_ws(' ', 'evil', is_called) FROM evil.called
    UNION ALL SELECT concat_ws(' ', 'large object', oid) FROM pg_largeobject_metadata
) AS t ORDER BY x COLLATE "C"
