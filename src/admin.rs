//! What the views show, and what administrators do.

use crate::error::{Error, Result};
use crate::policy::State;
use crate::referee::{self, Mode, Tag, Writer};
use crate::store::{Leases, Row, Shown};
use crate::types::{INFINITY, Label, Text, Timestamp, Token};
use crate::{catalog, pg};
use crate::{checkpoint, fence};
use std::collections::{HashMap, HashSet};

/// A lease as `lease_status` shows it.
pub struct Status {
    pub name: Text,
    pub state: State,
    pub holder: Option<Text>,
    pub holder_role: Option<Text>,
    pub token: Token,
    pub acquired_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub remaining: Option<i64>,
    pub ttl: Option<i64>,
    pub completed_until: Option<Timestamp>,
    pub grants: i64,
    pub session: Option<i32>,
    pub waiters: i64,
    pub writers: i64,
}

/// The leases of the roles that the caller belongs to; all of them for pg_monitor.
pub fn status() -> Result<Vec<Status>> {
    let mut writers: HashMap<u64, i64> = HashMap::new();
    for writer in referee::writers() {
        *writers.entry(writer.mark()).or_default() += 1;
    }
    let waiters = referee::waiters();
    let mut rows = Vec::new();
    let leases = Leases::open_for_reading()?;
    let now = pg::now();
    leases.all(|Shown { name, holder, row }| {
        if !may_see(&row) {
            return;
        }
        let label = Label::known(&name.0);
        let hash = referee::hash(label);
        let Some(lease) = fence::overlay(label, hash, Some(&row.lease)) else {
            return;
        };
        let state = lease.state(now);
        let is_granted = lease.expires_at.is_some();
        rows.push(Status {
            state,
            holder: is_granted.then_some(holder),
            holder_role: is_granted.then(|| Text(row.role().to_bytes().to_vec())),
            token: lease.token,
            acquired_at: row.acquired_at,
            expires_at: lease.expires_at,
            // A session has no time to live.
            remaining: lease
                .expires_at
                .filter(|at| *at != INFINITY)
                .map(|at| at.saturating_sub(now).max(0)),
            ttl: (lease.ttl.micros() > 0).then(|| lease.ttl.micros()),
            session: lease.session,
            waiters: waiters.iter().filter(|waiter| waiter.is_for(hash)).count() as i64,
            completed_until: lease.completed_until.filter(|_| state == State::Completed),
            grants: row.grants,
            writers: writers.get(&hash.mark()).copied().unwrap_or_default(),
            name,
        });
    });
    leases.close();
    Ok(rows)
}

/// A transaction that is open and acts under a token: it has declared it, or written under it. As `lease_writer` shows it.
pub struct Writing {
    pub name: Text,
    pub pid: Option<i32>,
    pub token: Token,
    pub superseded: bool,
}

pub fn writers() -> Result<Vec<Writing>> {
    let mut by_name: HashMap<u64, Vec<Writer>> = HashMap::new();
    for writer in referee::writers() {
        by_name.entry(writer.mark()).or_default().push(writer);
    }
    let mut rows = Vec::new();
    let leases = Leases::open_for_reading()?;
    leases.all(|Shown { name, row, .. }| {
        let found = by_name.get(&referee::hash(Label::known(&name.0)).mark());
        for writer in found.into_iter().flatten().filter(|_| may_see(&row)) {
            rows.push(Writing {
                name: name.clone(),
                pid: writer.pid,
                token: writer.token,
                superseded: row.lease.has_superseded(writer.token),
            });
        }
    });
    leases.close();
    Ok(rows)
}

/// Who stands in line, as `lease_waiter` shows it.
pub struct Waiting {
    pub name: Text,
    pub pid: i32,
    pub place: i64,
    pub since: Option<Timestamp>,
}

pub fn waiters() -> Result<Vec<Waiting>> {
    let waiters = referee::waiters();
    let mut rows = Vec::new();
    let leases = Leases::open_for_reading()?;
    leases.all(|Shown { name, row, .. }| {
        let hash = referee::hash(Label::known(&name.0));
        let line = waiters.iter().filter(|waiter| waiter.is_for(hash) && may_see(&row));
        for (i, waiter) in line.enumerate() {
            rows.push(Waiting {
                name: name.clone(),
                pid: waiter.pid,
                place: i as i64 + 1,
                since: waiter.since.or_else(|| pg::statement_start(waiter.pid)),
            });
        }
    });
    leases.close();
    Ok(rows)
}

fn may_see(row: &Row) -> bool {
    catalog::is_member_of(row.role()) || catalog::may_monitor()
}

/// Ends the sessions whose open transactions act under another token of the lease than the current one. With a token,
/// for its holder; without, for administrators, and then also the session whose open transaction is changing the lease itself.
pub fn evict(name: Label, token: Option<Token>) -> Result<Vec<i32>> {
    let hash = referee::hash(name);
    // Before the row: who writes under a token that is granted meanwhile is not among them.
    let mut writers = referee::writers();
    let leases = Leases::open_for_reading()?;
    let found = leases.find(name, hash);
    if let Some(token) = token {
        fence::check(&leases, name, hash, token)?;
        fence::refuse_contested(&found, name, token)?;
    }
    leases.close();
    if found.row.as_ref().is_some_and(Row::is_mine) {
        return Err(Error::EvictUncommitted);
    }
    let has_superseded = |token| found.lease().is_none_or(|lease| lease.has_superseded(token));
    writers.retain(|writer| writer.is_of(hash) && has_superseded(writer.token));
    if !writers.is_empty() {
        // Some may have ended since, and do other things.
        let now = referee::writers();
        writers.retain(|writer| now.contains(writer));
    }
    let mut pids: Vec<i32> = writers.iter().filter_map(|writer| writer.pid).collect();
    // A heartbeat is none of these.
    let is_contested = found.lease().is_none_or(|lease| found.is_contested(lease.token));
    if let (None, Some(change)) = (token, found.busy.as_ref().filter(|_| is_contested)) {
        pids.extend(pg::backend_of(change.by));
    }
    pids.sort_unstable();
    pids.dedup();
    pids.retain(|pid| *pid != std::process::id() as i32 && pg::terminate(*pid));
    Ok(pids)
}

/// Removes the names that nobody has used for `idle` microseconds, and that no other transaction acts under a token of; tells how many.
pub fn prune(idle: i64) -> Result<i64> {
    let leases = Leases::open()?;
    let before = pg::now().saturating_sub(idle);
    let mut names = Vec::new();
    leases.all(|Shown { name, row, .. }| {
        if row.idle_since() < before {
            names.push(name.0);
        }
    });
    // A token that has expired may still write. Without its name it could not, even if we roll back.
    let me = std::process::id() as i32;
    let writers = if names.is_empty() { Vec::new() } else { referee::writers() };
    let others: HashSet<u64> =
        writers.iter().filter(|writer| writer.pid != Some(me)).map(Writer::mark).collect();
    let mut pruned = 0;
    for name in &names {
        let label = Label::known(name);
        let hash = referee::hash(label);
        if others.contains(&hash.mark()) {
            continue;
        }
        let tag = Tag::lease(hash);
        if !referee::try_lock(tag, Mode::Exclusive)? {
            continue;
        }
        let found = leases.find(label, hash);
        if let (Some(row), None) = (&found.row, &found.busy)
            && row.is_lost()
        {
            leases.end(row, pg::now(), None);
        } else if let (Some(row), None) = (&found.row, &found.busy)
            && row.idle_since() < before
        {
            leases.delete(row);
            if row.lease.is_current(row.lease.token) {
                fence::settled(label, hash, row.lease.token);
            }
            checkpoint::forget(label)?;
            pruned += 1;
        }
        referee::unlock(tag, Mode::Exclusive);
    }
    leases.close();
    Ok(pruned)
}
