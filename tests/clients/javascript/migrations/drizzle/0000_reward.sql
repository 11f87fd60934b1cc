-- [migration]
SET LOCAL lock_timeout = '5 s'; -- fence_attach waits for open writers, and others would wait behind it
--> statement-breakpoint
CREATE TABLE reward (player integer PRIMARY KEY, amount integer NOT NULL);
--> statement-breakpoint
CREATE TABLE entry (id integer PRIMARY KEY, amount integer NOT NULL, token bigint);
--> statement-breakpoint
SELECT fence_attach('reward', 'daily-reward');
--> statement-breakpoint
SELECT fence_attach('entry', 'ledger', 'token');
-- [end migration]
