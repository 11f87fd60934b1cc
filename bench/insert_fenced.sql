BEGIN;
SELECT lease_fence('heartbeat-1', 1);
INSERT INTO fenced (v) VALUES (1);
COMMIT;
