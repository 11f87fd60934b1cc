CREATE EXTENSION IF NOT EXISTS lock_ext;
CREATE TABLE player (id int PRIMARY KEY, coins int NOT NULL);
CREATE TABLE entry (id int PRIMARY KEY, amount int NOT NULL, token bigint NOT NULL);
CREATE TABLE price (id int PRIMARY KEY, amount int NOT NULL, token bigint NOT NULL);
CREATE TABLE gift (id int PRIMARY KEY, coins int NOT NULL); -- given in one transaction: no lease, no fence
