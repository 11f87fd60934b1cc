\set n :client_id + 1
SELECT lease_extend('heartbeat-' || :n, :n);
