//! Leases that a column of each row names: a statement needs the token of every lease that its rows are of or come to be of.

use lock_ext_sessions::{Asked, Db, LEVELS, NO_TOKEN, Refused, STALE, Session};

use super::tables::Shape;

/// What a statement needs if the transaction carries its tokens, and what it is allowed if it sets the token column
/// instead: `yes`, a code, or `no row` as in the table of paths.
const TABLE: &str = "
| statement                             | needs the lease of   | by column |
| ------------------------------------- | -------------------- | --------- |
| INSERT of a row of the first          | the first            | yes       |
| INSERT of rows of both                | both                 | yes       |
| COPY of rows of both                  | both                 | yes       |
| ON CONFLICT DO UPDATE of a row        | the first            | yes       |
| UPDATE of a row of the first          | the first            | yes       |
| UPDATE of rows of both                | both                 | yes       |
| UPDATE that finds no row              | none                 | no row    |
| UPDATE that gives a row to the second | both                 | LX003     |
| DELETE of a row of the first          | the first            | LX003     |
| DELETE of rows of both                | both                 | LX003     |
| DELETE that finds no row              | none                 | no row    |
| MERGE that writes rows of both        | both                 | yes       |
| UPDATE of a partition or child        | the first            | yes       |
| DELETE from a partition or child      | the first            | LX003     |
| TRUNCATE                              | no token is enough   | LX003     |
| TRUNCATE of a partition or child      | no token is enough   | LX003     |
";

/// In the order of [`TABLE`]: what is executed, and the rows that are there afterwards. `$c` and the like as in the table of paths;
/// `$1` and `$2` are values of the two tokens, `$w` sets the token column to that of each row's lease, `$m` to the second.
const STATEMENTS: &[(&str, &str)] = &[
    ("INSERT INTO t (id, lease, v$c) VALUES (3, '1', 7$1)", "1/1:0 2/2:0 3/1:7"),
    (
        "INSERT INTO t (id, lease, v$c) VALUES (3, '1', 7$1), (4, '2', 7$2), (5, '1', 7$1)",
        "1/1:0 2/2:0 3/1:7 4/2:7 5/1:7",
    ),
    (
        "COPY t (id, lease, v$c) FROM PROGRAM 'echo \"3,1,7$1\"; echo \"4,2,7$2\"' (FORMAT csv)",
        "1/1:0 2/2:0 3/1:7 4/2:7",
    ),
    (
        "INSERT INTO t (id, lease, v$c) VALUES (1, '1', 6$1) ON CONFLICT (id, lease) DO UPDATE SET v = 7$e",
        "1/1:7 2/2:0",
    ),
    ("UPDATE t SET v = 7$w WHERE id = 1", "1/1:7 2/2:0"),
    ("UPDATE t SET v = 7$w", "1/1:7 2/2:7"),
    ("UPDATE t SET v = 7$w WHERE id = -1", SEED),
    ("UPDATE t SET lease = '2'$m WHERE id = 1", "1/2:0 2/2:0"),
    ("DELETE FROM t WHERE id = 1", "2/2:0"),
    ("DELETE FROM t", ""),
    ("DELETE FROM t WHERE id = -1", SEED),
    (
        "MERGE INTO t USING (VALUES (1, '1'), (4, '2')) s (id, lease) ON t.id = s.id
             WHEN MATCHED THEN UPDATE SET v = 7$w
             WHEN NOT MATCHED THEN INSERT (id, lease, v$c) VALUES (s.id, s.lease, 7$2)",
        "1/1:7 2/2:0 4/2:7",
    ),
    ("UPDATE t_1 t SET v = 7$w", "1/1:7 2/2:0"),
    ("DELETE FROM t_1", "2/2:0"),
    ("TRUNCATE t", ""),
    ("TRUNCATE t_1", "2/2:0"),
];

const SEED: &str = "1/1:0 2/2:0";
const FIRST: &str = "account:1";
const SECOND: &str = "account:2";

struct Scene {
    db: Db,
    shape: Shape,
    admin: Session,
    writer: Session,
}

impl Scene {
    async fn set(shape: Shape) -> Self {
        let db = Db::fresh().await;
        let admin = db.session().await;
        let columns =
            "id int, lease text, v int NOT NULL DEFAULT 0, token bigint, PRIMARY KEY (id, lease)";
        // Its columns have other numbers than the parent's.
        let other_order = "CREATE TABLE t_1 (gone int, token bigint, v int NOT NULL DEFAULT 0, lease text, id int, PRIMARY KEY (id, lease));
                           ALTER TABLE t_1 DROP COLUMN gone";
        admin
            .sql(&match shape {
                Shape::Plain => format!("CREATE TABLE t ({columns})"),
                // By the lease itself, so that a row that is given to another one moves.
                Shape::Partitioned => format!(
                    "CREATE TABLE t ({columns}) PARTITION BY LIST (lease);
                     {other_order}; ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES IN ('1'); CREATE TABLE t_2 PARTITION OF t DEFAULT"
                ),
                Shape::Inheritance => format!(
                    "CREATE TABLE t ({columns});
                     {other_order}; ALTER TABLE t_1 INHERIT t; CREATE TABLE t_2 () INHERITS (t)"
                ),
            })
            .await
            .unwrap();
        admin
            .sql("SELECT fence_attach('t', 'account:', token_column => 'token', lease_column => 'lease')")
            .await
            .unwrap();
        let writer = db.session().await;
        let scene = Self { db, shape, admin, writer };
        scene.reset().await;
        scene
    }

    async fn reset(&self) {
        let [one, two] = match self.shape {
            Shape::Inheritance => ["t_1", "t_2"],
            _ => ["t", "t"],
        };
        self.admin
            .sql(&format!(
                "BEGIN; SET LOCAL session_replication_role = replica; TRUNCATE t;
                 INSERT INTO {one} (id, lease) VALUES (1, '1'); INSERT INTO {two} (id, lease) VALUES (2, '2'); COMMIT"
            ))
            .await
            .unwrap();
    }

    async fn rows(&self) -> String {
        let rows = "SELECT coalesce(string_agg(id || '/' || lease || ':' || v, ' ' ORDER BY id), '') FROM t";
        self.db.watch.one(rows, &[]).await.unwrap()
    }

    async fn grants(&self) -> [i64; 2] {
        self.admin.sql("SELECT lease_force_release(name) FROM lease_status").await.unwrap();
        [
            self.writer.acq(FIRST, "A", "60 s").await.granted(),
            self.writer.acq(SECOND, "A", "60 s").await.granted(),
        ]
    }

    async fn take_over(&self, lease: &str) {
        self.admin.force(lease).await.unwrap();
        self.admin.acq(lease, "B", "60 s").await.granted();
    }

    /// The rows with their tokens, where they were written.
    async fn is_stamped(&self, tokens: [i64; 2]) -> bool {
        let wrong = "SELECT count(*) FROM t WHERE (v = 7 OR id = 1 AND lease = '2')
                     AND token IS DISTINCT FROM CASE lease WHEN '1' THEN $1::bigint ELSE $2::bigint END";
        self.db.watch.one::<i64>(wrong, &[&tokens[0], &tokens[1]]).await.unwrap() == 0
    }
}

fn statement(sql: &str, by_column: Option<[i64; 2]>) -> String {
    let of_lease =
        |[one, two]: [i64; 2]| format!(", token = CASE t.lease WHEN '1' THEN {one} ELSE {two} END");
    let text = |make: &dyn Fn([i64; 2]) -> String| by_column.map(make).unwrap_or_default();
    sql.replace("$c", &text(&|_| ", token".to_owned()))
        .replace("$1", &text(&|t| format!(", {}", t[0])))
        .replace("$2", &text(&|t| format!(", {}", t[1])))
        .replace("$w", &text(&of_lease))
        .replace("$m", &text(&|t| format!(", token = {}", t[1])))
        .replace("$e", &text(&|_| ", token = excluded.token".to_owned()))
}

/// Of the first and of the second lease: what becomes of their tokens in the transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Current,
    SupersededBefore(&'static str),
    SupersededBeforeCommit(&'static str),
}

async fn as_the_table_says(shape: Shape) {
    let scene = Scene::set(shape).await;
    let before = scene.rows().await;
    let w = &scene.writer;
    let lines = TABLE.trim().lines().skip(2).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        (cells[1], cells[2], cells[3])
    });
    let lines: Vec<_> = lines.zip(STATEMENTS).collect();
    assert_eq!(lines.len(), STATEMENTS.len());
    for level in LEVELS {
        for ((name, needs, by_column), (sql, after)) in &lines {
            let is_there = match shape {
                Shape::Plain => !name.contains("child"),
                Shape::Partitioned => true,
                // Its row is in a child, where the parent's key does not see it.
                Shape::Inheritance => !name.contains("CONFLICT"),
            };
            if !is_there {
                continue;
            }
            let needed: &[&str] = match *needs {
                "the first" => &[FIRST],
                "both" => &[FIRST, SECOND],
                _ => &[],
            };
            let never = *needs == "no token is enough";
            let carried: [&[&str]; 4] = [&[], &[FIRST], &[SECOND], &[FIRST, SECOND]];
            for carries in carried.map(Some).into_iter().chain([None]) {
                for fate in [
                    Fate::Current,
                    Fate::SupersededBefore(FIRST),
                    Fate::SupersededBeforeCommit(FIRST),
                    Fate::SupersededBeforeCommit(SECOND),
                ] {
                    let case = format!("{name}, {carries:?}, {fate:?}, {level}");
                    let tokens = scene.grants().await;
                    w.begin(level).await;
                    w.sql("SELECT count(*) FROM t").await.unwrap();
                    for lease in carries.unwrap_or_default() {
                        w.fence(lease, tokens[usize::from(*lease == SECOND)]).await.unwrap();
                    }
                    if let Fate::SupersededBefore(lease) = fate {
                        scene.take_over(lease).await;
                    }
                    w.sql("SAVEPOINT s").await.unwrap();
                    let by = carries.is_none().then_some(tokens);
                    let written = w.sql(&statement(sql, by)).await;
                    if written.is_err() {
                        w.sql("ROLLBACK TO s").await.unwrap();
                    }
                    if let Fate::SupersededBeforeCommit(lease) = fate {
                        scene.take_over(lease).await;
                    }
                    let committed = w.commit().await;

                    let lacks = match carries {
                        Some(carries) => {
                            never || !needed.iter().all(|lease| carries.contains(lease))
                        }
                        None => *by_column == NO_TOKEN,
                    };
                    let uses = |lease| needed.contains(&lease);
                    // What it declared it declared for all that it writes.
                    let writes = |lease| {
                        let is_declared = carries.is_some_and(|carries| carries.contains(&lease));
                        uses(lease) || is_declared && *after != before
                    };
                    let (at_statement, at_commit) = match fate {
                        // Whichever row comes first says what it lacks.
                        Fate::SupersededBefore(lease) if lacks && uses(lease) => {
                            (Some("LX00"), None)
                        }
                        _ if lacks => (Some(NO_TOKEN), None),
                        Fate::SupersededBefore(lease) if uses(lease) => (Some(STALE), None),
                        Fate::SupersededBefore(lease) | Fate::SupersededBeforeCommit(lease)
                            if writes(lease) =>
                        {
                            (None, Some(STALE))
                        }
                        _ => (None, None),
                    };
                    let is_as = |answer: &Result<(), lock_ext_sessions::PgError>,
                                 code: Option<&str>| match (
                        answer, code,
                    ) {
                        (Ok(()), None) => true,
                        (Err(error), Some(code)) => error.code.starts_with(code),
                        _ => false,
                    };
                    assert!(is_as(&written, at_statement), "{case}: {written:?} at the statement");
                    assert!(is_as(&committed, at_commit), "{case}: {committed:?} at the commit");
                    let rows = scene.rows().await;
                    if at_statement.is_none() && at_commit.is_none() {
                        assert_eq!(rows, *after, "{case}");
                        assert!(scene.is_stamped(tokens).await, "{case}");
                    } else {
                        assert_eq!(rows, before, "{case}");
                    }
                    if rows != before {
                        scene.reset().await;
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn leases_by_row_of_a_plain_table() {
    as_the_table_says(Shape::Plain).await;
}

#[tokio::test]
async fn leases_by_row_of_a_partitioned_table() {
    as_the_table_says(Shape::Partitioned).await;
}

#[tokio::test]
async fn leases_by_row_of_a_parent_and_its_children() {
    as_the_table_says(Shape::Inheritance).await;
}

/// The token column carries the token of the lease that the row comes to; the one that it leaves is carried by the transaction.
#[tokio::test]
async fn a_row_changes_hands_with_both_tokens() {
    for shape in Shape::ALL {
        let scene = Scene::set(shape).await;
        let w = &scene.writer;
        let [first, second] = scene.grants().await;
        let give = |token: i64| format!("UPDATE t SET lease = '2', token = {token} WHERE id = 1");
        for (fence, token, answer) in [
            (None, second, Err(NO_TOKEN)),
            (None, first, Err(STALE)),
            (Some((FIRST, first)), first, Err(STALE)),
            (Some((FIRST, first)), second, Ok(1)),
        ] {
            w.sql("BEGIN").await.unwrap();
            if let Some((lease, token)) = fence {
                w.fence(lease, token).await.unwrap();
            }
            let given = w.exec(&give(token), &[]).await.map_err(|error| error.code);
            let case = format!("{shape:?}, {fence:?}, {token}");
            match answer {
                Ok(rows) => {
                    assert_eq!(given, Ok(rows), "{case}");
                    w.commit().await.unwrap();
                    assert_eq!(scene.rows().await, "1/2:0 2/2:0", "{case}");
                }
                // Of two reasons the one that is met first; either is right.
                Err(code) => {
                    let given = given.expect_err(&case);
                    assert!(given == code || given == NO_TOKEN, "{case}: {given}");
                    w.rollback().await;
                    assert_eq!(scene.rows().await, SEED, "{case}");
                }
            }
        }
    }
}

/// With another lease's token, current or not, the column carries nothing that counts.
#[tokio::test]
async fn a_token_of_another_lease_is_stale() {
    for shape in Shape::ALL {
        let scene = Scene::set(shape).await;
        let [first, second] = scene.grants().await;
        for sql in [
            format!("INSERT INTO t VALUES (3, '1', 7, {second})"),
            format!("INSERT INTO t VALUES (3, '1', 7, {first}), (4, '2', 7, {first})"),
            format!("UPDATE t SET v = 7, token = {first}"),
            format!("UPDATE t SET v = 7, token = {second} WHERE lease = '1'"),
        ] {
            let error = scene.writer.sql(&sql).await.refused(STALE);
            assert!(error.detail.unwrap().contains("account:"), "{sql}");
            assert_eq!(scene.rows().await, SEED, "{sql}");
        }
    }
}

/// Under READ COMMITTED an UPDATE that waited for its row finds it of another lease than when it began.
#[tokio::test]
async fn a_row_that_changed_hands_meanwhile_is_of_its_new_lease() {
    let scene = Scene::set(Shape::Plain).await;
    let [first, second] = scene.grants().await;
    let giver = scene.db.session().await;
    giver.sql("BEGIN").await.unwrap();
    giver.fence(FIRST, first).await.unwrap();
    giver.fence(SECOND, second).await.unwrap();
    giver.sql("UPDATE t SET lease = '2' WHERE id = 1").await.unwrap();
    for sql in ["UPDATE t SET v = 9 WHERE id = 1", "DELETE FROM t WHERE id = 1"] {
        let w = scene.db.session().await;
        w.sql("BEGIN").await.unwrap();
        w.fence(FIRST, first).await.unwrap();
        let writing = w.beside(move |w| async move { w.sql(sql).await });
        scene.db.blocked(&w).await;
        giver.commit().await.unwrap();
        writing.await.unwrap().refused(NO_TOKEN).detail_names(&[&SECOND]);
        w.rollback().await;
        assert_eq!(scene.rows().await, "1/2:0 2/2:0");
        giver.sql("BEGIN").await.unwrap();
        giver.fence(FIRST, first).await.unwrap();
        giver.fence(SECOND, second).await.unwrap();
        giver.sql("UPDATE t SET lease = '1' WHERE id = 1; COMMIT").await.unwrap();
        giver.sql("BEGIN").await.unwrap();
        giver.fence(FIRST, first).await.unwrap();
        giver.fence(SECOND, second).await.unwrap();
        giver.sql("UPDATE t SET lease = '2' WHERE id = 1").await.unwrap();
    }
    giver.rollback().await;
}

/// `fenced_update` has to be told which of the leases it writes under.
#[tokio::test]
async fn fenced_update_of_rows_with_leases_of_their_own() {
    for shape in Shape::ALL {
        let scene = Scene::set(shape).await;
        let w = &scene.writer;
        let [first, second] = scene.grants().await;
        let update = |token: i64, filter: &str, more: &str| {
            format!(r#"SELECT fenced_update('t', {token}, '{filter}', '{{"v": 7}}'{more})"#)
        };
        w.sql(&update(first, r#"{"id": 1}"#, "")).await.refused("55000").has_hint();
        let under_first = ", lease => 'account:1'";
        w.sql(&update(second, r#"{"id": 1}"#, under_first)).await.refused(STALE);
        w.sql(&update(first, r#"{"id": 2}"#, under_first)).await.refused(NO_TOKEN);
        assert_eq!(scene.rows().await, SEED);
        assert_eq!(w.one::<i64>(&update(first, r#"{"id": 1}"#, under_first), &[]).await, Ok(1));
        assert_eq!(scene.rows().await, "1/1:7 2/2:0");
        assert!(scene.is_stamped([first, second]).await);
    }
}
