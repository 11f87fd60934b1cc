CREATE EXTENSION IF NOT EXISTS lock_ext;
CREATE TABLE reward (player integer PRIMARY KEY, amount integer NOT NULL);
SELECT fence_attach('reward', 'daily-reward');
CREATE TABLE feed (id integer PRIMARY KEY, title text NOT NULL, token bigint);
SELECT fence_attach('feed', 'feed', 'token');
CREATE TABLE payout (player integer NOT NULL, amount integer NOT NULL); -- no lease, no fence: see `once`
