//! What changes rows, and what the fence says to it.

use super::tables::Shape;

/// README.md's table of what is allowed, by how the statement carries its token. `yes`: under the current token, and `LX001` under any
/// other, at the statement or, if the token was current then, at the commit. A code: refused with it, whatever token there is. `no row`:
/// allowed, since nothing is changed that a token could be set in. It is the same for plain tables, partitioned tables and
/// parents of inheritance, their partitions and children, at every isolation level.
fn table() -> &'static str {
    const README: &str = include_str!("../../../../README.md");
    let (_, from_table) =
        README.split_once("<details><summary>One by one</summary>").expect("begins");
    from_table.split_once("</details>").expect("ends").0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Yes,
    NoRow,
    Code(&'static str),
}

impl Verdict {
    fn read(cell: &'static str) -> Self {
        match cell {
            "yes" => Self::Yes,
            "no row" => Self::NoRow,
            code => Self::Code(code),
        }
    }
}

pub struct Rule {
    pub by_transaction: Verdict,
    pub by_column: Verdict,
    pub no_token: Verdict,
    pub statement: &'static Statement,
}

/// The rows of README.md's table whose statement exists for this kind of table.
pub fn rules(shape: Shape) -> Vec<Rule> {
    let rows: Vec<Vec<&str>> = table()
        .trim()
        .lines()
        .skip(2)
        .map(|line| line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(rows.len(), STATEMENTS.len(), "each statement has its row");
    rows.iter()
        .zip(STATEMENTS)
        .map(|(row, statement)| {
            assert_eq!(row[0], statement.name, "in the order of the table");
            Rule {
                by_transaction: Verdict::read(row[1]),
                by_column: Verdict::read(row[2]),
                no_token: Verdict::read(row[3]),
                statement,
            }
        })
        .filter(|rule| rule.statement.on.contains(&shape))
        .collect()
}

/// A statement, and the rows that are there after it.
pub struct Statement {
    pub name: &'static str,
    /// By column, `$c` adds the token column to a list of columns, `$t` its value to a list of values, `$s` both to SET,
    /// `$e` the value that was proposed for insertion, `$a` is an argument; else they are empty. `$k` is the token or NULL.
    pub sql: &'static str,
    /// `id:v`, then `>up` and `~nul` if they are not null.
    pub after: &'static str,
    pub on: &'static [Shape],
}

const ALL: &[Shape] = &Shape::ALL;
const FAMILY: &[Shape] = &[Shape::Partitioned, Shape::Inheritance];
const INHERITANCE: &[Shape] = &[Shape::Inheritance];

const fn s(
    name: &'static str,
    sql: &'static str,
    after: &'static str,
    on: &'static [Shape],
) -> Statement {
    Statement { name, sql, after, on }
}

/// What is there before.
pub const SEED: &str = "1:0 2:0>2 3:0~3 101:0";
const ONE: &str = "1:7 2:0>2 3:0~3 101:0";
const TWO: &str = "1:0 2:7>2 3:0~3 101:0";
const LEAF: &str = "1:0 2:0>2 3:0~3 101:7";
const NEW: &str = "1:0 2:0>2 3:0~3 9:7 101:0";
const NONE: &str = "";
const WITHOUT_ONE: &str = "2:0>2 3:0~3 101:0";
const WITHOUT_TWO: &str = "1:0 3:0~3 101:0";
const WITHOUT_LEAF: &str = "1:0 2:0>2 3:0~3";

/// In the order of README.md's table.
pub const STATEMENTS: &[Statement] = &[
    s("INSERT", "INSERT INTO t (id, v$c) VALUES (9, 7$t)", NEW, ALL),
    s(
        "INSERT of several rows",
        "INSERT INTO t (id, v$c) VALUES (9, 7$t), (10, 7$t), (109, 7$t)",
        "1:0 2:0>2 3:0~3 9:7 10:7 101:0 109:7",
        ALL,
    ),
    s("INSERT SELECT", "INSERT INTO t (id, v$c) SELECT id, 7$t FROM source", NEW, ALL),
    s("INSERT RETURNING", "INSERT INTO t (id, v$c) VALUES (9, 7$t) RETURNING id", NEW, ALL),
    s(
        "ON CONFLICT DO UPDATE, new row",
        "INSERT INTO t (id, v$c) VALUES (9, 7$t) ON CONFLICT (id) DO UPDATE SET v = 8$e",
        NEW,
        ALL,
    ),
    s(
        "ON CONFLICT DO UPDATE, existing row",
        "INSERT INTO t (id, v$c) VALUES (1, 6$t) ON CONFLICT (id) DO UPDATE SET v = 7$e",
        ONE,
        ALL,
    ),
    s(
        "ON CONFLICT DO UPDATE that leaves the column out",
        "INSERT INTO t (id, v$c) VALUES (1, 6$t) ON CONFLICT (id) DO UPDATE SET v = 7",
        ONE,
        ALL,
    ),
    s(
        "ON CONFLICT DO NOTHING, new row",
        "INSERT INTO t (id, v$c) VALUES (9, 7$t) ON CONFLICT DO NOTHING",
        NEW,
        ALL,
    ),
    s(
        "ON CONFLICT DO NOTHING, existing row",
        "INSERT INTO t (id, v$c) VALUES (1, 7$t) ON CONFLICT DO NOTHING",
        SEED,
        ALL,
    ),
    s("COPY", "COPY t (id, v$c) FROM PROGRAM 'echo \"9, 7$t\"' (FORMAT csv)", NEW, ALL),
    s("UPDATE", "UPDATE t SET v = 7$s WHERE id = 1", ONE, ALL),
    s("UPDATE of all rows", "UPDATE t SET v = 7$s", "1:7 2:7>2 3:7~3 101:7", ALL),
    s("UPDATE that finds no row", "UPDATE t SET v = 7$s WHERE id = -1", SEED, ALL),
    s(
        "UPDATE that moves the row to another partition",
        "UPDATE t SET id = 105$s WHERE id = 1",
        "2:0>2 3:0~3 101:0 105:0",
        ALL,
    ),
    s("UPDATE FROM", "UPDATE t SET v = 7$s FROM source WHERE t.id = source.id - 8", ONE, ALL),
    s(
        "UPDATE WHERE CURRENT OF",
        "DECLARE c CURSOR FOR SELECT * FROM t ORDER BY id FOR UPDATE; FETCH c;
         UPDATE t SET v = 7$s WHERE CURRENT OF c; CLOSE c",
        ONE,
        ALL,
    ),
    s("UPDATE RETURNING", "UPDATE t SET v = 7$s WHERE id = 1 RETURNING v", ONE, ALL),
    s("DELETE", "DELETE FROM t WHERE id = 1", WITHOUT_ONE, ALL),
    s("DELETE that finds no row", "DELETE FROM t WHERE id = -1", SEED, ALL),
    s("DELETE USING", "DELETE FROM t USING source WHERE t.id = source.id - 8", WITHOUT_ONE, ALL),
    s(
        "DELETE WHERE CURRENT OF",
        "DECLARE c CURSOR FOR SELECT * FROM t ORDER BY id FOR UPDATE; FETCH c;
         DELETE FROM t WHERE CURRENT OF c; CLOSE c",
        WITHOUT_ONE,
        ALL,
    ),
    s("DELETE RETURNING", "DELETE FROM t WHERE id = 1 RETURNING v", WITHOUT_ONE, ALL),
    s("TRUNCATE", "TRUNCATE t", NONE, ALL),
    s("TRUNCATE of a referenced table, CASCADE", "TRUNCATE up CASCADE", NONE, ALL),
    s(
        "MERGE that inserts",
        "MERGE INTO t USING source s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, v$c) VALUES (s.id, 7$t)",
        NEW,
        ALL,
    ),
    s(
        "MERGE that updates",
        "MERGE INTO t USING source s ON t.id = s.id - 8 WHEN MATCHED THEN UPDATE SET v = 7$s",
        ONE,
        ALL,
    ),
    s(
        "MERGE that deletes",
        "MERGE INTO t USING source s ON t.id = s.id - 8 WHEN MATCHED THEN DELETE",
        WITHOUT_ONE,
        ALL,
    ),
    s(
        "MERGE that does all three",
        "MERGE INTO t USING (VALUES (1), (2), (9)) s (id) ON t.id = s.id
             WHEN MATCHED AND t.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 7$s
             WHEN NOT MATCHED THEN INSERT (id, v$c) VALUES (s.id, 7$t)",
        "2:7>2 3:0~3 9:7 101:0",
        ALL,
    ),
    s(
        "UPDATE in a WITH",
        "WITH w AS (UPDATE t SET v = 7$s WHERE id = 1 RETURNING id) SELECT count(*) FROM w",
        ONE,
        ALL,
    ),
    s(
        "DELETE in a WITH",
        "WITH w AS (DELETE FROM t WHERE id = 1 RETURNING id) SELECT count(*) FROM w",
        WITHOUT_ONE,
        ALL,
    ),
    s("INSERT into a view", "INSERT INTO seen (id, v$c) VALUES (9, 7$t)", NEW, ALL),
    s("UPDATE of a view", "UPDATE seen SET v = 7$s WHERE id = 1", ONE, ALL),
    s("DELETE from a view", "DELETE FROM seen WHERE id = 1", WITHOUT_ONE, ALL),
    s("a view's INSTEAD OF trigger", "UPDATE handled SET v = 7$s WHERE id = 1", ONE, ALL),
    s("a rule, DO INSTEAD", "UPDATE ruled SET v = 7$s WHERE id = 1", ONE, ALL),
    s("a rule, DO ALSO", "INSERT INTO inbox (id, v$c) VALUES (9, 7$t)", NEW, ALL),
    s("another table's trigger", "INSERT INTO queue (id, v$c) VALUES (9, 7$t)", NEW, ALL),
    s("foreign key ON DELETE CASCADE", "DELETE FROM up WHERE id = 2", WITHOUT_TWO, ALL),
    s(
        "foreign key ON UPDATE CASCADE",
        "UPDATE up SET id = 20 WHERE id = 2",
        "1:0 2:0>20 3:0~3 101:0",
        ALL,
    ),
    s(
        "foreign key ON DELETE SET NULL",
        "DELETE FROM up_null WHERE id = 3",
        "1:0 2:0>2 3:0 101:0",
        ALL,
    ),
    s("DO", "DO $$ BEGIN UPDATE t SET v = 7$s WHERE id = 1; END $$", ONE, ALL),
    s(
        "EXECUTE in PL/pgSQL",
        "DO $$ BEGIN EXECUTE 'UPDATE t SET v = 7$s WHERE id = 1'; END $$",
        ONE,
        ALL,
    ),
    s("a PL/pgSQL function", "SELECT by_plpgsql($a)", ONE, ALL),
    s("an SQL function", "SELECT by_sql($a)", ONE, ALL),
    s("a SECURITY DEFINER function", "SELECT by_definer($a)", ONE, ALL),
    s("a procedure", "CALL by_procedure($a)", ONE, ALL),
    s(
        "a prepared statement",
        "DEALLOCATE ALL; PREPARE p AS UPDATE t SET v = 7$s WHERE id = 1; EXECUTE p",
        ONE,
        ALL,
    ),
    s("fenced_update", r#"SELECT fenced_update('t', $k, '{"id": 1}', '{"v": 7}')"#, ONE, ALL),
    s(
        "INSERT into a partition or child",
        "INSERT INTO t_low (id, v$c) VALUES (9, 7$t)",
        NEW,
        FAMILY,
    ),
    s("UPDATE of a partition or child", "UPDATE t_low SET v = 7$s WHERE id = 2", TWO, FAMILY),
    s("DELETE from a partition or child", "DELETE FROM t_low WHERE id = 2", WITHOUT_TWO, FAMILY),
    // What is left is the row of the parent itself, if parents have any.
    s("TRUNCATE of a partition or child", "TRUNCATE t_low", "{1:0 }101:0", FAMILY),
    s(
        "COPY to a partition or child",
        "COPY t_low (id, v$c) FROM PROGRAM 'echo \"9, 7$t\"' (FORMAT csv)",
        NEW,
        FAMILY,
    ),
    s(
        "MERGE into a partition or child",
        "MERGE INTO t_low t USING source s ON t.id = s.id - 7 WHEN MATCHED THEN UPDATE SET v = 7$s",
        TWO,
        FAMILY,
    ),
    s(
        "INSERT into one two levels down",
        "INSERT INTO t_leaf (id, v$c) VALUES (109, 7$t)",
        "1:0 2:0>2 3:0~3 101:0 109:7",
        FAMILY,
    ),
    s("UPDATE of one two levels down", "UPDATE t_leaf SET v = 7$s", LEAF, FAMILY),
    s("DELETE from one two levels down", "DELETE FROM t_leaf", WITHOUT_LEAF, FAMILY),
    s("TRUNCATE of one two levels down", "TRUNCATE t_leaf", WITHOUT_LEAF, FAMILY),
    s("UPDATE of one that has others below it", "UPDATE t_high SET v = 7$s", LEAF, FAMILY),
    s("TRUNCATE of one that has others below it", "TRUNCATE t_high", WITHOUT_LEAF, FAMILY),
    s(
        "UPDATE through the parent",
        "UPDATE t SET v = 7$s WHERE id IN (2, 101)",
        "1:0 2:7>2 3:0~3 101:7",
        FAMILY,
    ),
    s("DELETE through the parent", "DELETE FROM t WHERE id IN (2, 101)", "1:0 3:0~3", FAMILY),
    s("UPDATE ONLY", "UPDATE ONLY t SET v = 7$s", ONE, INHERITANCE),
    s("DELETE ONLY", "DELETE FROM ONLY t", WITHOUT_ONE, INHERITANCE),
    s("TRUNCATE ONLY", "TRUNCATE ONLY t", WITHOUT_ONE, INHERITANCE),
];

/// The functions, views, rules and triggers that the statements go through. `{...}` is there only if `t` has a token column.
pub const WAYS_TO_T: &str = "
CREATE TABLE source AS SELECT 9 AS id;
CREATE VIEW seen AS SELECT id, v{, token} FROM t;
CREATE VIEW ruled AS SELECT id, v{, token} FROM t;
CREATE RULE instead AS ON UPDATE TO ruled DO INSTEAD
    UPDATE t SET v = NEW.v{, token = NEW.token} WHERE id = OLD.id;
CREATE TABLE inbox (id int, v int{, token bigint});
CREATE RULE also AS ON INSERT TO inbox DO ALSO
    INSERT INTO t (id, v{, token}) VALUES (NEW.id, NEW.v{, NEW.token});
CREATE VIEW handled AS SELECT id, v{, token} FROM t;
CREATE FUNCTION handle() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN UPDATE t SET v = NEW.v{, token = NEW.token} WHERE id = OLD.id; RETURN NEW; END';
CREATE TRIGGER handle INSTEAD OF UPDATE ON handled FOR EACH ROW EXECUTE FUNCTION handle();
CREATE TABLE queue (id int, v int{, token bigint});
CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO t (id, v{, token}) VALUES (NEW.id, NEW.v{, NEW.token}); RETURN NULL; END';
CREATE TRIGGER move AFTER INSERT ON queue FOR EACH ROW EXECUTE FUNCTION move();
CREATE FUNCTION by_plpgsql() RETURNS void LANGUAGE plpgsql AS 'BEGIN UPDATE t SET v = 7 WHERE id = 1; END';
CREATE FUNCTION by_sql() RETURNS void LANGUAGE sql AS 'UPDATE t SET v = 7 WHERE id = 1';
CREATE FUNCTION by_definer() RETURNS void SECURITY DEFINER LANGUAGE sql AS 'UPDATE t SET v = 7 WHERE id = 1';
CREATE PROCEDURE by_procedure() LANGUAGE plpgsql AS 'BEGIN UPDATE t SET v = 7 WHERE id = 1; END';
";

/// The same with the token as an argument.
pub const WAYS_TO_T_WITH_TOKEN: &str = "
CREATE FUNCTION by_plpgsql(bigint) RETURNS void LANGUAGE plpgsql AS
    'BEGIN UPDATE t SET v = 7, token = $1 WHERE id = 1; END';
CREATE FUNCTION by_sql(bigint) RETURNS void LANGUAGE sql AS 'UPDATE t SET v = 7, token = $1 WHERE id = 1';
CREATE FUNCTION by_definer(bigint) RETURNS void SECURITY DEFINER LANGUAGE sql AS
    'UPDATE t SET v = 7, token = $1 WHERE id = 1';
CREATE PROCEDURE by_procedure(bigint) LANGUAGE plpgsql AS
    'BEGIN UPDATE t SET v = 7, token = $1 WHERE id = 1; END';
";
