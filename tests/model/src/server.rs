//! The server below the protocol: its WAL, what a crash leaves of it, a standby that lags behind, and the sequence.

use crate::Protocol;

/// A fencing token: the extension's number is `epoch * 2^42 + offset`, which orders in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    pub epoch: u8,
    pub offset: u8,
}

/// The lease's row.
///
/// It has no expiry. A lease may have expired whenever somebody looks, and may be alive at every heartbeat, so the model lets both
/// be decided freely: whatever a clock allows is among that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    pub token: Token,
    /// `expires_at is not null`: neither released nor completed.
    pub held: bool,
}

impl Row {
    /// `policy::Lease::is_current`
    pub fn is_current(self, token: Token) -> bool {
        self.token == token && self.held
    }
}

/// The sequence of the tokens. After a crash it goes on behind what it logged, not behind what it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence {
    pub last: Token,
    /// How many numbers more it may give before it logs again: SEQ_LOG_VALS, here one instead of 32.
    pub ahead: u8,
    /// The timeline that the last number was drawn on.
    pub timeline: u8,
}

const LOG_AHEAD: u8 = 1;

/// How far a promotion moves the clock that a new epoch starts at: further than numbers are drawn until the next one, of which the extension
/// has 256 a second.
pub const CLOCK_STEP: u8 = 32;

/// What a transaction commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    Grant(Token),
    End(Token),
    Write(Token),
    /// A write, and the end of the lease that was put off to the commit (`fence::Pending::End`).
    WriteAndEnd(Token),
    /// A write, and a heartbeat that was put off to the commit.
    WriteAndExtend(Token),
    /// A prepared write.
    Prepared(Token),
}

impl Change {
    /// The token under which something is written to a fenced table.
    pub fn written_under(self) -> Option<Token> {
        match self {
            Change::Write(token)
            | Change::WriteAndEnd(token)
            | Change::WriteAndExtend(token)
            | Change::Prepared(token) => Some(token),
            Change::Grant(_) | Change::End(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Record {
    Sequence(Sequence),
    Commit(Change),
    Prepare(Token),
    RollbackPrepared,
}

/// What the WAL up to some point makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Data {
    pub row: Option<Row>,
    pub prepared: Option<Token>,
    pub sequence: Sequence,
    pub timeline: u8,
}

impl Data {
    pub fn new() -> Self {
        let nothing = Token { epoch: 0, offset: 0 };
        let sequence = Sequence { last: nothing, ahead: 0, timeline: 1 };
        Data { row: None, prepared: None, sequence, timeline: 1 }
    }

    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Grant(token) => self.row = Some(Row { token, held: true }),
            Change::End(token) | Change::WriteAndEnd(token) => {
                self.row = Some(Row { token, held: false });
            }
            Change::Write(_) | Change::WriteAndExtend(_) => {}
            Change::Prepared(_) => self.prepared = None,
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Sequence(sequence) => self.sequence = sequence,
            Record::Commit(change) => self.apply(change),
            Record::Prepare(token) => self.prepared = Some(token),
            Record::RollbackPrepared => self.prepared = None,
        }
    }

    /// `pg_promote`, or `pg_ctl promote`: it goes on, on the next timeline that it knows of.
    fn promoted(mut self) -> Self {
        self.timeline += 1;
        self
    }

    /// A write by a token that is older than the row's: it was committed after the grant that supersedes it.
    fn is_too_late(&self, change: Change) -> bool {
        let written_under = change.written_under();
        written_under.is_some_and(|token| self.row.is_some_and(|row| token < row.token))
    }
}

impl Default for Data {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    /// As everybody sees it.
    pub now: Data,
    /// What follows the standby's position.
    wal: Vec<Record>,
    /// How many of these records are on disk. Only they are sent to the standby.
    flushed: usize,
    standby: Data,
    /// A second standby, that was left at some position and does not hear of the promotion of the first.
    forgotten: Option<Data>,
    /// How many promotions there were, in the time of the clock on the wall.
    pub promotions: u8,
}

impl Default for Server {
    fn default() -> Self {
        let data = Data::new();
        let wal = Vec::new();
        Server { now: data, wal, flushed: 0, standby: data, forgotten: None, promotions: 0 }
    }
}

impl Server {
    pub fn wal_length(&self) -> usize {
        self.wal.len()
    }

    pub fn has_unflushed(&self) -> bool {
        self.flushed < self.wal.len()
    }

    pub fn flushed(&self) -> usize {
        self.flushed
    }

    pub fn has_forgotten(&self) -> bool {
        self.forgotten.is_some()
    }

    /// Appends to the WAL, and gives the record's position: how many records lead up to it from the standby's on.
    pub fn log(&mut self, record: Record) -> usize {
        self.wal.push(record);
        self.wal.len()
    }

    pub fn flush(&mut self) {
        self.flushed = self.wal.len();
    }

    pub fn is_flushed(&self, position: usize) -> bool {
        position <= self.flushed
    }

    /// `XLogFlush` up to the position of the sequence's page (`Drawn::told`).
    pub fn flush_sequence(&mut self) {
        let logged = self.wal.iter().rposition(|r| matches!(r, Record::Sequence(_)));
        self.flushed = self.flushed.max(logged.map_or(0, |i| i + 1));
    }

    /// `token::draw`
    pub fn draw(&mut self, protocol: &Protocol) -> Token {
        let sequence = &mut self.now.sequence;
        let steps = self.now.timeline - sequence.timeline;
        if steps > 0 && protocol.epochs {
            let offset =
                if protocol.epoch_starts_at_the_clock { CLOCK_STEP * self.promotions } else { 0 };
            sequence.last = Token { epoch: sequence.last.epoch + steps, offset };
            sequence.ahead = 0;
            sequence.timeline = self.now.timeline;
        }
        sequence.last.offset += 1;
        let drawn = sequence.last;
        if sequence.ahead > 0 {
            sequence.ahead -= 1;
        } else {
            sequence.ahead = LOG_AHEAD;
            let last = Token { offset: drawn.offset + LOG_AHEAD, ..drawn };
            let logged = Sequence { last, ahead: 0, timeline: sequence.timeline };
            self.log(Record::Sequence(logged));
        }
        drawn
    }

    /// The standby replays one record. Gives false if it shows a write after the grant that supersedes it.
    pub fn replay(&mut self) -> bool {
        let record = self.wal.remove(0);
        self.flushed -= 1;
        let fine = !matches!(record, Record::Commit(change) if self.standby.is_too_late(change));
        self.standby.replay(record);
        fine
    }

    /// What was not flushed is lost.
    pub fn crash(&mut self) {
        self.wal.truncate(self.flushed);
        self.now = self.standby;
        for record in &self.wal {
            self.now.replay(*record);
        }
    }

    /// The primary is gone for good, with all that the standby has not replayed.
    pub fn fail_over(&mut self, protocol: &Protocol) {
        if protocol.forgotten_standby && self.forgotten.is_none() {
            self.forgotten = Some(self.standby);
        }
        self.promote(self.standby);
    }

    /// The forgotten standby is promoted. It takes the number of a timeline that was in use without it.
    pub fn fail_over_to_forgotten(&mut self) {
        if let Some(forgotten) = self.forgotten {
            self.promote(forgotten);
        }
    }

    fn promote(&mut self, standby: Data) {
        self.now = standby.promoted();
        self.standby = self.now;
        self.wal.clear();
        self.flushed = 0;
        self.promotions += 1;
    }
}
