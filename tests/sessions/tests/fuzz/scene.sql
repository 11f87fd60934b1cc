-- What the fuzzer writes to. $odd stands for letters that the database's encoding has, $owner and $low for two roles.
CREATE SCHEMA fuzz;
GRANT USAGE ON SCHEMA fuzz TO PUBLIC;
GRANT CREATE ON SCHEMA fuzz TO $owner;

-- What no call may ever touch.
CREATE TABLE fuzz.canary (id int PRIMARY KEY, sings text NOT NULL, token bigint);
INSERT INTO fuzz.canary VALUES (1, 'tweet');
REVOKE ALL ON fuzz.canary FROM PUBLIC;

-- Functions and operators that shadow the server's own for a session with this schema at the head of its search_path.
-- Whoever calls one says so in a sequence, which no rollback sets back.
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE SEQUENCE evil.called;
GRANT USAGE ON SEQUENCE evil.called TO PUBLIC;
CREATE FUNCTION evil.format(text, VARIADIC text[]) RETURNS text VOLATILE AS $$ SELECT pg_catalog.nextval('evil.called')::text $$ LANGUAGE sql;
CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text VOLATILE AS $$ SELECT pg_catalog.nextval('evil.called')::text $$ LANGUAGE sql;
CREATE FUNCTION evil.jsonb_object_keys(jsonb) RETURNS SETOF text VOLATILE AS $$ SELECT pg_catalog.nextval('evil.called')::text $$ LANGUAGE sql;
CREATE FUNCTION evil.has_function_privilege(oid, text) RETURNS boolean VOLATILE AS $$ SELECT pg_catalog.nextval('evil.called') > 0 $$ LANGUAGE sql;
CREATE FUNCTION evil.texts(text, text) RETURNS boolean VOLATILE AS $$ SELECT pg_catalog.nextval('evil.called') > 0 $$ LANGUAGE sql;
CREATE FUNCTION evil.numbers(bigint, bigint) RETURNS boolean VOLATILE AS $$ SELECT pg_catalog.nextval('evil.called') OPERATOR(pg_catalog.>) 0::bigint $$ LANGUAGE sql;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.texts);
CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.numbers);

CREATE DOMAIN fuzz.positive AS int CHECK (VALUE > 0);
CREATE DOMAIN fuzz.filled AS text NOT NULL DEFAULT 'x' CHECK (VALUE <> '');
CREATE TYPE fuzz.mood AS ENUM ('sad', 'so so', 'it''s "fine"\');
CREATE TYPE fuzz.pair AS (a int, "B b" text);

SET ROLE $owner;

CREATE TABLE fuzz.types (
    id int PRIMARY KEY, token bigint, num numeric, money5 numeric(5, 2), small smallint, big bigint, r4 real, r8 float8, txt text, vc varchar(5), ch char(3),
    by bytea, yes boolean, day date, at timestamptz, clock time, span interval, u uuid, jb jsonb, js json, ints int[], texts text[], dom fuzz.positive, fill fuzz.filled,
    mood fuzz.mood, pair fuzz.pair, range int4range, point point, net inet, bits bit(3), gen int GENERATED ALWAYS AS (id * 2) STORED,
    ident bigint GENERATED ALWAYS AS IDENTITY, "Mixed Case" text, "quo""te" text, "'; DROP TABLE fuzz.canary; --" text, "$1" int, "$odd" text
);
INSERT INTO fuzz.types (id) SELECT generate_series(1, 5);
CREATE TABLE fuzz.keyed (k text PRIMARY KEY, v int DEFAULT 0 CHECK (v < 1000), token bigint, u uuid UNIQUE);
INSERT INTO fuzz.keyed (k) VALUES ('a'), ('b'), ('x''); DROP TABLE fuzz.canary; --');
CREATE TABLE fuzz."Odd "" $odd; $$ %s" (id int PRIMARY KEY, "t o k" bigint, "le""ase" text, v int);
INSERT INTO fuzz."Odd "" $odd; $$ %s" SELECT g, NULL, 'a', 0 FROM generate_series(1, 3) AS g;
CREATE TABLE fuzz.parted (id int, part int, v int, token bigint, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE fuzz.parted_0 PARTITION OF fuzz.parted FOR VALUES IN (0);
CREATE TABLE fuzz.parted_1 PARTITION OF fuzz.parted FOR VALUES IN (1) PARTITION BY RANGE (id);
CREATE TABLE fuzz.parted_1_low PARTITION OF fuzz.parted_1 FOR VALUES FROM (0) TO (100);
INSERT INTO fuzz.parted SELECT g, g % 2, 0 FROM generate_series(1, 6) AS g;
CREATE TABLE fuzz.parent (id int, v int, token bigint);
CREATE TABLE fuzz.child (more text) INHERITS (fuzz.parent);
INSERT INTO fuzz.child VALUES (1, 0, NULL, '');
CREATE UNLOGGED TABLE fuzz.unlogged (id int, v int, token bigint);
CREATE TABLE fuzz.empty ();
CREATE TABLE fuzz.bare (token bigint);
CREATE VIEW fuzz.easy AS SELECT id, v, token FROM fuzz.parent;
CREATE VIEW fuzz.hard AS SELECT count(*) AS n FROM fuzz.parent;
CREATE MATERIALIZED VIEW fuzz.mat AS SELECT 1 AS v;
CREATE SEQUENCE fuzz.seq;
CREATE INDEX ON fuzz.parent (v);

RESET ROLE;
CREATE FOREIGN DATA WRAPPER dummy;
CREATE SERVER nowhere FOREIGN DATA WRAPPER dummy;
CREATE FOREIGN TABLE fuzz.far (id int, v int, token bigint) SERVER nowhere;
CREATE TABLE fuzz.foreigners (id int, v int, token bigint);
GRANT SELECT ON fuzz.foreigners TO $low;
GRANT SELECT, INSERT, UPDATE, DELETE ON fuzz.keyed TO $low;
