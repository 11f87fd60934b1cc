-- What the workload writes to. Every table in public is to be fenced, those in aside are not. Rows up to 100 are never deleted.
CREATE SCHEMA aside;
CREATE TABLE aside.note (transaction bigint NOT NULL, kind text NOT NULL, token bigint NOT NULL);
CREATE TABLE aside.observation (transaction bigint NOT NULL, token bigint NOT NULL);
CREATE TABLE aside.put_off (transaction bigint NOT NULL);
CREATE TABLE aside.flush ();
CREATE TABLE aside.parent (id int PRIMARY KEY);
CREATE TABLE aside.queue (id int NOT NULL, v int NOT NULL, transaction bigint NOT NULL);

CREATE TABLE plain (id int PRIMARY KEY, v int NOT NULL, written_under bigint NOT NULL);
CREATE TABLE stamped (id int PRIMARY KEY, v int NOT NULL, written_under bigint NOT NULL);
CREATE TABLE bulk (id int NOT NULL, v int NOT NULL, written_under bigint NOT NULL) PARTITION BY HASH (v);
CREATE TABLE bulk_0 PARTITION OF bulk FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE bulk_1 PARTITION OF bulk FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE parted (id int NOT NULL, part int NOT NULL, v int NOT NULL, written_under bigint NOT NULL) PARTITION BY LIST (part);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES IN (0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1) PARTITION BY RANGE (id);
CREATE TABLE parted_1_low PARTITION OF parted_1 FOR VALUES FROM (MINVALUE) TO (40);
CREATE TABLE parted_1_high PARTITION OF parted_1 FOR VALUES FROM (40) TO (MAXVALUE);
CREATE TABLE ancestor (id int NOT NULL, v int NOT NULL, written_under bigint NOT NULL);
CREATE TABLE heir () INHERITS (ancestor);
CREATE TABLE account (id int PRIMARY KEY, lease text NOT NULL, v int NOT NULL, written_under bigint NOT NULL);
CREATE TABLE child (
    id int NOT NULL REFERENCES aside.parent ON DELETE CASCADE,
    v int NOT NULL,
    written_under bigint NOT NULL
);
INSERT INTO plain SELECT id, 0, 0 FROM generate_series(0, 100) AS id;
INSERT INTO stamped SELECT id, 0, 0 FROM generate_series(0, 100) AS id;
INSERT INTO parted SELECT id, id % 2, 0, 0 FROM generate_series(0, 100) AS id;
INSERT INTO heir SELECT id, 0, 0 FROM generate_series(0, 100) AS id;
INSERT INTO account SELECT id, 'j', 0, 0 FROM generate_series(0, 100) AS id;

CREATE VIEW aside.view AS SELECT * FROM plain;

CREATE FUNCTION aside.write(own int, v int, token bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
AS 'BEGIN UPDATE public.plain SET v = $2, written_under = $3 WHERE id = own; END';

CREATE FUNCTION aside.move() RETURNS trigger LANGUAGE plpgsql
AS $$
DECLARE
    token bigint := current_setting('aside.token');
BEGIN
    INSERT INTO aside.note VALUES (NEW.transaction, 'deferred trigger', token);
    INSERT INTO public.plain VALUES (NEW.id, NEW.v, token);
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER move AFTER INSERT ON aside.queue DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION aside.move();

CREATE PROCEDURE aside.work(transaction bigint, own int, token bigint) LANGUAGE plpgsql
AS $$
BEGIN
    FOR i IN 1..3 LOOP
        PERFORM lease_fence('j', token);
        INSERT INTO aside.note VALUES (transaction, 'procedure', token);
        UPDATE plain SET v = i, written_under = token WHERE id = own;
        PERFORM pg_sleep(random() * 0.1);
        COMMIT;
    END LOOP;
END
$$;

SELECT fence_attach('plain', 'j'), fence_attach('bulk', 'j'), fence_attach('child', 'j'), fence_attach('ancestor', 'j'),
       fence_attach('stamped', 'j', 'written_under'), fence_attach('parted', 'j', 'written_under'),
       fence_attach('account', token_column => 'written_under', lease_column => 'lease');
