BEGIN;
SELECT 1;
UPDATE bulk_column SET v = v + 1, token = 1 WHERE id <= 100000;
COMMIT;
