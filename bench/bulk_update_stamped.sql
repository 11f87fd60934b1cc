BEGIN;
SELECT lease_fence('heartbeat-1', 1);
UPDATE bulk_stamped SET v = v + 1, token = 1 WHERE id <= 100000;
COMMIT;
