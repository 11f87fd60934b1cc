//! What the sessions do, as a table.

/// The lease of all tables.
pub const LEASE: &str = "j";

/// One kind of write. In its statements `$t` is the token, `$v` a value, `$own` a row that is there and that no other session writes to,
/// `$new` a row that is not there, `$old` one that may be. What has `$transaction`, its number, sees to its note itself.
pub struct Write {
    pub kind: &'static str,
    /// May carry its token without `lease_fence`.
    pub alone: bool,
    pub sql: &'static str,
}

#[rustfmt::skip]
pub const WRITES: [Write; 30] = [
    Write { kind: "insert", alone: false, sql: "INSERT INTO plain VALUES ($new, $v, $t)" },
    Write { kind: "update", alone: false, sql: "UPDATE plain SET v = $v, written_under = $t WHERE id = $own" },
    Write { kind: "shared row", alone: false, sql: "UPDATE plain SET v = $v, written_under = $t WHERE id = 0" },
    Write { kind: "long statement", alone: false, sql: "UPDATE plain SET v = $v, written_under = $t WHERE id = $own AND (SELECT true FROM pg_sleep($v * 0.0002))" },
    Write { kind: "delete", alone: false, sql: "DELETE FROM plain WHERE id = $old" },
    Write { kind: "upsert", alone: false, sql: "INSERT INTO plain VALUES ($own, $v, $t) ON CONFLICT (id) DO UPDATE SET v = $v, written_under = $t" },
    Write { kind: "cursor", alone: false, sql: "DECLARE c CURSOR FOR SELECT FROM plain WHERE id = $own FOR UPDATE; FETCH c; UPDATE plain SET v = $v, written_under = $t WHERE CURRENT OF c; CLOSE c" },
    Write { kind: "view", alone: false, sql: "UPDATE aside.view SET v = $v, written_under = $t WHERE id = $own" },
    Write { kind: "function", alone: false, sql: "SELECT aside.write($own, $v, $t)" },
    Write { kind: "copy", alone: false, sql: "COPY plain FROM PROGRAM 'echo $new,$v,$t' (FORMAT csv)" },
    Write { kind: "deferred trigger", alone: false, sql: "INSERT INTO aside.queue VALUES ($new, $v, $transaction)" },
    Write { kind: "cascade", alone: false, sql: "INSERT INTO aside.parent VALUES ($new); INSERT INTO child VALUES ($new, $v, $t); DELETE FROM aside.parent WHERE id = $old" },
    Write { kind: "bulk insert", alone: false, sql: "INSERT INTO bulk SELECT $new, g, $t FROM generate_series(1, 20) AS g" },
    Write { kind: "truncate", alone: false, sql: "TRUNCATE bulk" },
    Write { kind: "truncate a partition", alone: false, sql: "TRUNCATE bulk_1" },
    Write { kind: "inherited row", alone: false, sql: "UPDATE ancestor SET v = $v, written_under = $t WHERE id = $own" },
    Write { kind: "heir", alone: false, sql: "INSERT INTO heir VALUES ($new, $v, $t)" },
    Write { kind: "partition", alone: false, sql: "INSERT INTO parted_1 VALUES ($new, 1, $v, $t); DELETE FROM parted_1 WHERE id = $old" },
    Write { kind: "move by column", alone: true, sql: "UPDATE parted SET part = 1 - part, written_under = $t WHERE id = $own" },
    Write { kind: "partitioned by column", alone: true, sql: "INSERT INTO parted VALUES ($new, $v % 2, $v, $t)" },
    Write { kind: "lease of the row", alone: true, sql: "UPDATE account SET v = $v, written_under = $t WHERE id = $own" },
    Write { kind: "row with its lease", alone: true, sql: "INSERT INTO account VALUES ($new, 'j', $v, $t)" },
    Write { kind: "insert by column", alone: true, sql: "INSERT INTO stamped VALUES ($new, $v, $t)" },
    Write { kind: "update by column", alone: true, sql: "UPDATE stamped SET v = $v, written_under = $t WHERE id = $own" },
    Write { kind: "merge by column", alone: true, sql: "MERGE INTO stamped USING (VALUES ($own), ($new)) AS s (id) ON stamped.id = s.id WHEN MATCHED THEN UPDATE SET v = $v, written_under = $t WHEN NOT MATCHED THEN INSERT VALUES (s.id, $v, $t)" },
    Write { kind: "upsert by column", alone: true, sql: "WITH w AS (INSERT INTO stamped VALUES ($own, $v, $t) ON CONFLICT (id) DO UPDATE SET v = excluded.v, written_under = excluded.written_under RETURNING id) SELECT FROM w" },
    Write { kind: "copy by column", alone: true, sql: "COPY stamped FROM PROGRAM 'echo $new,$v,$t' (FORMAT csv)" },
    Write { kind: "fenced_update", alone: true, sql: "SELECT fenced_update('plain', $t, '{\"id\": $own}', '{\"v\": $v, \"written_under\": $t}')" },
    Write { kind: "observe", alone: true, sql: "INSERT INTO aside.observation VALUES ($transaction, $t); SELECT fence_observe('etcd', $t)" },
    Write { kind: "checkpoint", alone: true, sql: "SELECT lease_checkpoint('j', $t, '{\"v\": $v}')" },
];

/// Statements of their own in autocommit, with their notes.
#[rustfmt::skip]
pub const STATEMENTS: [Write; 4] = [
    Write { kind: "autocommit by column", alone: true, sql: "WITH w AS (UPDATE stamped SET v = $v, written_under = $t WHERE id = $own RETURNING id) INSERT INTO aside.note SELECT $transaction, '$kind', $t FROM w" },
    Write { kind: "autocommit fenced_update", alone: true, sql: "INSERT INTO aside.note SELECT $transaction, '$kind', $t FROM fenced_update('plain', $t, '{\"id\": $own}', '{\"v\": $v, \"written_under\": $t}')" },
    Write { kind: "observe", alone: true, sql: "INSERT INTO aside.observation SELECT $transaction, $t FROM fence_observe('etcd', $t)" },
    Write { kind: "procedure", alone: true, sql: "CALL aside.work($transaction, $own, $t)" },
];

/// What a block may do to the lease itself before it ends; seldom, or no grant would last.
pub const LAST_CALLS: [&str; 3] = [
    "SELECT lease_release('j', $t)",
    "SELECT lease_complete('j', $t, clock_timestamp())",
    "SELECT lease_extend('j', $t, '200 ms')",
];

/// A deferred trigger has no other way to know the token that it will write under than the setting.
pub fn fence(token: i64, hold: bool) -> String {
    format!(
        "SELECT lease_fence('{LEASE}', {token}, hold => {hold}), set_config('aside.token', '{token}', true);"
    )
}
