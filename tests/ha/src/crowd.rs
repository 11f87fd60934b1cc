use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinHandle;

use crate::{PgError, Server, Session, until};

const CLIENTS: usize = 4;

/// What the clients of a [`Crowd`] were told.
#[derive(Debug, Default)]
pub struct Told {
    /// Grants that were acknowledged, in autocommit.
    pub granted: Vec<(String, i64)>,
    /// Tokens that were returned in a transaction that was then rolled back.
    pub undone: Vec<i64>,
}

impl Told {
    pub fn tokens(&self) -> Vec<i64> {
        self.granted.iter().map(|(_, token)| *token).chain(self.undone.iter().copied()).collect()
    }
}

/// Clients that acquire one new lease after the other until their server is gone, half of them in transactions that
/// they roll back.
pub struct Crowd {
    told: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Told>>,
}

impl Crowd {
    /// The names of the leases begin with `name`. Each client begins with the statement `first`.
    pub async fn on(server: &Server, name: &str, first: &str) -> Self {
        let told = Arc::new(AtomicUsize::new(0));
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            let session = server.connect().await;
            session.sql(first).await.expect("a client");
            let (name, count) = (format!("{name}-{client}"), told.clone());
            clients.push(session.beside(move |session| async move {
                let mut told = Told::default();
                // The error that ends it is that of a lost connection; a refused grant panics.
                let _ = acquire(&session, &name, client % 2 == 1, &mut told, &count).await;
                told
            }));
        }
        Self { told, clients }
    }

    /// Waits until they were told so many more tokens.
    pub async fn goes_on(&self, tokens: usize) {
        let enough = self.told.load(Ordering::Relaxed) + tokens;
        until("the clients acquire", async || self.told.load(Ordering::Relaxed) >= enough).await;
    }

    /// What they were told, now that their server is gone.
    pub async fn told(self) -> Told {
        let mut all = Told::default();
        for client in self.clients {
            let told = client.await.expect("a client that met no refusal");
            all.granted.extend(told.granted);
            all.undone.extend(told.undone);
        }
        assert!(!all.granted.is_empty() && !all.undone.is_empty(), "both kinds were told: {all:?}");
        all
    }
}

async fn acquire(
    session: &Session,
    name: &str,
    undo: bool,
    told: &mut Told,
    count: &AtomicUsize,
) -> Result<(), PgError> {
    for number in 0.. {
        let lease = format!("{name}-{number}");
        if undo {
            session.sql("BEGIN").await?;
        }
        let token = session.acq(&lease, "C", "10 min").await?.expect("it is free");
        if undo {
            told.undone.push(token);
            session.sql("ROLLBACK").await?;
        } else {
            told.granted.push((lease, token));
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
