//! A client of the cluster: finds the leader, gives up a call that is not answered, and says what an error means.

use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, Config, NoTls};

/// For how long a client waits for an answer. Nothing here waits in line.
const CALL: Duration = Duration::from_secs(4);

pub type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

#[derive(Clone)]
pub enum Hosts {
    /// The one of these addresses that may be written to.
    Leader(Vec<String>),
    /// The server whose socket is in this directory.
    Inside(PathBuf),
}

/// Why a call gave no answer to go by.
#[derive(Debug)]
pub enum Trouble {
    /// LX001: the token is no longer good.
    Refused,
    /// The connection is gone, the server is none to write to any more, or no answer came in time. Whether a COMMIT
    /// took hold is not known.
    Lost,
}

/// One connection. Dropped, its socket is closed, so that an answer that comes later is never read.
pub struct Db {
    client: Client,
    serving: JoinHandle<()>,
}

impl Db {
    pub async fn connect(hosts: &Hosts, name: &str) -> Result<Self, Trouble> {
        let mut config = Config::new();
        match hosts {
            Hosts::Leader(addresses) => {
                for address in addresses {
                    config.host(address);
                }
                config.target_session_attrs(TargetSessionAttrs::ReadWrite);
            }
            Hosts::Inside(directory) => {
                config.host_path(directory);
            }
        }
        config
            .user("postgres")
            .dbname("postgres")
            .application_name(name)
            .connect_timeout(Duration::from_millis(700));
        let (client, connection) = within(config.connect(NoTls)).await?;
        let serving = tokio::spawn(async {
            // Whoever asks next sees that it is gone.
            let _ = connection.await;
        });
        Ok(Self { client, serving })
    }

    pub async fn run(&self, sql: &str) -> Result<(), Trouble> {
        within(self.client.batch_execute(sql)).await
    }

    pub async fn execute(&self, sql: &str, parameters: Parameters<'_>) -> Result<(), Trouble> {
        within(self.client.execute(sql, parameters)).await.map(|_rows| ())
    }

    /// The one value of a query that gives one row with one column.
    pub async fn value<T: FromSqlOwned>(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<T, Trouble> {
        Ok(within(self.client.query_one(sql, parameters)).await?.get(0))
    }

    pub async fn list<T: FromSqlOwned>(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<T>, Trouble> {
        let rows = within(self.client.query(sql, parameters)).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn within<T>(
    call: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Trouble> {
    let Ok(answer) = timeout(CALL, call).await else { return Err(Trouble::Lost) };
    answer.map_err(|error| match error.code().map(|code| code.code()) {
        Some("LX001") => Trouble::Refused,
        // 25006: a standby by now; class 57: it is being stopped or started; class 53: no place for a session.
        Some(code) if code == "25006" || code.starts_with("57") || code.starts_with("53") => {
            Trouble::Lost
        }
        Some(code) => panic!("the server says {code}: {error:?}"),
        None => Trouble::Lost,
    })
}
