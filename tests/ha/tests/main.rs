//! One binary, so that its tests share one pool of threads. The modules:
//!
//! * `crash`: a backend that is killed, and a server that is, at every step of a grant;
//! * `failover`: standbys that are promoted, some of which have lost the end of the WAL;
//! * `standby`: what a hot standby shows and refuses;
//! * `sequences`: what somebody does to the sequence of the tokens by hand;
//! * `dump`, `logical`: copies of a database, and a subscriber that takes over;
//! * `upgrade`: to the next major version of PostgreSQL;
//! * `clock`: a server whose clock is stepped;
//! * `patroni`: a cluster of three nodes under the reward batch.

mod clock;
mod crash;
mod dump;
mod failover;
mod logical;
mod patroni;
mod sequences;
mod standby;
mod upgrade;
