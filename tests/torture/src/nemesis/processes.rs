//! SIGSTOP and kill -9, of clients and of backends, and a restart that saves nothing.

use std::time::Duration;

use lock_ext_ha::Stop;
use nix::sys::signal::Signal;

use super::{Crowd, Diary, backends, signal};
use crate::dice::Dice;
use crate::history::{Effect, now};
use crate::world::World;

fn some(crowd: &Crowd, dice: &mut Dice) -> Option<(i32, String)> {
    let all: Vec<_> =
        crowd.lock().expect("nobody panics here").iter().map(|(p, n)| (*p, n.clone())).collect();
    dice.pick(&all).cloned()
}

/// One, or two at once, for longer than most times to live.
pub async fn stop_clients(dice: &mut Dice, crowd: &Crowd, diary: &Diary) {
    let start = now();
    let mut stopped = Vec::new();
    for _ in 0..=dice.below(2) {
        if let Some((pid, name)) = some(crowd, dice)
            && signal(pid, Signal::SIGSTOP)
        {
            stopped.push((pid, name));
        }
    }
    tokio::time::sleep(dice.millis(200, 3_500)).await;
    let names: Vec<_> = stopped.iter().map(|(_, name)| name.as_str()).collect();
    for (pid, _) in &stopped {
        // Its number is nobody else's: we wait for our children when they end, and this one is in the crowd until then.
        if crowd.lock().expect("nobody panics here").contains_key(pid) {
            signal(*pid, Signal::SIGCONT);
        }
    }
    diary.note(start, "stop-client", names.join(" "), None);
}

pub fn kill_client(dice: &mut Dice, crowd: &Crowd, diary: &Diary) {
    let start = now();
    if let Some((pid, name)) = some(crowd, dice)
        && signal(pid, Signal::SIGKILL)
    {
        diary.note(start, "kill-client", name, None);
    }
}

pub async fn stop_backend(dice: &mut Dice, world: &World, diary: &Diary) {
    let Some(server) = world.connect().await else { return };
    let sender = server.query("SELECT pid FROM pg_stat_replication", &[]).await.ok();
    let sender: Option<i32> = sender.and_then(|rows| rows.first().map(|row| row.get(0)));
    let picked = dice.pick(&backends(&server).await).copied();
    let Some(pid) = sender.filter(|_| !dice.one_in(4)).or(picked) else { return };
    let start = now();
    if !signal(pid, Signal::SIGSTOP) {
        return;
    }
    tokio::time::sleep(dice.millis(1_000, 4_000)).await;
    signal(pid, Signal::SIGCONT);
    diary.note(start, "stop-backend", pid.to_string(), None);
}

/// The server ends all sessions, and recovers.
pub async fn kill_backend(dice: &mut Dice, world: &World, diary: &Diary) {
    let Some(server) = world.connect().await else { return };
    let Some(&pid) = dice.pick(&backends(&server).await) else { return };
    let start = now();
    if !signal(pid, Signal::SIGKILL) {
        return;
    }
    while server.simple_query("SELECT 1").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.server().ready().await;
    diary.note(start, "kill-backend", pid.to_string(), Some(Effect::Crash));
}

pub async fn restart(world: &World, diary: &Diary) {
    let start = now();
    world.server().restart(Stop::Immediate).await;
    diary.note(start, "restart", "immediate".to_owned(), Some(Effect::Crash));
}
