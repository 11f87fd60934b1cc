//! The server's own log of commits: a slot with `test_decoding` tells the transactions in the order of their commit records. Nothing
//! that a client sees could order two commits.

use std::collections::HashMap;

use tokio_postgres::Client;

use crate::history::{Change, Commit};

const SLOT: &str = "torture";

/// Begins before the clients do.
pub async fn begin(server: &Client) {
    let sql = "SELECT pg_create_logical_replication_slot($1, 'test_decoding')";
    server.execute(sql, &[&SLOT]).await.expect("a slot");
}

/// All that was committed on this server since [`begin`]. `fork`: where a standby of it went its own way; what is behind it is lost.
pub async fn read(server: &Client, number: u32, fork: Option<i64>) -> Vec<Commit> {
    // The rows of the other tables are long, and nobody asks for them.
    let sql = "SELECT (lsn - '0/0')::int8, data FROM pg_logical_slot_get_changes($1, NULL, NULL, 'include-xids', '0')
               WHERE data NOT LIKE 'table %' OR data LIKE 'table lock_ext.lease:%' OR data LIKE 'table public.note:%'";
    let rows = server.query(sql, &[&SLOT]).await.expect("the log of commits");
    let mut commits = Vec::new();
    let mut open = Vec::new();
    let mut leases = HashMap::new();
    for row in rows {
        let (lsn, data): (i64, &str) = (row.get(0), row.get(1));
        match data.split(' ').next() {
            Some("BEGIN") => open.clear(),
            Some("COMMIT") if open.is_empty() => {}
            Some("COMMIT") => commits.push(Commit {
                server: number,
                lsn,
                kept: fork.is_none_or(|fork| lsn <= fork),
                changes: std::mem::take(&mut open),
            }),
            _ => open.extend(change(data).filter(|change| is_news(change, &mut leases))),
        }
    }
    commits
}

/// An extension changes neither token nor holder.
fn is_news(change: &Change, leases: &mut HashMap<String, (i64, bool)>) -> bool {
    match change {
        Change::Lease { lease, token, held, .. } => {
            leases.insert(lease.clone(), (*token, *held)) != Some((*token, *held))
        }
        Change::Note { .. } => true,
    }
}

fn change(data: &str) -> Option<Change> {
    let data = data.strip_prefix("table ")?;
    let (table, rest) = data.split_once(": ")?;
    let (what, row) = rest.split_once(": ")?;
    if what == "DELETE" {
        return None;
    }
    match table {
        "lock_ext.lease" => Some(Change::Lease {
            lease: text(row, "name")?,
            token: value(row, "token")?.parse().ok()?,
            held: value(row, "expires_at")? != "null",
            holder: text(row, "holder")?,
        }),
        "public.note" => Some(Change::Note {
            op: text(row, "op")?,
            lease: text(row, "lease")?,
            token: value(row, "token")?.parse().ok()?,
        }),
        _ => None,
    }
}

/// What stands after `column[type]:`. Our names have neither quotes nor spaces; a time has a space, of which the first half is enough.
fn value<'a>(row: &'a str, column: &str) -> Option<&'a str> {
    let start = if row.starts_with(&format!("{column}[")) {
        0
    } else {
        row.find(&format!(" {column}["))? + 1
    };
    let after = row[start..].split_once("]:")?.1;
    after.split(' ').next()
}

fn text(row: &str, column: &str) -> Option<String> {
    Some(value(row, column)?.trim_matches('\'').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_test_decoding_says_is_understood() {
        let row = "table lock_ext.lease: UPDATE: token[bigint]:7 grants[bigint]:1 holder_role[name]:'worker' \
                   name[text]:'set' holder[text]:'c1.5' expires_at[timestamp with time zone]:'2026-11-29 21:00:00+00' request[uuid]:null";
        let lease = |held| Change::Lease {
            lease: "set".to_owned(),
            token: 7,
            held,
            holder: "c1.5".to_owned(),
        };
        assert_eq!(change(row), Some(lease(true)));
        let ended = row.replace("'2026-11-29 21:00:00+00'", "null");
        assert_eq!(change(&ended), Some(lease(false)));
        let note = "table public.note: INSERT: op[text]:'c1.6' lease[text]:'set' token[bigint]:7";
        let (op, lease) = ("c1.6".to_owned(), "set".to_owned());
        assert_eq!(change(note), Some(Change::Note { op, lease, token: 7 }));
        assert_eq!(change("table public.entry: INSERT: lease[text]:'x' op[text]:'y'"), None);
    }
}
