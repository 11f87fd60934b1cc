//! A client in a process of its own: `client DATABASE` reads one SQL statement a line and says for
//! each `ok<TAB>first value of the last row` or `error<TAB>SQLSTATE`. It begins with its backend's process id
//! and the time that its own clock shows.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::{SystemTime, UNIX_EPOCH};

use lock_ext_sessions::{PgError, connect};
use tokio_postgres::SimpleQueryMessage;

fn main() {
    let database = std::env::args().nth(1).expect("a database");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let client = connect(&database, None).await;
        let pid: i32 =
            client.query_one("SELECT pg_backend_pid()", &[]).await.expect("an answer").get(0);
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        say(&format!("{pid}\t{clock}"));
        for line in stdin().lock().lines() {
            let sql = line.expect("a line");
            match client.simple_query(&sql).await.map_err(PgError::from) {
                Ok(messages) => {
                    let value = messages.iter().rev().find_map(|message| match message {
                        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default()),
                        _ => None,
                    });
                    say(&format!("ok\t{}", value.unwrap_or_default()));
                }
                Err(error) => {
                    // As in the library: the server may still be busy with the abort.
                    let _ = client.simple_query("").await;
                    say(&format!("error\t{}", error.code));
                }
            }
        }
    });
}

fn say(line: &str) {
    let mut out = stdout().lock();
    writeln!(out, "{line}").expect("somebody listens");
    out.flush().expect("somebody listens");
}
