//! Since when this session has seen a lease as it is, by a clock that nobody sets. Whoever has seen a lease for its whole length, without an extension, may
//! have it, also if the server's clock was stepped back meanwhile. It is remembered from call to call, for those who ask again and again, or wait for
//! less than that.

use crate::table::Version;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

thread_local! {
    static WATCHED: RefCell<HashMap<u64, (Version, Instant)>> = RefCell::default();
}

/// Names that are watched at once; with more it begins anew.
const MOST: usize = 1_000;

pub fn is_on(hash: u64) -> bool {
    WATCHED.with(|watched| watched.borrow().contains_key(&hash))
}

/// For how many microseconds it has been this version; zero at the first look.
pub fn look(hash: u64, version: Version) -> i64 {
    let now = Instant::now();
    WATCHED.with(|watched| {
        let mut watched = watched.borrow_mut();
        match watched.get(&hash) {
            Some((seen, since)) if *seen == version => {
                i64::try_from(now.duration_since(*since).as_micros()).unwrap_or(i64::MAX)
            }
            _ => {
                if watched.len() >= MOST {
                    watched.clear();
                }
                watched.insert(hash, (version, now));
                0
            }
        }
    })
}

pub fn forget(hash: u64) {
    WATCHED.with(|watched| watched.borrow_mut().remove(&hash));
}
