//! `fence_check()`: the trigger's protocol, and what it does per statement and per row.
//!
//! A lease is looked up once for each statement and token; per row only integers are compared, and the lease's name where a column
//! of the row gives it. What a trigger may keep for the length of a statement lives in `fn_extra`, which PostgreSQL makes anew for
//! each statement, table and trigger.

use crate::error::{Error, Result, TableName, or_raise};
use crate::fence;
use crate::referee::{self, NameHash};
use crate::types::{Kind, Label, Text, Token};
use crate::{catalog, text};
use pgrx::PgMemoryContexts;
use pgrx::prelude::*;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};

#[unsafe(no_mangle)]
pub extern "C" fn pg_finfo_fence_check_wrapper() -> &'static pg_sys::Pg_finfo_record {
    const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &V1
}

/// The function behind `fence_check()`, called by PostgreSQL's trigger manager only.
///
/// # Safety
/// `fcinfo` is the call's.
#[pg_guard]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fence_check_wrapper(
    fcinfo: pg_sys::FunctionCallInfo,
) -> pg_sys::Datum {
    // SAFETY: the caller's promise; the context of a trigger's call is a TriggerData node.
    let call = unsafe {
        let context = (*fcinfo).context;
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            None
        } else {
            Some(Call { data: &*context.cast(), flinfo: (*fcinfo).flinfo })
        }
    };
    match call.as_ref().and_then(Call::like_the_row_before) {
        Some(tuple) => tuple.into(),
        None => or_raise(call.ok_or(Error::NotATrigger).and_then(|mut call| call.run())),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Insert,
    Update,
    Delete,
    Truncate,
}

/// One call of the trigger.
struct Call<'a> {
    data: &'a pg_sys::TriggerData,
    flinfo: *mut pg_sys::FmgrInfo,
}

/// What is known for the length of a statement.
struct Statement {
    /// The lease, or what comes before the value of the lease column.
    prefix: Vec<u8>,
    lease_column: Option<Column>,
    token_column: Option<Column>,
    /// Is the token column among those that the statement's UPDATE sets?
    sets_token: Option<bool>,
    /// The leases that rows were met of, and where they are by name; without a lease column the only one.
    leases: Vec<Lease>,
    by_name: HashMap<Vec<u8>, usize>,
    /// The one of the row before.
    last: usize,
    /// The row whose UPDATE was allowed last, and the token that it carried: if the row moves to another partition, its DELETE follows.
    moving: Option<(pg_sys::ItemPointerData, Token)>,
}

/// One lease of a statement.
struct Lease {
    name: Vec<u8>,
    hash: NameHash,
    /// Declared by `lease_fence`.
    carried: Option<(Token, bool)>,
    /// The token that was last found to be current.
    allowed: Option<Token>,
}

struct Column {
    name: CString,
    number: c_int,
    kind: pg_sys::Oid,
}

impl Call<'_> {
    /// Most rows are like the one before: under the one lease of the table, carrying the token that was allowed. They pass here, with nothing
    /// looked up; for every other the answer is worked out below.
    fn like_the_row_before(&self) -> Option<pg_sys::HeapTuple> {
        // SAFETY: as in `run`.
        let statement = unsafe { (*self.flinfo).fn_extra.cast::<Statement>().as_mut()? };
        let lease = statement.leases.first().filter(|_| statement.lease_column.is_none())?;
        let token = lease.allowed.filter(|_| self.is_row())?;
        let declared = lease.carried.is_some();
        if lease.carried.is_some_and(|(carried, _)| carried != token) {
            return None;
        }
        let (before, after) = match self.event() {
            Event::Insert => (None, self.data.tg_trigtuple),
            Event::Update => (Some(self.data.tg_trigtuple), self.data.tg_newtuple),
            _ => return None,
        };
        match &statement.token_column {
            None if !declared => return None,
            None => {}
            Some(column) if self.value(after, column.number) != Some(token.0) => return None,
            Some(column) => {
                if let Some(before) = before {
                    let is_set = declared || statement.sets_token == Some(true);
                    let is_newer =
                        self.value(before, column.number).is_some_and(|row| row > token.0);
                    if !is_set || is_newer {
                        return None;
                    }
                }
            }
        }
        if let Some(before) = before {
            // SAFETY: the trigger manager's tuple.
            statement.moving = Some((unsafe { (*before).t_self }, token));
        }
        Some(after)
    }

    fn run(&mut self) -> Result<pg_sys::Datum> {
        // SAFETY: fn_extra is null or what `prepare` put there for this statement.
        let known = unsafe { (*self.flinfo).fn_extra.cast::<Statement>() };
        let statement = if known.is_null() { self.prepare()? } else { known };
        // SAFETY: lives as long as the statement; a trigger is not called again before it returns.
        let statement = unsafe { &mut *statement };
        if !self.is_row() {
            self.check_statement(statement)?;
            return Ok(pg_sys::Datum::null());
        }
        let result = match self.event() {
            Event::Insert => {
                let new = self.lease(statement, self.data.tg_trigtuple)?;
                self.stamp(statement, new, self.data.tg_trigtuple)?.0
            }
            Event::Delete => self.delete(statement)?,
            _ => self.update(statement)?,
        };
        Ok(result.into())
    }

    /// Also a statement that finds no row must come with a token. Which one its rows are set to, and which lease they are of, is seen by
    /// the row trigger.
    fn check_statement(&self, statement: &mut Statement) -> Result<()> {
        let event = self.event();
        if statement.lease_column.is_some() {
            return match event {
                // Nobody holds the leases of all rows.
                Event::Truncate => Err(Error::TruncateByRow { table: self.table() }),
                _ => Ok(()),
            };
        }
        let by_row = statement.token_column.as_ref().is_some_and(|column| match event {
            Event::Insert => true,
            Event::Update => self.sets(column.number),
            Event::Delete | Event::Truncate => false,
        });
        match statement.leases[0].carried {
            None if by_row => Ok(()),
            Some((token, _)) => self.allow(statement, 0, token),
            None => Err(self.no_token(statement, 0)),
        }
    }

    fn update(&self, statement: &mut Statement) -> Result<pg_sys::HeapTuple> {
        let (before, after) = (self.data.tg_trigtuple, self.data.tg_newtuple);
        let old = self.lease(statement, before)?;
        let new = self.lease(statement, after)?;
        let (tuple, token) = self.stamp(statement, new, after)?;
        let token = if old == new {
            token
        } else {
            // The statement's token is for where the row goes; for where it comes from there is only the transaction's.
            self.allow_carried(statement, old).map_err(Error::by_transaction_only)?
        };
        self.never_down(statement, old, token)?;
        // SAFETY: the trigger manager's tuple.
        statement.moving = Some((unsafe { (*before).t_self }, token));
        Ok(tuple)
    }

    fn delete(&self, statement: &mut Statement) -> Result<pg_sys::HeapTuple> {
        let tuple = self.data.tg_trigtuple;
        let old = self.lease(statement, tuple)?;
        // SAFETY: the trigger manager's tuple.
        let place = unsafe { (*tuple).t_self };
        let token = match statement.moving {
            Some((moving, token))
                if statement.leases[old].carried.is_none() && is_same(moving, place) =>
            {
                token
            }
            _ => self.allow_carried(statement, old).map_err(Error::by_transaction_only)?,
        };
        self.never_down(statement, old, token)?;
        Ok(tuple)
    }

    fn event(&self) -> Event {
        match self.data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => Event::Insert,
            pg_sys::TRIGGER_EVENT_DELETE => Event::Delete,
            pg_sys::TRIGGER_EVENT_UPDATE => Event::Update,
            _ => Event::Truncate,
        }
    }

    fn is_row(&self) -> bool {
        self.data.tg_event & pg_sys::TRIGGER_EVENT_ROW != 0
    }

    /// The first call of a statement: is the trigger made as it should be, and what does the transaction carry?
    fn prepare(&self) -> Result<*mut Statement> {
        let args = self.args();
        let misfit = |want| {
            // SAFETY: the trigger's name is terminated.
            let trigger = unsafe { CStr::from_ptr((*self.data.tg_trigger).tgname) };
            Err(Error::TriggerShape {
                trigger: text::shown(trigger.to_bytes()),
                table: self.table(),
                want,
            })
        };
        let before =
            self.data.tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK == pg_sys::TRIGGER_EVENT_BEFORE;
        if !before {
            return misfit("It must be a BEFORE trigger.");
        }
        let Some(lease) = args.first().filter(|_| args.len() <= 3) else {
            return misfit(
                "Its arguments must be the lease, the token column and the lease column, as far as there are any.",
            );
        };
        let column = |number: usize| {
            let name = args.get(number).filter(|name| !name.is_empty());
            name.map(|name| self.column(name)).transpose()
        };
        let (token_column, lease_column) = (column(1)?, column(2)?);
        let is_by_row = token_column.is_some() || lease_column.is_some();
        let leaves_it_to_rows = !self.is_row() && is_by_row && self.event() != Event::Truncate;
        if leaves_it_to_rows && !self.has_row_trigger() {
            return misfit("With a token or lease column there must be one FOR EACH ROW, too.");
        }
        if let Some(column) = token_column.as_ref().filter(|c| c.kind != pg_sys::INT8OID) {
            return Err(Error::ColumnType { column: column.shown() });
        }
        if let Some(column) = lease_column.as_ref().filter(|c| !self.has_one_text(c)) {
            return Err(Error::LeaseColumnType { column: column.shown() });
        }
        // Their values are computed after this trigger.
        if let Some(column) = token_column.as_ref().filter(|c| self.is_generated(c)) {
            return Err(Error::ColumnType { column: column.shown() });
        }
        if let Some(column) = lease_column.as_ref().filter(|c| self.is_generated(c)) {
            return Err(Error::LeaseColumnType { column: column.shown() });
        }
        let mut statement = Statement {
            prefix: lease.to_bytes().to_vec(),
            lease_column,
            token_column,
            sets_token: None,
            leases: Vec::new(),
            by_name: HashMap::new(),
            last: 0,
            moving: None,
        };
        if statement.lease_column.is_none() {
            let name = statement.prefix.clone();
            statement.leases.push(Lease::of(name)?);
        }
        // SAFETY: the memory context of the call's FmgrInfo lives as long as fn_extra does.
        unsafe {
            let memory = (*self.flinfo).fn_mcxt;
            let statement = PgMemoryContexts::For(memory).leak_and_drop_on_delete(statement);
            (*self.flinfo).fn_extra = statement.cast();
            Ok(statement)
        }
    }

    /// Is there a trigger that does for rows what this one does for the statement?
    fn has_row_trigger(&self) -> bool {
        // SAFETY: the trigger manager has the relation open, with its triggers.
        unsafe {
            let me = &*self.data.tg_trigger;
            let all = &*(*self.data.tg_relation).trigdesc;
            let wanted = (pg_sys::TRIGGER_TYPE_ROW | pg_sys::TRIGGER_TYPE_BEFORE) as i16
                | me.tgtype
                    & (pg_sys::TRIGGER_TYPE_INSERT
                        | pg_sys::TRIGGER_TYPE_UPDATE
                        | pg_sys::TRIGGER_TYPE_DELETE) as i16;
            (0..all.numtriggers as usize).map(|i| &*all.triggers.add(i)).any(|other| {
                other.tgfoid == me.tgfoid
                    && other.tgtype & wanted == wanted
                    && (other.tgenabled == me.tgenabled
                        || other.tgenabled as u8 == pg_sys::TRIGGER_FIRES_ALWAYS)
                    && other.tgnargs == me.tgnargs
                    && other.tgqual.is_null()
                    && (0..other.tgnargs as usize).all(|i| {
                        CStr::from_ptr(*other.tgargs.add(i)) == CStr::from_ptr(*me.tgargs.add(i))
                    })
            })
        }
    }

    fn args(&self) -> Vec<CString> {
        // SAFETY: a trigger has tgnargs terminated arguments.
        unsafe {
            let trigger = &*self.data.tg_trigger;
            (0..trigger.tgnargs as usize)
                .map(|i| CStr::from_ptr(*trigger.tgargs.add(i)).to_owned())
                .collect()
        }
    }

    fn column(&self, name: &CStr) -> Result<Column> {
        // SAFETY: the trigger manager has the relation open; no number above zero for what is no column of its rows.
        unsafe {
            let columns = (*self.data.tg_relation).rd_att;
            let number = pg_sys::SPI_fnumber(columns, name.as_ptr());
            if number > 0 {
                let kind = pg_sys::SPI_gettypeid(columns, number);
                return Ok(Column { name: name.to_owned(), number, kind });
            }
        }
        Err(Error::FenceColumnGone { column: text::shown(name.to_bytes()), table: self.table() })
    }

    fn has_one_text(&self, column: &Column) -> bool {
        // SAFETY: the trigger manager has the relation open.
        let relation = unsafe { (*self.data.tg_relation).rd_id };
        catalog::has_one_text(relation, column.number as i16, column.kind)
    }

    fn is_generated(&self, column: &Column) -> bool {
        // SAFETY: the trigger manager has the relation open; what it has no constraints of has no generated columns.
        unsafe {
            let relation = &*self.data.tg_relation;
            !(*relation.rd_att).constr.is_null()
                && catalog::is_generated(relation.rd_id, column.number as i16)
        }
    }

    /// The table, as errors name it.
    fn table(&self) -> TableName {
        // SAFETY: the trigger manager has the relation open.
        catalog::table_name(unsafe { (*self.data.tg_relation).rd_id })
    }

    /// Which of the statement's leases a row belongs to.
    fn lease(&self, statement: &mut Statement, tuple: pg_sys::HeapTuple) -> Result<usize> {
        let Some(column) = &statement.lease_column else {
            return Ok(0);
        };
        let Some(value) = self.text(tuple, column) else {
            return Err(Error::NoLease { column: column.shown(), table: self.table() });
        };
        let is_last = |lease: &Lease| {
            lease.name.strip_prefix(statement.prefix.as_slice()) == Some(value.as_slice())
        };
        if statement.leases.get(statement.last).is_some_and(is_last) {
            return Ok(statement.last);
        }
        let name = [statement.prefix.as_slice(), &value].concat();
        statement.last = match statement.by_name.get(&name) {
            Some(index) => *index,
            None => {
                statement.leases.push(Lease::of(name.clone())?);
                statement.by_name.insert(name, statement.leases.len() - 1);
                statement.leases.len() - 1
            }
        };
        Ok(statement.last)
    }

    /// The row with its token, which is current: the transaction's, or the one that the statement has set.
    fn stamp(
        &self,
        statement: &mut Statement,
        lease: usize,
        tuple: pg_sys::HeapTuple,
    ) -> Result<(pg_sys::HeapTuple, Token)> {
        let Some(number) = statement.token_column.as_ref().map(|column| column.number) else {
            return Ok((tuple, self.allow_carried(statement, lease)?));
        };
        let in_row = self.value(tuple, number);
        if let Some((token, _)) = statement.leases[lease].carried {
            self.allow(statement, lease, token)?;
            let is_there = in_row == Some(token.0);
            return Ok((if is_there { tuple } else { self.with(tuple, number, token) }, token));
        }
        let is_set = self.event() == Event::Insert
            || *statement.sets_token.get_or_insert_with(|| self.sets(number));
        match in_row.filter(|_| is_set).map(Token) {
            Some(token) => {
                self.allow(statement, lease, token)?;
                Ok((tuple, token))
            }
            None => Err(self.no_token(statement, lease)),
        }
    }

    /// A row that was written under a higher token is not this writer's to change.
    fn never_down(&self, statement: &Statement, lease: usize, token: Token) -> Result<()> {
        let Some(column) = &statement.token_column else {
            return Ok(());
        };
        match self.value(self.data.tg_trigtuple, column.number) {
            Some(row) if row > token.0 => Err(Error::RowIsNewer {
                lease: Label::known(&statement.leases[lease].name).to_string(),
                given: token,
                row: Token(row),
                table: self.table(),
            }),
            _ => Ok(()),
        }
    }

    /// The token that the transaction carries for the lease, which is current.
    fn allow_carried(&self, statement: &mut Statement, lease: usize) -> Result<Token> {
        let Some((token, _)) = statement.leases[lease].carried else {
            return Err(self.no_token(statement, lease));
        };
        self.allow(statement, lease, token)?;
        Ok(token)
    }

    /// May it be written under `token`? Looked up when the statement comes with it for the first time.
    fn allow(&self, statement: &mut Statement, lease: usize, token: Token) -> Result<()> {
        let lease = &mut statement.leases[lease];
        if lease.allowed == Some(token) {
            return Ok(());
        }
        let name = Label::known(&lease.name);
        let checked = match lease.carried {
            Some((_, hold)) => fence::write(name, lease.hash, token, hold),
            None => fence::write_undeclared(name, lease.hash, token),
        };
        checked.map_err(|error| error.at(|| self.table()))?;
        lease.allowed = Some(token);
        Ok(())
    }

    fn no_token(&self, statement: &Statement, lease: usize) -> Error {
        Error::NoToken {
            lease: Label::known(&statement.leases[lease].name).to_string(),
            column: statement.token_column.as_ref().map(Column::shown),
            by_row: statement.lease_column.is_some(),
            others: fence::carried_names(),
            table: self.table(),
        }
    }

    /// The text form of a column's value, None for null.
    fn text(&self, tuple: pg_sys::HeapTuple, column: &Column) -> Option<Vec<u8>> {
        // SAFETY: a tuple of the trigger's relation, which has the column; the value is copied.
        unsafe {
            let columns = (*self.data.tg_relation).rd_att;
            if column.kind != pg_sys::TEXTOID {
                let value = pg_sys::SPI_getvalue(tuple, columns, column.number);
                return (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes().to_vec());
            }
            let mut null = false;
            let datum = pg_sys::SPI_getbinval(tuple, columns, column.number, &mut null);
            (!null).then(|| text::bytes(datum))
        }
    }

    fn value(&self, tuple: pg_sys::HeapTuple, number: c_int) -> Option<i64> {
        let mut null = false;
        // SAFETY: a tuple of the trigger's relation, whose column `number` is a bigint.
        let datum = unsafe {
            pg_sys::heap_getattr(tuple, number, (*self.data.tg_relation).rd_att, &mut null)
        };
        (!null).then_some(datum.value() as i64)
    }

    fn with(&self, tuple: pg_sys::HeapTuple, number: c_int, token: Token) -> pg_sys::HeapTuple {
        let (mut number, mut value, mut null) = (number, pg_sys::Datum::from(token.0), false);
        // SAFETY: as in `value`; the new tuple belongs to the caller's memory context, as the trigger manager expects.
        unsafe {
            pg_sys::heap_modify_tuple_by_cols(
                tuple,
                (*self.data.tg_relation).rd_att,
                1,
                &raw mut number,
                &raw mut value,
                &raw mut null,
            )
        }
    }

    /// Is the column among those that the UPDATE sets?
    fn sets(&self, number: c_int) -> bool {
        // SAFETY: the set is the trigger manager's, and null for an empty one.
        unsafe {
            pg_sys::bms_is_member(
                number - pg_sys::FirstLowInvalidHeapAttributeNumber,
                self.data.tg_updatedcols,
            )
        }
    }
}

impl Column {
    fn shown(&self) -> String {
        text::shown(self.name.to_bytes())
    }
}

impl Lease {
    fn of(name: Vec<u8>) -> Result<Self> {
        let name = Text(name);
        let label = Label::new(Kind::Lease, Some(&name))?;
        let hash = referee::hash(label);
        Ok(Lease { carried: fence::carried(label, hash), hash, allowed: None, name: name.0 })
    }
}

fn is_same(a: pg_sys::ItemPointerData, b: pg_sys::ItemPointerData) -> bool {
    (a.ip_blkid.bi_hi, a.ip_blkid.bi_lo, a.ip_posid)
        == (b.ip_blkid.bi_hi, b.ip_blkid.bi_lo, b.ip_posid)
}
