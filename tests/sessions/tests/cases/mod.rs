//! The scenarios for fenced leases, each under its number. A hot standby is left out.

mod fence;
mod installed;
mod names;
mod odd_places;
mod ownership;
mod paths;
mod roles;
mod time;
mod transactions;
mod volume;
mod waiting;
mod work;
