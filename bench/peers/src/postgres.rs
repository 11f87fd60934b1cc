//! PostgreSQL's: our leases, the two UPDATEs that are the least a durable hand-over can cost, and advisory locks.

use crate::Error;
use crate::handover::WAITERS;
use crate::relay;
use std::env;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::{Client, Config, NoTls, Statement};

pub async fn connect() -> Result<Client, Error> {
    Ok(connect_with_task().await?.0)
}

/// The connection is open as long as its task lives, or until the client is dropped and all answers are there.
pub async fn connect_with_task() -> Result<(Client, JoinHandle<()>), Error> {
    let setting = |name, default: &str| env::var(name).unwrap_or_else(|_| default.into());
    let (client, connection) = Config::new()
        .host(setting("PGHOST", "/var/run/postgresql"))
        .port(setting("PGPORT", "5432").parse()?)
        .user(setting("PGUSER", "postgres"))
        .password(setting("PGPASSWORD", ""))
        .dbname(setting("PGDATABASE", "postgres"))
        .application_name("peers")
        .connect(NoTls)
        .await?;
    let task = tokio::spawn(async {
        // Whoever waits for an answer is told the error.
        let _ = connection.await;
    });
    Ok((client, task))
}

/// Two UPDATEs of the same row, by two clients, one after the other.
pub struct TwoUpdates {
    clients: Vec<(Client, Statement)>,
    turn: usize,
}

impl TwoUpdates {
    pub async fn start() -> Result<Self, Error> {
        let mut clients = Vec::new();
        for _ in 0..=WAITERS {
            let client = connect().await?;
            let update = "UPDATE bare SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + '1 h'
                          WHERE name = 'handover' AND token = 1";
            let update = client.prepare(update).await?;
            clients.push((client, update));
        }
        Ok(Self { clients, turn: 0 })
    }

    pub async fn hand_over(&mut self) -> Result<Duration, Error> {
        let began = Instant::now();
        for client in [self.turn, self.turn + 1] {
            let (client, update) = &self.clients[client % self.clients.len()];
            if client.execute(update, &[]).await? != 1 {
                return Err("the row of the bare UPDATE is not there".into());
            }
        }
        let time = began.elapsed();
        self.turn += 1;
        Ok(time)
    }
}

/// `lease_acquire` in line, and `lease_release`.
pub struct Lease(Calls);

/// `lease_acquire_session` in line, and `lease_release`.
pub struct SessionLease(Calls);

struct Calls {
    client: Client,
    acquire: Statement,
    release: Statement,
    token: Option<i64>,
}

impl Calls {
    async fn connect(acquire: &str, release: &str) -> Result<Self, Error> {
        let client = connect().await?;
        let acquire = client.prepare(acquire).await?;
        let release = client.prepare(release).await?;
        Ok(Self { client, acquire, release, token: None })
    }

    async fn acquire(&mut self) -> Result<(), Error> {
        self.token = self.client.query_one(&self.acquire, &[]).await?.get(0);
        if self.token.is_some() { Ok(()) } else { Err("the wait ran out".into()) }
    }

    async fn release(&mut self) -> Result<(), Error> {
        let released: bool = self.client.query_one(&self.release, &[&self.token]).await?.get(0);
        if released { Ok(()) } else { Err("the lease was lost".into()) }
    }
}

impl Lease {
    pub async fn connect(number: usize) -> Result<Self, Error> {
        let acquire =
            format!("SELECT lease_acquire('handover', 'client-{number}', '1 h', wait => '1 min')");
        Ok(Self(Calls::connect(&acquire, "SELECT lease_release('handover', $1)").await?))
    }
}

impl relay::Lock for Lease {
    async fn acquire(&mut self) -> Result<(), Error> {
        self.0.acquire().await
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.0.release().await
    }
}

impl SessionLease {
    pub async fn connect(number: usize) -> Result<Self, Error> {
        let acquire = format!(
            "SELECT lease_acquire_session('handover-session', 'client-{number}', wait => '1 min')"
        );
        let release = "SELECT lease_release('handover-session', $1)";
        Ok(Self(Calls::connect(&acquire, release).await?))
    }
}

impl relay::Lock for SessionLease {
    async fn acquire(&mut self) -> Result<(), Error> {
        self.0.acquire().await
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.0.release().await
    }
}

pub struct Advisory {
    client: Client,
    lock: Statement,
    unlock: Statement,
}

impl Advisory {
    pub async fn connect(_number: usize) -> Result<Self, Error> {
        let client = connect().await?;
        let lock = client.prepare("SELECT pg_advisory_lock(1)").await?;
        let unlock = client.prepare("SELECT pg_advisory_unlock(1)").await?;
        Ok(Self { client, lock, unlock })
    }
}

impl relay::Lock for Advisory {
    async fn acquire(&mut self) -> Result<(), Error> {
        self.client.query_one(&self.lock, &[]).await?;
        Ok(())
    }

    async fn release(&mut self) -> Result<(), Error> {
        let unlocked: bool = self.client.query_one(&self.unlock, &[]).await?.get(0);
        if unlocked { Ok(()) } else { Err("the lock was not held".into()) }
    }
}
