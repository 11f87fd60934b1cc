//! With each thing that the design asks for left out, the checker finds how its promise is broken.

use Promise::*;
use lock_ext_model::locks::Mode;
use lock_ext_model::{Promise, Protocol, Report};

/// A small space is enough where no server fails.
fn without_failures() -> Protocol {
    Protocol { prepares: false, crashes: false, promotions: 0, ..Protocol::designed() }
}

fn with_prepared_transactions() -> Protocol {
    Protocol { prepares: true, ..without_failures() }
}

fn with_crashes() -> Protocol {
    Protocol { crashes: true, tokens: 2, numbers: 3, ..without_failures() }
}

fn with_a_fail_over() -> Protocol {
    Protocol { promotions: 1, tokens: 2, numbers: 3, wal: 3, ..without_failures() }
}

fn with_a_forgotten_standby() -> Protocol {
    Protocol { promotions: 2, forgotten_standby: true, sessions: 1, wal: 2, ..with_a_fail_over() }
}

/// The promises that are broken are these and no other ones.
#[track_caller]
fn breaks(what: &str, protocol: Protocol, promises: &[Promise]) {
    let report = Report::of(&protocol);
    println!("{what}: {report}");
    let mut broken: Vec<Promise> = report.broken.iter().map(|(promise, _)| *promise).collect();
    broken.sort_unstable();
    assert_eq!(broken, promises, "{what}");
}

#[test]
fn a_write_that_registers_nothing_is_not_checked_at_its_commit() {
    let protocol = Protocol { write_registers: false, ..without_failures() };
    breaks("no registration", protocol, &[NoStaleCommit]);
}

#[test]
fn one_check_at_the_statement_is_not_enough() {
    let protocol = Protocol { commit_check: false, ..without_failures() };
    breaks("no check at the commit", protocol, &[NoStaleCommit]);
}

#[test]
fn the_check_at_the_commit_needs_its_lock() {
    let protocol = Protocol { commit_mode: None, ..without_failures() };
    breaks("check without a lock", protocol, &[NoStaleCommit]);
}

#[test]
fn the_check_at_the_commit_reads_past_the_snapshot() {
    let protocol = Protocol { check_reads_latest: false, ..without_failures() };
    breaks("check through the snapshot", protocol, &[NoStaleCommit]);
}

#[test]
fn the_check_at_the_commit_sees_grants_that_are_not_committed() {
    let protocol = Protocol { check_sees_uncommitted: false, ..without_failures() };
    breaks("check of committed rows only", protocol, &[NoStaleCommit]);
}

#[test]
fn the_lock_is_kept_until_the_commit_is_visible() {
    let protocol = Protocol { locked_until_visible: false, ..without_failures() };
    breaks("lock released before the commit is visible", protocol, &[NoStaleCommit]);
}

#[test]
fn only_modes_that_conflict_with_committers_serve_a_grant() {
    for mode in lock_ext_model::locks::MODES {
        let protocol = Protocol { grant_mode: mode, ..without_failures() };
        let promises = match mode {
            Mode::Exclusive | Mode::AccessExclusive => &[][..],
            _ => &[NoStaleCommit],
        };
        breaks(&format!("grant under {mode:?}"), protocol, promises);
    }
}

#[test]
fn committers_take_a_mode_that_lets_heartbeats_through_and_no_grant() {
    for mode in lock_ext_model::locks::MODES {
        let protocol = Protocol { commit_mode: Some(mode), ..without_failures() };
        let promises = match mode {
            Mode::AccessShare => &[NoStaleCommit][..],
            Mode::RowShare | Mode::RowExclusive => &[],
            _ => &[HeartbeatsDoNotWait],
        };
        breaks(&format!("commit under {mode:?}"), protocol, promises);
    }
}

#[test]
fn a_lock_from_the_first_write_on_would_keep_take_overs_waiting() {
    let protocol = Protocol { writer_mode: Some(Mode::RowShare), ..without_failures() };
    breaks("RowShare from the first write on", protocol, &[TakeOversDoNotWait]);
}

#[test]
fn a_row_lock_would_keep_heartbeats_and_take_overs_waiting() {
    let protocol = Protocol { writer_mode: Some(Mode::Share), ..without_failures() };
    breaks("Share from the first write on", protocol, &[HeartbeatsDoNotWait, TakeOversDoNotWait]);
}

#[test]
fn a_heartbeat_in_an_open_transaction_is_put_off() {
    let protocol = Protocol { extension_put_off: false, ..without_failures() };
    let promises = &[HeartbeatsDoNotWait, TakeOversDoNotWait];
    breaks("heartbeat written in an open transaction", protocol, promises);
}

#[test]
fn a_heartbeat_in_the_mode_of_a_grant_waits_for_commits() {
    let protocol = Protocol { heartbeat_mode: Mode::Exclusive, ..without_failures() };
    breaks("heartbeat under Exclusive", protocol, &[HeartbeatsDoNotWait]);
}

#[test]
fn a_token_is_drawn_under_the_lock() {
    let protocol = Protocol { drawn_under_lock: false, ..without_failures() };
    breaks("drawn outside of the lock", protocol, &[NoStaleCommit, TokensRise]);
}

#[test]
fn a_token_is_flushed_before_it_is_told() {
    let protocol = Protocol { told_after_flush: false, ..with_crashes() };
    breaks("told before the flush", protocol, &[TokensRise, TokensAreUnique]);
}

#[test]
fn a_grant_is_on_disk_before_anybody_sees_it() {
    let protocol = Protocol { grant_commits_synchronously: false, ..with_crashes() };
    breaks("grant with synchronous_commit off", protocol, &[NoStaleCommit]);
}

#[test]
fn a_promotion_begins_an_epoch() {
    let protocol = Protocol { epochs: false, ..with_a_fail_over() };
    breaks("no epoch", protocol, &[TokensRise, TokensAreUnique]);
}

#[test]
fn an_epoch_begins_at_the_clock() {
    let protocol = Protocol { epoch_starts_at_the_clock: false, ..with_a_forgotten_standby() };
    breaks("epoch without the clock", protocol, &[TokensRise, TokensAreUnique]);
}

#[test]
fn a_prepared_transaction_is_checked_like_a_commit() {
    let protocol = Protocol { commit_check: false, ..with_prepared_transactions() };
    breaks("prepared without a check", protocol, &[NoStaleCommit]);
}

#[test]
fn a_prepared_transaction_keeps_its_lock() {
    let protocol = Protocol { prepared_keeps_lock: false, ..with_prepared_transactions() };
    breaks("prepared without a lock", protocol, &[NoStaleCommit]);
}

#[test]
fn a_grant_does_not_queue_behind_a_prepared_transaction() {
    let protocol = Protocol { hold_tag: false, ..with_prepared_transactions() };
    breaks("no second tag", protocol, &[TakeOversDoNotWait]);
}
