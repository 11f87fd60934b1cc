//! What the clients have in common: their databases, an administrator (psql, so that no driver is tested with
//! itself), and the report, a line for each scenario.

use std::error::Error;
use std::fmt::Debug;
use std::process::Command;
use std::time::{Duration, Instant};

pub type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// The lease that most scenarios are about.
pub const LEASE: &str = "daily-reward";

const SCENARIOS: [&str; 11] = [
    "grant",
    "heartbeat",
    "fenced_transaction",
    "fenced_column",
    "refused_write",
    "refused_commit",
    "once",
    "checkpoint",
    "wait_timeout",
    "lost_connection",
    "migration",
];

pub struct Stack {
    name: &'static str,
    version: &'static str,
    reported: Vec<&'static str>,
    failed: bool,
}

impl Stack {
    /// Makes the stack's database, whose tables are left to its migrations. Tokens begin where a double is about to end.
    pub fn new(name: &'static str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let database = database(name);
        let drop = format!("DROP DATABASE IF EXISTS {database}");
        psql("postgres", &[&drop, &format!("CREATE DATABASE {database}")])?;
        psql(
            &database,
            &["CREATE EXTENSION lock_ext", "SELECT lease_raise_token_floor(9007199254730000)"],
        )?;
        Ok(Self { name, version: version(name), reported: Vec::new(), failed: false })
    }

    /// An empty slate: nobody holds the lease, and the tables are as the migrations made them.
    pub fn reset(&self) -> Outcome {
        self.admin(
            "SELECT lease_force_release(name) FROM lease_status;
             SET LOCAL session_replication_role = replica;
             TRUNCATE player, entry, price, gift; INSERT INTO player VALUES (1, 0), (2, 0), (3, 0)",
        )
        .map(drop)
    }

    pub fn admin(&self, sql: &str) -> Result<String, Box<dyn Error + Send + Sync>> {
        psql(&database(self.name), &[sql])
    }

    /// Another holder gets the lease; gives its token.
    pub fn take_over(&self) -> Result<String, Box<dyn Error + Send + Sync>> {
        self.admin(&format!("SELECT lease_force_release('{LEASE}')"))?;
        self.admin(&format!("SELECT lease_acquire('{LEASE}', 'other', '30 s')"))
    }

    /// Polls until the query gives `want`.
    pub fn until(&self, sql: &str, want: &str) -> Outcome {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let got = self.admin(sql)?;
            if got == want {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{sql}: {got}, and not {want}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn report(&mut self, scenario: &'static str, outcome: Outcome) {
        let Self { name, version, .. } = self;
        self.reported.push(scenario);
        match outcome {
            Ok(()) => println!("ok {name} {version} - {scenario}"),
            Err(why) => {
                self.failed = true;
                println!(
                    "not ok {name} {version} - {scenario}: {}",
                    why.to_string().replace('\n', " ")
                );
            }
        }
    }

    pub fn skip(&mut self, scenario: &'static str, why: &str) {
        self.reported.push(scenario);
        println!("skip {} {} - {scenario}: {why}", self.name, self.version);
    }

    /// Fails as well if a scenario was forgotten.
    pub fn finish(self) -> Outcome {
        let missing: Vec<_> = SCENARIOS.iter().filter(|s| !self.reported.contains(s)).collect();
        check(missing.is_empty(), format!("not run: {missing:?}"))?;
        check(!self.failed, format!("{} failed", self.name))
    }
}

pub fn database(stack: &str) -> String {
    format!("clients_{}", stack.replace('-', "_"))
}

pub fn check(holds: bool, otherwise: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.into().into()) }
}

pub fn same<T: PartialEq<U> + Debug, U: Debug>(what: &str, got: T, want: U) -> Outcome {
    check(got == want, format!("{what}: {got:?}, and not {want:?}"))
}

pub fn refused<T, E>(what: &str, result: Result<T, E>) -> Result<E, Box<dyn Error + Send + Sync>> {
    match result {
        Ok(_) => Err(format!("{what} was not refused").into()),
        Err(error) => Ok(error),
    }
}

fn version(package: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let at = lock.find(&format!("name = \"{package}\"\nversion = ")).expect("a dependency");
    lock[at..].split('"').nth(3).expect("a version")
}

fn psql(database: &str, statements: &[&str]) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut psql = Command::new("psql");
    psql.args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database]);
    for statement in statements {
        psql.args(["-c", statement]);
    }
    let output = psql.output().map_err(|error| format!("psql: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned().into())
    }
}
