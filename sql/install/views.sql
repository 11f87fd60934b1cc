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
      LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) s.session_pid AND NOT pg_catalog.pg_is_in_recovery()
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
