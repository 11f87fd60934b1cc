-- [migration]
SET lock_timeout = '5 s'; -- fence_attach waits for open writers, and others would wait behind it
CREATE EXTENSION IF NOT EXISTS lock_ext;
CREATE TABLE reward (player integer PRIMARY KEY, amount integer NOT NULL);
CREATE TABLE entry (id integer PRIMARY KEY, amount integer NOT NULL, token bigint);
CREATE TABLE feed (id integer PRIMARY KEY, title text NOT NULL, token bigint);
SELECT fence_attach('reward', 'daily-reward');
SELECT fence_attach('entry', 'ledger', 'token');
SELECT fence_attach('feed', 'feed', 'token');
-- [end migration]
