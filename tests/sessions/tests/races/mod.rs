//! What must hold when sessions act at the same time: the promises of the design, by their subject.

mod commit;
mod evict;
mod losing;
mod take_over;
mod tokens;
mod unrelated;
mod work;
