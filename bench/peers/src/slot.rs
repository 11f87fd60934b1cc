//! One measurement: clients that call as fast as they are answered, each in a thread of its own with a connection of its own, for a short time.
//! They stay connected from one slot to the next.

use crate::{Error, explain};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

/// One client of a system.
pub trait Client {
    /// The call that is measured. It is an error if it did not do what it is there for.
    async fn call(&mut self, number: usize) -> Result<(), Error>;
}

/// The clients of one system.
pub struct Crew {
    orders: Vec<Sender<Window>>,
    told: Receiver<Result<f64, Error>>,
    threads: Vec<JoinHandle<()>>,
}

/// When to begin, and for how long.
type Window = (Instant, Duration);

/// Calls that a new connection needs to fill its caches, which are not counted.
const WARM_UP: usize = 3;
/// Until every thread has heard that it is to begin.
const NOTICE: Duration = Duration::from_millis(2);
/// What is played before each slot without being counted, as a part of it: processes that have slept find nothing of theirs in the processor's caches,
/// and the floor, which is called more often than the others, sleeps for a shorter time.
const LEAD_IN: u32 = 2;

impl Crew {
    pub fn start<C: Client, F: Future<Output = Result<C, Error>>>(
        clients: usize,
        connect: Arc<impl Fn(usize) -> F + Send + Sync + 'static>,
    ) -> Result<Self, Error> {
        let (tell, told) = channel();
        let (mut orders, mut threads) = (Vec::new(), Vec::new());
        for number in 0..clients {
            let (order, windows) = channel();
            let (connect, tell) = (connect.clone(), tell.clone());
            orders.push(order);
            threads.push(thread::spawn(move || {
                let played = play(number, &*connect, &windows, &tell);
                let named =
                    |error: Error| format!("client {number}: {}", explain(error.as_ref())).into();
                if let Err(error) = played.map_err(named) {
                    // Nobody listens any more if it is not the first error.
                    let _ = tell.send(Err(error));
                }
            }));
        }
        let crew = Self { orders, told, threads };
        crew.hear()?;
        Ok(crew)
    }

    /// Calls per second of all clients together.
    pub fn measure(&self, time: Duration) -> Result<f64, Error> {
        let window = (Instant::now() + NOTICE, time);
        for client in &self.orders {
            client.send(window)?;
        }
        self.hear()
    }

    fn hear(&self) -> Result<f64, Error> {
        self.orders.iter().map(|_| self.told.recv()?).sum()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.orders.clear();
        for thread in self.threads.drain(..) {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Tells zero when it is connected, and then its calls per second for each window.
fn play<C: Client, F: Future<Output = Result<C, Error>>>(
    number: usize,
    connect: &impl Fn(usize) -> F,
    windows: &Receiver<Window>,
    tell: &Sender<Result<f64, Error>>,
) -> Result<(), Error> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = connect(number).await?;
        let mut call = 0;
        while call < WARM_UP {
            client.call(call).await?;
            call += 1;
        }
        tell.send(Ok(0.0))?;
        while let Ok((begins, time)) = windows.recv() {
            thread::sleep(begins.saturating_duration_since(Instant::now()));
            let leads_in = Instant::now();
            while leads_in.elapsed() < time / LEAD_IN {
                client.call(call).await?;
                call += 1;
            }
            let (began, first) = (Instant::now(), call);
            while began.elapsed() < time {
                client.call(call).await?;
                call += 1;
            }
            tell.send(Ok((call - first) as f64 / began.elapsed().as_secs_f64()))?;
        }
        Ok(())
    })
}
