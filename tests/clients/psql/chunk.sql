-- [chunk]
BEGIN;
SELECT lease_fence('daily-reward', :token);

-- A day that was left unfinished comes before today.
SELECT CASE WHEN saved ->> 'done' = 'false' THEN saved ->> 'day' ELSE current_date::text END AS day,
    CASE WHEN saved ->> 'done' = 'false' THEN (saved ->> 'after')::bigint ELSE 0 END AS after
FROM lease_checkpoint('daily-reward') AS saved \gset

WITH paid AS (
    INSERT INTO reward
    SELECT id, :'day', 100 FROM player WHERE id > :after ORDER BY id LIMIT :chunk
    RETURNING player)
SELECT lease_checkpoint('daily-reward', :token, jsonb_build_object('day', :'day', 'after', max(player), 'done', count(*) = 0))
FROM paid;

-- When everybody is paid nobody is granted the lease before the next day.
SELECT CASE WHEN lease_checkpoint('daily-reward') ->> 'done' = 'true'
    THEN lease_complete('daily-reward', :token, until => :'day'::date + 1) END AS done \gset
COMMIT;
\if :{?done}
\echo done
\endif
-- [end chunk]
