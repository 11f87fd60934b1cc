-- [migration]
CREATE EXTENSION IF NOT EXISTS lock_ext; -- a superuser's right
CREATE TABLE player (id bigint PRIMARY KEY);
CREATE TABLE reward (
    player bigint NOT NULL,
    day date NOT NULL,
    amount int NOT NULL,
    token bigint,
    PRIMARY KEY (player, day)
);
SELECT fence_attach('reward', 'daily-reward', 'token');
CREATE TABLE gift (player bigint NOT NULL, day date NOT NULL);
CREATE TABLE price (id bigserial PRIMARY KEY, amount int NOT NULL);
SELECT fence_attach('price', 'prices');
-- [end migration]
