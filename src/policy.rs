//! The decisions, over a lease's row, a moment and a request. Nothing here knows PostgreSQL, waits or writes.

use crate::error::Stale;
use crate::types::{Timestamp, Token, Ttl};

/// What a decision looks at of a lease's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The last granted token, of the present holder or an earlier one.
    pub token: Token,
    /// The time to live of the grant.
    pub ttl: Ttl,
    /// When the expiry was set, by a grant or a heartbeat.
    pub renewed_at: Timestamp,
    /// None if nobody holds it: released, completed, forced.
    pub expires_at: Option<Timestamp>,
    /// When that was.
    pub released_at: Option<Timestamp>,
    /// Nobody is granted it before.
    pub completed_until: Option<Timestamp>,
    /// The request that the present grant answered.
    pub request: Option<[u8; 16]>,
    /// The minimum hold: nobody else is granted it before, even after a release.
    pub not_before: Option<Timestamp>,
    /// For how long after an expiry, or an end by force, nobody is granted it.
    pub pause: i64,
    /// The process of the session that the grant is bound to.
    pub session: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Free,
    Held,
    Expired,
    Completed,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Held => "held",
            State::Expired => "expired",
            State::Completed => "completed",
        }
    }
}

impl Lease {
    /// When the grant, if nobody ends it before, is anybody else's.
    fn until(&self) -> Timestamp {
        let ended = self.expires_at.map_or(Timestamp::MAX, |at| at.saturating_add(self.pause));
        ended.max(self.not_before.unwrap_or(Timestamp::MIN))
    }

    /// Until when it is kept from others, or was at the latest; None if nobody knows.
    pub fn kept_until(&self) -> Option<Timestamp> {
        let ended = self.completed_until.max(self.released_at);
        self.expires_at.map(|_| self.until()).or(ended)
    }

    /// When what keeps it from others was set, and when that ends by itself: an expiry with its pause, a minimum hold, a pause after an end by force. A
    /// completion until a time that somebody named is none of these.
    fn span(&self) -> Option<(Timestamp, Timestamp)> {
        if self.expires_at.is_some() {
            return self.session.is_none().then(|| (self.renewed_at, self.until()));
        }
        let (from, until) = (self.released_at?, self.completed_until?);
        let is_ours = self.not_before == Some(until)
            || self.pause > 0 && until == from.saturating_add(self.pause);
        is_ours.then_some((from, until))
    }

    /// By how much the clock has been stepped back since.
    fn stepped_back(&self, now: Timestamp) -> Option<(Timestamp, i64)> {
        let (from, until) = self.span()?;
        let by = from.saturating_sub(now);
        (by > 0).then(|| (until.saturating_sub(by), by))
    }

    /// Until when nobody is granted it, once its holder has released it, or completed it until a time.
    pub fn completed_until(&self, now: Timestamp, given: Option<Timestamp>) -> Option<Timestamp> {
        let back = self.renewed_at.saturating_sub(now).max(0);
        let not_before = self.not_before.map(|at| at.saturating_sub(back));
        given.max(not_before.filter(|not_before| now < *not_before))
    }

    /// The same, once it was ended by force.
    pub fn forced_until(&self, now: Timestamp) -> Option<Timestamp> {
        (self.expires_at.is_some() && self.pause > 0).then(|| now.saturating_add(self.pause))
    }

    pub fn state(&self, now: Timestamp) -> State {
        match (self.expires_at, self.completed_until) {
            (Some(expires_at), _) if now < expires_at => State::Held,
            (Some(_), _) => State::Expired,
            (None, Some(until)) if now < until => State::Completed,
            (None, _) => State::Free,
        }
    }

    /// Is `token` the one that may write? Expired is not superseded: nobody else has been granted anything yet.
    pub fn is_current(&self, token: Token) -> bool {
        self.token == token && self.expires_at.is_some()
    }

    /// Was `token` the one, and is no more? A higher one is of a grant that is being made.
    pub fn has_superseded(&self, token: Token) -> bool {
        token <= self.token && !self.is_current(token)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquire {
    Grant,
    /// The same request again, and its grant is still current.
    Again(Token),
    /// Somebody holds it, and not before that moment is it anybody else's.
    Refuse {
        until: Timestamp,
    },
    Completed {
        until: Timestamp,
    },
    /// Refused until then, and the clock has been stepped back by so much since that was set: what was set has to move with it, or the lease would be kept for
    /// longer than its time to live again.
    StepBack {
        until: Timestamp,
        by: i64,
    },
}

pub fn acquire(lease: Option<&Lease>, now: Timestamp, request: Option<[u8; 16]>) -> Acquire {
    let Some(lease) = lease else {
        return Acquire::Grant;
    };
    match lease.state(now) {
        State::Free => Acquire::Grant,
        State::Expired if lease.until() <= now => Acquire::Grant,
        State::Expired => Acquire::Refuse { until: lease.until() },
        State::Held if request.is_some() && lease.request == request => Acquire::Again(lease.token),
        State::Held | State::Completed => match (lease.stepped_back(now), lease.expires_at) {
            (Some((until, by)), _) => Acquire::StepBack { until, by },
            (None, Some(_)) => Acquire::Refuse { until: lease.until() },
            (None, None) => {
                Acquire::Completed { until: lease.completed_until.unwrap_or(Timestamp::MAX) }
            }
        },
    }
}

/// What becomes of the decision for who has seen the lease in this state for `watched` microseconds of a clock that nobody sets: by then it has been kept for that
/// long, whatever the server's clock says.
pub fn watched(decided: Acquire, lease: Option<&Lease>, now: Timestamp, watched: i64) -> Acquire {
    let until = match decided {
        Acquire::Refuse { until } | Acquire::StepBack { until, .. } => until,
        _ => return decided,
    };
    let Some((from, end)) = lease.and_then(Lease::span) else {
        return decided;
    };
    match end.saturating_sub(from).saturating_sub(watched) {
        ..=0 => Acquire::Grant,
        left => Acquire::Refuse { until: until.min(now.saturating_add(left)) },
    }
}

/// The new expiry, or None for a lost lease. Expired is lost: others were entitled to it.
pub fn extend(
    lease: Option<&Lease>,
    token: Token,
    now: Timestamp,
    ttl: Option<Ttl>,
) -> Option<Timestamp> {
    let lease = lease.filter(|l| l.is_current(token) && l.state(now) == State::Held)?;
    Some(ttl.unwrap_or(lease.ttl).from(now))
}

/// May the holder of `token` end the lease? Also an expired one.
pub fn may_end(lease: Option<&Lease>, token: Token) -> bool {
    lease.is_some_and(|l| l.is_current(token))
}

/// "May I rely on it": current and not expired.
pub fn is_reliable(lease: Option<&Lease>, token: Token, now: Timestamp) -> bool {
    lease.is_some_and(|l| l.is_current(token) && l.state(now) == State::Held)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    Allow,
    Stale(Stale),
    Expired,
}

/// May a transaction write under `token`?
pub fn write(lease: Option<&Lease>, token: Token, now: Timestamp, strict: bool) -> Write {
    let Some(lease) = lease else {
        return Write::Stale(Stale::NeverGranted { current: None });
    };
    if lease.is_current(token) {
        return if strict && lease.state(now) == State::Expired {
            Write::Expired
        } else {
            Write::Allow
        };
    }
    Write::Stale(match token.cmp(&lease.token) {
        std::cmp::Ordering::Equal => Stale::Released,
        std::cmp::Ordering::Less if token.0 > 0 => Stale::Superseded { current: lease.token },
        _ => Stale::NeverGranted { current: Some(lease.token) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    const INFINITY: i64 = i64::MAX;
    use proptest::prelude::*;

    fn held(token: i64, renewed_at: Timestamp, ttl: i64) -> Lease {
        Lease {
            token: Token(token),
            ttl: Ttl::granted(ttl),
            renewed_at,
            expires_at: Some(renewed_at + ttl),
            released_at: None,
            completed_until: None,
            request: None,
            not_before: None,
            pause: 0,
            session: None,
        }
    }

    #[test]
    fn a_higher_token_is_of_a_grant_that_is_being_made() {
        let lease = held(5, 0, 10);
        assert!(lease.has_superseded(Token(4)));
        assert!(!lease.has_superseded(Token(5)) && !lease.has_superseded(Token(6)));
        let ended = Lease { expires_at: None, ..lease };
        assert!(ended.has_superseded(Token(5)) && !ended.has_superseded(Token(6)));
    }

    #[test]
    fn nobody_else_has_it_before_the_minimum_hold_or_the_pause_is_over() {
        let lease = Lease { not_before: Some(30), pause: 100, ..held(1, 0, 10) };
        assert_eq!(acquire(Some(&lease), 5, None), Acquire::Refuse { until: 110 });
        assert_eq!(acquire(Some(&lease), 20, None), Acquire::Refuse { until: 110 });
        assert_eq!(acquire(Some(&lease), 110, None), Acquire::Grant);
        assert_eq!(lease.completed_until(5, None), Some(30));
        assert_eq!(lease.completed_until(5, Some(40)), Some(40));
        assert_eq!(lease.completed_until(30, None), None);
        assert_eq!(lease.forced_until(20), Some(120));
        assert_eq!(held(1, 0, 10).forced_until(20), None);
        let lease = Lease { pause: 0, ..lease };
        assert_eq!(acquire(Some(&lease), 20, None), Acquire::Refuse { until: 30 });
    }

    fn ended(token: i64, completed_until: Option<Timestamp>) -> Lease {
        Lease { expires_at: None, completed_until, ..held(token, 0, 1_000) }
    }

    #[test]
    fn a_lease_is_held_up_to_its_expiry_and_not_at_it() {
        let lease = held(7, 100, 50);
        assert_eq!(lease.state(149), State::Held);
        assert_eq!(lease.state(150), State::Expired);
    }

    #[test]
    fn what_is_free_or_expired_is_granted() {
        assert_eq!(acquire(None, 0, None), Acquire::Grant);
        assert_eq!(acquire(Some(&ended(1, None)), 0, None), Acquire::Grant);
        assert_eq!(acquire(Some(&held(1, 0, 10)), 10, None), Acquire::Grant);
        assert_eq!(acquire(Some(&ended(1, Some(5))), 5, None), Acquire::Grant);
    }

    #[test]
    fn what_is_held_or_completed_is_refused() {
        assert_eq!(acquire(Some(&held(1, 0, 10)), 9, None), Acquire::Refuse { until: 10 });
        assert_eq!(
            acquire(Some(&ended(1, Some(INFINITY))), i64::MAX - 1, None),
            Acquire::Completed { until: INFINITY }
        );
    }

    #[test]
    fn a_repeated_request_is_answered_only_while_its_grant_is_current() {
        let request = Some([1; 16]);
        let lease = Lease { request, ..held(3, 0, 10) };
        assert_eq!(acquire(Some(&lease), 9, request), Acquire::Again(Token(3)));
        assert_eq!(acquire(Some(&lease), 9, Some([2; 16])), Acquire::Refuse { until: 10 });
        assert_eq!(acquire(Some(&lease), 9, None), Acquire::Refuse { until: 10 });
        assert_eq!(acquire(Some(&lease), 10, request), Acquire::Grant);
    }

    #[test]
    fn the_grant_without_a_request_is_not_an_answer_to_none() {
        assert_eq!(acquire(Some(&held(3, 0, 10)), 5, None), Acquire::Refuse { until: 10 });
    }

    #[test]
    fn an_expired_token_writes_and_ends_but_is_not_extended() {
        let lease = held(3, 0, 10);
        assert_eq!(write(Some(&lease), Token(3), 10, false), Write::Allow);
        assert_eq!(write(Some(&lease), Token(3), 10, true), Write::Expired);
        assert_eq!(write(Some(&lease), Token(3), 9, true), Write::Allow);
        assert!(may_end(Some(&lease), Token(3)));
        assert_eq!(extend(Some(&lease), Token(3), 10, None), None);
        assert!(!is_reliable(Some(&lease), Token(3), 10));
    }

    #[test]
    fn a_stale_write_says_why() {
        let why = |lease: Option<&Lease>, token| match write(lease, Token(token), 0, false) {
            Write::Stale(why) => why,
            other => unreachable!("{other:?} where a stale token was given"),
        };
        let lease = held(5, 0, 10);
        assert_eq!(why(Some(&lease), 4), Stale::Superseded { current: Token(5) });
        assert_eq!(why(Some(&lease), 6), Stale::NeverGranted { current: Some(Token(5)) });
        assert_eq!(why(Some(&lease), 0), Stale::NeverGranted { current: Some(Token(5)) });
        assert_eq!(why(Some(&ended(5, None)), 5), Stale::Released);
        assert_eq!(why(None, 5), Stale::NeverGranted { current: None });
    }

    proptest! {
        #[test]
        fn a_clock_that_stepped_back_keeps_no_lease_alive_for_more_than_its_time_to_live(
            renewed_at in 0..1_000_000i64, ttl in 1_000..1_000_000i64, back in 1..1_000_000i64,
        ) {
            let lease = held(1, renewed_at, ttl);
            let now = renewed_at - back;
            prop_assert_eq!(acquire(Some(&lease), now, None), Acquire::StepBack { until: now + ttl, by: back });
        }

        #[test]
        fn nor_does_it_keep_a_minimum_hold_or_a_pause_for_longer(
            released_at in 0..1_000_000i64, hold in 1..1_000_000i64, pause in 1..1_000_000i64, back in 1..1_000_000i64,
        ) {
            let now = released_at - back;
            let held = Lease { not_before: Some(released_at + hold), ..held(1, released_at, 1_000) };
            prop_assert_eq!(held.completed_until(now, None), Some(now + hold));
            let until = released_at + hold;
            let released = Lease { released_at: Some(released_at), ..ended(1, Some(until)) };
            prop_assert_eq!(acquire(Some(&released), now, None), Acquire::Completed { until });
            let lease = Lease { not_before: Some(until), ..released };
            prop_assert_eq!(acquire(Some(&lease), now, None), Acquire::StepBack { until: now + hold, by: back });
            let lease = Lease { pause, completed_until: Some(released_at + pause), ..released };
            prop_assert_eq!(acquire(Some(&lease), now, None), Acquire::StepBack { until: now + pause, by: back });
        }

        /// Whatever the clock does meanwhile.
        #[test]
        fn who_watches_a_lease_for_its_whole_length_is_granted_it(
            renewed_at in 0..1_000_000i64, ttl in 1_000..1_000_000i64, now in -1_000_000..3_000_000i64, watched in 0..2_000_000i64,
        ) {
            let lease = held(1, renewed_at, ttl);
            let decided = acquire(Some(&lease), now, None);
            match super::watched(decided, Some(&lease), now, watched) {
                Acquire::Grant => prop_assert!(watched >= ttl || now >= renewed_at + ttl),
                Acquire::Refuse { until } => prop_assert!(until > now && until <= now + ttl - watched),
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn a_heartbeat_sets_the_expiry_and_never_adds_it_up(
            renewed_at in 0..1_000_000i64, ttl in 1_000..1_000_000i64, later in 0..999i64,
            other in proptest::option::of(1_000..1_000_000i64),
        ) {
            let lease = held(1, renewed_at, ttl);
            let now = renewed_at + later;
            prop_assert_eq!(
                extend(Some(&lease), Token(1), now, other.map(Ttl::granted)),
                Some(now + other.unwrap_or(ttl))
            );
        }

        #[test]
        fn only_the_current_token_extends_ends_or_writes(
            token in 0..10i64, given in 0..10i64, now in 0..3_000i64, is_held: bool,
        ) {
            let lease = if is_held { held(token, 0, 1_000) } else { ended(token, None) };
            let current = is_held && token == given;
            prop_assert_eq!(may_end(Some(&lease), Token(given)), current);
            prop_assert_eq!(write(Some(&lease), Token(given), now, false) == Write::Allow, current);
            prop_assert_eq!(
                extend(Some(&lease), Token(given), now, None).is_some(),
                current && now < 1_000
            );
        }

        #[test]
        fn at_no_moment_may_two_have_it(
            token in 1..10i64, now in 0..3_000i64, request in proptest::option::of(any::<[u8; 16]>()),
        ) {
            let lease = held(token, 0, 1_000);
            let granted = acquire(Some(&lease), now, request) == Acquire::Grant;
            prop_assert!(!(granted && is_reliable(Some(&lease), Token(token), now)));
        }
    }
}
