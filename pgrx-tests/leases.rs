//! Leases as one open transaction sees them.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    fn one<T: FromDatum + IntoDatum>(sql: &str) -> Option<T> {
        Spi::get_one(sql).expect("the statement runs")
    }

    fn acquire(name: &str) -> Option<i64> {
        one(&format!("SELECT lease_acquire('{name}', 'me', '1 min')"))
    }

    fn state(name: &str) -> Option<String> {
        one(&format!("SELECT max(state) FROM lease_status WHERE name = '{name}'"))
    }

    #[pg_test]
    fn tokens_rise_over_release_and_over_names() {
        let a = acquire("a").expect("free");
        let b = acquire("b").expect("free");
        assert!(a < b);
        assert_eq!(one(&format!("SELECT lease_release('a', {a})")), Some(true));
        assert!(acquire("a").expect("free again") > b);
    }

    #[pg_test]
    fn the_same_holder_asking_again_is_refused() {
        assert!(acquire("a").is_some());
        assert_eq!(acquire("a"), None);
    }

    #[pg_test]
    fn the_same_request_gets_the_same_token() {
        let again = "SELECT lease_acquire('a', 'me', '1 min', \
                     request => '6b1a1b52-3c1f-4b57-9a55-2f3f3f0f3f10')";
        let token: Option<i64> = one(again);
        assert!(token.is_some());
        assert_eq!(one(again), token);
        assert_eq!(acquire("a"), None);
        Spi::run(&format!("SELECT lease_release('a', {})", token.unwrap_or(0))).expect("runs");
        assert_ne!(one(again), token);
    }

    #[pg_test]
    fn a_transaction_sees_what_it_did_to_its_lease() {
        let token = acquire("a").expect("free");
        assert_eq!(state("a").as_deref(), Some("held"));
        let current = format!("SELECT lease_is_current('a', {token})");
        assert_eq!(one(&current), Some(true));
        assert_eq!(one(&format!("SELECT lease_complete('a', {token})")), Some(true));
        assert_eq!(one(&current), Some(false));
        assert_eq!(state("a").as_deref(), Some("completed"));
        assert_eq!(acquire("a"), None);
    }

    #[pg_test]
    fn a_completion_that_is_over_leaves_the_lease_free() {
        let token = acquire("a").expect("free");
        let done =
            format!("SELECT lease_complete('a', {token}, clock_timestamp() - interval '1 s')");
        assert_eq!(one(&done), Some(true));
        assert_eq!(state("a").as_deref(), Some("free"));
        assert!(acquire("a").is_some());
    }

    #[pg_test]
    fn an_extension_sets_the_expiry_and_can_shorten_it() {
        let token = acquire("a").expect("free");
        for ttl in ["1 h", "2 s"] {
            let in_time = format!(
                "SELECT e - clock_timestamp() BETWEEN interval '{ttl}' - interval '1 s' AND '{ttl}' \
                 FROM lease_extend('a', {token}, '{ttl}') AS e"
            );
            assert_eq!(one(&in_time), Some(true), "{ttl}");
        }
    }

    #[pg_test]
    fn only_the_current_token_does_anything() {
        let token = acquire("a").expect("free");
        for other in [token - 1, token + 1, 0, -1, i64::MAX, i64::MIN] {
            assert_eq!(
                one::<bool>(&format!("SELECT lease_extend('a', {other}) IS NULL")),
                Some(true)
            );
            assert_eq!(one(&format!("SELECT lease_release('a', {other})")), Some(false));
            assert_eq!(one(&format!("SELECT lease_complete('a', {other})")), Some(false));
            assert_eq!(one(&format!("SELECT lease_is_current('a', {other})")), Some(false));
        }
        assert_eq!(state("a").as_deref(), Some("held"));
    }

    #[pg_test]
    fn many_are_extended_in_the_order_given_with_null_for_the_lost() {
        let b = acquire("b").expect("free");
        let a = acquire("a").expect("free");
        let answers: Option<String> = one(&format!(
            "SELECT string_agg(name || (expires_at IS NOT NULL), ' ' ORDER BY ordinality) \
             FROM lease_extend_many(ARRAY['b', 'x', 'a'], ARRAY[{b}, 1, {a}]) WITH ORDINALITY"
        ));
        assert_eq!(answers.as_deref(), Some("btrue xfalse atrue"));
    }

    #[pg_test]
    fn a_leader_keeps_its_token_and_others_get_none() {
        let token: Option<i64> = one("SELECT lease_elect('l', 'n1', '1 min')");
        assert!(token.is_some());
        let token = token.unwrap_or(0);
        assert_eq!(one(&format!("SELECT lease_elect('l', 'n1', '1 min', {token})")), Some(token));
        assert_eq!(one::<i64>("SELECT lease_elect('l', 'n2', '1 min')"), None);
        assert_eq!(
            one::<i64>(&format!("SELECT lease_elect('l', 'n2', '1 min', {})", token + 1)),
            None
        );
    }

    #[pg_test]
    fn the_last_checkpoint_is_read_and_none_is_null() {
        assert_eq!(one::<bool>("SELECT lease_checkpoint('a') IS NULL"), Some(true));
        let token = acquire("a").expect("free");
        for n in 1..3 {
            Spi::run(&format!("SELECT lease_checkpoint('a', {token}, '{{\"n\": {n}}}')"))
                .expect("runs");
            assert_eq!(
                one(&format!("SELECT lease_checkpoint('a') = '{{\"n\": {n}}}'")),
                Some(true)
            );
        }
    }

    #[pg_test]
    fn a_checkpoint_keeps_numbers_that_no_float_holds() {
        let token = acquire("a").expect("free");
        Spi::run(&format!("SELECT lease_checkpoint('a', {token}, '{{\"n\": 1e1000}}')"))
            .expect("runs");
        assert_eq!(one("SELECT (lease_checkpoint('a') ->> 'n')::numeric = 1e1000"), Some(true));
    }

    #[pg_test]
    fn a_savepoint_takes_back_what_was_done_to_a_lease() {
        Spi::run(
            "DO $$
             DECLARE t bigint := lease_acquire('a', 'me', '1 min');
             BEGIN
                 BEGIN
                     PERFORM lease_complete('a', t), lease_acquire('b', 'me', '1 min'), once('k');
                     RAISE EXCEPTION 'undo';
                 EXCEPTION WHEN raise_exception THEN NULL;
                 END;
             END $$",
        )
        .expect("runs");
        assert_eq!(state("a").as_deref(), Some("held"));
        assert_eq!(state("b"), None);
        assert_eq!(one("SELECT once('k')"), Some(true));
    }

    #[pg_test]
    fn a_pruned_name_is_gone_and_its_tokens_go_on_rising() {
        let token = acquire("a").expect("free");
        Spi::run(&format!(
            "SELECT lease_checkpoint('a', {token}, '1'), lease_release('a', {token})"
        ))
        .expect("runs");
        assert!(acquire("b").is_some());
        assert_eq!(one("SELECT lease_prune('1 d')"), Some(0i64));
        assert_eq!(one("SELECT lease_prune('0')"), Some(1i64));
        assert_eq!(state("a"), None);
        assert_eq!(one::<bool>("SELECT lease_checkpoint('a') IS NULL"), Some(true));
        assert!(acquire("a").expect("free") > token);
    }

    #[pg_test]
    fn the_floor_rises_and_never_falls() {
        // The sequence is shared by the tests that run at the same time, so the numbers are far above.
        assert!(one("SELECT lease_raise_token_floor(3000000000)") >= Some(3_000_000_000i64));
        let token = acquire("a");
        assert!(token > Some(3_000_000_000));
        assert!(one::<i64>("SELECT lease_raise_token_floor(5)") >= token);
        assert!(acquire("b") > token);
    }

    #[pg_test]
    fn a_token_is_above_the_row_even_if_the_sequence_was_set_back() {
        Spi::run("SELECT lease_raise_token_floor(4000000000)").expect("runs");
        let token = acquire("a").expect("free");
        Spi::run(&format!(
            "SELECT lease_release('a', {token}), setval('lock_ext.lease_token_seq', 1)"
        ))
        .expect("runs");
        assert!(acquire("a").expect("free") > token);
    }

    #[pg_test]
    fn a_row_is_found_after_it_has_moved() {
        // Long names fill pages, so that updates leave them; a rewrite moves everything.
        Spi::run("SELECT lease_acquire(repeat('x', 900) || i, repeat('h', 1024), '1 h') FROM generate_series(1, 20) i").expect("runs");
        for _ in 0..3 {
            let extended: Option<i64> =
                one("SELECT count(lease_extend(name, token, '2 h')) FROM lease_status");
            assert_eq!(extended, Some(20));
        }
        assert_eq!(
            one("SELECT count(*) FROM lease_status WHERE remaining > '1 h 59 min'"),
            Some(20i64)
        );
    }

    #[pg_test]
    fn every_object_has_a_comment_and_no_table_is_open_to_public() {
        let bare: Option<String> =
            one("SELECT string_agg(pg_describe_object(classid, objid, 0), ', ')
               FROM pg_depend
              WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
                AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lock_ext')
                AND classid IN ('pg_proc'::regclass, 'pg_class'::regclass, 'pg_namespace'::regclass)
                AND obj_description(objid, classid::regclass::name) IS NULL
                AND pg_describe_object(classid, objid, 0) NOT LIKE '%tests.%'
                AND pg_describe_object(classid, objid, 0) <> 'schema tests'");
        assert_eq!(bare, None);
        let columns: Option<i64> = one(
            "SELECT count(*) FROM pg_attribute
              WHERE attrelid IN ('lease_status'::regclass, 'lease_writer'::regclass, 'lock_ext.lease'::regclass,
                                 'lock_ext.lease_checkpoint'::regclass, 'lock_ext.once_key'::regclass)
                AND attnum > 0 AND col_description(attrelid, attnum) IS NULL",
        );
        assert_eq!(columns, Some(0));
        let open: Option<i64> = one("SELECT count(*) FROM pg_class, aclexplode(relacl) AS a
              WHERE relnamespace = 'lock_ext'::regnamespace AND a.grantee <> relowner");
        assert_eq!(open, Some(0));
    }

    #[pg_test(error = "table \"lease\" of lock_ext was altered")]
    fn a_table_that_was_altered_is_not_written() {
        Spi::run("ALTER TABLE lock_ext.lease ALTER COLUMN ttl TYPE bigint USING 1").expect("runs");
        acquire("a");
    }

    #[pg_test(
        error = "table \"once_key\" of lock_ext was given an index over an expression or for some rows"
    )]
    fn a_table_with_an_index_that_only_the_executor_keeps_is_not_written() {
        Spi::run("CREATE INDEX ON lock_ext.once_key ((length(key)))").expect("runs");
        Spi::run("SELECT once('k')").expect("runs");
    }

    #[pg_test]
    fn an_administrator_may_end_what_the_transaction_is_about_to_end() {
        let token = acquire("a").expect("free");
        Spi::run(&format!("SELECT lease_extend('a', {token})")).expect("runs");
        assert_eq!(one("SELECT lease_force_release('a')"), Some(true));
        assert_eq!(one("SELECT lease_force_release('a')"), Some(false));
        assert_eq!(state("a").as_deref(), Some("free"));
    }

    #[pg_test(error = "time to live is out of range")]
    fn a_time_to_live_above_the_limit_is_refused() {
        Spi::run("SELECT lease_acquire('a', 'me', '8 d')").expect("runs");
    }

    #[pg_test]
    fn a_raised_limit_allows_a_longer_time_to_live() {
        Spi::run("SET LOCAL lock_ext.max_ttl = '10 d'").expect("runs");
        assert!(one::<i64>("SELECT lease_acquire('a', 'me', '10 d')").is_some());
    }

    #[pg_test(error = "time to live cannot be given in months or years")]
    fn months_are_refused() {
        Spi::run("SELECT lease_acquire('a', 'me', '1 month')").expect("runs");
    }

    #[pg_test]
    fn a_wait_that_runs_out_is_null() {
        assert!(one::<i64>("SELECT lease_acquire('a', 'me', '60 s', '1 s')").is_some());
        assert_eq!(one::<i64>("SELECT lease_acquire('a', 'me', '60 s', '1 ms')"), None);
    }
}
