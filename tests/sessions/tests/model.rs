//! Leases, fence, checkpoints and `once` in plain Rust: what the design says of sessions that take turns, one call at a time.
//!
//! A transaction is the list of its effects. Its own view is what is committed with its effects on top; its commit goes through
//! them in order and checks each that was done under a token: it is refused if that is superseded, or if another session
//! has acquired the name in a transaction that is still open. Where the right answer would be to wait for another session,
//! the model has none, and the history does something else.

use std::collections::BTreeSet;

pub const NAMES: usize = 3;
pub const SESSIONS: usize = 4;
pub const KEYS: usize = 6;

const STALE: &str = "LX001";
const NO_TOKEN: &str = "LX003";

/// What carries the token of a write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Carrier {
    /// Nothing but what `lease_fence` declared earlier in the transaction, if it did.
    Declared,
    /// The token column.
    Column(i64),
    FencedUpdate(i64),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    Begin {
        level: &'static str,
    },
    Commit,
    Rollback,
    Savepoint,
    RollbackToSavepoint,
    ReleaseSavepoint,
    /// The session's client crashes; another one takes its place.
    Crash,
    /// `short`: with a time to live that is over before the next step.
    Acquire {
        name: usize,
        short: bool,
    },
    Extend {
        name: usize,
        token: i64,
        short: bool,
    },
    Release {
        name: usize,
        token: i64,
    },
    Complete {
        name: usize,
        token: i64,
    },
    ForceRelease {
        name: usize,
    },
    Prune,
    IsCurrent {
        name: usize,
        token: i64,
    },
    Fence {
        name: usize,
        token: i64,
    },
    /// Of the session's own row in one of its own two tables, so that nobody waits for a row.
    Write {
        name: usize,
        stamped: bool,
        carrier: Carrier,
        v: i32,
    },
    Checkpoint {
        name: usize,
        token: i64,
        v: i32,
    },
    ReadCheckpoint {
        name: usize,
    },
    Once {
        key: usize,
    },
    Status {
        name: usize,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Done,
    /// Of the model: some token above all earlier ones.
    NewToken,
    Token(i64),
    Null,
    Expiry,
    Bool(bool),
    Rows(u64),
    Count(i64),
    Checkpoint(Option<i32>),
    /// State and, while there is a holder, its token.
    Status(Option<(&'static str, Option<i64>)>),
    Error(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Never granted, or pruned.
    Absent,
    Free,
    Held,
    Expired,
    Completed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Lease {
    phase: Phase,
    /// The last one granted, of a transaction that committed.
    token: i64,
    checkpoint: Option<(i64, i32)>,
}

impl Lease {
    const NEW: Self = Self { phase: Phase::Absent, token: 0, checkpoint: None };

    /// May a write carry it? Expired is not superseded.
    fn is_current(&self, token: i64) -> bool {
        self.token == token && matches!(self.phase, Phase::Held | Phase::Expired)
    }

    fn is_reliable(&self, token: i64) -> bool {
        self.token == token && self.phase == Phase::Held
    }

    fn status(&self) -> Option<(&'static str, Option<i64>)> {
        match self.phase {
            Phase::Absent => None,
            Phase::Free => Some(("free", None)),
            Phase::Held => Some(("held", Some(self.token))),
            Phase::Expired => Some(("expired", Some(self.token))),
            Phase::Completed => Some(("completed", None)),
        }
    }

    fn save(&mut self, token: i64, v: i32) {
        if self.checkpoint.is_none_or(|(saved, _)| saved <= token) {
            self.checkpoint = Some((token, v));
        }
    }
}

/// A row of a fenced table: its value, and its token where the table has a column for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Row {
    pub v: i32,
    pub token: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Effect {
    Grant { name: usize, token: i64, phase: Phase },
    Extend { name: usize, token: i64 },
    End { name: usize, token: i64, phase: Phase },
    Fence { name: usize, token: i64 },
    Write { name: usize, token: i64, stamped: bool, v: i32 },
    Checkpoint { name: usize, token: i64, v: i32 },
    Once { key: usize },
}

impl Effect {
    /// What its commit is checked for.
    fn under(&self) -> Option<(usize, i64)> {
        match *self {
            Self::Extend { name, token }
            | Self::End { name, token, .. }
            | Self::Write { name, token, .. }
            | Self::Checkpoint { name, token, .. } => Some((name, token)),
            Self::Grant { .. } | Self::Fence { .. } | Self::Once { .. } => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Transaction {
    effects: Vec<Effect>,
    /// How many effects there were at each open savepoint.
    savepoints: Vec<usize>,
    aborted: bool,
    /// Something was rolled back to a savepoint. Whether anything else is written the server may then not know for certain.
    undone: bool,
}

/// What is committed.
#[derive(Clone, Debug)]
struct World {
    leases: [Lease; NAMES],
    /// By session, lease, and whether the table is the stamped one.
    rows: [[[Row; 2]; NAMES]; SESSIONS],
    keys: BTreeSet<usize>,
}

impl World {
    fn apply(&mut self, who: usize, effect: Effect) {
        match effect {
            Effect::Grant { name, token, phase } => {
                let lease = &mut self.leases[name];
                (lease.token, lease.phase) = (token, phase);
            }
            Effect::Extend { name, token } => {
                let lease = &mut self.leases[name];
                if lease.is_current(token) {
                    lease.phase = Phase::Held;
                }
            }
            Effect::End { name, token, phase } => {
                let lease = &mut self.leases[name];
                if lease.is_current(token) {
                    lease.phase = phase;
                }
            }
            Effect::Fence { .. } => {}
            Effect::Write { name, token, stamped, v } => {
                self.rows[who][name][usize::from(stamped)] =
                    Row { v, token: stamped.then_some(token) };
            }
            Effect::Checkpoint { name, token, v } => self.leases[name].save(token, v),
            Effect::Once { key } => {
                self.keys.insert(key);
            }
        }
    }
}

/// What a step does, once its answer is known.
#[derive(Clone, Debug)]
enum Then {
    Nothing,
    Begin,
    Commit(Box<World>),
    End,
    Abort,
    Savepoint,
    RollbackToSavepoint,
    ReleaseSavepoint,
    Grant { name: usize, phase: Phase },
    Effect(Effect),
    Force { name: usize },
    Prune { names: Vec<usize> },
    Expire { name: usize },
}

pub struct Step {
    pub answer: Answer,
    then: Then,
}

pub struct Model {
    world: World,
    open: [Option<Transaction>; SESSIONS],
    /// The highest token that was ever told, also by a transaction that was rolled back.
    highest: i64,
    told: [Vec<i64>; NAMES],
}

impl Model {
    /// `highest`: the tokens of the database so far.
    pub fn new(highest: i64) -> Self {
        let world = World {
            leases: [Lease::NEW; NAMES],
            rows: [[[Row::default(); 2]; NAMES]; SESSIONS],
            keys: BTreeSet::new(),
        };
        Self { world, open: Default::default(), highest, told: Default::default() }
    }

    // What the history's random choices look at.

    pub fn in_transaction(&self, who: usize) -> bool {
        self.open[who].is_some()
    }

    pub fn is_aborted(&self, who: usize) -> bool {
        self.open[who].as_ref().is_some_and(|t| t.aborted)
    }

    pub fn has_savepoint(&self, who: usize) -> bool {
        self.open[who].as_ref().is_some_and(|t| !t.savepoints.is_empty())
    }

    /// The token that the session would believe in.
    pub fn token(&self, who: usize, name: usize) -> i64 {
        self.view(who).leases[name].token
    }

    /// All tokens that were told for the name.
    pub fn told(&self, name: usize) -> &[i64] {
        &self.told[name]
    }

    pub fn highest(&self) -> i64 {
        self.highest
    }

    // The end of a history.

    pub fn status(&self, name: usize) -> Option<(&'static str, Option<i64>)> {
        self.world.leases[name].status()
    }

    pub fn checkpoint(&self, name: usize) -> Option<i32> {
        self.world.leases[name].checkpoint.map(|(_, v)| v)
    }

    pub fn row(&self, who: usize, name: usize, stamped: bool) -> Row {
        self.world.rows[who][name][usize::from(stamped)]
    }

    pub fn is_done(&self, key: usize) -> bool {
        self.world.keys.contains(&key)
    }

    /// What is committed, and what the session has done in its open transaction.
    fn view(&self, who: usize) -> World {
        let mut world = self.world.clone();
        for effect in self.effects(who) {
            world.apply(who, *effect);
        }
        world
    }

    fn effects(&self, who: usize) -> &[Effect] {
        self.open[who].as_ref().map_or(&[], |t| &t.effects)
    }

    fn others_effects(&self, who: usize) -> impl Iterator<Item = &Effect> {
        (0..SESSIONS).filter(move |other| *other != who).flat_map(|other| self.effects(other))
    }

    /// Another session's grant that is not decided yet.
    fn is_being_granted(&self, who: usize, name: usize) -> bool {
        self.others_effects(who)
            .any(|e| matches!(e, Effect::Grant { name: other, .. } if *other == name))
    }

    /// Nobody has it, and no other transaction acts under a token of it.
    fn is_prunable(&self, who: usize, name: usize) -> bool {
        let acts_under = |e: &Effect| matches!(e, Effect::Fence { name: n, .. } | Effect::Write { name: n, .. } | Effect::Checkpoint { name: n, .. } if *n == name);
        matches!(self.world.leases[name].phase, Phase::Free | Phase::Expired)
            && !self.others_effects(who).any(acts_under)
    }

    /// What `lease_fence` declared last.
    fn declared(&self, who: usize, name: usize) -> Option<i64> {
        self.effects(who).iter().rev().find_map(|effect| match *effect {
            Effect::Fence { name: fenced, token } if fenced == name => Some(token),
            _ => None,
        })
    }

    /// The answer and what follows from it, or None: it would have to wait, or the design leaves it open.
    pub fn step(&self, who: usize, op: &Op) -> Option<Step> {
        let step = |answer, then| Some(Step { answer, then });
        let error = |code: &str| step(Answer::Error(code.to_owned()), Then::Abort);
        let view = self.view(who);
        let is_current = |name: usize, token| view.leases[name].is_current(token);
        // A statement of its own is checked for its commit, too.
        let is_late = |name: usize| !self.in_transaction(who) && self.is_being_granted(who, name);
        match *op {
            Op::Begin { .. } => step(Answer::Done, Then::Begin),
            Op::Rollback | Op::Crash => step(Answer::Done, Then::End),
            Op::Commit if self.is_aborted(who) => step(Answer::Done, Then::End),
            Op::Commit => self.commit(who),
            Op::Savepoint => step(Answer::Done, Then::Savepoint),
            Op::RollbackToSavepoint => step(Answer::Done, Then::RollbackToSavepoint),
            Op::ReleaseSavepoint => step(Answer::Done, Then::ReleaseSavepoint),

            Op::Acquire { name, short } => {
                let grantable =
                    matches!(view.leases[name].phase, Phase::Absent | Phase::Free | Phase::Expired);
                if !grantable || self.is_being_granted(who, name) {
                    return step(Answer::Null, Then::Nothing);
                }
                let phase = if short { Phase::Expired } else { Phase::Held };
                step(Answer::NewToken, Then::Grant { name, phase })
            }
            Op::Extend { name, token, short } => {
                if !view.leases[name].is_reliable(token) || self.is_being_granted(who, name) {
                    return step(Answer::Null, Then::Nothing);
                }
                if !short {
                    return step(Answer::Expiry, Then::Effect(Effect::Extend { name, token }));
                }
                // An extension that another session has not committed yet would make the lease live again, or come
                // too late: by the clock, not by what the sessions say.
                let pending =
                    |e: &Effect| matches!(e, Effect::Extend { name: other, .. } if *other == name);
                if self.in_transaction(who) || self.others_effects(who).any(pending) {
                    return None;
                }
                step(Answer::Expiry, Then::Expire { name })
            }
            Op::Release { name, token } | Op::Complete { name, token } => {
                if !is_current(name, token) || self.is_being_granted(who, name) {
                    return step(Answer::Bool(false), Then::Nothing);
                }
                let phase =
                    if matches!(op, Op::Release { .. }) { Phase::Free } else { Phase::Completed };
                step(Answer::Bool(true), Then::Effect(Effect::End { name, token, phase }))
            }
            Op::ForceRelease { name } => {
                if self.in_transaction(who) || self.is_being_granted(who, name) {
                    return None;
                }
                let ended = !matches!(view.leases[name].phase, Phase::Absent | Phase::Free);
                step(Answer::Bool(ended), if ended { Then::Force { name } } else { Then::Nothing })
            }
            Op::Prune => {
                if self.in_transaction(who)
                    || (0..NAMES).any(|name| self.is_being_granted(who, name))
                {
                    return None;
                }
                let pruned: Vec<usize> =
                    (0..NAMES).filter(|name| self.is_prunable(who, *name)).collect();
                step(Answer::Count(pruned.len() as i64), Then::Prune { names: pruned })
            }
            // Another session may have released it and acquired it again in its open transaction.
            Op::IsCurrent { name, token }
                if self.is_being_granted(who, name) && view.leases[name].is_reliable(token) =>
            {
                None
            }
            Op::IsCurrent { name, token } => {
                step(Answer::Bool(view.leases[name].is_reliable(token)), Then::Nothing)
            }
            Op::Fence { name, token } => {
                if !is_current(name, token) {
                    return error(STALE);
                }
                step(Answer::Done, Then::Effect(Effect::Fence { name, token }))
            }
            Op::Write { name, stamped, carrier, v } => {
                // The transaction's own word comes before the column's.
                let declared = self.declared(who, name);
                let token = match carrier {
                    Carrier::Declared => declared,
                    Carrier::Column(token) => declared.or(Some(token)),
                    Carrier::FencedUpdate(token) => Some(token),
                };
                let Some(token) = token else {
                    return error(NO_TOKEN);
                };
                if !is_current(name, token) || is_late(name) {
                    return error(STALE);
                }
                step(Answer::Rows(1), Then::Effect(Effect::Write { name, token, stamped, v }))
            }
            Op::Checkpoint { name, token, v } => {
                if !is_current(name, token) {
                    return error(STALE);
                }
                // Two sessions of one holder wait for each other as for any row.
                let same = |e: &Effect| matches!(e, Effect::Checkpoint { name: n, token: t, .. } if (*n, *t) == (name, token));
                if self.others_effects(who).any(same) {
                    return None;
                }
                if is_late(name) {
                    return error(STALE);
                }
                step(Answer::Done, Then::Effect(Effect::Checkpoint { name, token, v }))
            }
            Op::ReadCheckpoint { name } => step(
                Answer::Checkpoint(view.leases[name].checkpoint.map(|(_, v)| v)),
                Then::Nothing,
            ),
            Op::Once { key } => {
                if view.keys.contains(&key) {
                    return step(Answer::Bool(false), Then::Nothing);
                }
                if self.others_effects(who).any(|e| *e == Effect::Once { key }) {
                    return None;
                }
                step(Answer::Bool(true), Then::Effect(Effect::Once { key }))
            }
            Op::Status { name } => step(Answer::Status(view.leases[name].status()), Then::Nothing),
        }
    }

    fn commit(&self, who: usize) -> Option<Step> {
        let mut world = self.world.clone();
        let effects = self.effects(who);
        let is_unsure = self.open[who].as_ref().is_some_and(|t| t.undone);
        // What was written until the next token of that lease was declared carried this one.
        let has_written = |name: usize, token: i64, from: usize| {
            let is_next = |e: &Effect| matches!(e, Effect::Fence { name: n, token: t } if *n == name && *t != token);
            let until =
                effects[from..].iter().position(is_next).map_or(effects.len(), |i| from + i);
            effects[..until].iter().any(|e| !matches!(e, Effect::Fence { .. }))
        };
        for (index, effect) in effects.iter().enumerate() {
            let is_late = |(name, token): (usize, i64)| {
                !world.leases[name].is_current(token) || self.is_being_granted(who, name)
            };
            if effect.under().is_some_and(is_late) {
                return Some(Step { answer: Answer::Error(STALE.to_owned()), then: Then::End });
            }
            if let Effect::Fence { name, token } = *effect
                && is_late((name, token))
            {
                if has_written(name, token, index) {
                    return Some(Step { answer: Answer::Error(STALE.to_owned()), then: Then::End });
                } else if is_unsure {
                    return None;
                }
            }
            world.apply(who, *effect);
        }
        Some(Step { answer: Answer::Done, then: Then::Commit(Box::new(world)) })
    }

    /// Compares the answer with the model's and goes on from it.
    pub fn settle(&mut self, who: usize, step: Step, answer: &Answer) -> Result<(), String> {
        let as_expected = match (&step.answer, answer) {
            (Answer::NewToken, Answer::Token(token)) => *token > self.highest,
            (expected, answer) => expected == answer,
        };
        if !as_expected {
            return Err(format!(
                "{answer:?} instead of {:?} (tokens up to {})",
                step.answer, self.highest
            ));
        }
        match step.then {
            Then::Nothing => {}
            Then::Begin => self.open[who] = Some(Transaction::default()),
            Then::Commit(world) => {
                self.world = *world;
                self.open[who] = None;
            }
            Then::End => self.open[who] = None,
            Then::Abort => {
                // What was done since the last savepoint is gone at once, the locks too; the rest waits for what follows.
                if let Some(transaction) = &mut self.open[who] {
                    (transaction.aborted, transaction.undone) = (true, true);
                    transaction
                        .effects
                        .truncate(transaction.savepoints.last().copied().unwrap_or_default());
                }
            }
            Then::Savepoint => {
                let transaction = self.transaction(who);
                transaction.savepoints.push(transaction.effects.len());
            }
            Then::RollbackToSavepoint => {
                let transaction = self.transaction(who);
                let effects = *transaction.savepoints.last().expect("a savepoint");
                transaction.effects.truncate(effects);
                (transaction.aborted, transaction.undone) = (false, true);
            }
            Then::ReleaseSavepoint => {
                self.transaction(who).savepoints.pop();
            }
            Then::Grant { name, phase } => {
                if let Answer::Token(token) = *answer {
                    self.highest = token;
                    self.told[name].push(token);
                    self.happen(who, Effect::Grant { name, token, phase });
                }
            }
            Then::Effect(effect) => self.happen(who, effect),
            Then::Force { name } => self.world.leases[name].phase = Phase::Free,
            Then::Prune { names } => {
                names.into_iter().for_each(|name| self.world.leases[name] = Lease::NEW);
            }
            Then::Expire { name } => self.world.leases[name].phase = Phase::Expired,
        }
        Ok(())
    }

    fn transaction(&mut self, who: usize) -> &mut Transaction {
        self.open[who].as_mut().expect("an open transaction")
    }

    fn happen(&mut self, who: usize, effect: Effect) {
        match &mut self.open[who] {
            Some(transaction) => transaction.effects.push(effect),
            None => self.world.apply(who, effect),
        }
    }
}
