//! What happened, as text.

use crate::director::{Moment, Run, What};
use crate::event::Event;
use crate::job::{ASK_AGAIN, CHUNK, Protection, TIME_TO_LIVE};
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// One line of the timeline.
pub struct Line {
    pub at: Duration,
    pub who: Who,
    pub worker: usize,
    /// The token that the worker thinks it holds.
    pub token: Option<i64>,
    pub text: String,
    /// DETAIL and HINT of an error.
    pub details: Vec<String>,
    pub tone: Tone,
}

/// Who has the numbers.
#[derive(Clone, Copy, Default)]
pub enum Who {
    #[default]
    Worker,
    Node,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Node => "node",
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// The work going on.
    Work,
    /// A turn of the story.
    Turn,
    /// The fence did its duty.
    Saved,
    /// Somebody was paid twice.
    Harm,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.map_or(String::new(), |token| format!("token {token}"));
        let at = self.at.as_secs_f64();
        let name = format!("{}-{}", self.who, self.worker);
        write!(f, "{at:>7.3} s  {name:<8}  {token:<8}  {}", self.text)?;
        self.details.iter().try_for_each(|detail| write!(f, "\n{:>33}{detail}", ""))
    }
}

/// Turns moments into lines: chunks paid in a row become one, heartbeats and repeated questions none.
#[derive(Default)]
pub struct Teller {
    who: Who,
    tokens: HashMap<usize, i64>,
    asked: HashMap<usize, bool>,
    paid_up_to: i32,
    /// The worker that was woken up and has not told anything about its open chunk yet.
    woken: Option<usize>,
    row: Option<Row>,
}

/// Chunks that one worker paid one after the other.
struct Row {
    at: Duration,
    worker: usize,
    token: Option<i64>,
    first: i32,
    last: i32,
    /// Paid by the other one already.
    again: bool,
    /// The open chunk of a worker that was frozen.
    late: bool,
}

impl Teller {
    pub fn of(who: Who) -> Self {
        Self { who, ..Self::default() }
    }

    pub fn tell(&mut self, moment: &Moment) -> Vec<Line> {
        let event = match &moment.what {
            What::Told(Event::Extended) => return vec![],
            What::Told(Event::Busy) if self.asked.insert(moment.worker, true).is_some() => {
                return vec![];
            }
            What::Told(Event::Paid { first, last }) => return self.paid(moment, *first, *last),
            What::Told(event) => Some(event),
            _ => None,
        };
        if let Some(Event::Granted { token } | Event::Served { token }) = event {
            self.tokens.insert(moment.worker, *token);
        }
        if let What::Woken { .. } = moment.what {
            self.woken = Some(moment.worker);
        }
        let line = Line {
            at: moment.at,
            who: self.who,
            worker: moment.worker,
            token: self.tokens.get(&moment.worker).copied(),
            text: text(&moment.what),
            details: details(event),
            tone: tone(&moment.what),
        };
        self.rest().into_iter().chain([line]).collect()
    }

    /// The row of chunks that was still growing.
    pub fn rest(&mut self) -> Option<Line> {
        self.row.take().map(Row::into_line)
    }

    fn paid(&mut self, moment: &Moment, first: i32, last: i32) -> Vec<Line> {
        let again = last <= self.paid_up_to;
        self.paid_up_to = self.paid_up_to.max(last);
        let late = self.woken.take_if(|worker| *worker == moment.worker).is_some();
        if let Some(row) = &mut self.row
            && row.worker == moment.worker
            && row.again == again
            && !row.late
            && row.last + 1 == first
        {
            row.last = last;
            return vec![];
        }
        let token = self.tokens.get(&moment.worker).copied();
        let row = Row { at: moment.at, worker: moment.worker, token, first, last, again, late };
        self.row.replace(row).map(Row::into_line).into_iter().collect()
    }
}

impl Row {
    fn into_line(self) -> Line {
        let chunks = (self.last - self.first + 1) / CHUNK;
        let chunks = if chunks == 1 { "1 chunk".into() } else { format!("{chunks} chunks") };
        let (first, last) = (number(self.first.into()), number(self.last.into()));
        let late = if self.late { "COMMIT of the open chunk goes through: " } else { "" };
        let again = if self.again { ", for the SECOND time" } else { "" };
        Line {
            at: self.at,
            who: Who::Worker,
            worker: self.worker,
            token: self.token,
            text: format!("{late}paid players {first} to {last} ({chunks}){again}"),
            details: vec![],
            tone: match self {
                Row { again: true, .. } => Tone::Harm,
                Row { late: true, .. } => Tone::Turn,
                _ => Tone::Work,
            },
        }
    }
}

fn text(what: &What) -> String {
    match what {
        What::Frozen => "SIGSTOP: frozen in the open transaction".into(),
        What::Blocked => "waits for rows that the frozen transaction has locked".into(),
        What::Woken { after } => format!("SIGCONT: wakes up after {:.1} s", after.as_secs_f64()),
        What::InLine { place } => format!("stands in line, place {place}"),
        What::Killed => "SIGKILL: gone, without a word to anybody".into(),
        What::Told(event) => match event {
            Event::Busy => {
                format!("lease_acquire gave NULL; asks again every {} ms", ASK_AGAIN.as_millis())
            }
            Event::Granted { token } => {
                format!(
                    "lease_acquire gave token {token}, time to live {} s",
                    TIME_TO_LIVE.as_secs()
                )
            }
            Event::Evicted { pids } => {
                let sessions = if pids.len() == 1 { "session" } else { "sessions" };
                format!(
                    "lease_evict ended {} {sessions}: the frozen transaction is gone",
                    pids.len()
                )
            }
            Event::StartsAfter { after_player: 0 } => "starts with the first player".into(),
            Event::StartsAfter { after_player } => {
                format!(
                    "goes on where the last commit ended, after player {}",
                    number((*after_player).into())
                )
            }
            Event::Extended => "lease_extend".into(),
            Event::HeartbeatStopped { why } => format!("the heartbeat stops: {why}"),
            Event::InOpenChunk { first, last } => {
                let (first, last) = (number((*first).into()), number((*last).into()));
                format!("wrote players {first} to {last}, COMMIT still to come")
            }
            Event::Paid { first, last } => format!("paid players {first} to {last}"),
            Event::ConnectionLost { error: Some(error) } => {
                format!("COMMIT failed: {error}")
            }
            Event::ConnectionLost { error: None } => "COMMIT failed: connection closed".into(),
            Event::ConnectedAgain { after_player } => {
                let player = number((*after_player).into());
                format!(
                    "connects again and tries to go on after player {player}, under its old token"
                )
            }
            Event::Refused { error } => format!("refused: {error}"),
            Event::Stopped { why } => format!("stops: {why}"),
            Event::Completed => "lease_complete: done for today".into(),
            Event::Served { token } => format!("lease_acquire_session gave token {token}"),
            Event::Entered => "wrote its entry under its token".into(),
            Event::Released => "lease_release".into(),
            Event::Failed { why } => format!("failed: {why}"),
        },
    }
}

fn details(event: Option<&Event>) -> Vec<String> {
    let Some(Event::Refused { error }) = event else {
        return vec![];
    };
    let detail = error.detail.iter().map(|text| format!("DETAIL:  {text}"));
    let hint = error.hint.iter().map(|text| format!("HINT:  {text}"));
    detail.chain(hint).collect()
}

fn tone(what: &What) -> Tone {
    match what {
        What::Told(
            Event::Busy
            | Event::Extended
            | Event::HeartbeatStopped { .. }
            | Event::InOpenChunk { .. }
            | Event::StartsAfter { after_player: 0 },
        ) => Tone::Work,
        What::Told(Event::Refused { .. }) => Tone::Saved,
        _ => Tone::Turn,
    }
}

/// The table in the end.
pub fn bill(runs: &[&Run]) -> String {
    let mut lines = vec![format!(
        "{:<16}{:>12}{:>12}{:>12}{:>14}{:>14}",
        "players paid", "never", "once", "twice", "due", "paid out"
    )];
    for Run { protection, bill, .. } in runs {
        lines.push(format!(
            "{:<16}{:>12}{:>12}{:>12}{:>14}{:>14}",
            protection.title(),
            number(bill.never),
            number(bill.once),
            number(bill.twice),
            number(bill.due),
            number(bill.paid)
        ));
    }
    lines.join("\n")
}

/// What the run shows, in half a sentence.
pub fn verdict(run: &Run) -> String {
    let bill = &run.bill;
    let title = match run.protection {
        Protection::Fence => "With the fence",
        Protection::LeaseOnly => "The same lease, without the fence",
    };
    let (never, once, twice) = (number(bill.never), number(bill.once), number(bill.twice));
    format!("{title}: players paid never {never}, once {once}, twice {twice}")
}

/// With separators between thousands.
pub fn number(value: i64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
