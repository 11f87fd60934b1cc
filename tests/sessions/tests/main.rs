//! One binary, so that the server's template database is prepared once. The modules:
//!
//! * `cases`: the scenarios H01 to H41, by their numbers;
//! * `fences`: every way in which a row is changed, on every kind of table;
//! * `races`: what must hold when sessions act at the same time, one promise a test;
//! * `line`: waiting in line, leases that end with their session, what holds a grant back;
//! * `readme`: the transcripts of README.md;
//! * `upgrade`: databases that were made by an earlier version;
//! * `wire`: every error by the fields that a driver sees;
//! * `calls`: the smaller promises of single functions;
//! * `histories` and `model`: random histories against a model in plain Rust;
//! * `checker`: random transactions at the same time, and a walk through the server's log of commits;
//! * `fuzz`: random values for everything that takes one.

mod calls;
mod cases;
mod checker;
mod fences;
mod fuzz;
mod histories;
mod line;
mod model;
mod races;
mod readme;
mod upgrade;
mod wire;

/// The program that stands for a node in a process of its own.
const CLIENT: &str = env!("CARGO_BIN_EXE_client");
