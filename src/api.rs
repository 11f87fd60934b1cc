//! Every function that SQL sees, with its labels. A body checks its arguments and calls.
//!
//! No function is STRICT: a NULL that has no meaning is an error, never a silent NULL. What users should know of
//! each is said once, in `sql/install/comments.sql`.

use crate::error::{Error, Result, or_raise};
use crate::lease::When;
use crate::pg;
use crate::settings;
use crate::store::Term;
use crate::types::{Jsonb, Kind, Label, Text, Token, Ttl, wait_micros};
use crate::{admin, checkpoint, fence, lease, observe, once, token};
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use std::time::Duration;

fn request<'a>(
    name: &'a Option<Text>,
    holder: &'a Option<Text>,
    term: impl FnOnce() -> Result<Term>,
    id: Option<pgrx::Uuid>,
) -> Result<lease::Request<'a>> {
    Ok(lease::Request {
        name: Label::new(Kind::Lease, name.as_ref())?,
        holder: Label::new(Kind::Holder, holder.as_ref())?,
        term: term()?,
        id: id.map(|id| *id.as_bytes()),
    })
}

fn timed(ttl: Ttl, min_hold: Option<Interval>, pause: Option<Interval>) -> Result<Term> {
    let span = |given, what| {
        let max_ms = settings::max_ttl_ms();
        let span = age(given, what)?;
        if span > i64::from(max_ms) * 1_000 {
            return Err(Error::SpanRange { what, max_ms });
        }
        Ok(span)
    };
    let (min_hold, pause) = (span(min_hold, "minimum hold")?, span(pause, "pause")?);
    Ok(Term::Timed { ttl, min_hold, pause })
}

fn wait(given: Option<Interval>) -> Result<Duration> {
    Ok(Duration::from_micros(wait_micros(given)?.unsigned_abs()))
}

fn when(fcinfo: pg_sys::FunctionCallInfo) -> When {
    if pg::is_whole_statement(fcinfo) { When::Now } else { When::Commit }
}

fn tenure(name: &Option<Text>, token: Option<i64>) -> Result<(Label<'_>, Token)> {
    Ok((Label::new(Kind::Lease, name.as_ref())?, Token::new(token)?))
}

#[pg_extern(volatile, parallel_unsafe)]
#[expect(clippy::too_many_arguments, reason = "SQL callers name them")]
fn lease_acquire(
    name: Option<Text>,
    holder: Option<Text>,
    ttl: Option<Interval>,
    wait: default!(Option<Interval>, "'0'"),
    request: default!(Option<pgrx::Uuid>, "NULL"),
    min_hold: default!(Option<Interval>, "'0'"),
    pause: default!(Option<Interval>, "'0'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<i64> {
    or_raise((|| {
        pg::refuse_read_only("lease_acquire")?;
        let term = || timed(Ttl::new(ttl)?, min_hold, pause);
        let request = self::request(&name, &holder, term, request)?;
        Ok(lease::acquire(&request, self::wait(wait)?, when(fcinfo))?.map(|token| token.0))
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_acquire_session(
    name: Option<Text>,
    holder: Option<Text>,
    wait: default!(Option<Interval>, "'0'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<i64> {
    or_raise((|| {
        pg::refuse_read_only("lease_acquire_session")?;
        let request = request(&name, &holder, || Ok(Term::Session), None)?;
        Ok(lease::acquire(&request, self::wait(wait)?, when(fcinfo))?.map(|token| token.0))
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_elect(
    name: Option<Text>,
    holder: Option<Text>,
    ttl: Option<Interval>,
    token: default!(Option<i64>, "NULL"),
    min_hold: default!(Option<Interval>, "'0'"),
    pause: default!(Option<Interval>, "'0'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<i64> {
    or_raise((|| {
        pg::refuse_read_only("lease_elect")?;
        let request = request(&name, &holder, || timed(Ttl::new(ttl)?, min_hold, pause), None)?;
        Ok(lease::elect(&request, token.map(Token), when(fcinfo))?.map(|token| token.0))
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_extend(
    name: Option<Text>,
    token: Option<i64>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<TimestampWithTimeZone> {
    or_raise((|| {
        pg::refuse_read_only("lease_extend")?;
        let (name, token) = tenure(&name, token)?;
        Ok(lease::extend(name, token, None, when(fcinfo))?.map(pg::timestamptz))
    })())
}

#[pg_extern(volatile, parallel_unsafe, name = "lease_extend")]
fn lease_extend_for(
    name: Option<Text>,
    token: Option<i64>,
    ttl: Option<Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<TimestampWithTimeZone> {
    or_raise((|| {
        pg::refuse_read_only("lease_extend")?;
        let (name, token) = tenure(&name, token)?;
        Ok(lease::extend(name, token, Some(Ttl::new(ttl)?), when(fcinfo))?.map(pg::timestamptz))
    })())
}

type Extended = (Option<Text>, Option<i64>, Option<TimestampWithTimeZone>);

fn extend_many(
    names: Option<Vec<Option<Text>>>,
    tokens: Option<Vec<Option<i64>>>,
    ttl: Option<Ttl>,
    when: When,
) -> Result<Vec<Extended>> {
    pg::refuse_read_only("lease_extend_many")?;
    let names = names.ok_or_else(|| Error::Null { what: "array of lease names".into() })?;
    let tokens = tokens.ok_or_else(|| Error::Null { what: "array of fencing tokens".into() })?;
    if names.len() != tokens.len() {
        return Err(Error::ArrayShape { names: names.len(), tokens: tokens.len() });
    }
    let tenures: Vec<(Label, Token)> = names
        .iter()
        .zip(&tokens)
        .map(|(name, token)| tenure(name, *token))
        .collect::<Result<_>>()?;
    let expiries = lease::extend_many(&tenures, ttl, when)?;
    Ok(names
        .into_iter()
        .zip(tokens)
        .zip(expiries)
        .map(|((name, token), expiry)| (name, token, expiry.map(pg::timestamptz)))
        .collect())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_extend_many(
    names: Option<Vec<Option<Text>>>,
    tokens: Option<Vec<Option<i64>>>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(name, Option<Text>),
        name!(token, Option<i64>),
        name!(expires_at, Option<TimestampWithTimeZone>),
    ),
> {
    TableIterator::new(or_raise(extend_many(names, tokens, None, when(fcinfo))))
}

#[pg_extern(volatile, parallel_unsafe, name = "lease_extend_many")]
fn lease_extend_many_for(
    names: Option<Vec<Option<Text>>>,
    tokens: Option<Vec<Option<i64>>>,
    ttl: Option<Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(name, Option<Text>),
        name!(token, Option<i64>),
        name!(expires_at, Option<TimestampWithTimeZone>),
    ),
> {
    let rows = Ttl::new(ttl).and_then(|ttl| extend_many(names, tokens, Some(ttl), when(fcinfo)));
    TableIterator::new(or_raise(rows))
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_release(name: Option<Text>, token: Option<i64>, fcinfo: pg_sys::FunctionCallInfo) -> bool {
    or_raise((|| {
        pg::refuse_read_only("lease_release")?;
        let (name, token) = tenure(&name, token)?;
        lease::end(name, token, None, when(fcinfo))
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_complete(
    name: Option<Text>,
    token: Option<i64>,
    until: default!(Option<TimestampWithTimeZone>, "'infinity'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> bool {
    or_raise((|| {
        pg::refuse_read_only("lease_complete")?;
        let (name, token) = tenure(&name, token)?;
        let until = until.ok_or_else(|| Error::Null { what: "end of the completion".into() })?;
        lease::end(name, token, Some(until.into_inner()), when(fcinfo))
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_is_current(name: Option<Text>, token: Option<i64>) -> bool {
    or_raise((|| {
        pg::refuse_on_standby("lease_is_current")?;
        let (name, token) = tenure(&name, token)?;
        lease::is_current(name, token)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_checkpoint(name: Option<Text>, token: Option<i64>, state: Option<Jsonb>) {
    or_raise((|| {
        pg::refuse_read_only("lease_checkpoint")?;
        let (name, token) = tenure(&name, token)?;
        let state = state.ok_or_else(|| Error::Null { what: "checkpoint".into() })?;
        checkpoint::save(name, token, state)
    })())
}

#[pg_extern(volatile, parallel_unsafe, name = "lease_checkpoint")]
fn lease_checkpoint_read(name: Option<Text>) -> Option<Jsonb> {
    or_raise((|| {
        pg::refuse_in_parallel("lease_checkpoint")?;
        checkpoint::read(Label::new(Kind::Lease, name.as_ref())?)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_fence(
    name: Option<Text>,
    token: Option<i64>,
    hold: default!(Option<bool>, false),
    fcinfo: pg_sys::FunctionCallInfo,
) {
    or_raise((|| {
        pg::refuse_on_standby("lease_fence")?;
        let (name, token) = tenure(&name, token)?;
        let hold = hold.ok_or_else(|| Error::Null { what: "hold".into() })?;
        fence::declare(name, token, hold)?;
        if pg::is_whole_statement(fcinfo) {
            pg::warn_no_transaction_block(
                "lease_fence() has no effect outside of a transaction block",
            );
        }
        Ok(())
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn fence_observe(resource: Option<Text>, token: Option<i64>) {
    or_raise((|| {
        pg::refuse_read_only("fence_observe")?;
        let resource = Label::new(Kind::Resource, resource.as_ref())?;
        observe::observe(resource, Token::new(token)?)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn fence_forget(resource: Option<Text>) -> bool {
    or_raise((|| {
        pg::refuse_read_only("fence_forget")?;
        observe::forget_resource(Label::new(Kind::Resource, resource.as_ref())?)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn once(key: Option<Text>) -> bool {
    or_raise((|| {
        pg::refuse_read_only("once")?;
        once::once(Label::new(Kind::OnceKey, key.as_ref())?)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn once_forget(older_than: Option<Interval>) -> i64 {
    or_raise((|| {
        pg::refuse_read_only("once_forget")?;
        let age = age(older_than, "age")?;
        once::forget(pg::now().saturating_sub(age))
    })())
}

fn age(given: Option<Interval>, what: &'static str) -> Result<i64> {
    let given = given.ok_or_else(|| Error::Null { what: what.into() })?;
    wait_micros(Some(given)).map_err(|_| Error::AgeRange { what })
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_evict(name: Option<Text>, token: Option<i64>) -> SetOfIterator<'static, i32> {
    or_raise((|| {
        pg::refuse_read_only("lease_evict")?;
        let (name, token) = tenure(&name, token)?;
        admin::evict(name, Some(token)).map(SetOfIterator::new)
    })())
}

#[pg_extern(volatile, parallel_unsafe, name = "lease_evict")]
fn lease_evict_any(name: Option<Text>) -> SetOfIterator<'static, i32> {
    or_raise((|| {
        pg::refuse_read_only("lease_evict")?;
        let name = Label::new(Kind::Lease, name.as_ref())?;
        admin::evict(name, None).map(SetOfIterator::new)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_force_release(name: Option<Text>) -> bool {
    or_raise((|| {
        pg::refuse_read_only("lease_force_release")?;
        lease::force_release(Label::new(Kind::Lease, name.as_ref())?)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_prune(idle: Option<Interval>) -> i64 {
    or_raise((|| {
        pg::refuse_read_only("lease_prune")?;
        admin::prune(age(idle, "idle time")?)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn lease_raise_token_floor(floor: Option<i64>) -> i64 {
    or_raise((|| {
        pg::refuse_read_only("lease_raise_token_floor")?;
        let floor = floor.map(Token).ok_or_else(|| Error::Null { what: "token floor".into() })?;
        token::raise_floor(floor).map(|token| token.0)
    })())
}
