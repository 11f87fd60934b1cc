//! What a worker tells the director: one line of JSON each, on its standard output.

use crate::db::ServerError;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// `lease_acquire` gave NULL.
    Busy,
    Granted {
        token: i64,
    },
    /// `lease_evict` ended these sessions.
    Evicted {
        pids: Vec<i32>,
    },
    StartsAfter {
        after_player: i32,
    },
    Extended,
    /// The heartbeat gave up.
    HeartbeatStopped {
        why: String,
    },
    /// A chunk is written, and its COMMIT is still to come.
    InOpenChunk {
        first: i32,
        last: i32,
    },
    Paid {
        first: i32,
        last: i32,
    },
    ConnectionLost {
        error: Option<ServerError>,
    },
    ConnectedAgain {
        after_player: i32,
    },
    Refused {
        error: ServerError,
    },
    /// The worker gave up its batch.
    Stopped {
        why: String,
    },
    Completed,
    /// `lease_acquire_session` gave this, after a wait in line.
    Served {
        token: i64,
    },
    /// It has written its entry.
    Entered,
    Released,
    Failed {
        why: String,
    },
}

pub fn tell(event: &Event) {
    // Without the director there is nobody to work for, so a closed pipe may end the process.
    println!("{}", serde_json::to_string(event).expect("an event is plain data"));
}

/// Tells the director that now is the moment, and waits for its answer, a line on the standard input.
///
/// The director stops this process before it answers. So the process freezes here for certain, and once it is woken up
/// it goes on as if nothing had happened, just like after a long pause for garbage collection.
pub async fn moment_to_freeze(event: &Event) {
    tell(event);
    let answer =
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
    answer.expect("reading does not panic").expect("the director keeps its end open");
    // Only for the timeline: lets the connection's task read what the server said while we were frozen. Otherwise
    // the next statement may come first, and then it reports a broken pipe and not the server's reason.
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
}
