BEGIN;
SELECT lease_fence('heartbeat-1', 1);
INSERT INTO plain (v) VALUES (1);
COMMIT;
