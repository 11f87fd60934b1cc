-- [migration]
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS lock_ext;
CREATE TABLE player (id bigint PRIMARY KEY);
CREATE TABLE report (day date PRIMARY KEY, players bigint NOT NULL);
CREATE TABLE reward (
    player bigint NOT NULL,
    day date NOT NULL,
    amount int NOT NULL,
    PRIMARY KEY (player, day)
);
SELECT fence_attach('reward', 'daily-reward');
-- [end migration]
