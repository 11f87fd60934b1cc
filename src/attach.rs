//! Which triggers put a fence on a table. The SQL functions `fence_attach` and `fence_detach` execute the statements that are made
//! here, with the rights of their caller.

use crate::catalog::Trigger;
use crate::error::{Error, Result};
use crate::types::{Kind, Label, Text, Token};
use crate::{catalog, text};
use crate::{known, token};
use pgrx::prelude::*;

/// Triggers fire in the order of their names. These come after ordinary ones, so that they see what is really written.
const STATEMENT_TRIGGER: &str = "zzz_lock_ext_fence";
const ROW_TRIGGER: &str = "zzz_lock_ext_fence_row";

/// `fence_check()` as SQL names it, and its OID.
pub struct Check<'a> {
    pub function: pg_sys::Oid,
    pub schema: &'a [u8],
}

/// The statements that put the fence on `target`; none if it is there already.
pub fn attach(
    check: &Check,
    target: pg_sys::Oid,
    lease: Option<&Text>,
    column: Option<&Text>,
) -> Result<Vec<Text>> {
    let lease = Label::new(Kind::Lease, lease)?;
    may_fence(target)?;
    let column = column.map(|column| token_column(target, column)).transpose()?;
    let mut args = vec![lease.bytes().to_vec()];
    args.extend(column.clone());

    let mut wanted = vec![Trigger {
        name: STATEMENT_TRIGGER.into(),
        kind: BEFORE | INSERT | UPDATE | DELETE | TRUNCATE,
        enabled: true,
        args: args.clone(),
    }];
    if column.is_some() {
        wanted.push(Trigger {
            name: ROW_TRIGGER.into(),
            kind: BEFORE | ROW | INSERT | UPDATE | DELETE,
            enabled: true,
            args,
        });
    }

    let mut present = catalog::triggers(target, check.function);
    present.retain(|trigger| [STATEMENT_TRIGGER, ROW_TRIGGER].contains(&trigger.name.as_str()));
    present.sort_by(|a, b| a.name.cmp(&b.name));
    if present == wanted {
        return Ok(Vec::new());
    }
    let table = catalog::qualified(&catalog::table_name(target));
    let schema = text::to_utf8(check.schema)?;
    let mut statements: Vec<Text> = present.iter().map(|t| drop_statement(t, &table)).collect();
    for trigger in &wanted {
        statements.push(create_statement(trigger, &table, &schema)?);
    }
    Ok(statements)
}

/// The statements that take every fence off `target`.
pub fn detach(check: &Check, target: pg_sys::Oid) -> Result<Vec<Text>> {
    must_own(target)?;
    let table = catalog::qualified(&catalog::table_name(target));
    Ok(catalog::triggers(target, check.function)
        .iter()
        .map(|trigger| drop_statement(trigger, &table))
        .collect())
}

/// The lease that the table's fence names first.
pub fn attached_lease(check: &Check, target: pg_sys::Oid) -> Result<Text> {
    if catalog::relation_kind(target).0 == 0 {
        return Err(Error::NoTable { oid: target.to_u32() });
    }
    if !catalog::may_update(target) {
        return Err(Error::MayNotUpdate { relation: catalog::table_name(target).table });
    }
    let lease = catalog::triggers(target, check.function)
        .into_iter()
        .find_map(|t| t.args.into_iter().next());
    lease.map(Text).ok_or_else(|| Error::NotFenced { relation: catalog::table_name(target).table })
}

/// Does a table carry tokens of an earlier life of the database, above those to come? An error for who may not raise the floor.
pub fn is_ahead(target: pg_sys::Oid, highest: Option<i64>, may_raise: bool) -> Result<bool> {
    must_own(target)?;
    let Some(found) = highest.map(Token) else {
        return Ok(false);
    };
    if token::peek()? >= found {
        return Ok(false);
    }
    if may_raise {
        return Ok(true);
    }
    Err(Error::TokensAhead { relation: catalog::table_name(target).table, found })
}

fn may_fence(target: pg_sys::Oid) -> Result<()> {
    let name = catalog::table_name(target);
    let refuse = |what| Err(Error::NotFenceable { relation: name.table.clone(), what });
    let (kind, persistence) = catalog::relation_kind(target);
    match kind {
        0 => {
            return Err(Error::NoTable { oid: target.to_u32() });
        }
        b'r' => {}
        b'p' => return refuse("Fences on partitioned tables are not supported yet."),
        b'v' | b'm' => return refuse("It is a view; fence the tables behind it."),
        b'f' => return refuse("It is a foreign table; its rows are changed elsewhere."),
        _ => return refuse("It is not a table."),
    }
    if catalog::is_system_relation(target) {
        return refuse("It is a system catalog.");
    }
    if name.schema.as_bytes() == known::SCHEMA.to_bytes() {
        return refuse("It is a table of lock_ext itself.");
    }
    if persistence == b't' {
        return refuse("It is a temporary table, which only its own session can write.");
    }
    must_own(target)?;
    if catalog::is_partition(target) || catalog::is_in_inheritance(target) {
        return refuse("Fences on partitions and in inheritance are not supported yet.");
    }
    Ok(())
}

fn must_own(target: pg_sys::Oid) -> Result<()> {
    if catalog::relation_kind(target).0 == 0 {
        return Err(Error::NoTable { oid: target.to_u32() });
    }
    if catalog::owns_table(target) {
        return Ok(());
    }
    Err(Error::NotOwner { relation: catalog::table_name(target).table })
}

fn token_column(target: pg_sys::Oid, column: &Text) -> Result<Vec<u8>> {
    let shown = text::to_utf8(&column.0)?;
    match catalog::column(target, &text::c_string(&shown)?) {
        None => Err(Error::NoColumn { table: catalog::table_name(target).table, column: shown }),
        Some((number, kind))
            if kind != pg_sys::INT8OID || catalog::is_generated(target, number) =>
        {
            Err(Error::ColumnType { column: shown })
        }
        Some(_) => Ok(column.0.clone()),
    }
}

// The bits of pg_trigger.tgtype.
const ROW: i16 = pg_sys::TRIGGER_TYPE_ROW as i16;
const BEFORE: i16 = pg_sys::TRIGGER_TYPE_BEFORE as i16;
const INSERT: i16 = pg_sys::TRIGGER_TYPE_INSERT as i16;
const DELETE: i16 = pg_sys::TRIGGER_TYPE_DELETE as i16;
const UPDATE: i16 = pg_sys::TRIGGER_TYPE_UPDATE as i16;
const TRUNCATE: i16 = pg_sys::TRIGGER_TYPE_TRUNCATE as i16;

fn create_statement(trigger: &Trigger, table: &str, schema: &str) -> Result<Text> {
    let events =
        [(INSERT, "INSERT"), (UPDATE, "UPDATE"), (DELETE, "DELETE"), (TRUNCATE, "TRUNCATE")]
            .into_iter()
            .filter(|(bit, _)| trigger.kind & bit != 0)
            .map(|(_, event)| event)
            .collect::<Vec<_>>()
            .join(" OR ");
    let level = if trigger.kind & ROW != 0 { "ROW" } else { "STATEMENT" };
    let args = trigger
        .args
        .iter()
        .map(|arg| Ok(text::quote_literal(&text::to_utf8(arg)?)))
        .collect::<Result<Vec<_>>>()?
        .join(", ");
    Ok(Text::of(&format!(
        "CREATE TRIGGER {} BEFORE {events} ON {table} FOR EACH {level} \
         EXECUTE FUNCTION {schema}.fence_check({args})",
        trigger.name,
    )))
}

fn drop_statement(trigger: &Trigger, table: &str) -> Text {
    Text::of(&format!("DROP TRIGGER {} ON {table}", text::quote_identifier(&trigger.name)))
}
