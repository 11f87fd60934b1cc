//! Grant, extend, release, complete: lock, then read the clock, then decide, then write.

use crate::acts::Pending;
use crate::announce::{Event, announce};
use crate::error::{Error, Result};
use crate::fence;
use crate::line::{self, Look};
use crate::pg;
use crate::policy::{self, Acquire};
use crate::referee::{self, Mode, NameHash, Tag};
use crate::store::{Found, Grant, Leases, Row, Term};
use crate::tenure;
use crate::token;
use crate::types::{Label, Timestamp, Token, Ttl};
use crate::watch;
use std::time::Duration;

pub struct Request<'a> {
    pub name: Label<'a>,
    pub holder: Label<'a>,
    pub term: Term,
    pub id: Option<[u8; 16]>,
}

/// When a holder's change of its lease is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The transaction ends with this call, so its answer can be exact.
    Now,
    /// The transaction may stay open, and must not hold the row meanwhile.
    Commit,
}

/// A token, or None: somebody else holds the lease, or it is completed, and that did not end within `wait`.
pub fn acquire(request: &Request, wait: Duration, when: When) -> Result<Option<Token>> {
    let hash = referee::hash(request.name);
    let limit = pg::now().saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX));
    let may_correct = wait.is_zero() && when == When::Now;
    match look(request, hash, limit, Place::Outside { may_correct })? {
        Look::Granted(token) => return Ok(Some(token)),
        Look::Never => return Ok(None),
        _ if wait.is_zero() => return Ok(None),
        _ => {}
    }
    line::stand(hash, wait, || look(request, hash, limit, Place::Head))
}

/// Where the caller stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside {
        /// Who is refused corrects the row after a step of the clock. Not if its transaction may go on: the holder's heartbeat would wait for it.
        may_correct: bool,
    },
    Head,
}

/// Acquires the lease, or says when that could be tried again. A refusal is decided by a look at the row and costs nothing else. Only who
/// sees the lease free takes the lock and looks again.
fn look(request: &Request, hash: NameHash, limit: Timestamp, place: Place) -> Result<Look<Token>> {
    let leases = Leases::open()?;
    let seen = leases.find(request.name, hash);
    let answer = match (decide(&leases, request, hash, &seen, place), &seen.busy) {
        // It is being ended: a prepared transaction, for one, wakes nobody when it commits.
        (Acquire::Refuse { .. } | Acquire::Completed { .. }, Some(change))
            if seen.lease().is_some_and(|lease| seen.is_contested(lease.token)) =>
        {
            Look::Contested(change.by)
        }
        (Acquire::Refuse { until }, _) => refused(&seen, until),
        (Acquire::Completed { until }, _) => completed(until, limit),
        (Acquire::Again(token), _) => again(request.name, &seen, token),
        // What another transaction is about to make of it is not known yet.
        (_, Some(change)) => Look::Contested(change.by),
        (Acquire::Grant, _) if place != Place::Head && line::exists(hash) => {
            Look::NotBefore(Timestamp::MIN)
        }
        _ if !lock_for_grant(hash)? => Look::HeldUp,
        _ => {
            let granted = grant(&leases, request, hash, limit, place)?;
            referee::unlock(Tag::lease(hash), Mode::Exclusive);
            match granted {
                // Told without the lock: it may wait for the disk.
                Ok(drawn) => {
                    watch::forget(hash.lock);
                    Look::Granted(drawn.told())
                }
                Err(refused) => refused,
            }
        }
    };
    leases.close();
    Ok(answer)
}

fn refused(found: &Found, until: Timestamp) -> Look<Token> {
    match found.lease() {
        Some(lease) if lease.session.is_some() => Look::Bound(lease.token),
        _ => Look::NotBefore(until),
    }
}

fn completed(until: Timestamp, limit: Timestamp) -> Look<Token> {
    if until > limit { Look::Never } else { Look::NotBefore(until) }
}

fn lock_for_grant(hash: NameHash) -> Result<bool> {
    token::prepare()?;
    referee::try_lock_for_grant(hash)
}

fn decide(
    leases: &Leases,
    request: &Request,
    hash: NameHash,
    found: &Found,
    place: Place,
) -> Acquire {
    let lease = fence::in_force(request.name, hash, found.lease());
    let (lease, now) = (lease.as_ref(), pg::now());
    let decided = policy::acquire(lease, now, request.id);
    let is_back = matches!(decided, Acquire::StepBack { .. });
    let Some(row) =
        found.row.as_ref().filter(|_| is_back || place == Place::Head || watch::is_on(hash.lock))
    else {
        return decided;
    };
    let watched = watch::look(hash.lock, leases.version(row));
    match policy::watched(decided, lease, now, watched) {
        Acquire::Refuse { .. } if is_back && place == (Place::Outside { may_correct: true }) => {
            decided
        }
        watched => watched,
    }
}

fn again(name: Label, found: &Found, token: Token) -> Look<Token> {
    match &found.row {
        Some(row) if fence::check_role(name, row).is_ok() => Look::Granted(token),
        _ => Look::Never,
    }
}

/// Under the lock: a new token, or what keeps it from being granted.
fn grant(
    leases: &Leases,
    request: &Request,
    hash: NameHash,
    limit: Timestamp,
    place: Place,
) -> Result<Result<token::Drawn, Look<Token>>> {
    let found = leases.find(request.name, hash);
    if let Some(change) = &found.busy {
        return Ok(Err(Look::Contested(change.by)));
    }
    match decide(leases, request, hash, &found, place) {
        Acquire::Refuse { until } => Ok(Err(refused(&found, until))),
        Acquire::Completed { until } => Ok(Err(completed(until, limit))),
        Acquire::Again(token) => Ok(Err(again(request.name, &found, token))),
        Acquire::StepBack { until, by } => {
            if let Some(row) = &found.row {
                leases.step_back(row, by);
            }
            Ok(Err(Look::NotBefore(until)))
        }
        Acquire::Grant => {
            let last = found.lease().map(|lease| lease.token);
            let drawn = loop {
                let drawn = token::draw(last, || leases.highest())?;
                let is_bound = matches!(request.term, Term::Session);
                // A session that was granted the number by an extension that is gone may have it still.
                if !is_bound || tenure::begin(hash, drawn.token)? {
                    break drawn;
                }
            };
            pg::force_sync_commit();
            leases.grant(
                found.row.as_ref(),
                &Grant {
                    name: request.name,
                    holder: request.holder,
                    token: drawn.token,
                    term: request.term,
                    now: pg::now(),
                    request: request.id,
                },
            );
            let event = match &found.row {
                Some(row) if !row.was_ended() => Event::TakeOver,
                _ => Event::Grant,
            };
            announce(event, request.name, drawn.token);
            // What this transaction did under the token before is its own business: nobody else came between.
            if let Some(lease) = found.lease()
                && lease.is_current(lease.token)
            {
                fence::settled(request.name, hash, lease.token);
            }
            Ok(Ok(drawn))
        }
    }
}

/// With the current token the heartbeat of its holder, else a try to become it.
pub fn elect(request: &Request, token: Option<Token>, when: When) -> Result<Option<Token>> {
    if let (Some(token), Term::Timed { ttl, .. }) = (token, request.term)
        && extend(request.name, token, Some(ttl), when)?.is_some()
    {
        return Ok(Some(token));
    }
    acquire(request, Duration::ZERO, when)
}

/// The expiry now in force, or None: the lease is lost.
pub fn extend(
    name: Label,
    token: Token,
    ttl: Option<Ttl>,
    when: When,
) -> Result<Option<Timestamp>> {
    let leases = Leases::open()?;
    let expiry = extend_in(&leases, name, token, ttl, when)?;
    leases.close();
    Ok(expiry)
}

/// The same for many, in one order everywhere.
pub fn extend_many(
    tenures: &[(Label, Token)],
    ttl: Option<Ttl>,
    when: When,
) -> Result<Vec<Option<Timestamp>>> {
    let leases = Leases::open()?;
    let mut order: Vec<usize> = (0..tenures.len()).collect();
    order.sort_by_cached_key(|i| (referee::hash(tenures[*i].0), tenures[*i].1));
    let mut expiries = vec![None; tenures.len()];
    for i in order {
        pg::check_for_interrupts();
        let (name, token) = tenures[i];
        expiries[i] = extend_in(&leases, name, token, ttl, when)?;
    }
    leases.close();
    Ok(expiries)
}

fn extend_in(
    leases: &Leases,
    name: Label,
    token: Token,
    ttl: Option<Ttl>,
    when: When,
) -> Result<Option<Timestamp>> {
    change(leases, name, token, when, Mode::Heartbeat, |row, lease, at| {
        let Some(expires_at) = policy::extend(Some(lease), token, at, ttl) else {
            return Ok(None);
        };
        fence::check_role(name, row)?;
        if lease.session.is_some() {
            // Nothing to write: it lasts as long as the session.
            return match ttl {
                None => Ok(Some((lease.expires_at.unwrap_or(expires_at), None))),
                Some(_) => Err(Error::SessionBound { lease: name.to_string() }),
            };
        }
        Ok(Some((expires_at, Some(Pending::Extend { at, expires_at }))))
    })
}

/// True if `token` was current; from then on it is refused. Nobody acquires the lease before `completed_until`.
pub fn end(
    name: Label,
    token: Token,
    completed_until: Option<Timestamp>,
    when: When,
) -> Result<bool> {
    let leases = Leases::open()?;
    let ended = change(&leases, name, token, when, Mode::Exclusive, |row, lease, at| {
        if !policy::may_end(Some(lease), token) {
            return Ok(None);
        }
        fence::check_role(name, row)?;
        if let Some(pid) = lease.session.filter(|_| !tenure::is_mine(token)) {
            return Err(Error::OtherSession { lease: name.to_string(), pid });
        }
        let event = completed_until.map_or(Event::Release, |_| Event::Complete);
        let completed_until = lease.completed_until(at, completed_until);
        Ok(Some((true, Some(Pending::End { at, completed_until, event }))))
    })?;
    leases.close();
    Ok(ended.unwrap_or(false))
}

/// One change of a lease by its holder.
///
/// `decide` gets the row, the lease as this transaction may rely on it and the time; None changes nothing.
fn change<T>(
    leases: &Leases,
    name: Label,
    token: Token,
    when: When,
    mode: Mode,
    decide: impl Fn(&Row, &policy::Lease, Timestamp) -> Result<Option<(T, Option<Pending>)>>,
) -> Result<Option<T>> {
    let hash = referee::hash(name);
    let tag = Tag::lease(hash);
    let judge = |found: &Found| {
        let lease = fence::in_force(name, hash, found.lease());
        match (&found.row, lease) {
            (Some(row), Some(lease)) if !found.is_contested(token) => {
                decide(row, &lease, pg::now())
            }
            _ => Ok(None),
        }
    };
    // Who has lost is told without a lock: strangers must not hold up the holder's commits.
    if when == When::Commit || mode == Mode::Exclusive {
        let found = leases.find(name, hash);
        let Some((answer, pending)) = judge(&found)? else {
            return Ok(None);
        };
        let Some(pending) = pending else {
            return Ok(Some(answer));
        };
        match &found.row {
            // Nobody else changes it before this transaction ends.
            Some(row) if row.is_mine() => {
                write(leases, name, hash, token, row, pending);
                return Ok(Some(answer));
            }
            _ if when == When::Commit => {
                fence::defer(name, hash, token, pending);
                return Ok(Some(answer));
            }
            _ => {}
        }
    }
    loop {
        match mode {
            Mode::Exclusive => referee::lock_for_end(hash)?,
            mode => referee::lock(tag, mode)?,
        }
        let found = leases.find(name, hash);
        let decided = judge(&found)?;
        if let (Some(_), Some(heartbeat)) = (&decided, &found.busy) {
            referee::unlock(tag, mode);
            pg::wait_for_end(heartbeat.by);
            continue;
        }
        let answer = match (decided, &found.row) {
            (Some((answer, pending)), Some(row)) => {
                if let Some(pending) = pending {
                    write(leases, name, hash, token, row, pending);
                }
                Some(answer)
            }
            _ => None,
        };
        referee::unlock(tag, mode);
        return Ok(answer);
    }
}

fn write(leases: &Leases, name: Label, hash: NameHash, token: Token, row: &Row, what: Pending) {
    match what {
        Pending::Extend { at, expires_at } => fence::extend(leases, hash, row, at, expires_at),
        Pending::End { at, completed_until, event } => {
            fence::end(leases, name, hash, row, at, completed_until, event);
            fence::settled(name, hash, token);
        }
    }
}

/// May the holder rely on it?
pub fn is_current(name: Label, token: Token) -> Result<bool> {
    let hash = referee::hash(name);
    let leases = Leases::open_for_reading()?;
    let found = leases.find(name, hash);
    leases.close();
    let lease = fence::in_force(name, hash, found.lease());
    let reliable =
        !found.is_contested(token) && policy::is_reliable(lease.as_ref(), token, pg::now());
    if reliable && let Some(row) = &found.row {
        fence::check_role(name, row)?;
    }
    Ok(reliable)
}

/// Ends whatever grant or completion there is.
pub fn force_release(name: Label) -> Result<bool> {
    let hash = referee::hash(name);
    let tag = Tag::lease(hash);
    let leases = Leases::open()?;
    let forced = loop {
        referee::lock_for_end(hash)?;
        let found = leases.find(name, hash);
        if let Some(other) = &found.busy {
            referee::unlock(tag, Mode::Exclusive);
            pg::wait_for_end(other.by);
            continue;
        }
        let now = pg::now();
        let lease = fence::in_force(name, hash, found.lease());
        let is_taken = lease.is_some_and(|lease| lease.state(now) != policy::State::Free);
        if let Some(row) = found.row.as_ref().filter(|_| is_taken) {
            let until = lease.and_then(|lease| lease.forced_until(now));
            fence::end(&leases, name, hash, row, now, until, Event::ForceRelease);
            if row.lease.is_current(row.lease.token) {
                fence::settled(name, hash, row.lease.token);
            }
        }
        let forced = is_taken;
        referee::unlock(tag, Mode::Exclusive);
        break forced;
    };
    leases.close();
    Ok(forced)
}
