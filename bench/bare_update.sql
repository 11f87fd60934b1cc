\set n :client_id + 1
UPDATE bare SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + '1 h' WHERE name = 'heartbeat-' || :n AND token = 1;
