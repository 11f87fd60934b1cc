//! The servers' clock, which all of them share: libfaketime reads how far it is off from a file.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Diary, in_time};
use crate::dice::Dice;
use crate::history::{Call, Effect, Op, Outcome, now};
use crate::world::World;

/// Where Debian's package and others have it.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/local/lib/faketime/libfaketime.so.1",
];

pub struct Clock {
    file: PathBuf,
    library: &'static str,
    seconds: i64,
}

impl Clock {
    /// None without libfaketime. The directory outlives the servers.
    pub fn new(directory: &Path) -> Option<Self> {
        let library = LIBRARIES.into_iter().find(|library| Path::new(library).exists())?;
        let clock = Self { file: directory.join("clock"), library, seconds: 0 };
        clock.write();
        Some(clock)
    }

    /// What makes a program see this clock.
    pub fn environment(&self) -> Vec<(String, String)> {
        [
            ("LD_PRELOAD", self.library),
            ("FAKETIME_TIMESTAMP_FILE", &self.file.display().to_string()),
            // Look at it each time, so that a step is seen at once.
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            // Files keep their times, and nothing is left behind in the shared memory.
            ("NO_FAKE_STAT", "1"),
            ("FAKETIME_DISABLE_SHM", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    fn write(&self) {
        // By renaming, so that nobody reads half of it.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{:+}\n", self.seconds)).expect("our directory");
        fs::rename(&new, &self.file).expect("our directory");
    }
}

pub async fn step(dice: &mut Dice, world: &mut World, diary: &Diary) {
    let Some(clock) = &mut world.clock else { return };
    let far = dice.one_in(5);
    let by = if far { 600 + dice.below(7_200) } else { 1 + dice.below(20) } as i64;
    // Back towards the true time as often as away from it.
    let by = if dice.one_in(2) { by } else { -by };
    let start = now();
    clock.seconds += by;
    clock.write();
    diary.note(start, "clock", format!("{by:+} s"), Some(Effect::Clock(by)));
    if by < 0 {
        end_completion(world, diary).await;
    }
}

/// A completion ends at a time, not after one: by a clock that was stepped back it would be hours from now, and the batch would stand still.
async fn end_completion(world: &World, diary: &Diary) {
    let Some(server) = world.connect().await else { return };
    let is_far = "SELECT EXISTS (SELECT FROM lease_status WHERE name = 'batch' AND completed_until > clock_timestamp() + '1 s'::interval)";
    let Some(Ok(row)) = in_time(5, server.query_one(is_far, &[])).await else { return };
    if !row.get::<_, bool>(0) {
        return;
    }
    let start = now();
    let forced = in_time(5, server.query_one("SELECT lease_force_release('batch')", &[])).await;
    let outcome = match forced {
        Some(Ok(row)) => Outcome::Ok { answer: Some(i64::from(row.get::<_, bool>(0))) },
        _ => Outcome::Unknown,
    };
    let end = matches!(outcome, Outcome::Ok { .. }).then(now);
    let (id, call) = (format!("force.{start}"), Call::Force { lease: "batch".to_owned() });
    diary.note_call(Op { id, backend: 0, start, end, call, outcome, error: None });
}
