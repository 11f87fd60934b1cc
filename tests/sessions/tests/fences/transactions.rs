//! What a transaction can consist of and end in, at every isolation level, with a take-over between its write and its commit.

use lock_ext_sessions::{Asked, Db, LEVELS, NO_TOKEN, Refused, STALE, Session};

use super::guard::{Guard, LEASE};
use super::tables::{Shape, tables};

/// What a transaction does between BEGIN and its end.
struct Work {
    name: &'static str,
    sql: &'static str,
    /// The first value of v or id that is there after the commit and not before.
    shows: &'static str,
    can_be_prepared: bool,
}

const fn work(name: &'static str, sql: &'static str, shows: &'static str) -> Work {
    Work { name, sql, shows, can_be_prepared: true }
}

const ONE: &str = "SELECT v = 7 FROM t WHERE id = 1";
const NINE: &str = "SELECT EXISTS (SELECT FROM t WHERE id = 9)";

const WORKS: &[Work] = &[
    work("a plain statement", "UPDATE t SET v = 7 WHERE id = 1", ONE),
    work(
        "a savepoint that is released",
        "SAVEPOINT a; UPDATE t SET v = 7 WHERE id = 1; RELEASE a",
        ONE,
    ),
    work("a savepoint that is open", "SAVEPOINT a; UPDATE t SET v = 7 WHERE id = 1", ONE),
    work(
        "a savepoint beside one that is rolled back",
        "SAVEPOINT a; DELETE FROM t; ROLLBACK TO a; SAVEPOINT b; UPDATE t SET v = 7 WHERE id = 1; RELEASE b",
        ONE,
    ),
    work(
        "a cursor",
        "DECLARE c CURSOR FOR SELECT * FROM t ORDER BY id FOR UPDATE; FETCH c; UPDATE t SET v = 7 WHERE CURRENT OF c",
        ONE,
    ),
    Work {
        can_be_prepared: false,
        ..work(
            "a cursor that is read to its end by the commit",
            "DECLARE c CURSOR WITH HOLD FOR SELECT by_plpgsql()",
            ONE,
        )
    },
    work("DO", "DO $$ BEGIN UPDATE t SET v = 7 WHERE id = 1; END $$", ONE),
    work(
        "DO with a block that fails",
        "DO $$ BEGIN
             UPDATE t SET v = 7 WHERE id = 1;
             BEGIN DELETE FROM t; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END;
         END $$",
        ONE,
    ),
    work("a procedure", "CALL by_procedure()", ONE),
    work("a SECURITY DEFINER function", "SELECT by_definer()", ONE),
    work("a deferred constraint trigger", "INSERT INTO later VALUES (9)", NINE),
    work(
        "a deferred foreign key",
        "INSERT INTO t (id, up) VALUES (9, 99); INSERT INTO up VALUES (99)",
        NINE,
    ),
    work(
        "a foreign key's action",
        "DELETE FROM up WHERE id = 2",
        "SELECT NOT EXISTS (SELECT FROM t WHERE id = 2)",
    ),
    work("COPY", "COPY t (id, v) FROM PROGRAM 'echo 9,7' (FORMAT csv)", NINE),
    work("TRUNCATE", "TRUNCATE t", "SELECT NOT EXISTS (SELECT FROM t)"),
    work(
        "a row that moves",
        "UPDATE t SET id = 105 WHERE id = 1",
        "SELECT EXISTS (SELECT FROM t WHERE id = 105)",
    ),
];

struct Scene {
    db: Db,
    guard: Guard,
    shape: Shape,
    writer: Session,
    admin: Session,
}

impl Scene {
    async fn set(guard: Guard, shape: Shape) -> Self {
        let db = Db::fresh().await;
        let app = tables(&db, guard, shape, false).await;
        let admin = db.session().await;
        admin
            .sql(&format!(
                "CREATE TABLE later (id int); GRANT ALL ON later TO {app};
                 CREATE FUNCTION do_later() RETURNS trigger LANGUAGE plpgsql AS
                     'BEGIN INSERT INTO t (id) VALUES (NEW.id); RETURN NULL; END';
                 CREATE CONSTRAINT TRIGGER do_later AFTER INSERT ON later DEFERRABLE INITIALLY DEFERRED
                     FOR EACH ROW EXECUTE FUNCTION do_later();
                 DO $$ DECLARE r record; BEGIN
                     FOR r IN SELECT conname, conrelid::regclass AS t FROM pg_constraint
                               WHERE contype = 'f' AND conparentid = 0 LOOP
                         EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I DEFERRABLE INITIALLY DEFERRED', r.t, r.conname);
                     END LOOP;
                 END $$"
            ))
            .await
            .expect("what is done later");
        guard.attach(&admin, "t", None).await;
        let writer = db.session_as(&app).await;
        let scene = Self { db, guard, shape, writer, admin };
        scene.reset().await;
        scene
    }

    async fn reset(&self) {
        self.admin
            .sql(&format!(
                "BEGIN; SET LOCAL session_replication_role = replica;
                 TRUNCATE t, up, up_null, later; {}; COMMIT",
                self.shape.fill()
            ))
            .await
            .expect("a superuser may");
    }

    async fn take_over(&self) {
        self.guard.end(&self.admin).await;
        self.guard.grant(&self.admin).await;
    }

    /// Works in a transaction and ends it. Whether its work is there, or with which code it was refused.
    async fn play(
        &self,
        level: &str,
        work: &Work,
        prepare: bool,
        stale: bool,
    ) -> Result<bool, String> {
        let token = self.guard.grant(&self.writer).await;
        self.writer.begin(level).await;
        self.guard.carry(&self.writer, token).await.expect("it is current");
        self.writer.sql(work.sql).await.unwrap_or_else(|error| panic!("{error:?}: {}", work.name));
        if stale {
            self.take_over().await;
        }
        let gid = self.db.name();
        let end =
            if prepare { format!("PREPARE TRANSACTION '{gid}'") } else { "COMMIT".to_owned() };
        let mut ended = self.writer.sql(&end).await;
        if prepare && ended.is_ok() {
            ended = self.admin.sql(&format!("COMMIT PREPARED '{gid}'")).await;
        }
        self.writer.sql("CLOSE ALL").await.expect("a cursor WITH HOLD outlives its transaction");
        self.guard.end(&self.admin).await;
        let shows = self.db.watch.one::<bool>(work.shows, &[]).await.expect("one answer");
        self.reset().await;
        match ended {
            Ok(()) => Ok(shows),
            Err(error) => {
                assert!(!shows, "{} is refused and there all the same", work.name);
                Err(error.code)
            }
        }
    }
}

async fn a_take_over_before_the_end_refuses_it(shape: Shape) {
    let scene = Scene::set(Guard::Ours, shape).await;
    for level in LEVELS {
        for work in WORKS {
            for prepare in [false, true] {
                if prepare && !work.can_be_prepared {
                    continue;
                }
                let case = format!("{}, {level}, prepare: {prepare}", work.name);
                let current = scene.play(level, work, prepare, false).await;
                assert_eq!(current, Ok(true), "{case}");
                let stale = scene.play(level, work, prepare, true).await;
                assert_eq!(stale, Err(STALE.to_owned()), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_take_over_before_the_end_refuses_it_on_a_plain_table() {
    a_take_over_before_the_end_refuses_it(Shape::Plain).await;
}

#[tokio::test]
async fn a_take_over_before_the_end_refuses_it_on_a_partitioned_table() {
    a_take_over_before_the_end_refuses_it(Shape::Partitioned).await;
}

#[tokio::test]
async fn a_take_over_before_the_end_refuses_it_on_a_parent() {
    a_take_over_before_the_end_refuses_it(Shape::Inheritance).await;
}

/// The same with a fence that looks once: nothing of it is refused.
#[tokio::test]
async fn the_naive_fence_lets_all_of_them_commit() {
    let scene = Scene::set(Guard::Naive, Shape::Plain).await;
    // What is done by the commit itself comes after the take-over, where it does see.
    let at_commit =
        ["a cursor that is read to its end by the commit", "a deferred constraint trigger"];
    for level in LEVELS {
        for work in WORKS {
            let through = scene.play(level, work, false, true).await;
            let sees = at_commit.contains(&work.name) && level == LEVELS[0];
            let expected = if sees { Err(STALE.to_owned()) } else { Ok(true) };
            assert_eq!(through, expected, "{}, {level}", work.name);
        }
    }
}

#[tokio::test]
async fn a_write_that_is_rolled_back_to_a_savepoint_is_forgotten() {
    let writers = "SELECT count(*) FROM lease_writer WHERE pid = $1";
    for shape in Shape::ALL {
        let scene = Scene::set(Guard::Ours, shape).await;
        let pid = scene.writer.pid();
        for level in LEVELS {
            for work in WORKS {
                // Nothing of it is there before the commit.
                if [WORKS[5].name, "a deferred constraint trigger"].contains(&work.name) {
                    continue;
                }
                let case = format!("{}, {shape:?}, {level}", work.name);
                let token = scene.guard.grant(&scene.writer).await;
                scene.writer.begin(level).await;
                scene.guard.carry(&scene.writer, token).await.expect("it is current");
                scene
                    .writer
                    .sql("SAVEPOINT outermost; INSERT INTO source VALUES (9)")
                    .await
                    .unwrap();
                scene.writer.sql(work.sql).await.unwrap();
                scene.writer.sql("ROLLBACK TO outermost").await.unwrap();
                // What it has declared it has still.
                assert_eq!(scene.db.watch.one(writers, &[&pid]).await, Ok(1_i64), "{case}");
                scene.take_over().await;
                let commit = scene.writer.commit().await;
                assert_eq!(commit, Ok(()), "{case}");
                scene.guard.end(&scene.admin).await;
            }
        }
    }
}

/// Each COMMIT of a procedure ends the fence that was declared before it.
#[tokio::test]
async fn a_fence_ends_with_each_commit_of_a_procedure() {
    for shape in Shape::ALL {
        let scene = Scene::set(Guard::Ours, shape).await;
        let w = &scene.writer;
        scene
            .admin
            .sql(
                "CREATE PROCEDURE twice(token bigint, again boolean, wait boolean) LANGUAGE plpgsql AS $$
                 BEGIN
                     PERFORM lease_fence('j', token);
                     UPDATE t SET v = 7 WHERE id = 1;
                     COMMIT;
                     IF again THEN PERFORM lease_fence('j', token); END IF;
                     UPDATE t SET v = 8 WHERE id = 1;
                     IF wait THEN PERFORM pg_advisory_xact_lock(1); END IF;
                     COMMIT;
                 END $$",
            )
            .await
            .unwrap();
        let v = async || scene.db.v("t", 1).await;
        for level in LEVELS {
            w.sql(&format!("SET default_transaction_isolation = '{level}'")).await.unwrap();
            let t = scene.guard.grant(w).await;
            w.sql(&format!("CALL twice({t}, false, false)")).await.refused(NO_TOKEN);
            assert_eq!(v().await, 7, "the first part is committed, the second is not: {level}");
            scene.reset().await;
            w.sql(&format!("CALL twice({t}, true, false)")).await.unwrap();
            assert_eq!(v().await, 8, "{level}");
            scene.reset().await;

            // Taken over while its second part is open.
            scene.admin.sql("BEGIN; SELECT pg_advisory_xact_lock(1)").await.unwrap();
            let call = format!("CALL twice({t}, true, true)");
            let calling = w.beside(move |w| async move { w.sql(&call).await });
            scene.db.blocked(w).await;
            let other = scene.db.session().await;
            other.force(LEASE).await.unwrap();
            other.acq(LEASE, "B", "60 s").await.granted();
            scene.admin.commit().await.unwrap();
            calling.await.unwrap().refused(STALE);
            assert_eq!(v().await, 7, "{level}");
            other.force(LEASE).await.unwrap();
            scene.reset().await;
        }
    }
}

/// COMMIT AND CHAIN begins a transaction that carries nothing.
#[tokio::test]
async fn a_chained_transaction_carries_nothing() {
    let scene = Scene::set(Guard::Ours, Shape::Partitioned).await;
    let w = &scene.writer;
    for end in ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN"] {
        let t = scene.guard.grant(w).await;
        w.sql("BEGIN").await.unwrap();
        w.fence(LEASE, t).await.unwrap();
        w.sql("UPDATE t SET v = 7 WHERE id = 1").await.unwrap();
        w.sql(end).await.unwrap();
        w.sql("UPDATE t SET v = 8 WHERE id = 1").await.refused(NO_TOKEN);
        w.rollback().await;
        scene.guard.end(&scene.admin).await;
        scene.reset().await;
    }
}

#[tokio::test]
async fn acquired_used_and_released_in_one_transaction() {
    for shape in Shape::ALL {
        let scene = Scene::set(Guard::Ours, shape).await;
        let w = &scene.writer;
        for level in LEVELS {
            w.begin(level).await;
            let t = w.acq(LEASE, "A", "60 s").await.granted();
            w.fence(LEASE, t).await.unwrap();
            w.sql("UPDATE t SET v = 7 WHERE id IN (1, 101)").await.unwrap();
            assert_eq!(w.rel(LEASE, t).await, Ok(true));
            w.sql("SAVEPOINT s").await.unwrap();
            w.sql("UPDATE t SET v = 8 WHERE id = 2").await.refused(STALE);
            w.sql("ROLLBACK TO s").await.unwrap();
            scene.admin.acq(LEASE, "B", "60 s").await.busy();
            w.commit().await.expect("nobody else had it meanwhile");
            assert_eq!([scene.db.v("t", 1).await, scene.db.v("t", 101).await], [7, 7], "{level}");
            assert_eq!(scene.db.v("t", 2).await, 0);
            scene.admin.acq(LEASE, "B", "60 s").await.granted();
            scene.admin.force(LEASE).await.unwrap();
            scene.reset().await;
        }
    }
}

/// Two fences on one table, made by hand: both tokens are needed, and both are checked at the commit.
#[tokio::test]
async fn a_table_under_two_leases_needs_both() {
    let db = Db::fresh().await;
    let [a, admin] = db.sessions().await;
    admin
        .sql(
            "CREATE TABLE two (id int PRIMARY KEY, v int); INSERT INTO two VALUES (1, 0);
             CREATE TRIGGER zz_x BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON two
                 FOR EACH STATEMENT EXECUTE FUNCTION fence_check('x');
             CREATE TRIGGER zz_y BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON two
                 FOR EACH STATEMENT EXECUTE FUNCTION fence_check('y')",
        )
        .await
        .unwrap();
    let leases: Vec<String> = admin
        .list("SELECT lease FROM fence_status WHERE table_name = 'two'::regclass AND hole IS NULL ORDER BY 1", &[])
        .await
        .unwrap();
    assert_eq!(leases, ["x", "y"]);
    for level in LEVELS {
        let mut tokens =
            [a.acq("x", "A", "60 s").await.granted(), a.acq("y", "A", "60 s").await.granted()];
        for only in [["x"].as_slice(), &["y"], &[]] {
            for write in ["UPDATE two SET v = 9", "TRUNCATE two", "INSERT INTO two VALUES (2, 9)"] {
                a.begin(level).await;
                for name in only {
                    a.fence(name, tokens[usize::from(*name == "y")]).await.unwrap();
                }
                a.sql(write).await.refused(NO_TOKEN);
                a.rollback().await;
            }
        }
        for stale in ["none", "x", "y"] {
            a.begin(level).await;
            a.fence("x", tokens[0]).await.unwrap();
            a.fence("y", tokens[1]).await.unwrap();
            a.sql("UPDATE two SET v = v + 1").await.unwrap();
            if stale == "none" {
                a.commit().await.unwrap();
                continue;
            }
            admin.force(stale).await.unwrap();
            let index = usize::from(stale == "y");
            let old = std::mem::replace(&mut tokens[index], a_new_grant(&admin, stale).await);
            let error = a.commit().await.refused(STALE);
            error.detail_names(&[&format!("\"{stale}\""), &old, &tokens[index]]);
        }
        admin.sql("SELECT lease_force_release('x'), lease_force_release('y')").await.unwrap();
    }
    assert_eq!(db.v("two", 1).await, 3, "one commit a level");
    admin.sql("SELECT fence_detach('two'); UPDATE two SET v = 4").await.expect("both are off");
}

async fn a_new_grant(session: &Session, lease: &str) -> i64 {
    session.acq(lease, "B", "60 s").await.granted()
}

/// With all of the planner's switches set to parallel, and functions that claim to be safe for it.
#[tokio::test]
async fn parallel_plans_change_nothing() {
    for shape in Shape::ALL {
        let scene = Scene::set(Guard::Ours, shape).await;
        let w = &scene.writer;
        scene
            .admin
            .sql(
                "CREATE TABLE many AS SELECT g AS id FROM generate_series(1000, 1999) g; ANALYZE many;
                 GRANT ALL ON many TO PUBLIC;
                 ALTER TABLE many SET (parallel_workers = 2);
                 CREATE FUNCTION claims_to_be_safe(token bigint) RETURNS void PARALLEL SAFE LANGUAGE plpgsql AS
                     'BEGIN PERFORM lease_fence(''j'', token); END'",
            )
            .await
            .unwrap();
        if shape == Shape::Partitioned {
            scene
                .admin
                .sql("CREATE TABLE t_many PARTITION OF t_high FOR VALUES FROM (200) TO (9999)")
                .await
                .unwrap();
        }
        w.sql(
            "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
             SET min_parallel_table_scan_size = 0; SET parallel_leader_participation = off",
        )
        .await
        .unwrap();
        w.force_parallel().await;
        let plan: Vec<String> =
            w.list("EXPLAIN SELECT id FROM many WHERE id % 2 = 0", &[]).await.unwrap();
        assert!(
            plan.iter().any(|line| line.contains("Gather")),
            "nothing is parallel here: {plan:?}"
        );
        let copy = "INSERT INTO t (id, v) SELECT id, 7 FROM many WHERE id % 2 = 0";
        for stale in [false, true] {
            let t = scene.guard.grant(w).await;
            w.sql("BEGIN").await.unwrap();
            w.fence(LEASE, t).await.unwrap();
            assert_eq!(w.exec(copy, &[]).await, Ok(500));
            if stale {
                scene.take_over().await;
                w.commit().await.refused(STALE);
            } else {
                w.commit().await.unwrap();
            }
            let rows = scene.db.watch.one::<i64>("SELECT count(*) FROM t WHERE v = 7", &[]).await;
            assert_eq!(rows, Ok(if stale { 0 } else { 500 }));
            scene.guard.end(&scene.admin).await;
            scene.reset().await;
        }
        w.exec(copy, &[]).await.refused(NO_TOKEN);
        // What a worker declared would be lost with it.
        let t = scene.guard.grant(w).await;
        w.exec("SELECT claims_to_be_safe($1)", &[&t]).await.refused("25000");
    }
}

/// What runs as another role than the writer: by transaction the token was checked when it was declared, by column the role that
/// writes is the one that counts.
#[tokio::test]
async fn security_definer_writes_under_the_callers_fence_only() {
    let db = Db::fresh().await;
    let [app, owner] = [db.role("app").await, db.role("owner").await];
    db.watch
        .sql(&format!(
            "CREATE TABLE t (id int PRIMARY KEY, v int, token bigint) PARTITION BY RANGE (id);
             CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (9);
             INSERT INTO t VALUES (1, 0); SELECT fence_attach('t', 'j', 'token');
             CREATE FUNCTION by_fence() RETURNS void SECURITY DEFINER LANGUAGE sql AS 'UPDATE t SET v = v + 1';
             CREATE FUNCTION by_column(bigint) RETURNS void SECURITY DEFINER LANGUAGE sql AS 'UPDATE t SET v = v + 1, token = $1';
             ALTER TABLE t OWNER TO {owner}; ALTER TABLE t_low OWNER TO {owner};
             ALTER FUNCTION by_fence OWNER TO {owner}; ALTER FUNCTION by_column OWNER TO {owner}"
        ))
        .await
        .unwrap();
    let w = db.session_as(&app).await;
    let t = w.acq("j", "A", "60 s").await.granted();
    for level in LEVELS {
        let before = db.v("t", 1).await;
        w.sql("SELECT by_fence()").await.refused(NO_TOKEN);
        w.exec("SELECT by_column($1)", &[&t]).await.refused("42501");
        w.begin(level).await;
        w.fence("j", t).await.unwrap();
        w.sql("SELECT by_fence()").await.unwrap();
        w.exec("SELECT by_column($1)", &[&t]).await.expect("the transaction carries it");
        w.commit().await.unwrap();
        assert_eq!(db.v("t", 1).await, before + 2, "{level}");
    }
    w.sql("UPDATE t SET v = 9").await.refused("42501");
}
