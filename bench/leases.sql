-- More leases in the table, of which nobody wants any: copies of one.
INSERT INTO lock_ext.lease
    SELECT token, grants, acquired_at, renewed_at, ttl, holder_role, 'other-' || i, holder, expires_at, released_at, completed_until,
           request, not_before, pause, session_pid
      FROM lock_ext.lease, generate_series(1, :leases) AS i WHERE name = 'heartbeat-1';
VACUUM ANALYZE lock_ext.lease;
CHECKPOINT;
