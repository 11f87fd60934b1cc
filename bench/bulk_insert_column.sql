BEGIN;
SELECT 1;
INSERT INTO bulk_column (v, token) SELECT v, 1 FROM generate_series(1, 100000) AS v;
COMMIT;
