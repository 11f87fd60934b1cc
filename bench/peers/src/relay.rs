//! One holder and its line: the holder releases, the next one has the lock, the former holder stands in line again.

use crate::{Error, explain};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

/// When a step takes longer than this, something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// One client of a lock.
pub trait Lock {
    /// Waits until the lock is ours.
    async fn acquire(&mut self) -> Result<(), Error>;
    async fn release(&mut self) -> Result<(), Error>;
}

/// What a client tells.
enum Told {
    Acquired(Instant),
    /// The call that released the lock began then.
    Released(Instant),
}

type Answer = (usize, Result<Told, Error>);

/// What it is told: to stand in line, and with the lock to release it.
struct Go;

/// A lock, its holder and its line.
pub struct Relay {
    clients: Vec<UnboundedSender<Go>>,
    told: UnboundedReceiver<Answer>,
    holder: usize,
}

impl Relay {
    /// Client 0 has the lock, and the others are on their way into the line.
    pub async fn start<L: Lock + 'static, F: Future<Output = Result<L, Error>>>(
        waiters: usize,
        connect: impl Fn(usize) -> F,
    ) -> Result<Self, Error> {
        let (tell, told) = mpsc::unbounded_channel();
        let mut relay = Self { clients: Vec::new(), told, holder: 0 };
        for number in 0..=waiters {
            let (client, orders) = mpsc::unbounded_channel();
            spawn_local(play(number, connect(number).await?, orders, tell.clone()));
            client.send(Go)?;
            if number == 0 {
                relay.next().await?;
            }
            relay.clients.push(client);
        }
        Ok(relay)
    }

    /// How long it takes from the call that releases the lock to the answer of the next one.
    pub async fn hand_over(&mut self) -> Result<Duration, Error> {
        self.clients[self.holder].send(Go)?;
        let (mut began, mut acquired) = (None, None);
        let (began, (holder, at)) = loop {
            match self.next().await? {
                (_, Told::Released(at)) => began = Some(at),
                (number, Told::Acquired(at)) => acquired = Some((number, at)),
            }
            if let (Some(began), Some(acquired)) = (began, acquired) {
                break (began, acquired);
            }
        };
        self.clients[self.holder].send(Go)?;
        self.holder = holder;
        Ok(at - began)
    }

    async fn next(&mut self) -> Result<(usize, Told), Error> {
        let told =
            timeout(PATIENCE, self.told.recv()).await.map_err(|_| "the clients are silent")?;
        let (number, told) = told.ok_or("all clients are gone")?;
        let told = told.map_err(|error| format!("client {number}: {}", explain(error.as_ref())))?;
        Ok((number, told))
    }
}

async fn play<L: Lock>(
    number: usize,
    mut lock: L,
    mut orders: UnboundedReceiver<Go>,
    tell: UnboundedSender<Answer>,
) {
    let tell = |told| drop(tell.send((number, told)));
    while let Some(Go) = orders.recv().await {
        match lock.acquire().await {
            Ok(()) => tell(Ok(Told::Acquired(Instant::now()))),
            Err(error) => return tell(Err(error)),
        }
        let Some(Go) = orders.recv().await else {
            return;
        };
        let began = Instant::now();
        match lock.release().await {
            Ok(()) => tell(Ok(Told::Released(began))),
            Err(error) => return tell(Err(error)),
        }
    }
}
