-- One transaction: it pays the next players, and says how far it came, so that another node goes on there.
BEGIN;
SELECT lease_fence('daily-reward', :token);

-- The day is decided by the database, in the first chunk, and kept in the checkpoint. One that was left unfinished comes first.
-- It begins at :starts, so that who comes after midnight for a job of 23:55 does not do tomorrow's.
SELECT CASE WHEN saved ->> 'done' = 'false' THEN saved ->> 'day'
        ELSE ((now() AT TIME ZONE :'zone') - :'starts'::interval)::date::text END AS day,
    CASE WHEN saved ->> 'done' = 'false' THEN (saved ->> 'after')::bigint ELSE 0 END AS after
FROM lease_checkpoint('daily-reward') AS saved \gset

WITH paid AS (
    INSERT INTO reward
    SELECT id, :'day', 100 FROM player WHERE id > :after ORDER BY id LIMIT :chunk
    RETURNING player)
SELECT lease_checkpoint('daily-reward', :token,
    jsonb_build_object('day', :'day', 'after', max(player), 'done', count(*) = 0, 'by', :'holder'))
FROM paid;

-- When everybody is paid nobody is granted the lease before the next day begins.
SELECT CASE WHEN lease_checkpoint('daily-reward') ->> 'done' = 'true'
    THEN lease_complete('daily-reward', :token, until => (:'day'::date + 1 + :'starts'::interval) AT TIME ZONE :'zone') END AS done \gset
COMMIT;
\if :{?done}
\echo :day is done
\endif
