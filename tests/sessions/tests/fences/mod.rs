//! The fence on every kind of table, and on every way in which PostgreSQL changes a row.
//!
//! * `guard`: our fence and a naive trigger behind one interface; `tables`: the kinds of tables;
//! * `statements`: what changes rows, with the table that says what is allowed;
//! * `scene`: one cell of that table, played and checked;
//! * `paths`: all cells with our fence; `naive`: with the naive trigger, which must fail where the design says so;
//! * `by_row`: leases that a column of each row names; `lease_names`: what such a column may hold;
//! * `transactions`: what a transaction can be, with a take-over before its commit; `elsewhere`: what it writes to tables without a fence; `fastpath`: without a statement;
//! * `attach`, `later`: `fence_attach` and `fence_detach`, and tables that come and go after them;
//! * `holes`: what `fence_status` shows; `dump`: dumped and restored;
//! * `evict`: the states of a stale writer; `observe`: tokens of other systems.

mod altered;
mod attach;
mod by_row;
mod dump;
mod elsewhere;
mod evict;
mod fastpath;
mod guard;
mod holes;
mod later;
mod lease_names;
mod naive;
mod observe;
mod paths;
mod scene;
mod statements;
mod tables;
mod transactions;
