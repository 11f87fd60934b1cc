\set i :i + 1
\set n :client_id * 2000 + :i % 2000
SELECT lease_acquire('acquire-' || :n, 'bench', '1 h') AS token \gset
SELECT lease_release('acquire-' || :n, :token);
