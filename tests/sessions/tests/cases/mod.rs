//! The scenarios for fenced leases, each under its number. What needs waiting (`wait` above zero) or
//! session-bound leases is left out and said at the case; `h02_a_wait_is_refused_for_now` keeps that honest.

mod fence;
mod installed;
mod names;
mod ownership;
mod paths;
mod time;
mod transactions;
mod volume;
mod work;
