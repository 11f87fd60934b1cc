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
           NULL::integer AS session_pid,
           s.completed_until,
           s.grants,
           0::bigint AS waiters,
           s.writers
      FROM lock_ext.status() AS s;

CREATE VIEW lease_writer AS
    SELECT w.name,
           w.pid,
           w.token,
           w.superseded,
           a.xact_start AS since
      FROM lock_ext.writers() AS w
      LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) w.pid;
