//! Installed elsewhere, dumped, removed.

use std::path::Path;
use std::process::Output;

use lock_ext_sessions::{Asked, Db, NO_TOKEN, Refused, STALE, Session, Way};
use tokio::process::Command;

/// Runs one of the server's client programs. They find the server as we do.
async fn program(name: &str, args: &[&str]) -> Output {
    let path = std::env::var("LOCK_EXT_PGBIN")
        .map_or_else(|_| name.to_owned(), |bin| format!("{bin}/{name}"));
    Command::new(&path).args(args).output().await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[track_caller]
fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A place for a dump, removed with the test.
struct DumpFile(String);

impl DumpFile {
    fn of(db: &Db) -> Self {
        Self(std::env::temp_dir().join(format!("{}.dump", db.name())).display().to_string())
    }
}

impl Drop for DumpFile {
    fn drop(&mut self) {
        if Path::new(&self.0).exists() {
            std::fs::remove_file(&self.0).expect("our own file");
        }
    }
}

/// All that an ordinary role calls, with every name in its schema, and what it has to give.
async fn every_function_works(role: &Session, schema: &str, table: &str) {
    let call = |sql: String| {
        let sql = sql.replace("ops.", &format!("{schema}."));
        async move { role.sql(&sql).await.unwrap_or_else(|error| panic!("{error}\n{error:?}\n{sql}")) }
    };
    let token: i64 = role
        .one(&format!("SELECT {schema}.lease_acquire('job', 'A', '60 s')"), &[])
        .await
        .map(Option::unwrap)
        .unwrap_or_else(|error| panic!("{error:?}"));
    call(format!("SELECT ops.fence_attach('{table}', 'job', 'token')")).await;
    call(format!("SELECT ops.lease_extend('job', {token})")).await;
    call(format!("SELECT ops.lease_extend('job', {token}, '60 s')")).await;
    call(format!("SELECT * FROM ops.lease_extend_many(ARRAY['job'], ARRAY[{token}])")).await;
    call(format!("SELECT * FROM ops.lease_extend_many(ARRAY['job'], ARRAY[{token}], '60 s')"))
        .await;
    call(format!("SELECT ops.lease_elect('job', 'A', '60 s', {token})")).await;
    call(format!("SELECT ops.lease_is_current('job', {token})")).await;
    call(format!("SELECT ops.lease_checkpoint('job', {token}, '{{}}')")).await;
    call("SELECT ops.lease_checkpoint('job')".to_owned()).await;
    call("SELECT ops.once('key')".to_owned()).await;
    call(format!(
        "BEGIN; SELECT ops.lease_fence('job', {token}); INSERT INTO {table} VALUES (1, 1); COMMIT"
    ))
    .await;
    call(format!("UPDATE {table} SET v = 2, token = {token}")).await;
    call(format!(
        "SELECT ops.fenced_update('{table}', {token}, '{{\"id\": 1, \"note\": \"n\"}}', '{{\"v\": 3, \"note\": \"it''s\"}}')"
    ))
    .await;
    call(format!(
        "SELECT ops.fenced_update('{table}', {token}, '{{}}', '{{\"v\": 4}}', all_rows => true)"
    ))
    .await;
    call(format!("BEGIN; SELECT ops.lease_fence('job', {token}); TRUNCATE {table}; INSERT INTO {table} VALUES (1, 1); COMMIT")).await;
    role.sql(&format!("UPDATE {table} SET v = 2")).await.refused(NO_TOKEN);
    call("SELECT * FROM ops.lease_status".to_owned()).await;
    call("SELECT * FROM ops.lease_writer".to_owned()).await;
    call(format!("SELECT * FROM ops.lease_evict('job', {token})")).await;
    call(format!("SELECT ops.lease_complete('job', {token}, 'yesterday')")).await;
    role.sql(&format!("UPDATE {table} SET v = 2, token = {token}")).await.refused(STALE);
    call("SELECT ops.lease_release('job', 1)".to_owned()).await;
    call(format!("SELECT ops.fence_detach('{table}')")).await;
    call(format!("UPDATE {table} SET v = 2")).await;
}

#[tokio::test]
async fn h35_installed_elsewhere_with_an_empty_path() {
    let db = Db::bare().await;
    let role = db.role("app").await;
    let admin = db.session().await;
    admin
        .sql(&format!(
            "CREATE SCHEMA ops;
             CREATE EXTENSION lock_ext SCHEMA ops;
             GRANT USAGE ON SCHEMA ops TO PUBLIC;
             CREATE SCHEMA app AUTHORIZATION {role};
             CREATE TABLE app.t (id int, v int, token bigint, note text DEFAULT 'n');
             ALTER TABLE app.t OWNER TO {role};

             -- Of the product's names, where a path that is not empty would find them.
             CREATE TABLE public.lease (name text, token bigint);
             CREATE TABLE public.lease_status (name text);
             CREATE FUNCTION public.lease_acquire(text, text, interval) RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';
             CREATE FUNCTION public.lease_fence(text, bigint) RETURNS void LANGUAGE sql AS '';
             CREATE FUNCTION public.lease_is_current(text, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
             CREATE FUNCTION public.fence_check() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        ))
        .await
        .unwrap();
    let app = db.session_as(&role).await;
    app.sql("SET search_path = ''").await.unwrap();
    every_function_works(&app, "ops", "app.t").await;
    for function in ["force_release('job')", "prune('0')"] {
        admin.sql(&format!("SET search_path = ''; SELECT ops.lease_{function}")).await.unwrap();
    }
    admin.sql("SELECT ops.once_forget('0')").await.unwrap();
}

/// Whoever may create objects in a schema of the path could otherwise make ours call his.
#[tokio::test]
async fn h35_look_alikes_are_not_used() {
    let db = Db::bare().await;
    let role = db.role("app").await;
    let admin = db.session().await;
    admin
        .sql(&format!(
            "CREATE SCHEMA ops;
             CREATE EXTENSION lock_ext SCHEMA ops;
             GRANT USAGE ON SCHEMA ops TO PUBLIC;
             CREATE SCHEMA app AUTHORIZATION {role};
             CREATE TABLE app.t (id int, v int, token bigint, note text DEFAULT 'n');
             ALTER TABLE app.t OWNER TO {role};"
        ))
        .await
        .unwrap();
    admin.sql(LURES).await.unwrap();
    let app = db.session_as(&role).await;
    app.sql("SET search_path = evil, pg_temp, pg_catalog, ops").await.unwrap();
    // The lures do lure.
    assert_eq!(
        app.sql("SELECT 1 WHERE 'a'::pg_catalog.text = 'a'::pg_catalog.text")
            .await
            .refused("EVIL1")
            .code,
        "EVIL1"
    );
    app.sql("SELECT clock_timestamp()").await.refused("EVIL1");
    app.sql(
        "CREATE TEMP TABLE lease (name pg_catalog.text); CREATE TEMP TABLE checkpoint (name pg_catalog.text);
         CREATE TEMP TABLE once_key (key pg_catalog.text); CREATE TEMP VIEW lease_status AS SELECT 1 AS name;
         CREATE TEMP TABLE pg_class (oid pg_catalog.oid); CREATE TEMP TABLE pg_attribute (attrelid pg_catalog.oid);",
    )
    .await
    .unwrap();
    every_function_works(&app, "ops", "app.t").await;

    admin.sql("SET search_path = evil, pg_temp, pg_catalog, ops").await.unwrap();
    for sql in [
        "SELECT ops.lease_acquire('other', 'A', '60 s')",
        "SELECT ops.lease_evict('other')",
        "SELECT ops.lease_force_release('other')",
        "SELECT ops.lease_prune('0')",
        "SELECT ops.once_forget('0')",
    ] {
        admin.sql(sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

/// Operators, functions and types of the usual names, all of which raise EVIL1.
const LURES: &str = r#"
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
DO $do$
DECLARE
    kind text;
    pair text[];
    op text;
    raises CONSTANT text := $$ LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''lured'' USING ERRCODE = ''EVIL1''; END' $$;
BEGIN
    FOREACH pair SLICE 1 IN ARRAY ARRAY[
        ['text', 'text'], ['int4', 'int4'], ['int8', 'int8'], ['int8', 'int4'], ['int4', 'int8'], ['name', 'name'],
        ['name', 'text'], ['oid', 'oid'], ['bool', 'bool'], ['timestamptz', 'timestamptz'], ['interval', 'interval'],
        ['"char"', '"char"'], ['int2', 'int2'], ['int2', 'int4'], ['regclass', 'oid'], ['uuid', 'uuid'],
        ['jsonb', 'jsonb'], ['text[]', 'text[]'], ['oid', 'regclass'], ['regclass', 'regclass']
    ] LOOP
        FOREACH op IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>='] LOOP
            EXECUTE format('CREATE FUNCTION evil.%I(%s, %s) RETURNS boolean %s', 'op' || op, pair[1], pair[2], raises);
            EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.%I, LEFTARG = %s, RIGHTARG = %s)',
                           op, 'op' || op, pair[1], pair[2]);
        END LOOP;
    END LOOP;
    FOREACH pair SLICE 1 IN ARRAY ARRAY[
        ['timestamptz', '+', 'interval', 'timestamptz'], ['timestamptz', '-', 'interval', 'timestamptz'],
        ['timestamptz', '-', 'timestamptz', 'interval'], ['int8', '+', 'int8', 'int8'], ['int8', '+', 'int4', 'int8'],
        ['int4', '+', 'int4', 'int4'], ['text', '||', 'text', 'text'], ['jsonb', '->', 'text', 'jsonb'],
        ['jsonb', '->>', 'text', 'text'], ['jsonb', '?', 'text', 'boolean'], ['jsonb', '#>>', 'text[]', 'text'],
        ['text', '~', 'text', 'boolean'], ['text', '~~', 'text', 'boolean'], ['anyarray', '&&', 'anyarray', 'boolean'],
        ['interval', '*', 'float8', 'interval']
    ] LOOP
        EXECUTE format('CREATE FUNCTION evil.%I(%s, %s) RETURNS %s %s', 'op' || pair[2], pair[1], pair[3], pair[4], raises);
        EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.%I, LEFTARG = %s, RIGHTARG = %s)',
                       pair[2], 'op' || pair[2], pair[1], pair[3]);
    END LOOP;
    FOREACH pair SLICE 1 IN ARRAY ARRAY[
        ['now()', 'timestamptz'], ['clock_timestamp()', 'timestamptz'], ['statement_timestamp()', 'timestamptz'],
        ['nextval(regclass)', 'int8'], ['hashtext(text)', 'int4'], ['hashtextextended(text, int8)', 'int8'],
        ['jsonb_each(jsonb)', 'jsonb'], ['jsonb_each_text(jsonb)', 'text'], ['jsonb_object_keys(jsonb)', 'text'],
        ['jsonb_typeof(jsonb)', 'text'], ['jsonb_populate_record(anyelement, jsonb)', 'anyelement'],
        ['jsonb_extract_path_text(jsonb, text)', 'text'], ['quote_ident(text)', 'text'], ['quote_literal(text)', 'text'],
        ['quote_nullable(text)', 'text'], ['format(text, text)', 'text'], ['format(text, text, text)', 'text'],
        ['format(text, regclass, text)', 'text'], ['concat(text, text)', 'text'], ['pg_backend_pid()', 'int4'],
        ['pg_terminate_backend(int4)', 'boolean'], ['pg_terminate_backend(int4, int8)', 'boolean'],
        ['pg_has_role(name, text)', 'boolean'], ['pg_has_role(oid, text)', 'boolean'], ['pg_has_role(regrole, text)', 'boolean'],
        ['array_length(anyarray, int4)', 'int4'], ['cardinality(anyarray)', 'int4'], ['to_regclass(text)', 'regclass'],
        ['octet_length(text)', 'int4'], ['length(text)', 'int4'], ['btrim(text)', 'text'], ['lower(text)', 'text']
    ] LOOP
        EXECUTE format('CREATE FUNCTION evil.%s RETURNS %s %s', pair[1], pair[2], raises);
    END LOOP;
    FOREACH kind IN ARRAY ARRAY['text', 'jsonb', 'regclass', 'name', 'oid', 'uuid'] LOOP
        EXECUTE format('CREATE DOMAIN evil.%I AS pg_catalog.%I CONSTRAINT lured CHECK (false)', kind, kind);
    END LOOP;
END $do$;
"#;

#[tokio::test]
async fn h35_data_only_restore_into_a_fenced_table() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let a = db.session().await;
    let t = a.acq("j", "A", "60 s").await.granted();
    for way in Way::ALL {
        a.fw(way, "j", t, 1, 7).await.unwrap();
    }
    let file = DumpFile::of(&db);
    succeeds(
        &program(
            "pg_dump",
            &["-Fc", "--data-only", "-t", "plain", "-t", "stamped", "-f", &file.0, "-d", db.name()],
        )
        .await,
    );
    a.sql("BEGIN").await.unwrap();
    a.fence("j", t).await.unwrap();
    a.sql("TRUNCATE plain, stamped; COMMIT").await.unwrap();

    // A restore is a write like any other, and carries no token. It is switched off as for
    // foreign keys, by who may.
    let restore = ["--data-only", "-d", db.name(), &file.0];
    assert!(!program("pg_restore", &restore).await.status.success(), "a restore carries no token");
    assert_eq!(a.one::<i64>("SELECT count(*) FROM plain, stamped", &[]).await, Ok(0));
    succeeds(&program("pg_restore", &[&["--disable-triggers"], &restore[..]].concat()).await);
    for table in ["plain", "stamped"] {
        assert_eq!(a.one::<i64>(&format!("SELECT count(*) FROM {table}"), &[]).await, Ok(9));
        assert_eq!(db.v(table, 1).await, 7);
        a.sql(&format!("UPDATE {table} SET v = 9")).await.refused(NO_TOKEN);
    }
    assert_eq!(a.one::<i64>("SELECT token FROM stamped WHERE id = 1", &[]).await, Ok(t));
    for way in Way::ALL {
        a.fw(way, "j", t, 1, 8).await.expect("the fence is on again");
    }
}

/// The whole of dump and restore is a later matter; here only that the tables and their sequence are in the dump.
#[tokio::test]
async fn a_restored_database_goes_on_with_higher_tokens() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let a = db.session().await;
    let mut last = 0;
    for _ in 0..5 {
        last = a.acq("j", "A", "1 hour").await.granted();
        a.force("j").await.unwrap();
    }
    last = a.acq("j", "A", "1 hour").await.granted().max(last);
    a.cp("j", last, "42").await.unwrap();
    for way in Way::ALL {
        a.fw(way, "j", last, 1, 7).await.unwrap();
    }
    assert_eq!(a.once("key").await, Ok(true));

    let file = DumpFile::of(&db);
    succeeds(&program("pg_dump", &["-Fc", "-f", &file.0, "-d", db.name()]).await);
    let copy = db.another_bare().await;
    succeeds(&program("pg_restore", &["--exit-on-error", "-d", copy.name(), &file.0]).await);

    let b = copy.session().await;
    assert_eq!(b.info("j").await.unwrap().token, Some(last));
    assert_eq!(b.read_cp("j").await.unwrap().as_deref(), Some("42"));
    assert_eq!(b.once("key").await, Ok(false));
    b.sql("UPDATE plain SET v = 9").await.refused(NO_TOKEN);
    b.force("j").await.unwrap();
    let t = b.acq("j", "B", "60 s").await.granted();
    assert!(t > last, "{t} after {last}");
    for way in Way::ALL {
        b.fw(way, "j", last, 1, 9).await.refused(STALE);
        b.fw(way, "j", t, 1, 8).await.unwrap();
    }
}

#[tokio::test]
async fn h36_the_extension_goes_and_comes_back() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, bystander] = db.sessions().await;
    let mut old = 0;
    while old < 7 {
        old = a.acq("j", "A", "60 s").await.granted();
        for way in Way::ALL {
            a.fw(way, "j", old, 1, 1).await.unwrap();
        }
        bystander.fw(Way::Column, "j", old, 2, 1).await.unwrap();
        a.force("j").await.unwrap();
    }

    let refusal = a.sql("DROP EXTENSION lock_ext").await.refused("2BP01");
    refusal.detail_names(&[&"table plain", &"table stamped"]);
    a.sql("SELECT fence_detach('plain')").await.unwrap();
    let refusal = a.sql("DROP EXTENSION lock_ext").await.refused("2BP01");
    refusal.detail_names(&[&"table stamped"]);
    assert!(!refusal.detail.unwrap_or_default().contains("plain"), "a detached table is free");

    a.sql("DROP EXTENSION lock_ext CASCADE").await.unwrap();
    for session in [&a, &bystander] {
        for table in ["plain", "stamped"] {
            for sql in [
                "UPDATE t SET v = 5 WHERE id = 3",
                "INSERT INTO t VALUES (99)",
                "DELETE FROM t WHERE id = 99",
            ] {
                let sql = sql.replace(" t ", &format!(" {table} "));
                session.sql(&sql).await.expect("usable without the extension");
            }
        }
    }
    assert_eq!(
        a.one::<i64>("SELECT token FROM stamped WHERE id = 1", &[]).await,
        Ok(old),
        "the data stays"
    );
    let left: Option<String> =
        a.one("SELECT to_regnamespace('lock_ext')::text", &[]).await.unwrap();
    assert_eq!(left, None, "the private schema is gone");

    a.sql("CREATE EXTENSION lock_ext").await.unwrap();
    a.sql("SELECT fence_attach('plain', 'j'), fence_attach('stamped', 'j', 'token')")
        .await
        .unwrap();
    for session in [&a, &bystander, &db.session().await] {
        let t = session.acq("j", "new", "60 s").await.granted();
        for id in [1, 2, 3] {
            for way in Way::ALL {
                let written = session.fw(way, "j", t, id, 6).await;
                assert_eq!(written, Ok(1), "token {t} over a row of token {old}, {way:?}");
            }
        }
        session.fw(Way::Column, "j", old, 1, 6).await.refused(STALE);
        assert_eq!(session.rel("j", t).await, Ok(true));
        session.sql("UPDATE plain SET v = 5").await.refused(NO_TOKEN);
    }
}
