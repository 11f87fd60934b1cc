-- What the workloads write to.
CREATE ROLE worker LOGIN;
-- Says in the server's log which operation a transaction was, and under which token. Nothing guards it, and it is written in the same transaction.
CREATE TABLE note (op text NOT NULL, lease text NOT NULL, token bigint NOT NULL);
-- Each row belongs to the lease that it names.
CREATE TABLE entry (lease text NOT NULL, op text NOT NULL);
CREATE TABLE register (id int PRIMARY KEY, v bigint NOT NULL);
INSERT INTO register VALUES (1, 0);
CREATE TABLE growing (id int PRIMARY KEY, elements bigint[] NOT NULL);
INSERT INTO growing VALUES (1, '{}');
-- No unique constraint: who is paid twice is to be seen.
CREATE TABLE reward (round bigint NOT NULL, player bigint NOT NULL, token bigint);
CREATE TABLE effect (key text NOT NULL, op text NOT NULL);
-- Checkpoints where nothing of the extension guards them.
CREATE TABLE progress (lease text PRIMARY KEY, token bigint NOT NULL, state jsonb NOT NULL);
GRANT SELECT, INSERT, UPDATE ON note, entry, register, growing, reward, effect, progress TO worker;
