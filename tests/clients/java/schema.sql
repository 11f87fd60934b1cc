-- [migration]
CREATE EXTENSION IF NOT EXISTS lock_ext;
CREATE TABLE player (id int PRIMARY KEY, coins int NOT NULL);
CREATE TABLE entry (id int PRIMARY KEY, amount int NOT NULL, token bigint NOT NULL);
CREATE TABLE price (id int PRIMARY KEY, amount int NOT NULL, token bigint NOT NULL);
CREATE TABLE gift (id int PRIMARY KEY, coins int NOT NULL); -- paid in one transaction: no lease, no fence
SELECT fence_attach('player', 'daily-reward');
SELECT fence_attach('entry', 'daily-reward', token_column => 'token');
SELECT fence_attach('price', 'scheduler', token_column => 'token');
-- [end migration]
