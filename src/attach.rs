//! Which triggers put a fence on a table. The SQL functions `fence_attach` and `fence_detach` execute the statements that are made
//! here, with the rights of their caller.

use crate::catalog::Trigger;
use crate::error::{Error, Result};
use crate::types::{Kind, Label, Text, Token};
use crate::{catalog, pg, text};
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

/// What `fence_attach` is asked for.
pub struct Wanted<'a> {
    pub lease: Option<&'a Text>,
    pub token_column: Option<&'a Text>,
    pub lease_column: Option<&'a Text>,
}

impl Wanted<'_> {
    /// The arguments of the trigger function, whose columns every member must have.
    fn arguments(&self, members: &[Member]) -> Result<Vec<Vec<u8>>> {
        let none = || Text(Vec::new());
        let lease = match self.lease_column {
            None => Label::new(Kind::Lease, self.lease)?.bytes().to_vec(),
            Some(_) => {
                let prefix = self.lease.cloned().unwrap_or_else(none);
                if !prefix.0.is_empty() {
                    Label::new(Kind::Lease, Some(&prefix))?;
                }
                prefix.0
            }
        };
        for member in members {
            self.token_column.map(|name| token_column(member.oid, name)).transpose()?;
            self.lease_column.map(|name| lease_column(member.oid, name)).transpose()?;
        }
        let [token_column, lease_column] =
            [self.token_column, self.lease_column].map(|column| column.map(|name| name.0.clone()));
        if lease_column.is_some() && lease_column == token_column {
            return Err(Error::SameColumn);
        }
        let mut arguments = vec![lease];
        arguments.extend(token_column.or(lease_column.as_ref().map(|_| Vec::new())));
        arguments.extend(lease_column);
        Ok(arguments)
    }
}

/// The statements that put the fence on `target` and what is below it; none if it is there already.
///
/// Row triggers are handed down to partitions by PostgreSQL. What it does not hand down is put on each member: TRUNCATE of a partition, and
/// everything on the children of an ordinary table.
pub fn attach(check: &Check, target: pg_sys::Oid, wanted: &Wanted) -> Result<Vec<Text>> {
    may_fence(target)?;
    let members = members(target)?;
    if let Some(parent) = fenced_from(check, target) {
        return Err(fenced_by(target, parent));
    }
    let arguments = wanted.arguments(&members)?;
    let schema = text::to_utf8(check.schema)?;
    let (mut repairs, mut drops, mut creates) = (Vec::new(), Vec::new(), Vec::new());
    for member in &members {
        let table = catalog::qualified(&catalog::table_name(member.oid));
        let wanted = member.triggers(target, &arguments);
        let (copies, mut present): (Vec<Trigger>, Vec<Trigger>) =
            catalog::triggers(member.oid, check.function).into_iter().partition(|t| t.is_copy);
        present.retain(|t| [STATEMENT_TRIGGER, ROW_TRIGGER].contains(&t.name.as_str()));
        for copy in copies.iter().filter(|copy| !copy.fires) {
            let name = text::quote_identifier(&copy.name);
            repairs.push(Text::of(&format!("ALTER TABLE {table} ENABLE TRIGGER {name}")));
        }
        if let Some(other) = present.iter().find(|trigger| trigger.args != arguments) {
            let lease = text::shown(other.args.first().map_or(&[], Vec::as_slice));
            pg::notice(&format!("replaces the fence of lease \"{lease}\" on table {table}"));
        }
        let is_kept = |trigger: &Trigger| wanted.contains(trigger);
        drops.extend(present.iter().filter(|t| !is_kept(t)).map(|t| drop_statement(t, &table)));
        for trigger in wanted.iter().filter(|t| !present.contains(t)) {
            creates.push(create_statement(trigger, &table, &schema)?);
        }
    }
    Ok([repairs, drops, creates].concat())
}

/// The statements that take every fence off `target` and what is below it.
pub fn detach(check: &Check, target: pg_sys::Oid) -> Result<Vec<Text>> {
    must_own(target)?;
    let members = members(target)?;
    // What a partition has from above stays; it may have a fence of its own beside it.
    let above: Vec<Vec<Vec<u8>>> = catalog::triggers(target, check.function)
        .into_iter()
        .filter(|trigger| trigger.is_copy)
        .map(|trigger| trigger.args)
        .collect();
    let mut statements = Vec::new();
    for member in &members {
        let table = catalog::qualified(&catalog::table_name(member.oid));
        let triggers = catalog::triggers(member.oid, check.function);
        let own = triggers.iter().filter(|t| !t.is_copy && !above.contains(&t.args));
        statements.extend(own.map(|trigger| drop_statement(trigger, &table)));
    }
    match fenced_from(check, target).filter(|_| statements.is_empty()) {
        Some(parent) => Err(fenced_by(target, parent)),
        None => Ok(statements),
    }
}

fn fenced_by(partition: pg_sys::Oid, parent: pg_sys::Oid) -> Error {
    Error::FencedByParent {
        relation: catalog::table_name(partition).table,
        parent: catalog::table_name(parent).table,
    }
}

/// A table that a fence on it, or on one above it, has to cover.
struct Member {
    oid: pg_sys::Oid,
    kind: u8,
    is_partition: bool,
    has_parent: bool,
}

impl Member {
    /// The triggers that it needs of its own, if the fence is attached to `root`.
    fn triggers(&self, root: pg_sys::Oid, arguments: &[Vec<u8>]) -> Vec<Trigger> {
        let trigger = |name: &str, kind| Trigger {
            name: name.into(),
            kind,
            fires: true,
            is_copy: false,
            is_whole: true,
            args: arguments.to_vec(),
        };
        let below = self.oid != root;
        let is_foreign = self.kind == b'f';
        if below && self.is_partition {
            // Its row trigger is handed down, and a foreign table has none for TRUNCATE.
            let truncate = trigger(STATEMENT_TRIGGER, BEFORE | TRUNCATE);
            return if is_foreign { Vec::new() } else { vec![truncate] };
        }
        // The statement trigger fires for the table that a statement names. What comes through a table above is seen by row. With
        // columns it is left with what rows do not show: TRUNCATE, and a statement without a token that finds no row.
        let by_statement = match arguments.len() {
            1 => INSERT | UPDATE | DELETE | TRUNCATE,
            2 => UPDATE | DELETE | TRUNCATE,
            _ => TRUNCATE,
        } & if is_foreign { !TRUNCATE } else { !0 };
        let mut triggers = Vec::new();
        if by_statement != 0 {
            triggers.push(trigger(STATEMENT_TRIGGER, BEFORE | by_statement));
        }
        if arguments.len() > 1 || self.has_parent || self.kind == b'p' {
            triggers.push(trigger(ROW_TRIGGER, BEFORE | ROW | INSERT | UPDATE | DELETE));
        }
        triggers
    }
}

/// `target` and all below it, locked as CREATE TRIGGER does, so that none comes or goes and nobody writes meanwhile.
fn members(target: pg_sys::Oid) -> Result<Vec<Member>> {
    let mut members = Vec::new();
    for oid in catalog::lock_descendants(target) {
        let (kind, persistence) = catalog::relation_kind(oid);
        if oid == target && kind == 0 {
            return Err(Error::NoTable { oid: oid.to_u32() });
        }
        // A temporary child is its own session's.
        if kind == 0 || (persistence == b't' && oid != target) {
            continue;
        }
        must_own(oid)?;
        members.push(Member {
            oid,
            kind,
            is_partition: catalog::is_partition(oid),
            has_parent: catalog::has_parent(oid),
        });
    }
    Ok(members)
}

/// The partitioned table that a partition has its row triggers from.
fn fenced_from(check: &Check, partition: pg_sys::Oid) -> Option<pg_sys::Oid> {
    let mut copies = catalog::triggers(partition, check.function).into_iter();
    let parent = catalog::partitioned_table(partition).filter(|_| copies.any(|t| t.is_copy))?;
    fenced_from(check, parent).or(Some(parent))
}

/// The lease that the table's fence names first.
pub fn attached_lease(check: &Check, target: pg_sys::Oid) -> Result<Text> {
    if catalog::relation_kind(target).0 == 0 {
        return Err(Error::NoTable { oid: target.to_u32() });
    }
    let relation = catalog::table_name(target).table;
    if !catalog::may_update(target) {
        return Err(Error::MayNotUpdate { relation });
    }
    let mut arguments = catalog::triggers(target, check.function).into_iter().map(|t| t.args);
    match arguments.next() {
        None => Err(Error::NotFenced { relation }),
        Some(args) => match args.get(2).filter(|column| !column.is_empty()) {
            Some(column) => Err(Error::LeaseByRow { relation, column: text::shown(column) }),
            None => Ok(Text(args.into_iter().next().unwrap_or_default())),
        },
    }
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
        b'r' | b'p' => {}
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
    must_own(target)
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

fn token_column(target: pg_sys::Oid, column: &Text) -> Result<()> {
    let shown = text::to_utf8(&column.0)?;
    match catalog::column(target, &text::c_string(&shown)?) {
        None => Err(Error::NoColumn { table: catalog::table_name(target).table, column: shown }),
        // Identity columns and keys have numbers that are no tokens.
        Some((number, kind))
            if kind != pg_sys::INT8OID
                || catalog::is_generated(target, number)
                || catalog::is_identity(target, number)
                || catalog::is_in_key(target, number) =>
        {
            Err(Error::ColumnType { column: shown })
        }
        Some(_) => Ok(()),
    }
}

fn lease_column(target: pg_sys::Oid, column: &Text) -> Result<()> {
    let shown = text::to_utf8(&column.0)?;
    match catalog::column(target, &text::c_string(&shown)?) {
        None => Err(Error::NoColumn { table: catalog::table_name(target).table, column: shown }),
        // A generated one is computed after our trigger.
        Some((number, kind))
            if catalog::is_generated(target, number)
                || !catalog::has_one_text(target, number, kind) =>
        {
            Err(Error::LeaseColumnType { column: shown })
        }
        Some(_) => Ok(()),
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
