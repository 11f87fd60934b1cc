//! `fence_check()`: the trigger's protocol, and what it does per statement and per row.
//!
//! The lease is looked up once for each statement and token; per row only integers are compared. What a trigger may keep for the
//! length of a statement lives in `fn_extra`, which PostgreSQL makes anew for each.

use crate::error::{Error, Result, TableName, or_raise};
use crate::fence;
use crate::referee::{self, NameHash};
use crate::store::Leases;
use crate::types::{Kind, Label, Text, Token};
use crate::{catalog, text};
use pgrx::PgMemoryContexts;
use pgrx::prelude::*;
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
    or_raise(call.ok_or(Error::NotATrigger).and_then(|mut call| call.run()))
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
    name: Text,
    hash: NameHash,
    table: TableName,
    column: Option<Column>,
    /// Declared by `lease_fence`.
    carried: Option<(Token, bool)>,
    /// The token that was last found to be current.
    allowed: Option<Token>,
}

struct Column {
    name: String,
    number: c_int,
}

impl Call<'_> {
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
            Event::Delete => {
                let token = statement.carried_token()?;
                statement.allow(token)?;
                self.never_down(statement, token)?;
                self.data.tg_trigtuple
            }
            Event::Insert => self.stamp(statement, self.data.tg_trigtuple)?,
            _ => {
                let tuple = self.stamp(statement, self.data.tg_newtuple)?;
                if let Some(token) = statement.allowed {
                    self.never_down(statement, token)?;
                }
                tuple
            }
        };
        Ok(result.into())
    }

    /// Also a statement that finds no row must come with a token. Which one its rows are set to is seen by the row trigger.
    fn check_statement(&self, statement: &mut Statement) -> Result<()> {
        let by_row = statement.column.as_ref().is_some_and(|column| match self.event() {
            Event::Insert => true,
            Event::Update => self.sets(column.number),
            Event::Delete | Event::Truncate => false,
        });
        match statement.carried {
            None if by_row => Ok(()),
            _ => statement.allow(statement.carried_token()?),
        }
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
        // SAFETY: the trigger manager has the relation open.
        let table = catalog::table_name(unsafe { (*self.data.tg_relation).rd_id });
        let args = self.args();
        let misfit = |want| {
            // SAFETY: the trigger's name is terminated.
            let trigger = unsafe { CStr::from_ptr((*self.data.tg_trigger).tgname) };
            Error::TriggerShape {
                trigger: text::shown(trigger.to_bytes()),
                table: table.clone(),
                want,
            }
        };
        let before =
            self.data.tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK == pg_sys::TRIGGER_EVENT_BEFORE;
        if !before {
            return Err(misfit("It must be a BEFORE trigger."));
        }
        if args.is_empty() || args.len() > 2 {
            return Err(misfit(
                "Its arguments must be the lease and, if there is one, the token column.",
            ));
        }
        let leaves_it_to_rows =
            !self.is_row() && args.len() == 2 && self.event() != Event::Truncate;
        if leaves_it_to_rows && !self.has_row_trigger() {
            return Err(misfit("With a token column there must be one FOR EACH ROW, too."));
        }
        let name = Text(args[0].to_bytes().to_vec());
        let label = Label::new(Kind::Lease, Some(&name))?;
        let hash = referee::hash(label);
        let statement = Statement {
            carried: fence::carried(label, hash),
            hash,
            column: args.get(1).map(|name| self.column(name, &table)).transpose()?,
            table,
            allowed: None,
            name,
        };
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
                    && other.tgenabled == me.tgenabled
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

    fn column(&self, name: &CStr, table: &TableName) -> Result<Column> {
        // SAFETY: the trigger manager has the relation open.
        let relation = unsafe { (*self.data.tg_relation).rd_id };
        let shown = text::shown(name.to_bytes());
        match catalog::column(relation, name) {
            None => Err(Error::NoColumn { table: table.table.clone(), column: shown }),
            Some((_, kind)) if kind != pg_sys::INT8OID => Err(Error::ColumnType { column: shown }),
            Some((number, _)) => Ok(Column { name: shown, number: c_int::from(number) }),
        }
    }

    /// The row with its token: the transaction's, or the one that the statement has set.
    fn stamp(
        &self,
        statement: &mut Statement,
        tuple: pg_sys::HeapTuple,
    ) -> Result<pg_sys::HeapTuple> {
        let Some(number) = statement.column.as_ref().map(|column| column.number) else {
            let token = statement.carried_token()?;
            statement.allow(token)?;
            return Ok(tuple);
        };
        let in_row = self.value(tuple, number);
        if let Some((token, _)) = statement.carried {
            statement.allow(token)?;
            return Ok(if in_row == Some(token.0) {
                tuple
            } else {
                self.with(tuple, number, token)
            });
        }
        let is_set = self.event() == Event::Insert || self.sets(number);
        let token = in_row.filter(|_| is_set).map(Token).ok_or_else(|| statement.no_token())?;
        statement.allow(token)?;
        Ok(tuple)
    }

    /// A row that was written under a higher token is not this writer's to change.
    fn never_down(&self, statement: &Statement, token: Token) -> Result<()> {
        let Some(column) = &statement.column else {
            return Ok(());
        };
        match self.value(self.data.tg_trigtuple, column.number) {
            Some(row) if row > token.0 => Err(Error::RowIsNewer {
                lease: Label::known(&statement.name.0).to_string(),
                given: token,
                row: Token(row),
                table: statement.table.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn value(&self, tuple: pg_sys::HeapTuple, number: c_int) -> Option<i64> {
        let mut null = false;
        // SAFETY: a tuple of the trigger's relation, whose column `number` is a bigint.
        let datum = unsafe {
            pg_sys::SPI_getbinval(tuple, (*self.data.tg_relation).rd_att, number, &mut null)
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
                &mut number,
                &mut value,
                &mut null,
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

impl Statement {
    fn carried_token(&self) -> Result<Token> {
        self.carried.map(|(token, _)| token).ok_or_else(|| self.no_token())
    }

    fn no_token(&self) -> Error {
        Error::NoToken {
            lease: Label::known(&self.name.0).to_string(),
            column: self.column.as_ref().map(|column| column.name.clone()),
            table: self.table.clone(),
        }
    }

    /// May it be written under `token`? Looked up when the statement comes with it for the first time.
    fn allow(&mut self, token: Token) -> Result<()> {
        if self.allowed == Some(token) {
            return Ok(());
        }
        let name = Label::known(&self.name.0);
        let hold = self.carried.is_some_and(|(_, hold)| hold);
        let leases = Leases::open()?;
        if self.carried.is_some() {
            fence::check_token(&leases, name, self.hash, token, Some(&self.table))?;
        } else {
            fence::check(&leases, name, self.hash, token, Some(&self.table))?;
        }
        fence::register(&leases, name, self.hash, token, hold)?;
        leases.close();
        self.allowed = Some(token);
        Ok(())
    }
}
