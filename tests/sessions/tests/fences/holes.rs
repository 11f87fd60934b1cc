//! Every hole that a fence can have is a write that goes through, and is in `fence_status` as long as it is there.

use lock_ext_sessions::{Asked, Db, NO_TOKEN, Refused, STALE};

use super::attach::{family, holes};
use super::tables::Shape;

struct Hole {
    shape: Shape,
    /// What makes the fence.
    fence: &'static str,
    opens: &'static str,
    /// A write without a token that goes through then, and not before and after.
    through: &'static str,
    /// What the status has to mention, all of it in one row.
    says: &'static [&'static str],
    closes: &'static str,
}

const BY_TRANSACTION: &str = "SELECT fence_attach('t', 'j')";
const BY_COLUMN: &str = "SELECT fence_attach('t', 'j', 'token')";

const HOLES: &[Hole] = &[
    Hole {
        shape: Shape::Plain,
        fence: BY_TRANSACTION,
        opens: "ALTER TABLE t DISABLE TRIGGER zzz_lock_ext_fence",
        through: "UPDATE t SET v = 9",
        says: &["zzz_lock_ext_fence", "disabled"],
        closes: "ALTER TABLE t ENABLE TRIGGER zzz_lock_ext_fence",
    },
    Hole {
        shape: Shape::Plain,
        fence: BY_TRANSACTION,
        opens: "ALTER TABLE t DISABLE TRIGGER ALL",
        through: "TRUNCATE t",
        says: &["disabled"],
        closes: "ALTER TABLE t ENABLE TRIGGER ALL",
    },
    Hole {
        shape: Shape::Plain,
        fence: BY_TRANSACTION,
        opens: "ALTER TABLE t ENABLE REPLICA TRIGGER zzz_lock_ext_fence",
        through: "DELETE FROM t",
        says: &["zzz_lock_ext_fence", "replica"],
        closes: "ALTER TABLE t ENABLE TRIGGER zzz_lock_ext_fence",
    },
    Hole {
        shape: Shape::Plain,
        fence: BY_COLUMN,
        opens: "ALTER TABLE t DISABLE TRIGGER zzz_lock_ext_fence",
        through: "TRUNCATE t",
        says: &["zzz_lock_ext_fence", "disabled"],
        closes: "ALTER TABLE t ENABLE ALWAYS TRIGGER zzz_lock_ext_fence",
    },
    Hole {
        shape: Shape::Plain,
        fence: BY_COLUMN,
        opens: "DROP TRIGGER zzz_lock_ext_fence ON t",
        through: "TRUNCATE t",
        says: &["TRUNCATE"],
        closes: BY_COLUMN,
    },
    Hole {
        shape: Shape::Partitioned,
        fence: BY_TRANSACTION,
        opens: "ALTER TABLE t_low DISABLE TRIGGER zzz_lock_ext_fence_row",
        through: "INSERT INTO t_low VALUES (1, 9)",
        says: &["t_low", "zzz_lock_ext_fence_row", "disabled"],
        closes: "ALTER TABLE t_low ENABLE TRIGGER zzz_lock_ext_fence_row",
    },
    Hole {
        shape: Shape::Partitioned,
        fence: BY_TRANSACTION,
        opens: "ALTER TABLE t_leaf DISABLE TRIGGER USER",
        through: "INSERT INTO t_leaf VALUES (101, 9)",
        says: &["t_leaf", "disabled"],
        closes: "ALTER TABLE t_leaf ENABLE TRIGGER USER",
    },
    Hole {
        shape: Shape::Partitioned,
        fence: BY_COLUMN,
        opens: "DROP TRIGGER zzz_lock_ext_fence_row ON t; ALTER TABLE t DISABLE TRIGGER zzz_lock_ext_fence",
        through: "UPDATE t SET v = 9",
        says: &["INSERT", "UPDATE", "DELETE"],
        closes: BY_COLUMN,
    },
    Hole {
        shape: Shape::Partitioned,
        fence: BY_TRANSACTION,
        opens: "DROP TRIGGER zzz_lock_ext_fence ON t_leaf",
        through: "TRUNCATE t_leaf",
        says: &["t_leaf", "TRUNCATE"],
        closes: BY_TRANSACTION,
    },
    Hole {
        shape: Shape::Inheritance,
        fence: BY_TRANSACTION,
        opens: "DROP TRIGGER zzz_lock_ext_fence_row ON t_leaf; DROP TRIGGER zzz_lock_ext_fence ON t_leaf",
        through: "UPDATE t_leaf SET v = 9",
        says: &["t_leaf", "UPDATE"],
        closes: BY_TRANSACTION,
    },
    Hole {
        shape: Shape::Inheritance,
        fence: BY_COLUMN,
        opens: "ALTER TABLE t_low DISABLE TRIGGER ALL",
        through: "DELETE FROM t_low",
        says: &["t_low", "disabled"],
        closes: "ALTER TABLE t_low ENABLE TRIGGER ALL",
    },
    Hole {
        shape: Shape::Plain,
        fence: "CREATE TRIGGER f BEFORE UPDATE ON t FOR EACH STATEMENT EXECUTE FUNCTION fence_check('j')",
        opens: "SELECT 1",
        through: "INSERT INTO t VALUES (1, 9); DELETE FROM t; TRUNCATE t",
        says: &["INSERT", "DELETE", "TRUNCATE"],
        closes: BY_TRANSACTION,
    },
    Hole {
        shape: Shape::Plain,
        fence: "CREATE TRIGGER f BEFORE INSERT OR UPDATE OF k OR DELETE OR TRUNCATE ON t
                FOR EACH STATEMENT EXECUTE FUNCTION fence_check('j')",
        opens: "SELECT 1",
        through: "UPDATE t SET v = 9",
        says: &["f "],
        closes: "DROP TRIGGER f ON t; CREATE TRIGGER f BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON t
                 FOR EACH STATEMENT EXECUTE FUNCTION fence_check('j')",
    },
    Hole {
        shape: Shape::Plain,
        fence: "CREATE TRIGGER f BEFORE TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION fence_check('j');
                CREATE TRIGGER g BEFORE INSERT OR UPDATE ON t FOR EACH ROW WHEN (NEW.v < 9) EXECUTE FUNCTION fence_check('j');
                CREATE TRIGGER h BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION fence_check('j')",
        opens: "SELECT 1",
        through: "INSERT INTO t VALUES (2, 9)",
        says: &["g "],
        closes: "DROP TRIGGER g ON t; CREATE TRIGGER g BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION fence_check('j')",
    },
];

#[tokio::test]
async fn a_hole_is_seen_as_long_as_it_is_there() {
    for (number, hole) in HOLES.iter().enumerate() {
        let case = format!("{number}: {} after {}", hole.opens, hole.fence);
        let db = Db::fresh().await;
        family(&db, hole.shape).await;
        let a = db.session().await;
        a.sql("INSERT INTO t VALUES (1, 0)").await.unwrap();
        if hole.shape != Shape::Plain {
            a.sql("INSERT INTO t_leaf VALUES (101, 0); INSERT INTO t_low VALUES (2, 0)")
                .await
                .unwrap();
        }
        a.sql(hole.fence).await.unwrap();
        let is_handmade = hole.fence.starts_with("CREATE TRIGGER");
        if !is_handmade {
            assert_eq!(holes(&a).await, Vec::<String>::new(), "{case}");
            let refusal = a.sql(&format!("BEGIN; {}", hole.through)).await.expect_err(&case);
            assert_eq!(refusal.code, NO_TOKEN, "{case}");
            a.rollback().await;
        }
        a.sql(hole.opens).await.unwrap();
        let seen = holes(&a).await;
        let is_said = seen.iter().any(|text| hole.says.iter().all(|part| text.contains(part)));
        assert!(is_said, "{case}: {:?} not in {seen:?}", hole.says);
        a.sql(&format!("BEGIN; {}; ROLLBACK", hole.through))
            .await
            .unwrap_or_else(|error| panic!("{case}: {error}: it is no hole"));
        a.sql(hole.closes).await.unwrap();
        assert_eq!(holes(&a).await, Vec::<String>::new(), "{case}");
        let refusal = a.sql(&format!("BEGIN; {}", hole.through)).await.expect_err(&case);
        assert_eq!(refusal.code, NO_TOKEN, "{case}");
        a.rollback().await;
    }
}

/// What a trigger after ours makes of the row is not what was checked; one before ours is checked with the row.
#[tokio::test]
async fn a_trigger_that_fires_later_is_a_hole() {
    for shape in Shape::ALL {
        let db = Db::fresh().await;
        family(&db, shape).await;
        let a = db.session().await;
        a.sql(
            "CREATE FUNCTION forges() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.token := 1000000; RETURN NEW; END';
             SELECT fence_attach('t', 'j', 'token')",
        )
        .await
        .unwrap();
        let t = a.acq("j", "A", "60 s").await.granted();
        let insert = format!("INSERT INTO t VALUES (1, 1, {t})");
        let table = if shape == Shape::Partitioned { "t_low" } else { "t" };
        a.sql(&format!(
            "CREATE TRIGGER \"Zzz before\" BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION forges()"
        ))
        .await
        .unwrap();
        assert_eq!(holes(&a).await, Vec::<String>::new(), "capitals come first: {shape:?}");
        a.sql(&insert).await.refused(STALE);
        a.sql(&format!("DROP TRIGGER \"Zzz before\" ON {table}")).await.unwrap();

        a.sql(&format!(
            "CREATE TRIGGER \"zzzz after\" BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION forges()"
        ))
        .await
        .unwrap();
        let seen = holes(&a).await;
        assert!(seen.iter().any(|hole| hole.contains("zzzz after")), "{shape:?}: {seen:?}");
        a.sql(&insert).await.unwrap();
        let forged: i64 = a.one("SELECT token FROM t", &[]).await.unwrap();
        assert_eq!(forged, 1_000_000, "that is the hole");
        a.sql(&format!("ALTER TABLE {table} DISABLE TRIGGER \"zzzz after\"")).await.unwrap();
        assert_eq!(holes(&a).await, Vec::<String>::new(), "{shape:?}");

        // Neither can change a row any more.
        a.sql(&format!(
            "DROP TRIGGER \"zzzz after\" ON {table};
             CREATE TRIGGER zzzz AFTER INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION forges();
             CREATE TRIGGER zzzzz BEFORE INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION forges()"
        ))
        .await
        .unwrap();
        assert_eq!(holes(&a).await, Vec::<String>::new(), "{shape:?}");
    }
}

/// A BEFORE trigger may skip the row, or change it; the fence sees what is left, and generated columns are none of its business.
#[tokio::test]
async fn other_triggers_and_generated_columns_get_along() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql(
        "CREATE TABLE t (id int, v int, token bigint, k text, doubled int GENERATED ALWAYS AS (v * 2) STORED,
                         number bigint GENERATED ALWAYS AS IDENTITY);
         CREATE FUNCTION before() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF TG_OP = 'DELETE' THEN RETURN CASE WHEN OLD.v < 0 THEN NULL ELSE OLD END; END IF;
             IF NEW.v < 0 THEN RETURN NULL; END IF;
             NEW.k := lower(NEW.k);
             RETURN NEW;
         END $$;
         CREATE TRIGGER a BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION before();
         SELECT fence_attach('t', 'p/', 'token', 'k')",
    )
    .await
    .unwrap();
    let t = a.acq("p/x", "A", "60 s").await.granted();
    assert_eq!(holes(&a).await, Vec::<String>::new());
    // Skipped, so it was never written.
    assert_eq!(a.exec("INSERT INTO t (id, v, k) VALUES (1, -1, 'nobody')", &[]).await, Ok(0));
    // The lease is that of the row as it is stored.
    assert_eq!(
        a.exec(&format!("INSERT INTO t (id, v, k, token) VALUES (1, 4, 'X', {t})"), &[]).await,
        Ok(1)
    );
    a.exec(&format!("UPDATE t SET v = 5, k = 'Y', token = {t}"), &[])
        .await
        .refused(STALE)
        .detail_names(&[&"p/y"]);
    assert_eq!(a.exec(&format!("UPDATE t SET v = 5, k = 'X', token = {t}"), &[]).await, Ok(1));
    let row = &a.rows("SELECT doubled, number, k FROM t", &[]).await.unwrap()[0];
    assert_eq!((row.get::<_, i32>(0), row.get::<_, &str>(2)), (10, "x"));
    assert!(row.get::<_, i64>(1) > 0);
}

#[tokio::test]
async fn triggers_that_always_fire_hold_in_replica_sessions_too() {
    let db = Db::fresh().await;
    family(&db, Shape::Plain).await;
    let [a, other] = db.sessions().await;
    a.sql("SELECT fence_attach('t', 'j'); SET session_replication_role = replica").await.unwrap();
    let seen = holes(&a).await;
    assert!(seen.iter().any(|hole| hole.contains("session_replication_role")), "{seen:?}");
    assert_eq!(holes(&other).await, Vec::<String>::new(), "it is the session's own");
    a.sql("BEGIN; INSERT INTO t VALUES (1, 1); ROLLBACK").await.expect("that is the hole");
    a.sql("ALTER TABLE t ENABLE ALWAYS TRIGGER zzz_lock_ext_fence").await.unwrap();
    assert_eq!(holes(&a).await, Vec::<String>::new());
    a.sql("INSERT INTO t VALUES (1, 1)").await.refused(NO_TOKEN);
}

#[tokio::test]
async fn a_role_or_database_that_is_replica_by_default_is_a_hole() {
    // A role's setting is one of the whole server, and so is the hole.
    let db = Db::alone().await;
    family(&db, Shape::Plain).await;
    let role = db.role("apply").await;
    let a = db.session().await;
    a.sql("SELECT fence_attach('t', 'j')").await.unwrap();
    for (on, of) in [
        (format!("ROLE {role}"), role.clone()),
        (format!("DATABASE {}", db.name()), "all roles".to_owned()),
        (format!("ROLE {role} IN DATABASE {}", db.name()), role.clone()),
    ] {
        a.sql(&format!("ALTER {on} SET session_replication_role = replica")).await.unwrap();
        let seen = holes(&a).await;
        let is_said =
            |hole: &&String| hole.contains("session_replication_role") && hole.contains(&of);
        assert!(seen.iter().any(|hole| is_said(&hole)), "{on}: {seen:?}");
        a.sql(&format!("ALTER {on} RESET session_replication_role")).await.unwrap();
        assert_eq!(holes(&a).await, Vec::<String>::new());
    }
}

/// Who owns the table can take the fence off.
#[tokio::test]
async fn an_owner_who_logs_in_is_a_hole() {
    let db = Db::fresh().await;
    family(&db, Shape::Plain).await;
    let [owner, member] = [db.role("owner").await, db.role("member").await];
    let a = db.session().await;
    a.sql("SELECT fence_attach('t', 'j')").await.unwrap();
    let owners = async || -> Vec<String> {
        a.list("SELECT hole FROM fence_status WHERE hole LIKE '%alter the table%'", &[])
            .await
            .unwrap()
    };
    assert!(owners().await.is_empty(), "a superuser goes past every fence anyhow");
    a.sql(&format!("ALTER TABLE t OWNER TO {owner}")).await.unwrap();
    let seen = owners().await;
    assert!(seen.len() == 1 && seen[0].contains(&owner) && !seen[0].contains(&member), "{seen:?}");
    a.sql(&format!("ALTER ROLE {owner} NOLOGIN")).await.unwrap();
    assert!(owners().await.is_empty());
    a.sql(&format!("GRANT {owner} TO {member}")).await.unwrap();
    let seen = owners().await;
    assert!(seen.len() == 1 && seen[0].contains(&member), "{seen:?}");
    a.sql(&format!("ALTER ROLE {member} NOLOGIN")).await.unwrap();
    assert!(owners().await.is_empty());
}

/// Everybody may see where fences are and what they lack.
#[tokio::test]
async fn the_status_is_for_everybody() {
    let db = Db::fresh().await;
    family(&db, Shape::Partitioned).await;
    db.watch
        .sql("SELECT fence_attach('t', 'j'); ALTER TABLE t_low DISABLE TRIGGER ALL")
        .await
        .unwrap();
    let role = db.role("nobody").await;
    let nobody = db.session_as(&role).await;
    let [theirs, ours] = [holes(&nobody).await, holes(&db.watch).await];
    assert!(!ours.is_empty());
    assert_eq!(theirs, ours);
}

/// A partition in another server: its rows can be changed there.
#[tokio::test]
async fn a_foreign_partition_is_a_hole() {
    let db = Db::fresh().await;
    family(&db, Shape::Partitioned).await;
    let a = db.session().await;
    a.sql(
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;
         CREATE FOREIGN TABLE far PARTITION OF t FOR VALUES FROM (500) TO (600) SERVER s;
         SELECT fence_attach('t', 'j'), fence_attach('t', 'j')",
    )
    .await
    .unwrap();
    let seen = holes(&a).await;
    assert!(seen.iter().any(|hole| hole.contains("far")), "{seen:?}");
    a.sql("DROP FOREIGN TABLE far").await.unwrap();
    assert_eq!(holes(&a).await, Vec::<String>::new());
}
