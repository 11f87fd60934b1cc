BEGIN;
SELECT lease_fence('heartbeat-1', 1);
INSERT INTO bulk_stamped (v, token) SELECT v, 1 FROM generate_series(1, 100000) AS v;
COMMIT;
