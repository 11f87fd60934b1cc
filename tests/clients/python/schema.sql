CREATE EXTENSION IF NOT EXISTS lock_ext;
CREATE TABLE player (id int PRIMARY KEY);
CREATE TABLE reward (day date, player int, amount int, PRIMARY KEY (day, player));
SELECT fence_attach('reward', 'daily-reward');
CREATE TABLE price (item text PRIMARY KEY, cents int);
SELECT fence_attach('price', 'prices');
CREATE TABLE bonus (day date, player int, amount int);
