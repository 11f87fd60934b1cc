//! The check that the present transaction may act under its tokens, twice: at the statement, and under a lock between the last
//! statement and the commit.
//!
//! # Why the check at the commit is enough
//!
//! A transaction that wrote under token t, to whichever table, takes RowShare on the lease's tag before it commits and reads the row again.
//! A grant takes Exclusive on it while it writes the row. So either the grant comes after the commit and everybody who holds the new
//! token sees the write; or the grant was first, then its row is there to be seen, committed or not, and the transaction
//! aborts.
//!
//! # What holders do in an open transaction
//!
//! A heartbeat, a release or a completion between BEGIN and COMMIT, or inside of a longer statement, answers at once, and is written before the commit,
//! under the same check. Were it written at once, a client that freezes before its COMMIT would hold the row and
//! nobody could take the lease over, time to live or not. Until then only this transaction sees it ([`overlay`]).

use crate::acts::{Entry, Pending, with};
use crate::announce::{Event, announce};
use crate::error::{Error, Result, Stale};
use crate::line;
use crate::policy::{self, Lease, Write};
use crate::referee::{self, Mode, NameHash, Tag};
use crate::settings;
use crate::store::{Found, Leases, Row, Sighting};
use crate::types::{Label, Timestamp, Token};
use crate::{catalog, observe, pg, tenure, text, written};

/// `lease_fence`: from now on the writes of this transaction carry `token`.
pub fn declare(name: Label, token: Token, hold: bool) -> Result<()> {
    let hash = referee::hash(name);
    // Already now: what it writes to a table without a fence we shall not hear of, and it may keep others waiting there.
    show(name, hash, token)?;
    let leases = Leases::open()?;
    let seen = check(&leases, name, hash, token)?;
    leases.close();
    carry(name, Some((token, hold)));
    with(|t| t.edit(name, hash, token, |entry| entry.seen = seen));
    Ok(())
}

/// `fenced_update`: the transaction has written under `token`, even if no row is found. Gives what its writes carried before.
pub fn carry_for_update(name: Label, token: Token) -> Result<Option<Token>> {
    let hash = referee::hash(name);
    let before = carried(name, hash);
    let hold = before.is_some_and(|(carried, hold)| hold && carried == token);
    show(name, hash, token)?;
    let leases = Leases::open()?;
    let seen = check(&leases, name, hash, token)?;
    register(&leases, name, hash, token, hold, seen)?;
    leases.close();
    carry(name, Some((token, hold)));
    Ok(before.map(|(token, _)| token))
}

/// After `fenced_update`: back to a token that this transaction has declared before, or to none.
pub fn carry_again(name: Label, token: Option<Token>) {
    let hash = referee::hash(name);
    let declared = token.and_then(|token| {
        with(|t| {
            let mut entries = t.of_name(name, hash).map(|i| &t.entries[i]);
            entries.find(|e| e.token == token && e.declared).map(|e| (token, e.hold))
        })
    });
    carry(name, declared);
}

/// Sets what the writes carry for a lease, None for nothing. What was written until now carried the token before.
fn carry(name: Label, what: Option<(Token, bool)>) {
    let hash = referee::hash(name);
    let before = carried(name, hash).map(|(token, _)| token);
    let is_other = before.is_some() && before != what.map(|(token, _)| token);
    let wrote = is_other && (has_written() || observe::is_due());
    with(|t| {
        if let Some(before) = before {
            t.edit(name, hash, before, |entry| {
                entry.carried = false;
                entry.wrote |= wrote;
            });
        }
        if let Some((token, hold)) = what {
            t.edit(name, hash, token, |entry| {
                entry.carried = true;
                entry.declared = true;
                entry.hold |= hold;
            });
        }
    });
}

/// What the writes of this transaction carry for a lease.
pub fn carried(name: Label, hash: NameHash) -> Option<(Token, bool)> {
    with(|t| {
        let found = t.of_name(name, hash).map(|i| &t.entries[i]).find(|entry| entry.carried);
        found.map(|entry| (entry.token, entry.hold))
    })
}

/// The leases that the writes of this transaction carry tokens of; the first few.
pub fn carried_names() -> Vec<String> {
    with(|t| {
        let carried = t.entries.iter().filter(|entry| entry.carried).take(3);
        carried.map(|entry| Label::known(&entry.name).to_string()).collect()
    })
}

/// A row as this transaction may rely on it: with the end that it has put off until its commit, but without an
/// extension, which is in force only from the commit on.
pub fn in_force(name: Label, hash: NameHash, lease: Option<&Lease>) -> Option<Lease> {
    let seen = overlay(name, hash, lease)?;
    if seen.expires_at.is_some() { lease.copied() } else { Some(seen) }
}

/// A row as this transaction sees it: with all that it has done and not written yet.
pub fn overlay(name: Label, hash: NameHash, lease: Option<&Lease>) -> Option<Lease> {
    let lease = *lease?;
    let pending = with(|t| {
        t.of_name(name, hash)
            .map(|i| &t.entries[i])
            .find(|entry| entry.token == lease.token)
            .and_then(|entry| entry.pending)
    });
    Some(match pending {
        None => lease,
        Some(_) if !lease.is_current(lease.token) => lease,
        Some(Pending::Extend { at, expires_at }) => {
            Lease { renewed_at: at, expires_at: Some(expires_at), ..lease }
        }
        Some(Pending::End { completed_until, .. }) => {
            Lease { expires_at: None, completed_until, request: None, ..lease }
        }
    })
}

/// Is the caller the role that holds the lease, or a member of it?
pub fn check_role(name: Label, row: &Row) -> Result<()> {
    if catalog::is_member_of(row.role()) {
        return Ok(());
    }
    Err(Error::ForeignLease { lease: name.to_string(), role: text::shown(row.role().to_bytes()) })
}

/// The check at the statement: early, cheap, without a lock.
pub fn check(
    leases: &Leases,
    name: Label,
    hash: NameHash,
    token: Token,
) -> Result<Option<Sighting>> {
    let found = leases.find(name, hash);
    let lease = overlay(name, hash, found.lease());
    verdict(name, token, lease.as_ref(), false)?;
    found.row.as_ref().map_or(Ok(()), |row| check_role(name, row))?;
    Ok(leases.sighting(&found))
}

/// A write under a token that the transaction may not have declared, to a table with a fence or to our own: checked, and registered.
pub fn write_undeclared(name: Label, hash: NameHash, token: Token) -> Result<()> {
    show(name, hash, token)?;
    let hold = carried(name, hash).is_some_and(|(carried, hold)| hold && carried == token);
    let leases = Leases::open()?;
    let seen = check(&leases, name, hash, token)?;
    register(&leases, name, hash, token, hold, seen)?;
    leases.close();
    Ok(())
}

/// The same for a declared one. Its role was checked then: a foreign key's action, for one, runs as the owner of its table.
pub fn write(name: Label, hash: NameHash, token: Token, hold: bool) -> Result<()> {
    let seen = with(|t| {
        let mut entries = t.of_name(name, hash).map(|i| &t.entries[i]);
        entries.find(|e| e.token == token).and_then(|e| e.seen)
    });
    let leases = Leases::open()?;
    let (lease, seen) = match seen.filter(|seen| leases.is_unchanged(seen)) {
        Some(seen) => (Some(seen.lease), None),
        None => {
            let found = leases.find(name, hash);
            (found.lease().copied(), leases.sighting(&found))
        }
    };
    verdict(name, token, overlay(name, hash, lease.as_ref()).as_ref(), false)?;
    register(&leases, name, hash, token, hold, seen)?;
    leases.close();
    Ok(())
}

fn verdict(name: Label, token: Token, lease: Option<&Lease>, at_commit: bool) -> Result<()> {
    match policy::write(lease, token, pg::now(), settings::strict_expiry()) {
        Write::Allow => Ok(()),
        Write::Stale(why) => Err(stale(name, token, why, at_commit)),
        Write::Expired => {
            Err(Error::Expired { lease: name.to_string(), given: token, at_commit, table: None })
        }
    }
}

/// Is somebody about to take the lease away?
pub fn refuse_contested(found: &Found, name: Label, token: Token) -> Result<()> {
    if found.is_contested(token) {
        Err(stale(name, token, Stale::Contested, false))
    } else {
        Ok(())
    }
}

fn stale(name: Label, given: Token, why: Stale, at_commit: bool) -> Error {
    Error::Stale { lease: name.to_string(), given, why, at_commit, table: None }
}

/// Lets others see, until this transaction ends, that it acts under `token`.
///
/// Before the token is checked: so whoever is granted the lease either finds us, or we find the grant.
fn show(name: Label, hash: NameHash, token: Token) -> Result<()> {
    let (is_shown, shown) = with(|t| {
        let mut entries = t.of_name(name, hash).map(|i| &t.entries[i]);
        (entries.any(|e| e.token == token && e.shown), t.shown)
    });
    if is_shown {
        return Ok(());
    }
    if shown >= referee::most_writers() {
        return Err(Error::LockTableFull);
    }
    referee::show_writer(hash, token)?;
    with(|t| t.edit(name, hash, token, |entry| entry.shown = true));
    Ok(())
}

/// A write under `token` was allowed: the commit will check it again.
fn register(
    leases: &Leases,
    name: Label,
    hash: NameHash,
    token: Token,
    hold: bool,
    seen: Option<Sighting>,
) -> Result<()> {
    let (known, checked) = with(|t| {
        let entry = t.of_name(name, hash).map(|i| &t.entries[i]).find(|e| e.token == token);
        (entry.is_some_and(Entry::is_to_be_checked), t.checked)
    });
    if hold || checked {
        referee::hold(hash)?;
        settle_write(leases, name, hash, token, None)?;
    }
    if !known {
        with(|t| {
            t.edit(name, hash, token, |entry| {
                entry.wrote = true;
                entry.settled = false;
                entry.seen = seen.or(entry.seen);
            });
        });
    }
    Ok(())
}

/// Will be written before the commit.
pub fn defer(name: Label, hash: NameHash, token: Token, pending: Pending) {
    with(|t| t.edit(name, hash, token, |entry| entry.pending = Some(pending)));
}

/// This transaction has written the row, and so keeps everybody else's grant away until it ends. `token` was current when it did:
/// what was done under it before is settled.
pub fn settled(name: Label, hash: NameHash, token: Token) {
    with(|t| {
        let known = t.of_name(name, hash).any(|i| t.entries[i].token == token);
        if known {
            t.edit(name, hash, token, |entry| {
                entry.settled = true;
                entry.pending = None;
            });
        }
    });
}

/// Before the commit: under the locks that grants respect, is every token still current? And write what was put off.
///
/// Of a table without a fence we hear nothing. So where anything was written, all tokens that it carried are asked for.
pub fn before_commit(prepare: bool) -> Result<()> {
    if with(|t| t.entries.iter().any(Entry::is_unsure)) && has_written() {
        with(|t| t.entries.iter_mut().filter(|e| e.is_unsure()).for_each(|e| e.wrote = true));
    }
    let mut due: Vec<Entry> = with(|t| {
        t.entries.iter().filter(|e| e.is_to_be_checked() || e.pending.is_some()).cloned().collect()
    });
    with(|t| t.checked = true);
    if due.is_empty() {
        return Ok(());
    }
    if due.iter().filter(|entry| entry.is_to_be_checked()).count() > referee::most_writers() {
        return Err(Error::LockTableFull);
    }
    // In one order everywhere, so that two commits never wait for each other.
    due.sort_by_key(|entry| (entry.hash, entry.token));
    let leases = Leases::open()?;
    due.iter().try_for_each(|entry| settle(&leases, entry, prepare))?;
    leases.close();
    Ok(())
}

/// Has this transaction written anything, or will it before it commits?
fn has_written() -> bool {
    with(|t| t.entries.iter().any(|e| e.pending.is_some())) || written::anything()
}

fn settle(leases: &Leases, entry: &Entry, prepare: bool) -> Result<()> {
    let name = Label::known(&entry.name);
    let writes = entry.is_to_be_checked();
    match entry.pending {
        Some(Pending::End { at, completed_until, event }) => settle_pending(leases, entry, |row| {
            end(leases, name, entry.hash, row, at, completed_until, event);
        }),
        pending => {
            if writes && prepare {
                referee::hold(entry.hash)?;
            } else if writes {
                referee::lock(Tag::lease(entry.hash), Mode::RowShare)?;
            }
            if let Some(Pending::Extend { at, expires_at }) = pending {
                if prepare {
                    // The row would be kept from the heartbeats until COMMIT PREPARED.
                    return Err(Error::PreparedExtension { lease: name.to_string() });
                }
                settle_pending(leases, entry, |row| {
                    // A later heartbeat may have been faster. One of the future was one before the clock was stepped back.
                    let renewed_at = row.lease.renewed_at;
                    let (at, expires_at) = if renewed_at > at && renewed_at <= pg::now() {
                        (renewed_at, expires_at.max(row.lease.expires_at.unwrap_or_default()))
                    } else {
                        (at, expires_at)
                    };
                    extend(leases, entry.hash, row, at, expires_at);
                })
            } else {
                settle_write(leases, name, entry.hash, entry.token, entry.seen)
            }
        }
    }
}

/// Writes the expiry of a grant. Who waits for it slept until the one before, so a shorter one wakes him.
pub fn extend(
    leases: &Leases,
    hash: NameHash,
    row: &Row,
    renewed_at: Timestamp,
    expires_at: Timestamp,
) {
    if row.lease.expires_at.is_some_and(|before| expires_at < before) {
        line::wake_at_commit(hash);
    }
    leases.set_expiry(row, renewed_at, expires_at);
}

/// Writes the end of a grant, and lets everybody know when it is committed.
pub fn end(
    leases: &Leases,
    name: Label,
    hash: NameHash,
    row: &Row,
    at: Timestamp,
    completed_until: Option<Timestamp>,
    event: Event,
) {
    line::wake_at_commit(hash);
    tenure::end_at_commit(row.lease.token);
    announce(event, name, row.lease.token);
    leases.end(row, at, completed_until);
}

/// Under RowShare: no grant begins to be written while we look. One that is written and not decided yet is not waited for,
/// as it may be idle.
fn settle_write(
    leases: &Leases,
    name: Label,
    hash: NameHash,
    token: Token,
    seen: Option<Sighting>,
) -> Result<()> {
    if let Some(seen) = seen.filter(|seen| leases.is_unchanged(seen)) {
        return verdict(name, token, Some(&seen.lease), true);
    }
    let found = leases.find(name, hash);
    verdict(name, token, found.lease(), true)?;
    if found.is_contested(token) {
        return Err(stale(name, token, Stale::Contested, true));
    }
    Ok(())
}

/// Also an end is written under the mode of heartbeats, which waits for nobody who writes under the lease or holds it: a
/// grant would, and until there is one it does no harm if such a write is committed beside the end.
fn settle_pending(leases: &Leases, entry: &Entry, write: impl FnOnce(&Row)) -> Result<()> {
    let name = Label::known(&entry.name);
    let tag = Tag::lease(entry.hash);
    loop {
        referee::lock(tag, Mode::Heartbeat)?;
        let found = leases.find(name, entry.hash);
        let row = match &found.row {
            Some(row) if row.lease.is_current(entry.token) && !found.is_contested(entry.token) => {
                row
            }
            _ => {
                verdict(name, entry.token, found.lease(), true)?;
                return Err(stale(name, entry.token, Stale::Contested, true));
            }
        };
        if let Some(heartbeat) = &found.busy {
            referee::unlock(tag, Mode::Heartbeat);
            pg::wait_for_end(heartbeat.by);
            continue;
        }
        // Ending an expired lease is allowed at all times, having written under it perhaps not; an extension that is
        // written now counts.
        if entry.wrote {
            let judged = match entry.pending {
                Some(Pending::Extend { .. }) => overlay(name, entry.hash, found.lease()),
                _ => found.lease().copied(),
            };
            verdict(name, entry.token, judged.as_ref(), true)?;
        }
        write(row);
        referee::unlock(tag, Mode::Heartbeat);
        return Ok(());
    }
}
