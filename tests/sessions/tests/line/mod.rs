//! Waiting in line for a lease, leases that end with their session, what holds a grant back, and notifications.

mod cleanup;
mod crowd;
mod cycles;
mod hold_back;
mod leaders;
mod limits;
mod mix;
mod narrow;
mod notify;
mod order;
pub mod scene;
mod session_ends;
mod session_lease;
mod shown;
mod transactions;
mod waking;
