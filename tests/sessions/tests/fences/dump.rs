//! Fenced families of tables, dumped and restored: whole, and their rows alone.

use std::path::Path;
use std::process::Output;

use lock_ext_sessions::{Asked, Db, NO_TOKEN, Refused, STALE, Session};
use tokio::process::Command;

use super::attach::{family, holes, triggers};
use super::tables::Shape;

struct Dump(String);

impl Dump {
    async fn of(db: &Db, arguments: &[&str]) -> Self {
        let file =
            std::env::temp_dir().join(format!("{}.fences.dump", db.name())).display().to_string();
        let out =
            program("pg_dump", &[&["-Fc", "-f", &file, "-d", db.name()], arguments].concat(), &[])
                .await;
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Self(file)
    }

    async fn restore(
        &self,
        db: &Db,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<(), String> {
        let out =
            program("pg_restore", &[&["-d", db.name(), &self.0], arguments].concat(), environment)
                .await;
        if out.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        if Path::new(&self.0).exists() {
            std::fs::remove_file(&self.0).expect("our own file");
        }
    }
}

async fn program(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let path = std::env::var("LOCK_EXT_PGBIN")
        .map_or_else(|_| name.to_owned(), |bin| format!("{bin}/{name}"));
    let mut command = Command::new(&path);
    command.args(arguments).envs(environment.iter().copied());
    command.output().await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The fences as they are, without the numbers that differ between databases.
async fn fences(session: &Session) -> (Vec<String>, Vec<String>) {
    let mut named = triggers(session).await;
    for line in &mut named {
        let parts: Vec<&str> = line.split(' ').collect();
        *line = format!("{} {} {}", parts[0], parts[1], parts[3]);
    }
    let status = session
        .list("SELECT concat_ws('|', table_name, lease, token_column, lease_column, carried_by, hole) FROM fence_status ORDER BY 1", &[])
        .await
        .unwrap();
    (named, status)
}

async fn rows(session: &Session) -> Vec<String> {
    session.list("SELECT tableoid::regclass::text || t::text FROM t ORDER BY 1", &[]).await.unwrap()
}

const SEED: &str = "INSERT INTO t VALUES (1, 0, NULL, 'x'); INSERT INTO t_low VALUES (2, 0, NULL, 'x'); INSERT INTO t_leaf VALUES (101, 0, NULL, 'x')";

#[tokio::test]
async fn a_fenced_family_is_restored_whole() {
    for shape in [Shape::Partitioned, Shape::Inheritance] {
        for arguments in ["'j'", "'j', 'token'", "'', 'token', 'k'"] {
            let case = format!("{shape:?}, {arguments}");
            let db = Db::fresh().await;
            family(&db, shape).await;
            let a = db.session().await;
            a.sql(&format!(
                "{SEED}; SELECT fence_attach('t', {arguments}); SELECT fence_observe('r', 7)"
            ))
            .await
            .unwrap();
            let lease = if arguments.contains("'k'") { "x" } else { "j" };
            let old = a.acq(lease, "A", "60 s").await.granted();
            a.sql("BEGIN").await.unwrap();
            a.fence(lease, old).await.unwrap();
            a.sql("UPDATE t SET v = 5; COMMIT").await.unwrap();

            let dump = Dump::of(&db, &[]).await;
            let copy = db.another_bare().await;
            dump.restore(&copy, &["--exit-on-error"], &[])
                .await
                .unwrap_or_else(|error| panic!("{case}: {error}"));
            let b = copy.session().await;
            assert_eq!(fences(&b).await, fences(&a).await, "{case}");
            assert_eq!(holes(&b).await, Vec::<String>::new(), "{case}");
            assert_eq!(rows(&b).await, rows(&a).await, "{case}");
            b.sql("SELECT fence_observe('r', 6)").await.refused(STALE);
            // Nothing to do, so the fence was understood.
            let before = triggers(&b).await;
            b.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
            assert_eq!(triggers(&b).await, before, "{case}");

            for sql in [
                "UPDATE t_low SET v = 9",
                "INSERT INTO t_leaf VALUES (101, 9, NULL, 'x')",
                "TRUNCATE t_low",
            ] {
                b.sql(sql).await.refused(NO_TOKEN);
            }
            b.force(lease).await.unwrap();
            let new = b.acq(lease, "B", "60 s").await.granted();
            assert!(new > old, "{case}");
            b.sql("BEGIN").await.unwrap();
            b.fence(lease, old).await.refused(STALE);
            b.sql("ROLLBACK; BEGIN").await.unwrap();
            b.fence(lease, new).await.unwrap();
            b.sql("UPDATE t SET v = 6; COMMIT").await.unwrap();
        }
    }
}

/// Rows alone come as writes without a token. Who may switch triggers off may restore them.
#[tokio::test]
async fn rows_alone_need_the_triggers_off() {
    for shape in [Shape::Partitioned, Shape::Inheritance] {
        for arguments in ["'j'", "'j', 'token'"] {
            let case = format!("{shape:?}, {arguments}");
            let db = Db::fresh().await;
            family(&db, shape).await;
            let a = db.session().await;
            a.sql(&format!("{SEED}; SELECT fence_attach('t', {arguments})")).await.unwrap();
            let (before, fence) = (rows(&a).await, fences(&a).await);
            let dump = Dump::of(&db, &["--data-only", "-t", "t", "-t", "t_*"]).await;
            let empty = async || {
                a.sql("BEGIN; SET LOCAL session_replication_role = replica; TRUNCATE t; COMMIT")
                    .await
                    .unwrap();
                assert_eq!(rows(&a).await, Vec::<String>::new());
            };

            empty().await;
            let refusal = dump.restore(&db, &["--data-only"], &[]).await.expect_err(&case);
            assert!(refusal.contains("carries no fencing token"), "{case}: {refusal}");
            assert_eq!(rows(&a).await, Vec::<String>::new(), "{case}");

            for (options, environment) in [
                (["--data-only", "--disable-triggers"].as_slice(), [].as_slice()),
                (&["--data-only"], &[("PGOPTIONS", "-c session_replication_role=replica")]),
            ] {
                empty().await;
                dump.restore(&db, options, environment)
                    .await
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!(rows(&a).await, before, "{case}, {options:?}");
                assert_eq!(fences(&a).await, fence, "the fence is on again: {case}, {options:?}");
                a.sql("UPDATE t_low SET v = 9").await.refused(NO_TOKEN);
                a.sql("TRUNCATE t").await.refused(NO_TOKEN);
            }
        }
    }
}

/// A fence that has a hole has it afterwards, and shows it.
#[tokio::test]
async fn a_hole_is_restored_with_its_fence() {
    for shape in [Shape::Partitioned, Shape::Inheritance] {
        for hole in [
            "ALTER TABLE t DISABLE TRIGGER zzz_lock_ext_fence",
            "ALTER TABLE t_low DISABLE TRIGGER zzz_lock_ext_fence_row",
        ] {
            let case = format!("{shape:?}, {hole}");
            let db = Db::fresh().await;
            family(&db, shape).await;
            let a = db.session().await;
            a.sql(&format!("SELECT fence_attach('t', 'j'); {hole}")).await.unwrap();
            let dump = Dump::of(&db, &[]).await;
            let copy = db.another_bare().await;
            dump.restore(&copy, &["--exit-on-error"], &[])
                .await
                .unwrap_or_else(|error| panic!("{case}: {error}"));
            let b = copy.session().await;
            assert_eq!(holes(&b).await, holes(&a).await, "{case}");
            assert_eq!(holes(&b).await.len(), 1, "{case}");
        }
    }
}
