//! Connections, and what an error means to a worker.

use serde::{Deserialize, Serialize};
use std::env;
use std::fmt;
use tokio::task::JoinHandle;
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, Config, NoTls};

/// A connection to the server, and the task that serves it.
pub struct Db {
    pub client: Client,
    serving: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl Db {
    /// Connects as the environment says, like psql does. The application name is what `pg_stat_activity` shows.
    pub async fn connect(database: &str, application: &str) -> Result<Self, tokio_postgres::Error> {
        let setting = |name, default: &str| env::var(name).unwrap_or_else(|_| default.into());
        let (client, connection) = Config::new()
            .host(setting("PGHOST", "/var/run/postgresql"))
            .port(setting("PGPORT", "5432").parse().unwrap_or(5432))
            .user(setting("PGUSER", "postgres"))
            .password(setting("PGPASSWORD", ""))
            .dbname(database)
            .application_name(application)
            .connect(NoTls)
            .await?;
        Ok(Self { client, serving: tokio::spawn(connection) })
    }

    /// What the server said when it ended the connection.
    pub async fn last_words(self) -> Option<ServerError> {
        let ended = self.serving.await.ok()?;
        ended.err().as_ref().and_then(ServerError::of)
    }
}

pub type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The one value of a query that gives one row with one column.
pub async fn value<T: FromSqlOwned>(
    client: &Client,
    query: &str,
    parameters: Parameters<'_>,
) -> Result<T, Failure> {
    Ok(client.query_one(query, parameters).await?.try_get(0)?)
}

/// An error of the server, by its fields: a program looks at the code, never at the text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerError {
    pub code: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

impl ServerError {
    fn of(error: &tokio_postgres::Error) -> Option<Self> {
        let error = error.as_db_error()?;
        Some(Self {
            code: error.code().code().into(),
            message: error.message().into(),
            detail: error.detail().map(Into::into),
            hint: error.hint().map(Into::into),
        })
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}

/// Why a worker cannot go on as it did.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The heartbeat says that the lease is, or may be, somebody else's.
    #[error("lease lost: {0}")]
    LeaseLost(String),
    /// Class LX: the token is no longer good. Trying again under it can never help.
    #[error("{0}")]
    Refused(ServerError),
    /// The session is gone. Whether its last COMMIT took hold is not known.
    #[error("connection lost")]
    ConnectionLost(Option<ServerError>),
    #[error("{0}")]
    Unexpected(ServerError),
    #[error(transparent)]
    Other(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        match ServerError::of(&error) {
            Some(told) if told.code.starts_with("LX") => Self::Refused(told),
            // 57P01 to 57P03: an administrator, or lease_evict, ended the session, or the server went down.
            Some(told) if told.code.starts_with("57P0") => Self::ConnectionLost(Some(told)),
            Some(told) => Self::Unexpected(told),
            None if error.is_closed() => Self::ConnectionLost(None),
            _ => Self::Other(error),
        }
    }
}
