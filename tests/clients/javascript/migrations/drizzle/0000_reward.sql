-- [migration]
SET LOCAL lock_timeout = '5 s'; -- fence_attach waits for open writers, and others would wait behind it
--> statement-breakpoint
CREATE EXTENSION IF NOT EXISTS lock_ext;
--> statement-breakpoint
CREATE TABLE reward (player integer PRIMARY KEY, amount integer NOT NULL);
--> statement-breakpoint
CREATE TABLE entry (id integer PRIMARY KEY, amount integer NOT NULL, token bigint);
--> statement-breakpoint
CREATE TABLE feed (id integer PRIMARY KEY, title text NOT NULL, token bigint);
--> statement-breakpoint
SELECT fence_attach('reward', 'daily-reward');
--> statement-breakpoint
SELECT fence_attach('entry', 'ledger', 'token');
--> statement-breakpoint
SELECT fence_attach('feed', 'feed', 'token');
-- [end migration]
