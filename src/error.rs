//! The one list of what can go wrong, each with its SQLSTATE, DETAIL and HINT, and the way in which it is raised.
//!
//! pgrx knows PostgreSQL's own SQLSTATEs only, and cannot set the table of an error. Both are added by a callback of
//! PostgreSQL's error context stack, which runs while the error is being finished ([`raise`]).

use crate::types::{Kind, MAX_LABEL_BYTES, MAX_TOKEN, Token};
use crate::{pg, text};
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use thiserror::Error as ThisError;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a token is not the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// A later grant has another token.
    Superseded { current: Token },
    /// Released or completed, by its holder or by force.
    Released,
    /// Another transaction is acquiring or ending the lease, and was first.
    Contested,
    /// The lease has never seen it.
    NeverGranted { current: Option<Token> },
}

/// The table whose write was refused; sent as the error's schema and table name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    pub schema: String,
    pub table: String,
}

#[derive(Debug, ThisError)]
pub enum Error {
    #[error("{what} must not be null")]
    Null { what: String },
    #[error("{kind} must not be empty")]
    Empty { kind: Kind },
    #[error("{kind} is too long")]
    TooLong { kind: Kind, bytes: usize },
    #[error("time to live is out of range")]
    TtlRange { max_ms: i32 },
    #[error("time to live cannot be given in months or years")]
    TtlMonths,
    #[error("wait must be zero or more, without months or years")]
    WaitRange,
    #[error("canceling statement due to lock timeout")]
    LockTimeout,
    #[error("lease \"{lease}\" is bound to a session and has no time to live")]
    SessionBound { lease: String },
    #[error("lease \"{lease}\" is bound to another session")]
    OtherSession { lease: String, pid: i32 },
    #[error("arrays of names and tokens must be equally long")]
    ArrayShape { names: usize, tokens: usize },
    #[error("fencing token {given} of lease \"{lease}\" is not current")]
    Stale { lease: String, given: Token, why: Stale, at_commit: bool, table: Option<TableName> },
    #[error("fencing token {given} of lease \"{lease}\" is expired")]
    Expired { lease: String, given: Token, at_commit: bool, table: Option<TableName> },
    #[error("fencing token {given} of lease \"{lease}\" is lower than the row's")]
    RowIsNewer { lease: String, given: Token, row: Token, table: TableName },
    #[error("token {given} of resource \"{resource}\" is not the highest")]
    Overtaken { resource: String, given: Token, highest: Token, at_commit: bool },
    #[error("write to fenced table \"{}\" carries no fencing token", table.table)]
    NoToken {
        lease: String,
        /// The column that could have carried one.
        column: Option<String>,
        /// The lease is the row's, not the table's.
        by_row: bool,
        /// Leases that the transaction carries tokens of.
        others: Vec<String>,
        table: TableName,
    },
    #[error("row of fenced table \"{}\" names no lease", table.table)]
    NoLease { column: String, table: TableName },
    #[error("cannot truncate table \"{}\", whose rows have leases of their own", table.table)]
    TruncateByRow { table: TableName },
    #[error("permission denied for lease \"{lease}\"")]
    ForeignLease { lease: String, role: String },
    #[error("permission denied for checkpoint of lease \"{lease}\"")]
    ForeignCheckpoint { lease: String },
    #[error("cannot execute {function}() during recovery")]
    Standby { function: &'static str },
    #[error("cannot execute {function}() in a read-only transaction")]
    ReadOnly { function: &'static str },
    #[error("cannot execute {function}() during a parallel operation")]
    Parallel { function: &'static str },
    #[error("table \"{table}\" of lock_ext {what}")]
    Altered { table: String, what: &'static str },
    #[error("too many leases or resources in one transaction")]
    LockTableFull,
    #[error("cannot PREPARE a transaction that has extended lease \"{lease}\"")]
    PreparedExtension { lease: String },
    #[error("cannot PREPARE a transaction that has acquired or ended a lease bound to its session")]
    PreparedSession,
    #[error("{what} is out of range")]
    SpanRange { what: &'static str, max_ms: i32 },
    #[error("token floor is out of range")]
    FloorRange,
    #[error("{what} must be zero or more, without months or years")]
    AgeRange { what: &'static str },
    #[error("fence_check() must be called as a trigger")]
    NotATrigger,
    #[error("trigger \"{trigger}\" of table \"{}\" does not fit fence_check()", table.table)]
    TriggerShape { trigger: String, table: TableName, want: &'static str },
    #[error("column \"{column}\" of relation \"{table}\" does not exist")]
    NoColumn { table: String, column: String },
    #[error("column \"{column}\" of fenced table \"{}\" does not exist", table.table)]
    FenceColumnGone { column: String, table: TableName },
    #[error("token column \"{column}\" must be a bigint that can be written, and no key")]
    ColumnType { column: String },
    #[error(
        "lease column \"{column}\" must be one that can be written, of a type with one text form"
    )]
    LeaseColumnType { column: String },
    #[error("token column and lease column must be different")]
    SameColumn,
    #[error("partition \"{relation}\" has its fence from table \"{parent}\"")]
    FencedByParent { relation: String, parent: String },
    #[error("table \"{relation}\" has a lease for each row")]
    LeaseByRow { relation: String, column: String },
    #[error("cannot fence \"{relation}\"")]
    NotFenceable { relation: String, what: &'static str },
    #[error("permission denied for table {relation}")]
    MayNotUpdate { relation: String },
    #[error("cannot evict under a grant that is not committed")]
    EvictUncommitted,
    #[error("must be owner of table {relation}")]
    NotOwner { relation: String },
    #[error("table \"{relation}\" holds token {found}, which is above every granted one")]
    TokensAhead { relation: String, found: Token },
    #[error("table \"{relation}\" has no fence")]
    NotFenced { relation: String },
    #[error("relation with OID {oid} does not exist")]
    NoTable { oid: u32 },
    #[error("{what} must be a JSON object")]
    NotAnObject { what: &'static str },
    #[error("filter must not be empty")]
    EmptyFilter,
    #[error("changes must not be empty")]
    EmptyChanges,
    #[error("could not identify an equality operator for type {type_name}")]
    NoEquality { type_name: String },
    #[error("extension lock_ext is not installed in this database")]
    NotInstalled,
    #[error("text is not valid in any encoding that lock_ext can name an object in")]
    NotText,
    #[error("there are no more fencing tokens")]
    TokensUsedUp,
    #[error("internal error of lock_ext: {0}")]
    Internal(&'static str),
}

/// SQLSTATEs of the private class LX, which clients branch on. The standard leaves classes that begin with I to Z to
/// implementations; PostgreSQL itself uses P0 and XX.
const SUPERSEDED: &[u8; 5] = b"LX001";
const EXPIRED: &[u8; 5] = b"LX002";
const NO_TOKEN: &[u8; 5] = b"LX003";

impl Error {
    /// The standard code, or the nearest one where [`Error::private_code`] says more.
    fn code(&self) -> Code {
        use Error::*;
        match self {
            Null { .. } | NoLease { .. } => Code::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            TooLong { .. } => Code::ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
            Empty { .. }
            | TtlRange { .. }
            | TtlMonths
            | WaitRange
            | ArrayShape { .. }
            | FloorRange
            | SameColumn
            | SpanRange { .. }
            | SessionBound { .. }
            | AgeRange { .. }
            | EmptyFilter
            | EmptyChanges => Code::ERRCODE_INVALID_PARAMETER_VALUE,
            LockTimeout => Code::ERRCODE_LOCK_NOT_AVAILABLE,
            PreparedExtension { .. } | PreparedSession => Code::ERRCODE_FEATURE_NOT_SUPPORTED,
            Stale { .. }
            | Expired { .. }
            | RowIsNewer { .. }
            | Overtaken { .. }
            | NoToken { .. }
            | OtherSession { .. }
            | TruncateByRow { .. }
            | FencedByParent { .. }
            | LeaseByRow { .. }
            | NotFenced { .. }
            | TokensAhead { .. } => Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            ForeignLease { .. }
            | ForeignCheckpoint { .. }
            | NotOwner { .. }
            | MayNotUpdate { .. } => Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
            Standby { .. } | ReadOnly { .. } => Code::ERRCODE_READ_ONLY_SQL_TRANSACTION,
            LockTableFull => Code::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            NotATrigger | TriggerShape { .. } => Code::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
            NoColumn { .. } | FenceColumnGone { .. } => Code::ERRCODE_UNDEFINED_COLUMN,
            NoTable { .. } => Code::ERRCODE_UNDEFINED_TABLE,
            NotAnObject { .. } => Code::ERRCODE_INVALID_PARAMETER_VALUE,
            ColumnType { .. } | LeaseColumnType { .. } => Code::ERRCODE_DATATYPE_MISMATCH,
            NotFenceable { .. } => Code::ERRCODE_WRONG_OBJECT_TYPE,
            NoEquality { .. } => Code::ERRCODE_UNDEFINED_FUNCTION,
            NotInstalled => Code::ERRCODE_UNDEFINED_OBJECT,
            Parallel { .. } => Code::ERRCODE_INVALID_TRANSACTION_STATE,
            Altered { .. } => Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            EvictUncommitted => Code::ERRCODE_ACTIVE_SQL_TRANSACTION,
            NotText => Code::ERRCODE_CHARACTER_NOT_IN_REPERTOIRE,
            TokensUsedUp => Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
            Internal(_) => Code::ERRCODE_INTERNAL_ERROR,
        }
    }

    fn private_code(&self) -> Option<&'static [u8; 5]> {
        match self {
            Error::Stale { .. } | Error::RowIsNewer { .. } | Error::Overtaken { .. } => {
                Some(SUPERSEDED)
            }
            Error::Expired { .. } => Some(EXPIRED),
            Error::NoToken { .. } | Error::TruncateByRow { .. } => Some(NO_TOKEN),
            _ => None,
        }
    }

    fn detail(&self) -> Option<String> {
        use Error::*;
        Some(match self {
            TooLong { bytes, .. } => {
                format!("It has {bytes} bytes, and the limit is {MAX_LABEL_BYTES}.")
            }
            TtlRange { max_ms } => {
                format!(
                    "It must be at least 1 ms and at most lock_ext.max_ttl, which is {max_ms} ms."
                )
            }
            SpanRange { max_ms, .. } => {
                format!("It must be at most lock_ext.max_ttl, which is {max_ms} ms.")
            }
            TtlMonths => "The length of a month varies.".into(),
            ArrayShape { names, tokens } => {
                format!("There are {names} names and {tokens} tokens.")
            }
            Stale { lease, given, why, at_commit, .. } => {
                let found = match why {
                    self::Stale::Superseded { current } => {
                        format!("token {current} was granted later")
                    }
                    self::Stale::Released => "it was released".into(),
                    self::Stale::Contested => {
                        "another transaction that is not committed yet takes the lease over or ends it".into()
                    }
                    self::Stale::NeverGranted {
                        current: Some(current),
                    } => {
                        format!("it was never granted, and the last granted token is {current}")
                    }
                    self::Stale::NeverGranted { current: None } => "nobody was granted it".into(),
                };
                let when = if *at_commit { "The transaction" } else { "The statement" };
                format!("{when} carries token {given} of lease \"{lease}\", but {found}.")
            }
            Expired { lease, given, at_commit, .. } => {
                let when = if *at_commit { "The transaction" } else { "The statement" };
                format!(
                    "{when} carries token {given} of lease \"{lease}\", whose time to live has \
                     run out, and lock_ext.strict_expiry is on."
                )
            }
            RowIsNewer { lease, given, row, .. } => format!(
                "The statement carries token {given} of lease \"{lease}\", but the row was \
                 written under token {row}."
            ),
            Overtaken { resource, given, highest, at_commit } => {
                let when = if *at_commit { "The transaction" } else { "The statement" };
                format!(
                    "{when} carries token {given} of resource \"{resource}\", but token {highest} was observed before."
                )
            }
            NoToken { lease, by_row, others, .. } => {
                let what = if *by_row { "row" } else { "table" };
                let others = match others.as_slice() {
                    [] => String::new(),
                    names => format!(
                        "  The transaction carries tokens of others: \"{}\".",
                        names.join("\", \"")
                    ),
                };
                format!(
                    "The {what} accepts writes under the current token of lease \"{lease}\" only.{others}"
                )
            }
            FenceColumnGone { .. } => "The fence of the table names it.".into(),
            NoLease { column, .. } => format!("Its column \"{column}\" is null."),
            TruncateByRow { .. } => "No token is the current one of all of them.".into(),
            LeaseByRow { column, .. } => format!("It is named by column \"{column}\"."),
            ForeignLease { lease, role } => {
                format!("Lease \"{lease}\" is held by role \"{role}\".")
            }
            ForeignCheckpoint { .. } => {
                "It can be read by members of the role that saved it and by the present holder."
                    .into()
            }
            LockTableFull => "The server's lock table holds an entry for each lease that a \
                              transaction writes under, and for each resource that it observes."
                .into(),
            LeaseColumnType { .. } => {
                "Allowed are text and other character types, integers, uuid, boolean, enums, and domains over them.".into()
            }
            OtherSession { pid, .. } => format!("It belongs to the session of process {pid}."),
            FloorRange => format!("It must be at least 0 and below {MAX_TOKEN}."),
            TokensUsedUp => format!("The last one is {MAX_TOKEN}."),
            TriggerShape { want, .. } => (*want).into(),
            NotFenceable { what, .. } => (*what).into(),
            _ => return None,
        })
    }

    fn hint(&self) -> Option<String> {
        use Error::*;
        Some(match self {
            Stale { why: self::Stale::NeverGranted { .. }, .. } => {
                "Use the token with the lease that granted it, and commit the transaction that acquired it. \
                 If a fail-over or a restore has lost the grant, stop, and acquire the lease again."
                    .into()
            }
            Stale { .. } => {
                "Stop this worker: its lease is lost.  Acquire the lease again to go on.".into()
            }
            Expired { .. } => "Acquire the lease again.".into(),
            Overtaken { .. } => "Stop this worker: somebody else has a higher token.".into(),
            RowIsNewer { .. } => {
                "A token must not be used for a lease or a database it was not granted by.".into()
            }
            NoToken { lease, column, .. } => {
                let by_column = column.as_ref().map_or(String::new(), |column| {
                    format!(", or set column \"{column}\" to the token")
                });
                format!(
                    "Call lease_fence({}, token) between BEGIN and the write{by_column}.",
                    text::quote_literal(lease)
                )
            }
            ForeignLease { .. } => {
                "Use the role that acquired the lease, or a member of it.".into()
            }
            SessionBound { .. } => "Extend it without one, or not at all.".into(),
            OtherSession { .. } => {
                "Release it there, or end that session with pg_terminate_backend.".into()
            }
            Standby { .. } => "Connect to the primary server.".into(),
            ReadOnly { .. } => "Use a read-write transaction.".into(),
            PreparedExtension { .. } => "Extend the lease in a transaction of its own.".into(),
            LockTableFull => {
                "Do less in one transaction, or raise max_locks_per_transaction.".into()
            }
            TokensAhead { found, .. } => {
                format!("Have an administrator call lease_raise_token_floor({found}).")
            }
            FenceColumnGone { .. } => {
                "If it was renamed, call fence_attach with its new name.".into()
            }
            TruncateByRow { .. } => {
                "Delete the rows under their leases, or take the fence off first.".into()
            }
            FencedByParent { parent, .. } => {
                format!("Use fence_attach or fence_detach on table \"{parent}\".")
            }
            LeaseByRow { .. } => "Name the lease.".into(),
            NotFenced { .. } => "Name the lease, or call fence_attach first.".into(),
            EmptyFilter => "Use all_rows => true to change all rows of the table.".into(),
            NotInstalled => "Use CREATE EXTENSION lock_ext.".into(),
            Altered { .. } => "Undo what was done to it.".into(),
            EvictUncommitted => "Commit the transaction that acquired the lease first.".into(),
            TokensUsedUp => {
                "Fence the tables of a new database, whose tokens begin anew, when no holder of this one is left.".into()
            }
            _ => return None,
        })
    }

    /// The same error, where the statement's column cannot carry the token that is missing.
    pub fn by_transaction_only(mut self) -> Self {
        if let Error::NoToken { column, .. } = &mut self {
            *column = None;
        }
        self
    }

    /// The same error, of a write to that table.
    pub fn at(mut self, write_to: impl FnOnce() -> TableName) -> Self {
        if let Error::Stale { table, .. } | Error::Expired { table, .. } = &mut self {
            *table = Some(write_to());
        }
        self
    }

    fn table(&self) -> Option<&TableName> {
        match self {
            Error::Stale { table, .. } | Error::Expired { table, .. } => table.as_ref(),
            Error::RowIsNewer { table, .. }
            | Error::NoToken { table, .. }
            | Error::NoLease { table, .. }
            | Error::TruncateByRow { table }
            | Error::FenceColumnGone { table, .. }
            | Error::TriggerShape { table, .. } => Some(table),
            _ => None,
        }
    }
}

/// Ends the statement, or the commit, with `error`.
#[track_caller]
pub fn raise(error: Error) -> ! {
    let mut report = ErrorReport::new(error.code(), text::message(error.to_string()), "lock_ext");
    if let Some(detail) = error.detail() {
        report = report.set_detail(text::message(detail));
    }
    if let Some(hint) = error.hint() {
        report = report.set_hint(text::message(hint));
    }
    let table = error.table();
    pg::amend_next_error(pg::Amendment {
        sqlstate: error.private_code(),
        schema: table.map(|t| t.schema.clone()),
        table: table.map(|t| t.table.clone()),
    });
    report.report(PgLogLevel::ERROR);
    unreachable!("an error report at level ERROR does not return")
}

/// The value, or the error raised.
#[track_caller]
pub fn or_raise<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| raise(error))
}
