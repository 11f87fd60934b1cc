CREATE TABLE player (id int PRIMARY KEY, coins int NOT NULL);
CREATE TABLE entry (id int PRIMARY KEY, amount int NOT NULL, token bigint NOT NULL);
