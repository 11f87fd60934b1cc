-- [nightly]
-- Without a token, the answer NULL unsets the variable: another node is at it, or has done it.
SELECT lease_acquire('nightly-report', :'holder', '10 min') AS token \gset
\if :{?token}
BEGIN;
SELECT lease_fence('nightly-report', :token);
INSERT INTO report SELECT current_date, count(*) FROM player;
SELECT lease_complete('nightly-report', :token, until => current_date + 1);
COMMIT;
\endif
-- [end nightly]
