\set i :i + 1
SELECT lease_acquire('acquire-' || :client_id || '-' || :i % 2000, 'bench', '1 ms');
