//! One database, four sessions, and what has to be true after each statement.

use std::collections::{BTreeMap, VecDeque};

use lock_ext_sessions::PgError;

use crate::checker::dice::Dice;

use super::calls::{self, Function, Relation, World};
use super::codes::COMMIT;
use super::link::{Block, Link, WAYS, Way};
use super::truth::digest;
use super::values::identifier;

pub struct Fuzzer {
    pub dice: Dice,
    pub links: Vec<Link>,
    pub watch: Link,
    pub odd: &'static str,
    pub functions: Vec<Function>,
    pub relations: Vec<Relation>,
    pub check: u32,
    pub granted: Vec<(String, i64)>,
    /// Which lease a table's fence was for when it was put on.
    pub attached: Vec<(Relation, String)>,
    pub highest: i64,
    pub steps: u64,
    /// Each kind of finding once.
    pub findings: BTreeMap<String, String>,
    /// How often each function was called, and how often it answered.
    pub calls: BTreeMap<String, (u64, u64)>,
    /// How often each error came where.
    pub codes: BTreeMap<(String, String), u64>,
    pub last: VecDeque<String>,
    /// Updates of which every value was found again.
    pub exact: u64,
    pub digest: Option<String>,
    pub fingerprint: String,
    pub may_be_evicted: bool,
}

const LAST: usize = 150;

impl Fuzzer {
    pub async fn start(
        database: &str,
        owner: &str,
        low: &str,
        odd: &'static str,
        seed: u64,
    ) -> Self {
        let watch = Link::open(database, None, false).await;
        let mut links = Vec::new();
        for (role, is_odd) in [
            (None, false),
            (Some(owner), false),
            (Some(low), false),
            (None, true),
            (Some(owner), true),
        ] {
            links.push(Link::open(database, role, is_odd).await);
        }
        let mut fuzzer = Self {
            dice: Dice(seed),
            links,
            watch,
            odd,
            functions: Vec::new(),
            relations: Vec::new(),
            check: 0,
            granted: Vec::new(),
            attached: Vec::new(),
            highest: 0,
            steps: 0,
            findings: BTreeMap::new(),
            calls: BTreeMap::new(),
            codes: BTreeMap::new(),
            last: VecDeque::new(),
            exact: 0,
            digest: None,
            fingerprint: String::new(),
            may_be_evicted: false,
        };
        fuzzer.build().await;
        fuzzer
    }

    /// The scene, and what is known of it.
    async fn build(&mut self) {
        let role = |i: usize| self.links[i].role.clone().expect("a role");
        let scene = include_str!("scene.sql")
            .replace("$owner", &role(1))
            .replace("$low", &role(2))
            .replace("$odd", self.odd);
        self.watch.sql("RESET statement_timeout; RESET lock_timeout").await.expect("settings");
        self.watch.sql(&scene).await.expect("the scene");
        self.functions = calls::functions(&self.watch).await;
        self.relations = calls::relations(&self.watch).await;
        let check = self
            .watch
            .sql("SELECT 'public.fence_check()'::regprocedure::oid")
            .await
            .expect("the catalog");
        self.check = check[0].as_ref().expect("an OID").parse().expect("an OID");
        self.granted.clear();
        self.attached.clear();
        self.highest = 0;
        self.watch.set_up().await;
        self.watch.sql("SET statement_timeout = '60s'").await.expect("a setting");
        self.fingerprint = self.fingerprint().await.expect("the catalog");
        self.digest = self.digest().await;
    }

    /// Everything anew, as the tokens are used up.
    pub async fn rebuild(&mut self) {
        for link in &mut self.links {
            if link.block.take().is_some() {
                link.sql("ROLLBACK").await.expect("ROLLBACK");
            }
            link.sql("DISCARD ALL").await.expect("DISCARD ALL");
            link.set_up().await;
        }
        self.compare_fingerprints().await;
        self.watch
            .sql(
                "SET statement_timeout = '60s'; DROP SCHEMA fuzz, evil CASCADE; DROP FOREIGN DATA WRAPPER dummy CASCADE;
                 DROP EXTENSION lock_ext; CREATE EXTENSION lock_ext",
            )
            .await
            .expect("begun anew");
        self.build().await;
    }

    pub fn found(&mut self, kind: String, what: String) {
        let last: Vec<_> = self.last.iter().rev().take(12).rev().cloned().collect();
        self.findings.entry(kind).or_insert_with(|| {
            format!("{what}\n    at step {}, after\n    {}", self.steps, last.join("\n    "))
        });
    }

    fn note(&mut self, link: usize, what: &str) {
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        let shown: String = what.chars().take(600).collect();
        self.last.push_back(format!("session {link}: {shown}"));
    }

    pub fn world(&self, link: usize) -> World<'_> {
        World {
            relations: &self.relations,
            granted: &self.granted,
            attached: &self.attached,
            check: self.check,
            may_do_all: self.links[link].role.is_none(),
        }
    }

    // One statement

    /// Says a statement that is one of `what`, and judges its error. In a block that goes on the error is undone.
    pub async fn say(&mut self, link: usize, what: &str, sql: &str) -> bool {
        let guarded = self.guard(link).await;
        self.note(link, sql);
        let answer = self.links[link].sql(sql).await;
        let done = answer.is_ok();
        if let Err(error) = answer {
            self.judge(link, what, sql, &error, false).await;
        }
        self.settle(link, guarded, done).await;
        done
    }

    /// Calls a function in some way.
    pub async fn call(&mut self, link: usize, function: &Function) {
        let way = WAYS[self.dice.below(WAYS.len())];
        let mut dice = Dice(self.dice.next());
        let Some(values) = self.world(link).arguments(&mut dice, function, way.takes_zero_bytes())
        else {
            return self.found(
                format!("no values for {}", function.signature()),
                "teach them to calls.rs".to_owned(),
            );
        };
        let is_named = !function.is_private() && self.dice.one_in(3);
        let is_source = self.dice.one_in(3);
        let count = values.len();
        let names: Vec<String> =
            function.arguments.iter().map(|(name, _)| identifier(name)).collect();
        let name = function.name.clone();
        let call = move |places: &[String]| {
            let named = |i: usize| {
                if is_named && !names[i].is_empty() {
                    format!("{} => {}", names[i], places[i])
                } else {
                    places[i].clone()
                }
            };
            let list: Vec<String> = (0..count).map(named).collect();
            let call = format!("{name}({})", list.join(", "));
            if is_source && way != Way::Twice { format!("f.* FROM {call} AS f") } else { call }
        };
        let shown: Vec<String> = values.iter().map(|value| value.literal(true)).collect();
        let shown = format!("{way:?}: SELECT {}", call(&shown));
        self.may_be_evicted |= function.base() == "lease_evict";
        let guarded = self.guard(link).await;
        self.note(link, &shown);
        let answer = self.links[link].say(&call, &values, way).await;
        let tally = self.calls.entry(function.signature()).or_default();
        tally.0 += 1;
        tally.1 += u64::from(answer.is_ok());
        let done = answer.is_ok();
        match &answer {
            Ok(rows) => self.answered(link, function, &values, rows, &shown, way).await,
            Err(error) => {
                let own = self.refuses(&values, way).await;
                if own.as_ref() != Some(&error.code) || error.code == PgError::CLOSED {
                    self.judge(link, function.base(), &shown, error, way == Way::Caught).await;
                } else {
                    *self
                        .codes
                        .entry(("an argument's own type".to_owned(), error.code.clone()))
                        .or_default() += 1;
                }
            }
        }
        self.settle(link, guarded, done).await;
    }

    // Blocks

    /// In a block a savepoint, or nothing if an error may end the block; gives whether there is one, and what the session saw before.
    async fn guard(&mut self, link: usize) -> Option<Option<String>> {
        let block = self.links[link].block?;
        let looks =
            self.links[link].role.is_none() && !block.is_serializable && self.dice.one_in(4);
        self.links[link].sql("SAVEPOINT fuzz_s").await.ok()?;
        if !looks {
            return Some(None);
        }
        let seen = digest(&self.links[link]).await.ok();
        if seen.is_none() {
            self.links[link].sql("ROLLBACK TO fuzz_s").await.ok()?;
        }
        Some(seen)
    }

    async fn settle(&mut self, link: usize, guarded: Option<Option<String>>, done: bool) {
        let is_open = self.links[link].block.is_some();
        if is_open && !done {
            let undo = if guarded.is_some() && !self.dice.one_in(8) {
                "ROLLBACK TO fuzz_s"
            } else {
                "ROLLBACK"
            };
            match self.links[link].sql(undo).await {
                Ok(_) if undo == "ROLLBACK" => self.links[link].block = None,
                Ok(_) => {
                    if let Some(Some(before)) = guarded {
                        match digest(&self.links[link]).await {
                            Ok(after) if before != after => {
                                self.found(
                                    "an error in a block left something behind".to_owned(),
                                    self.last.back().cloned().unwrap_or_default(),
                                );
                            }
                            Ok(_) => {}
                            Err(_) => {
                                let _ = self.links[link].sql("ROLLBACK TO fuzz_s").await;
                            }
                        }
                    }
                }
                Err(error) => {
                    self.judge(link, "undo", undo, &error, false).await;
                    let _ = self.links[link].sql("ROLLBACK").await;
                    self.links[link].block = None;
                }
            }
        }
        let after = self.digest().await;
        if (is_open || !done)
            && let (Some(before), Some(after)) = (&self.digest, &after)
            && before != after
        {
            self.found(
                if is_open {
                    "something was committed in an open block"
                } else {
                    "an error left something behind"
                }
                .to_owned(),
                self.last.back().cloned().unwrap_or_default(),
            );
        }
        self.digest = after;
        if !is_open {
            self.check_locks(link).await;
        }
    }

    pub async fn begin(&mut self, link: usize) {
        let level = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][self.dice.below(3)];
        let block =
            Block { is_read_only: self.dice.one_in(12), is_serializable: level == "SERIALIZABLE" };
        let sql = format!(
            "BEGIN ISOLATION LEVEL {level}{}",
            if block.is_read_only { " READ ONLY" } else { "" }
        );
        self.note(link, &sql);
        match self.links[link].sql(&sql).await {
            Ok(_) => self.links[link].block = Some(block),
            Err(error) => self.judge(link, "begin", &sql, &error, false).await,
        }
    }

    pub async fn end(&mut self, link: usize) {
        // Of the whole server.
        let prepared = format!("'{}'", self.watch.database);
        let prepare = format!("PREPARE TRANSACTION {prepared}");
        let sql = match self.dice.below(12) {
            0..=7 => "COMMIT",
            8 => &prepare,
            _ => "ROLLBACK",
        };
        self.note(link, sql);
        let answer = self.links[link].sql(sql).await;
        self.links[link].block = None;
        match answer {
            Ok(_) if sql.starts_with("PREPARE") => {
                let end = if self.dice.one_in(2) { "COMMIT PREPARED" } else { "ROLLBACK PREPARED" };
                self.note(link, end);
                let name = format!("{end} {prepared}");
                if let Err(error) = self.watch.sql(&name).await {
                    self.found(format!("{end}: {}", error.code), error.to_string());
                }
            }
            Ok(_) => {}
            Err(error) => {
                self.judge(link, COMMIT, sql, &error, false).await;
                let before = self.digest.clone();
                let after = self.digest().await;
                if before.is_some() && after.is_some() && before != after {
                    self.found("a refused COMMIT left something behind".to_owned(), sql.to_owned());
                }
            }
        }
        self.digest = self.digest().await;
        self.check_locks(link).await;
    }
}
