//! What has to be true after each statement.

use lock_ext_sessions::{Answer, PgError};

use super::calls::Function;
use super::codes;
use super::fuzzer::Fuzzer;
use super::link::{Link, Rows, Way};
use super::values::Value;
use std::time::Duration;

impl Fuzzer {
    /// The error of a value's own type, if it has one.
    pub(super) async fn refuses(&mut self, values: &[Value], way: Way) -> Option<String> {
        let list = |places: &[String]| {
            places.iter().map(|place| format!("({place}) IS NULL")).collect::<Vec<_>>().join(", ")
        };
        let way = if way.takes_zero_bytes() { way } else { Way::Literals };
        self.watch.say(&list, values, way).await.err().map(|error| error.code)
    }

    pub(super) async fn judge(
        &mut self,
        link: usize,
        what: &str,
        sql: &str,
        error: &PgError,
        _caught: bool,
    ) {
        *self.codes.entry((what.to_owned(), error.code.clone())).or_default() += 1;
        let block = self.links[link].block.unwrap_or_default();
        if error.code == PgError::CLOSED || error.code == "57P01" {
            if !self.may_be_evicted {
                self.found(format!("{what}: the session is gone"), format!("{sql}\n    {error}"));
            }
            let (database, role, is_odd) = {
                let old = &self.links[link];
                (old.database.clone(), old.role.clone(), old.is_odd)
            };
            self.links[link] = Link::open(&database, role.as_deref(), is_odd).await;
        } else if !codes::may(what, &error.code, block) {
            let message: String = error.message.chars().take(50).collect();
            self.found(
                format!("{what}: {} {message}", error.code),
                format!("session {link}: {sql}\n    {error:?}"),
            );
        }
        if error.code == "2200H" {
            self.check_used_up().await;
        }
    }

    async fn check_used_up(&mut self) {
        let last = self
            .watch
            .sql("SELECT last_value FROM lock_ext.lease_token_seq")
            .await
            .expect("the sequence");
        let last: i64 = last[0].as_ref().expect("a number").parse().expect("a number");
        if last < (1 << 53) - 1000 {
            self.found("2200H with tokens left".to_owned(), format!("the last token was {last}"));
        }
        self.rebuild_soon();
    }

    fn rebuild_soon(&mut self) {
        self.highest = i64::MAX;
    }

    pub(super) async fn answered(
        &mut self,
        link: usize,
        function: &Function,
        values: &[Value],
        rows: &Rows,
        shown: &str,
        way: Way,
    ) {
        if function.base() == "lease_acquire_session" {
            self.links[link].is_bound = true;
        }
        if [Way::Do, Way::Caught].contains(&way) {
            return;
        }
        let argument = |name: &str| {
            function
                .arguments
                .iter()
                .position(|(argument, _)| argument == name)
                .and_then(|i| values.get(i))
                .and_then(|value| value.text.clone())
        };
        let first = rows.first().cloned().flatten();
        let is_grant =
            ["lease_acquire", "lease_acquire_session", "lease_elect"].contains(&function.base());
        if is_grant {
            for row in rows.iter().flatten() {
                let token: i64 = row.parse().unwrap_or(i64::MIN);
                let is_old = argument("token").as_ref() == Some(row)
                    || argument("request").is_some()
                    || way == Way::Twice;
                if token <= 0 || token >= 1 << 53 || token <= self.highest && !is_old {
                    self.found(
                        format!("{}: no new token", function.base()),
                        format!("{shown} gave {token} after {}", self.highest),
                    );
                }
                self.highest = self.highest.max(token);
            }
            if let (Some(_), Some(name), Some(holder)) =
                (&first, argument("name"), argument("holder"))
                && !is_sql_zero(&name)
            {
                self.check_name(
                    link,
                    &name,
                    &holder,
                    shown,
                    argument("token").is_some() || argument("request").is_some(),
                )
                .await;
            }
        } else if !function.is_set
            && ["boolean", "bigint"].contains(&function.gives.as_str())
            && function.base() != "carry"
            && first.is_none()
        {
            self.found(format!("{}: NULL", function.base()), shown.to_owned());
        } else if function.gives == "boolean"
            && !["t", "f"].contains(&first.as_deref().unwrap_or_default())
        {
            self.found(
                format!("{}: neither true nor false", function.base()),
                format!("{shown} gave {first:?}"),
            );
        }
        let target = argument("target");
        if function.base() == "fence_attach"
            && argument("lease").is_some()
            && argument("lease_column").is_none()
        {
            self.check_fence(link, &[&values[0], &values[1]], shown).await;
        }
        if function.base() == "fenced_update"
            && first.as_deref() == Some("1")
            && target.as_deref() == Some("fuzz.types")
            && argument("filter").is_some_and(|filter| filter.starts_with("{\"id\": "))
        {
            self.check_update(link, &values[2], &values[3], shown).await;
        }
        if function.base() == "lease_checkpoint" && values.len() == 3 {
            let same =
                "public.lease_checkpoint($1::text)::text OPERATOR(pg_catalog.=) ($2::jsonb)::text";
            let answer = self.links[link]
                .with(&format!("SELECT {same}"), &[&values[0], &values[2]], true)
                .await;
            if answer.as_ref().is_ok_and(|rows| rows[0].as_deref() != Some("t")) {
                self.found("lease_checkpoint: another state".to_owned(), shown.to_owned());
            }
        }
    }

    /// A question of the fuzzer's own in the session, which leaves an open block as it is.
    async fn ask(
        &mut self,
        link: usize,
        sql: &str,
        values: &[&Value],
        binary: bool,
    ) -> Answer<Rows> {
        let link = &self.links[link];
        if link.block.is_none() {
            return link.with(sql, values, binary).await;
        }
        link.sql("SAVEPOINT fuzz_ask").await?;
        let answer = link.with(sql, values, binary).await;
        link.sql("ROLLBACK TO fuzz_ask").await?;
        answer
    }

    /// The fence is as it was asked for.
    async fn check_fence(&mut self, link: usize, values: &[&Value], shown: &str) {
        // Not fence_status, which shows a child's fence with its parent's where they are the same.
        let sql = "SELECT pg_catalog.count(*) > 0 FROM pg_catalog.pg_trigger
                   WHERE tgrelid OPERATOR(pg_catalog.=) $1::regclass
                     AND tgfoid OPERATOR(pg_catalog.=) 'public.fence_check()'::pg_catalog.regprocedure
                     AND (lock_ext.trigger_arguments(tgargs))[1] OPERATOR(pg_catalog.=) $2::text";
        let answer = self.ask(link, sql, values, true).await;
        if answer.as_ref().is_ok_and(|rows| rows[0].as_deref() != Some("t")) {
            self.found("a lease that does not come back".to_owned(), shown.to_owned());
        }
    }

    /// The row has the values that it was given, to the last digit.
    pub(super) async fn check_update(
        &mut self,
        link: usize,
        filter: &Value,
        changes: &Value,
        shown: &str,
    ) {
        let sql = r#"SELECT pg_catalog.bool_and(r.is_same) FROM (
            SELECT pg_catalog.to_jsonb(t) -> c.key OPERATOR(pg_catalog.=) c.value AS is_same
            FROM fuzz.types AS t, pg_catalog.jsonb_each($2::jsonb) AS c
            WHERE pg_catalog.to_jsonb(t) @> $1::jsonb
              AND (c.key OPERATOR(pg_catalog.=) ANY ('{num,small,big}') AND pg_catalog.jsonb_typeof(c.value) OPERATOR(pg_catalog.=) 'number'
                OR c.key OPERATOR(pg_catalog.=) ANY ('{txt,"Mixed Case","quo\"te"}') AND pg_catalog.jsonb_typeof(c.value) OPERATOR(pg_catalog.=) 'string')
            ) AS r"#;
        match self.ask(link, sql, &[filter, changes], false).await {
            Ok(rows) if rows[0].as_deref() == Some("t") => self.exact += 1,
            Ok(rows) if rows[0].is_some() => {
                self.found("fenced_update: another value".to_owned(), shown.to_owned());
            }
            _ => {}
        }
    }

    /// The row has the name and the holder as they were given.
    async fn check_name(
        &mut self,
        link: usize,
        name: &str,
        holder: &str,
        shown: &str,
        may_be_older: bool,
    ) {
        let sql = "SELECT pg_catalog.count(*) FROM public.lease_status WHERE name OPERATOR(pg_catalog.=) $1::text AND ($3::boolean OR holder OPERATOR(pg_catalog.=) $2::text)";
        let values = [
            Value::text(name),
            Value::text(holder),
            Value::new("boolean", may_be_older.to_string()),
        ];
        let [name, holder, older] = &values;
        match self.ask(link, sql, &[name, holder, older], false).await {
            Ok(rows) if rows[0].as_deref() == Some("1") => {}
            // Cancelled.
            Err(error) if error.code == "57014" => {}
            other => self.found(
                "a name that does not come back".to_owned(),
                format!("{shown} gave {other:?}"),
            ),
        }
    }

    /// Outside of a block a session that has no lease bound to it has no lock of ours.
    pub(super) async fn check_locks(&mut self, link: usize) {
        if self.links[link].is_bound || self.links[link].block.is_some() || !self.dice.one_in(3) {
            return;
        }
        // An error reaches the client before the server has undone the transaction, and let go of its locks.
        let asked = format!(
            "SELECT coalesce(string_agg(concat_ws(' ', mode, classid, objid, objsubid), ', '), '') FROM pg_locks WHERE pid = {} AND locktype = 'userlock'",
            self.links[link].pid
        );
        let mut locks = String::new();
        for _ in 0..50 {
            let Ok(rows) = self.watch.sql(&asked).await else { return };
            locks = rows[0].clone().unwrap_or_default();
            if locks.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.found(
            format!("a lock that stays: {locks}"),
            self.last.back().cloned().unwrap_or_default(),
        );
    }

    pub async fn look_for_grants(&mut self) {
        let sql =
            "SELECT token || chr(1) || name FROM lock_ext.lease ORDER BY renewed_at DESC LIMIT 14";
        let Ok(rows) = self.watch.sql(sql).await else { return };
        self.granted = rows
            .iter()
            .flatten()
            .filter_map(|row| row.split_once('\x01'))
            .map(|(token, name)| (name.to_owned(), token.parse().expect("a token")))
            .collect();
    }

    pub(super) async fn digest(&self) -> Option<String> {
        digest(&self.watch).await.ok()
    }

    /// None while a session has something locked.
    pub(super) async fn fingerprint(&self) -> Option<String> {
        let rows = self.watch.sql(include_str!("fingerprint.sql")).await.ok()?;
        Some(rows.into_iter().flatten().collect::<Vec<_>>().join("\n"))
    }

    /// Nothing but fences came into the catalog, and nothing went.
    pub async fn compare_fingerprints(&mut self) {
        let Some(now) = self.fingerprint().await else { return };
        if now != self.fingerprint {
            let old: Vec<&str> = self.fingerprint.lines().collect();
            let new: Vec<&str> = now.lines().collect();
            let gone: Vec<_> = old.iter().filter(|line| !new.contains(line)).collect();
            let came: Vec<_> = new.iter().filter(|line| !old.contains(line)).collect();
            let all = self.last.iter().cloned().collect::<Vec<_>>().join("\n    ");
            self.found(
                "the catalog has changed".to_owned(),
                format!("gone: {gone:?}\n    came: {came:?}\n    one of\n    {all}"),
            );
            self.fingerprint = now;
        }
    }
}

fn is_sql_zero(text: &str) -> bool {
    text.contains('\0')
}

/// All that the functions keep, and all rows of the tables.
pub(super) async fn digest(link: &Link) -> Answer<String> {
    Ok(link.sql(include_str!("digest.sql")).await?[0].clone().unwrap_or_default())
}
