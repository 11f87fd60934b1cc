//! The fence at the statement. Its second half, before the commit, needs commits: `tests/sessions`.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    fn one<T: FromDatum + IntoDatum>(sql: &str) -> Option<T> {
        Spi::get_one(sql).expect("the statement runs")
    }

    fn run(sql: &str) {
        Spi::run(sql).expect("the statement runs");
    }

    /// The SQLSTATE that a statement ends with, in a savepoint of its own.
    fn sqlstate(sql: &str) -> String {
        run("CREATE OR REPLACE FUNCTION pg_temp.sqlstate_of(sql text) RETURNS text LANGUAGE plpgsql AS $$
             BEGIN EXECUTE sql; RETURN '00000'; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $$");
        Spi::get_one_with_args("SELECT pg_temp.sqlstate_of($1)", &[sql.into()])
            .expect("runs")
            .unwrap_or_default()
    }

    /// A fenced table with one row, and the token of its lease.
    fn fenced(column: &str) -> i64 {
        run("CREATE TABLE t (id int PRIMARY KEY, v int, token bigint)");
        let token: Option<i64> = one("SELECT lease_acquire('l', 'me', '1 h')");
        run(&format!("SELECT fence_attach('t', 'l'{column})"));
        token.unwrap_or(0)
    }

    const WRITES: [&str; 6] = [
        "INSERT INTO t VALUES (2, 0)",
        "INSERT INTO t VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET v = 1",
        "UPDATE t SET v = v + 1",
        "DELETE FROM t",
        "TRUNCATE t",
        "MERGE INTO t USING (VALUES (1)) AS s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 9",
    ];

    #[pg_test]
    fn no_write_goes_without_a_token() {
        fenced("");
        for write in WRITES {
            assert_eq!(sqlstate(write), "LX003", "{write}");
        }
    }

    #[pg_test]
    fn every_write_goes_under_the_current_token() {
        let token = fenced("");
        run(&format!("SELECT lease_fence('l', {token})"));
        for write in WRITES {
            assert_eq!(sqlstate(write), "00000", "{write}");
        }
    }

    #[pg_test]
    fn no_write_goes_under_a_token_that_was_released_meanwhile() {
        let token = fenced("");
        run(&format!("SELECT lease_fence('l', {token})"));
        run(&format!("SELECT lease_release('l', {token})"));
        for write in WRITES {
            assert_eq!(sqlstate(write), "LX001", "{write}");
        }
    }

    #[pg_test]
    fn a_token_that_is_not_current_cannot_be_declared() {
        let token = fenced("");
        for other in [token - 1, token + 1, 0, -1] {
            assert_eq!(sqlstate(&format!("SELECT lease_fence('l', {other})")), "LX001", "{other}");
        }
        assert_eq!(sqlstate("SELECT lease_fence('l', NULL)"), "22004");
        assert_eq!(sqlstate(&format!("SELECT lease_fence('other', {token})")), "LX001");
    }

    #[pg_test]
    fn a_savepoint_takes_back_the_declared_token() {
        let token = fenced("");
        run(&format!(
            "DO $$ BEGIN
                 PERFORM lease_fence('l', {token});
                 RAISE EXCEPTION 'undo';
             EXCEPTION WHEN raise_exception THEN NULL;
             END $$"
        ));
        assert_eq!(sqlstate("INSERT INTO t VALUES (2, 0)"), "LX003");
    }

    #[pg_test]
    fn the_token_column_carries_the_token() {
        let token = fenced(", 'token'");
        assert_eq!(sqlstate("INSERT INTO t VALUES (1, 0)"), "LX003");
        assert_eq!(sqlstate(&format!("INSERT INTO t VALUES (1, 0, {})", token + 1)), "LX001");
        run(&format!("INSERT INTO t VALUES (1, 0, {token})"));
        assert_eq!(sqlstate("UPDATE t SET v = 1"), "LX003");
        assert_eq!(sqlstate(&format!("UPDATE t SET v = 1, token = {}", token - 1)), "LX001");
        run(&format!("UPDATE t SET v = 1, token = {token}"));
        assert_eq!(sqlstate("DELETE FROM t"), "LX003");
        assert_eq!(sqlstate("TRUNCATE t"), "LX003");
    }

    #[pg_test]
    fn a_statement_that_finds_no_row_needs_a_token_too() {
        let token = fenced(", 'token'");
        assert_eq!(sqlstate("UPDATE t SET v = 1"), "LX003");
        assert_eq!(sqlstate("DELETE FROM t"), "LX003");
        run(&format!("SELECT lease_fence('l', {token})"));
        run("UPDATE t SET v = 1");
        run(&format!("SELECT lease_release('l', {token})"));
        assert_eq!(sqlstate("UPDATE t SET v = 1"), "LX001");
        assert_eq!(sqlstate("DELETE FROM t"), "LX001");
    }

    #[pg_test]
    fn the_token_column_is_stamped_when_the_transaction_carries_the_token() {
        let token = fenced(", 'token'");
        run(&format!("SELECT lease_fence('l', {token})"));
        run("INSERT INTO t VALUES (1, 0, NULL), (2, 0, 12345)");
        assert_eq!(one(&format!("SELECT count(*) FROM t WHERE token = {token}")), Some(2i64));
        run("DELETE FROM t WHERE id = 2");
        run("TRUNCATE t");
    }

    #[pg_test]
    fn a_row_that_is_newer_is_not_written() {
        run("CREATE TABLE t (id int PRIMARY KEY, v int, token bigint)");
        run("INSERT INTO t VALUES (1, 0, 9000000000)");
        let token: Option<i64> = one("SELECT lease_acquire('l', 'me', '1 h')");
        run(
            "CREATE TRIGGER f BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION fence_check('l', 'token')",
        );
        run(&format!("SELECT lease_fence('l', {})", token.unwrap_or(0)));
        assert_eq!(sqlstate("UPDATE t SET v = 1"), "LX001");
        assert_eq!(sqlstate("DELETE FROM t"), "LX001");
    }

    #[pg_test]
    fn tokens_that_are_ahead_raise_the_floor_when_the_fence_is_attached() {
        // The sequence is shared by the tests that run at the same time, so the number is far above.
        run("CREATE TABLE t (id int PRIMARY KEY, v int, token bigint)");
        run("INSERT INTO t VALUES (1, 0, 5000000000)");
        run("SELECT fence_attach('t', 'l', 'token')");
        let token: Option<i64> = one("SELECT lease_acquire('l', 'me', '1 h')");
        assert!(token > Some(5_000_000_000));
        run(&format!("SELECT lease_fence('l', {})", token.unwrap_or(0)));
        run("UPDATE t SET v = 1");
    }

    #[pg_test]
    fn fenced_update_changes_what_the_filter_finds() {
        let token = fenced("");
        run(&format!("SELECT lease_fence('l', {token})"));
        run("INSERT INTO t VALUES (1, 0), (2, NULL), (3, 0)");
        let update = |filter: &str, changes: &str, more: &str| {
            one::<i64>(&format!(
                "SELECT fenced_update('t', {token}, '{filter}', '{changes}'{more})"
            ))
        };
        assert_eq!(update(r#"{"id": 1}"#, r#"{"v": 5}"#, ""), Some(1));
        assert_eq!(update(r#"{"v": null}"#, r#"{"v": 6}"#, ""), Some(1));
        assert_eq!(update(r#"{"id": 99}"#, r#"{"v": 7}"#, ""), Some(0));
        assert_eq!(update(r#"{"v": 0, "id": 3}"#, r#"{"v": null, "id": 4}"#, ", 'l'"), Some(1));
        assert_eq!(update("{}", r#"{"v": 8}"#, ", all_rows => true"), Some(3));
        assert_eq!(
            one("SELECT string_agg(id || '=' || v, ' ' ORDER BY id) FROM t"),
            Some("1=8 2=8 4=8".to_string())
        );
    }

    #[pg_test]
    fn fenced_update_leaves_the_transaction_carrying_what_it_did_before() {
        let token = fenced("");
        run(&format!("SELECT fenced_update('t', {token}, '{{\"id\": 1}}', '{{\"v\": 1}}')"));
        assert_eq!(sqlstate("INSERT INTO t VALUES (9, 0)"), "LX003");
        run(&format!("SELECT lease_fence('l', {token})"));
        run(&format!("SELECT fenced_update('t', {token}, '{{\"id\": 1}}', '{{\"v\": 1}}')"));
        run("INSERT INTO t VALUES (9, 0)");
    }

    #[pg_test]
    fn fenced_update_says_what_is_wrong() {
        let token = fenced("");
        let state = |token: i64, filter: &str, changes: &str| {
            sqlstate(&format!("SELECT fenced_update('t', {token}, {filter}, {changes})"))
        };
        assert_eq!(state(token, "'{}'", r#"'{"v": 1}'"#), "22023");
        assert_eq!(state(token, r#"'{"v": 1}'"#, "'{}'"), "22023");
        assert_eq!(state(token, "'[]'", r#"'{"v": 1}'"#), "22023");
        assert_eq!(state(token, r#"'{"v": 1}'"#, "'null'"), "22023");
        assert_eq!(state(token, "NULL", r#"'{"v": 1}'"#), "22004");
        assert_eq!(state(token, r#"'{"v": 1}'"#, "NULL"), "22004");
        assert_eq!(state(token, r#"'{"nope": 1}'"#, r#"'{"v": 1}'"#), "42703");
        assert_eq!(state(token, r#"'{"v": 1}'"#, r#"'{"nope": 1}'"#), "42703");
        assert_eq!(state(token, r#"'{"v": 1}'"#, r#"'{"v": "x"}'"#), "22P02");
        assert_eq!(state(token + 1, r#"'{"v": 1}'"#, r#"'{"v": 1}'"#), "LX001");
        assert_eq!(
            sqlstate("SELECT fenced_update('t', NULL, '{\"v\": 1}', '{\"v\": 1}')"),
            "22004"
        );
        run("CREATE TABLE u (id int)");
        assert_eq!(sqlstate("SELECT fenced_update('u', 1, '{\"id\": 1}', '{\"id\": 1}')"), "55000");
    }

    #[pg_test]
    fn fenced_update_carries_every_type_as_it_is() {
        run(
            r#"CREATE TABLE t ("Big" numeric, "a b" bytea, arr text[], v varchar(5), c char(3), b bit(3), j json, r int4range, d timestamptz)"#,
        );
        run("INSERT INTO t VALUES (1, '', '{}', 'x', 'y', B'101', '{}', '[1,2)', now())");
        let token: Option<i64> = one("SELECT lease_acquire('l', 'me', '1 h')");
        let token = token.unwrap_or(0);
        run("SELECT fence_attach('t', 'l')");
        run(&format!(
            r#"SELECT fenced_update('t', {token}, '{{"v": "x", "c": "y", "b": "101", "Big": 1.0, "r": "[1,2)"}}',
               '{{"Big": 123456789012345678901234567890.5, "a b": "\\x00ff", "arr": ["a", null, "b''c"], "j": {{"k": [1]}}, "r": "[5,7)"}}')"#
        ));
        let row: Option<String> = one(r#"SELECT concat_ws('|', "Big", "a b", arr, j, r) FROM t"#);
        assert_eq!(
            row.as_deref(),
            Some(r#"123456789012345678901234567890.5|\x00ff|{a,NULL,b'c}|{"k": [1]}|[5,7)"#)
        );
        assert_eq!(
            sqlstate(&format!(r#"SELECT fenced_update('t', {token}, '{{"j": 1}}', '{{"v": 1}}')"#)),
            "42883"
        );
        assert_eq!(
            sqlstate(&format!(
                r#"SELECT fenced_update('t', {token}, '{{"v": "x"}}', '{{"v": "too long"}}')"#
            )),
            "22001"
        );
    }

    #[pg_test]
    fn the_fence_is_attached_once_and_taken_off_whole() {
        fenced("");
        let oids = "SELECT string_agg(oid::text, ' ' ORDER BY tgname) FROM pg_trigger WHERE tgrelid = 't'::regclass";
        let before: Option<String> = one(oids);
        run("SELECT fence_attach('t', 'l')");
        assert_eq!(one(oids), before);
        run("SELECT fence_attach('t', 'l2', 'token')");
        assert_ne!(one(oids), before);
        assert_eq!(
            one("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass"),
            Some(2i64)
        );
        run("ALTER TABLE t DISABLE TRIGGER ALL");
        run("SELECT fence_attach('t', 'l2', 'token')");
        assert_eq!(sqlstate("INSERT INTO t VALUES (1)"), "LX003");
        run("SELECT fence_detach('t')");
        assert_eq!(
            one("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass"),
            Some(0i64)
        );
        run("INSERT INTO t VALUES (1)");
    }

    #[pg_test]
    fn what_cannot_be_fenced_is_refused_by_kind() {
        run("CREATE TABLE t (id serial, token int)");
        run("CREATE VIEW v AS SELECT 1 AS id");
        run("CREATE TEMP TABLE tt (id int)");
        run("CREATE MATERIALIZED VIEW m AS SELECT 1 AS id");
        run("ALTER TABLE t ADD COLUMN made text GENERATED ALWAYS AS (id::text) STORED");
        for (target, code) in [
            ("'v', 'l'", "42809"),
            ("'m', 'l'", "42809"),
            ("'tt', 'l'", "42809"),
            ("'pg_class', 'l'", "42809"),
            ("'lock_ext.lease', 'l'", "42809"),
            ("'t_id_seq', 'l'", "42809"),
            ("NULL, 'l'", "22004"),
            ("'t', NULL", "22004"),
            ("'t'", "22004"),
            ("'t', ''", "22023"),
            ("'t', 'l', 'nope'", "42703"),
            ("'t', 'l', 'token'", "42804"),
            ("'t', lease_column => 'nope'", "42703"),
            ("'t', lease_column => 'made'", "42804"),
            ("'t', repeat('x', 1025), lease_column => 'id'", "22001"),
        ] {
            assert_eq!(sqlstate(&format!("SELECT fence_attach({target})")), code, "{target}");
        }
    }

    #[pg_test]
    fn a_column_names_the_lease_of_each_row() {
        run("CREATE TABLE entry (account int, v int, token bigint)");
        run("SELECT fence_attach('entry', 'account:', 'token', 'account')");
        let [one, two] = ["account:1", "account:2"].map(|name| {
            let token: Option<i64> =
                self::one(&format!("SELECT lease_acquire('{name}', 'me', '1 h')"));
            token.unwrap_or(0)
        });
        run(&format!("INSERT INTO entry VALUES (1, 0, {one}), (2, 0, {two})"));
        assert_eq!(sqlstate(&format!("INSERT INTO entry VALUES (1, 0, {two})")), "LX001");
        assert_eq!(sqlstate(&format!("INSERT INTO entry VALUES (3, 0, {two})")), "LX001");
        assert_eq!(sqlstate(&format!("INSERT INTO entry VALUES (NULL, 0, {two})")), "22004");
        assert_eq!(sqlstate("INSERT INTO entry VALUES (1, 0)"), "LX003");
        assert_eq!(sqlstate("TRUNCATE entry"), "LX003");
        // From one lease to another: both.
        let moved = format!("UPDATE entry SET account = 2, token = {two} WHERE account = 1");
        assert_eq!(sqlstate(&moved), "LX003");
        run(&format!("SELECT lease_fence('account:1', {one})"));
        run(&moved);
        assert_eq!(sqlstate("DELETE FROM entry"), "LX003");
        assert_eq!(
            sqlstate(&format!(
                "SELECT fenced_update('entry', {two}, '{{\"v\": 0}}', '{{\"v\": 1}}')"
            )),
            "55000"
        );
        let updated: Option<i64> = self::one(&format!(
            "SELECT fenced_update('entry', {two}, '{{\"v\": 0}}', '{{\"v\": 1}}', 'account:2')"
        ));
        assert_eq!(updated, Some(2));
        run(&format!("SELECT lease_fence('account:2', {two})"));
        run("DELETE FROM entry");
    }

    #[pg_test]
    fn a_row_that_moves_to_another_partition_needs_what_its_update_carries() {
        run("CREATE TABLE parted (id int, token bigint) PARTITION BY RANGE (id)");
        run("CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10)");
        run("CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20)");
        run("SELECT fence_attach('parted', 'l', 'token')");
        let token: Option<i64> = one("SELECT lease_acquire('l', 'me', '1 h')");
        let token = token.unwrap_or(0);
        run(&format!("INSERT INTO parted VALUES (1, {token}), (2, {token})"));
        assert_eq!(sqlstate("UPDATE parted SET id = 11 WHERE id = 1"), "LX003");
        assert_eq!(
            sqlstate(&format!("UPDATE parted SET id = 11, token = {} WHERE id = 1", token + 1)),
            "LX001"
        );
        run(&format!("UPDATE parted SET id = id + 10, token = {token}"));
        assert_eq!(one("SELECT count(*) FROM high"), Some(2_i64));
        // What an UPDATE carried is not left for a DELETE.
        assert_eq!(sqlstate("DELETE FROM parted"), "LX003");
        assert_eq!(sqlstate("DELETE FROM high"), "LX003");
    }

    #[pg_test]
    fn an_observed_token_goes_up_only() {
        run("SELECT fence_observe('etcd', 5)");
        run("SELECT fence_observe('etcd', 5)");
        assert_eq!(sqlstate("SELECT fence_observe('etcd', 4)"), "LX001");
        assert_eq!(
            sqlstate(
                "DO $$ BEGIN PERFORM fence_observe('etcd', 9); RAISE division_by_zero; END $$"
            ),
            "22012"
        );
        run("SELECT fence_observe('etcd', 6)");
        run(
            "DO $$ BEGIN PERFORM fence_observe('etcd', 7); EXCEPTION WHEN others THEN NULL; END $$",
        );
        assert_eq!(sqlstate("SELECT fence_observe('etcd', 6)"), "LX001");
        run("SELECT fence_observe('zookeeper', -9223372036854775808)");
        for (call, code) in [("NULL, 1", "22004"), ("'etcd', NULL", "22004"), ("'', 1", "22023")] {
            assert_eq!(sqlstate(&format!("SELECT fence_observe({call})")), code, "{call}");
        }
    }

    #[pg_test]
    fn a_trigger_that_is_made_otherwise_is_refused() {
        run("CREATE TABLE t (id int, token bigint)");
        for trigger in [
            "AFTER INSERT ON t EXECUTE FUNCTION fence_check('l')",
            "BEFORE INSERT ON t EXECUTE FUNCTION fence_check()",
            "BEFORE INSERT ON t EXECUTE FUNCTION fence_check('l', 'token')",
            "BEFORE INSERT ON t EXECUTE FUNCTION fence_check('l', 'token', 'id', 'more')",
            "BEFORE INSERT ON t EXECUTE FUNCTION fence_check('', '', 'id')",
        ] {
            run(&format!("CREATE OR REPLACE TRIGGER x {trigger}"));
            assert_eq!(sqlstate("INSERT INTO t VALUES (1)"), "39P01", "{trigger}");
        }
        assert_eq!(sqlstate("SELECT fence_check()"), "39P01");
    }

    #[pg_test]
    fn an_expired_token_writes_unless_expiry_is_strict() {
        run("CREATE TABLE t (id int)");
        let token: Option<i64> = one("SELECT lease_acquire('l', 'me', '1 ms')");
        let token = token.unwrap_or(0);
        run("SELECT fence_attach('t', 'l')");
        run("SELECT pg_sleep(0.01)");
        assert_eq!(one(&format!("SELECT lease_is_current('l', {token})")), Some(false));
        run(&format!("SELECT lease_fence('l', {token})"));
        run("INSERT INTO t VALUES (1)");
        run("SET LOCAL lock_ext.strict_expiry = on");
        assert_eq!(sqlstate("INSERT INTO t VALUES (1)"), "LX002");
        assert_eq!(sqlstate(&format!("SELECT lease_fence('l', {token})")), "LX002");
    }
}
