\set i :i + 1
SELECT lease_acquire('acquire-' || :i, 'bench', '1 h');
