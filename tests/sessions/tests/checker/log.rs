//! The server's own log of commits: a slot with `test_decoding` tells the transactions in the order of their commit records, each with
//! the rows that it changed and where in the write-ahead log they stand. Nothing that a client sees could order two commits.

use std::iter;

use lock_ext_sessions::Db;

/// A position in the write-ahead log.
pub type Lsn = i64;

/// A committed transaction, in the order in which it did things.
#[derive(Clone, Debug, PartialEq)]
pub struct Transaction {
    pub xid: String,
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub at: Lsn,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The row of the lease. Nobody holds it if it has no expiry.
    Lease { token: i64, held: bool },
    /// The row of the lease is gone.
    Pruned,
    /// The note of an end that the transaction puts off to its commit.
    PutOff,
    /// The workload's note that stands before each of its writes, and is undone with it.
    Note { transaction: i64, kind: String, token: i64 },
    /// The note of a token of another system.
    Observed { transaction: i64, token: i64 },
    /// A change of a fenced table, or a checkpoint. None: no row is left that could carry a token.
    Written { table: String, token: Option<i64> },
}

/// Fenced tables are in `public` and have this column, whoever fills it.
const TOKEN_COLUMN: &str = "written_under";

pub struct Log {
    slot: String,
    lines: Vec<String>,
    open: Option<Transaction>,
}

impl Log {
    /// Begins before the workload does.
    pub async fn begin(db: &Db) -> Self {
        let slot = db.name().to_owned();
        db.watch
            .exec("SELECT pg_create_logical_replication_slot($1, 'test_decoding')", &[&slot])
            .await
            .expect(
                "a slot: it needs LOCK_EXT_PGOPTS='wal_level = logical' scripts/with-cluster.sh",
            );
        Self { slot, lines: Vec::new(), open: None }
    }

    /// What was committed since the last call.
    pub async fn read(&mut self, db: &Db) -> Vec<Transaction> {
        // The log ends where the server has flushed to. Commits with synchronous_commit = off may be behind that, but not behind this one.
        db.watch.sql("INSERT INTO aside.flush DEFAULT VALUES").await.expect("a commit");
        let rows = db
            .watch
            .rows(
                "SELECT (lsn - '0/0')::int8, xid::text, data FROM pg_logical_slot_get_changes($1, NULL, NULL)",
                &[&self.slot],
            )
            .await
            .expect("the log");
        let mut ended = Vec::new();
        for row in rows {
            let (at, xid, data) = (row.get(0), row.get(1), row.get(2));
            self.lines.push(format!("{at} {xid} {data}"));
            ended.extend(self.line(at, xid, data));
        }
        ended
    }

    fn line(&mut self, at: Lsn, xid: &str, data: &str) -> Option<Transaction> {
        match data.split(' ').next() {
            Some("BEGIN") => {
                self.open = Some(Transaction { xid: xid.to_owned(), changes: Vec::new() });
                None
            }
            Some("COMMIT") => self.open.take(),
            Some("table") => {
                let open = self.open.as_mut().expect("a change is between BEGIN and COMMIT");
                open.changes.extend(changes(data).into_iter().map(|what| Change { at, what }));
                None
            }
            _ => panic!("test_decoding says {data:?}"),
        }
    }

    /// Or the server would keep its write-ahead log for ever. Gives all lines as they were printed, for people.
    pub async fn end(self, db: &Db) -> Vec<String> {
        db.watch
            .exec("SELECT pg_drop_replication_slot($1)", &[&self.slot])
            .await
            .expect("the slot is there");
        self.lines
    }
}

/// One line about a table, or about several that are truncated: `table public.plain: UPDATE: id[integer]:1 v[integer]:2`.
fn changes(line: &str) -> Vec<What> {
    let misread = || panic!("test_decoding says {line:?}");
    let (tables, rest) = line["table ".len()..].split_once(": ").unwrap_or_else(misread);
    let (action, row) = rest.split_once(':').unwrap_or_else(misread);
    if action == "TRUNCATE" {
        let truncated = |table: &str| What::Written { table: table.to_owned(), token: None };
        return tables.split(", ").filter(|table| is_fenced(table)).map(truncated).collect();
    }
    // An UPDATE shows the old key before it if that has changed.
    let row = row.split_once(" new-tuple:").map_or(row, |(_, new)| new);
    let value = |name: &str| columns(row).find(|c| c.0 == name).and_then(|c| c.1);
    let number = |name: &str| value(name).map(|n| n.parse::<i64>().expect("a number"));
    let what = match (tables, action) {
        ("lock_ext.lease", "DELETE") => What::Pruned,
        ("lock_ext.lease", _) => What::Lease {
            token: number("token").expect("a token"),
            held: value("expires_at").is_some(),
        },
        // Those of earlier tokens, which the next one to save a checkpoint removes.
        ("lock_ext.lease_checkpoint", "DELETE") => return Vec::new(),
        ("lock_ext.lease_checkpoint", _) => {
            What::Written { table: tables.to_owned(), token: number("token") }
        }
        ("aside.put_off", "INSERT") => What::PutOff,
        ("aside.note", "INSERT") => What::Note {
            transaction: number("transaction").expect("a number"),
            kind: value("kind").expect("a kind"),
            token: number("token").expect("a token"),
        },
        ("aside.observation", "INSERT") => What::Observed {
            transaction: number("transaction").expect("a number"),
            token: number("token").expect("a token"),
        },
        (table, "DELETE") if is_fenced(table) => {
            What::Written { table: table.to_owned(), token: None }
        }
        (table, _) if is_fenced(table) => {
            let token = number(TOKEN_COLUMN);
            assert!(token.is_some(), "nobody said under which token: {line:?}");
            What::Written { table: table.to_owned(), token }
        }
        _ => return Vec::new(),
    };
    vec![what]
}

fn is_fenced(table: &str) -> bool {
    table.starts_with("public.")
}

/// ` id[integer]:1 note[text]:'it''s' gone[text]:null`
fn columns(row: &str) -> impl Iterator<Item = (&str, Option<String>)> {
    let mut rest = row.trim_start();
    iter::from_fn(move || {
        let (name, value) = rest.split_once("]:")?;
        let (name, _) = name.split_once('[')?;
        let end = match value.strip_prefix('\'') {
            Some(quoted) => 1 + closing_quote(quoted),
            None => value.find(' ').unwrap_or(value.len()),
        };
        let (value, behind) = value.split_at(end);
        rest = behind.trim_start();
        let plain = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
        Some((name, (value != "null").then(|| plain.unwrap_or(value).replace("''", "'"))))
    })
}

/// Just behind the quote that is not doubled.
fn closing_quote(text: &str) -> usize {
    let mut from = 0;
    loop {
        let quote = from + text[from..].find('\'').expect("a closing quote");
        if !text[quote + 1..].starts_with('\'') {
            return quote + 1;
        }
        from = quote + 2;
    }
}

#[test]
fn a_row_is_read_as_test_decoding_prints_it() {
    let row = " id[integer]:1 \"when\"[timestamp with time zone]:'2026-11-29 10:00:00+00' gone[text]:null list[integer[]]:'{1,2}' said[text]:'it''s [a]:''b''' on[boolean]:true";
    let read: Vec<_> = columns(row).collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        read,
        [
            ("id", text("1")),
            ("\"when\"", text("2026-11-29 10:00:00+00")),
            ("gone", None),
            ("list", text("{1,2}")),
            ("said", text("it's [a]:'b'")),
            ("on", text("true")),
        ]
    );
}

#[test]
fn a_line_becomes_what_it_says() {
    let written = |table: &str, token| What::Written { table: table.to_owned(), token };
    let lease = "token[bigint]:7 grants[bigint]:3 name[text]:'j' holder[text]:'A' expires_at[timestamp with time zone]";
    for (line, what) in [
        (
            format!("table lock_ext.lease: INSERT: {lease}:'2026-11-29 10:00:00+00'"),
            vec![What::Lease { token: 7, held: true }],
        ),
        (
            format!("table lock_ext.lease: UPDATE: {lease}:null"),
            vec![What::Lease { token: 7, held: false }],
        ),
        ("table lock_ext.lease: DELETE: name[text]:'j'".to_owned(), vec![What::Pruned]),
        (
            "table public.plain: UPDATE: old-key: id[integer]:1 written_under[bigint]:6 new-tuple: id[integer]:2 written_under[bigint]:7".to_owned(),
            vec![written("public.plain", Some(7))],
        ),
        (
            "table public.plain: DELETE: id[integer]:1".to_owned(),
            vec![written("public.plain", None)],
        ),
        (
            "table public.plain, aside.parent, public.child: TRUNCATE: cascade".to_owned(),
            vec![written("public.plain", None), written("public.child", None)],
        ),
        (
            "table aside.note: INSERT: transaction[bigint]:12 kind[text]:'upsert' token[bigint]:7".to_owned(),
            vec![What::Note { transaction: 12, kind: "upsert".to_owned(), token: 7 }],
        ),
        (
            "table lock_ext.lease_checkpoint: UPDATE: token[bigint]:7 name[text]:'j'".to_owned(),
            vec![written("lock_ext.lease_checkpoint", Some(7))],
        ),
        (
            "table aside.observation: INSERT: transaction[bigint]:12 token[bigint]:7".to_owned(),
            vec![What::Observed { transaction: 12, token: 7 }],
        ),
        ("table lock_ext.lease_checkpoint: DELETE: name[text]:'j' token[bigint]:6".to_owned(), vec![]),
        ("table aside.put_off: INSERT: transaction[bigint]:12".to_owned(), vec![What::PutOff]),
        ("table aside.parent: INSERT: id[integer]:1".to_owned(), vec![]),
    ] {
        assert_eq!(changes(&line), what, "{line}");
    }
}
