use std::time::Duration;

use tokio_postgres::{Client, Config, NoTls};

use crate::history::{Micros, now};

/// Why there is no answer.
#[derive(Clone, Debug)]
pub struct Failure {
    pub code: String,
    /// It is certain that the statement did nothing.
    pub is_sure: bool,
    /// The connection is of no use any more.
    pub is_end: bool,
}

impl Failure {
    pub fn too_late() -> Self {
        Self { code: "late".to_owned(), is_sure: false, is_end: true }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return Self { code: "closed".to_owned(), is_sure: false, is_end: true };
        };
        let code = db.code().code().to_owned();
        // A server that is told to end may have committed before it says so; so may one with an internal error.
        let is_end = ["57P", "08", "58", "XX"].iter().any(|class| code.starts_with(class));
        if code.starts_with("XX") {
            eprintln!("internal error: {error:?}");
        }
        Self { code, is_sure: !is_end, is_end }
    }
}

/// A connection that is made anew when it is lost.
pub struct Conn {
    config: Config,
    lazy: bool,
    until: Micros,
    open: Option<(Client, i32)>,
}

impl Conn {
    pub fn new(port: u16, name: &str, lazy: bool, until: Micros) -> Self {
        let mut config = Config::new();
        config.host("127.0.0.1").port(port).user("worker").dbname("postgres");
        config.application_name(name).connect_timeout(Duration::from_secs(5));
        Self { config, lazy, until, open: None }
    }

    /// The connection and its backend; none when the time is over.
    pub async fn get(&mut self) -> Option<&(Client, i32)> {
        while self.open.as_ref().is_none_or(|(client, _)| client.is_closed()) {
            self.open = None;
            if now() > self.until {
                return None;
            }
            match tokio::time::timeout(Duration::from_secs(5), self.connect()).await {
                Ok(Ok(open)) => self.open = Some(open),
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        self.open.as_ref()
    }

    /// The connection as it is, in the middle of a transaction.
    pub fn open(&self) -> Option<&(Client, i32)> {
        self.open.as_ref()
    }

    pub fn close(&mut self) {
        self.open = None;
    }

    async fn connect(&self) -> Result<(Client, i32), tokio_postgres::Error> {
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(connection);
        let first = if self.lazy { "SET synchronous_commit = off" } else { "" };
        client.batch_execute(first).await?;
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        Ok((client, pid))
    }
}
