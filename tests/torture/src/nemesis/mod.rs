//! What goes wrong. Two of them work at the same time: one on clients and the network, one on the servers. They throw dice of their own, so
//! a seed gives the same faults in the same order; what they meet, and so what happens then, is up to the machine.

pub mod clock;
mod fail_over;
pub mod network;
mod processes;
pub mod tables;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::dice::Dice;
use crate::history::{Effect, Event, Micros, Op, now};
use crate::world::World;

use network::Proxy;

/// What may be done, by its name in the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    StopClient,
    KillClient,
    Network,
    StopBackend,
    KillBackend,
    Restart,
    Clock,
    Tables,
    FailOver,
    LostTail,
}

impl Fault {
    pub const ALL: [Self; 10] = [
        Self::StopClient,
        Self::KillClient,
        Self::Network,
        Self::StopBackend,
        Self::KillBackend,
        Self::Restart,
        Self::Clock,
        Self::Tables,
        Self::FailOver,
        Self::LostTail,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::StopClient => "stop-client",
            Self::KillClient => "kill-client",
            Self::Network => "network",
            Self::StopBackend => "stop-backend",
            Self::KillBackend => "kill-backend",
            Self::Restart => "restart",
            Self::Clock => "clock",
            Self::Tables => "tables",
            Self::FailOver => "fail-over",
            Self::LostTail => "lost-tail",
        }
    }

    fn is_of_clients(self) -> bool {
        matches!(self, Self::StopClient | Self::KillClient | Self::Network)
    }

    /// How often it is thrown beside the others of its side.
    fn weight(self) -> u64 {
        match self {
            Self::StopClient | Self::StopBackend => 4,
            Self::KillClient | Self::Network | Self::Clock => 3,
            Self::KillBackend | Self::Restart | Self::Tables => 2,
            Self::FailOver | Self::LostTail => 1,
        }
    }
}

/// The clients that run, by their process ids.
pub type Crowd = Arc<Mutex<BTreeMap<i32, String>>>;

/// The events in the order of their ends, and what the administrator called.
#[derive(Clone, Default)]
pub struct Diary {
    events: Arc<Mutex<Vec<Event>>>,
    calls: Arc<Mutex<Vec<Op>>>,
}

impl Diary {
    pub fn note(&self, start: Micros, kind: &str, detail: String, effect: Option<Effect>) {
        let event = Event { start, end: now(), kind: kind.to_owned(), detail, effect };
        self.events.lock().expect("nobody panics here").push(event);
    }

    pub fn note_call(&self, op: Op) {
        self.calls.lock().expect("nobody panics here").push(op);
    }

    pub fn calls(&self) -> Vec<Op> {
        self.calls.lock().expect("nobody panics here").clone()
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().expect("nobody panics here").clone()
    }
}

/// So many faults of clients and the network at a time.
const AT_ONCE: usize = 3;

/// Faults of clients and the network, until the time is over. All of them have ended when it returns.
pub async fn on_clients(
    faults: Vec<Fault>,
    mut dice: Dice,
    crowd: Crowd,
    proxy: Arc<Proxy>,
    diary: Diary,
    until: Micros,
) {
    let faults = bag(faults, true);
    let mut running = JoinSet::new();
    while now() < until {
        tokio::time::sleep(dice.millis(100, 900)).await;
        let Some(&fault) = dice.pick(&faults) else { return };
        if running.len() >= AT_ONCE {
            running.join_next().await;
        }
        let mut dice = Dice::new(dice.throw());
        let (crowd, proxy, diary) = (crowd.clone(), proxy.clone(), diary.clone());
        running.spawn(async move {
            match fault {
                Fault::StopClient => processes::stop_clients(&mut dice, &crowd, &diary).await,
                Fault::KillClient => processes::kill_client(&mut dice, &crowd, &diary),
                _ => network::cut(&mut dice, &proxy, &diary).await,
            }
        });
    }
    running.join_all().await;
}

/// Faults of the servers. Each kind comes once before the dice decide, so that a short run has all of them.
pub async fn on_servers(
    faults: Vec<Fault>,
    mut dice: Dice,
    world: &mut World,
    diary: Diary,
    until: Micros,
) {
    let bag = bag(faults, false);
    let mut first: Vec<Fault> = bag.clone();
    first.dedup();
    shuffle(&mut first, &mut dice);
    while now() < until {
        tokio::time::sleep(dice.millis(500, 2_500)).await;
        let next = first.pop();
        let Some(fault) = next.or_else(|| dice.pick(&bag).copied()) else { return };
        let mut is_done = true;
        match fault {
            Fault::StopBackend => processes::stop_backend(&mut dice, world, &diary).await,
            Fault::KillBackend => processes::kill_backend(&mut dice, world, &diary).await,
            Fault::Restart => processes::restart(world, &diary).await,
            Fault::Clock => clock::step(&mut dice, world, &diary).await,
            Fault::Tables => is_done = tables::rewrite(&mut dice, world, &diary).await,
            Fault::FailOver => {
                is_done = fail_over::fail_over(&mut dice, world, &diary, false).await;
            }
            _ => is_done = fail_over::fail_over(&mut dice, world, &diary, true).await,
        }
        is_done &= diary.events().iter().any(|event| event.kind == fault.name());
        if next.is_some() && !is_done {
            first.insert(0, fault);
        }
    }
}

fn bag(faults: Vec<Fault>, of_clients: bool) -> Vec<Fault> {
    faults
        .into_iter()
        .filter(|fault| fault.is_of_clients() == of_clients)
        .flat_map(|fault| std::iter::repeat_n(fault, fault.weight() as usize))
        .collect()
}

fn shuffle(faults: &mut [Fault], dice: &mut Dice) {
    for last in (1..faults.len()).rev() {
        faults.swap(last, dice.below(last as u64 + 1) as usize);
    }
}

/// Who is gone already is no fault of ours.
fn signal(pid: i32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid), signal).is_ok()
}

/// Backends of the clients.
async fn backends(server: &Client) -> Vec<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE usename = 'worker' ORDER BY pid";
    let rows = server.query(sql, &[]).await;
    rows.map(|rows| rows.iter().map(|row| row.get(0)).collect()).unwrap_or_default()
}

/// So that nobody waits for ever for a server that does not answer.
async fn in_time<T>(time: u64, call: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_secs(time), call).await.ok()
}
