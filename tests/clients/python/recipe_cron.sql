CREATE TABLE player (id int PRIMARY KEY);
CREATE TABLE reward (day date, player int, amount int);
SELECT fence_attach('reward', 'daily-reward');
