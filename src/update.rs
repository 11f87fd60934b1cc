//! The statement behind `fenced_update`. It is executed by the SQL function with the rights of the caller; here it is only
//! written down. Names are quoted, values stay in the two `jsonb` parameters: $1 the filter, $2 the changes.
//!
//! Each value is turned into its column's type by the type itself, so that nothing is lost on the way, and compared by the
//! equality of that type, so that an index on the column serves.

use crate::error::{Error, Result};
use crate::types::Text;
use crate::{catalog, text};
use pgrx::prelude::*;

/// The keys of a JSON object, None for another JSON value, and None of that for NULL.
pub type Keys<'a> = Option<Option<&'a [Text]>>;

fn keys<'a>(given: Keys<'a>, what: &'static str) -> Result<&'a [Text]> {
    given.ok_or_else(|| Error::Null { what: what.into() })?.ok_or(Error::NotAnObject { what })
}

pub fn statement(
    target: pg_sys::Oid,
    filter: Keys,
    values: &[Text],
    changes: Keys,
    all_rows: Option<bool>,
) -> Result<Text> {
    let filter = keys(filter, "filter")?;
    let changes = keys(changes, "changes")?;
    let all_rows = all_rows.ok_or_else(|| Error::Null { what: "all_rows".into() })?;
    if changes.is_empty() {
        return Err(Error::EmptyChanges);
    }
    if filter.is_empty() && !all_rows {
        return Err(Error::EmptyFilter);
    }
    if catalog::relation_kind(target).0 == 0 {
        return Err(Error::NoTable { oid: target.to_u32() });
    }
    let set = columns(target, changes)?;
    let names: Vec<&str> = set.iter().map(|column| column.name.as_str()).collect();
    let mut sql = format!(
        "UPDATE {} AS t SET ({}) = (SELECT {} FROM pg_catalog.jsonb_to_record($2) AS r({}))",
        catalog::qualified(&catalog::table_name(target)),
        names.join(", "),
        names.iter().map(|name| format!("r.{name}")).collect::<Vec<_>>().join(", "),
        definitions(&set),
    );
    for (i, (column, name)) in columns(target, filter)?.iter().zip(filter).enumerate() {
        sql += if i == 0 { " WHERE " } else { " AND " };
        sql += &format!("t.{} ", column.name);
        sql += &if !values.contains(name) {
            "IS NULL".to_string()
        } else {
            format!(
                "{} (SELECT r.{} FROM pg_catalog.jsonb_to_record($1) AS r({}))",
                column.equals()?,
                column.name,
                definitions(std::slice::from_ref(column)),
            )
        };
    }
    Ok(Text::of(&sql))
}

/// A statement that turns every value into its column's type, for an update that found no row and so has not.
pub fn conversion(target: pg_sys::Oid, filter: &[Text], changes: &[Text]) -> Result<Text> {
    let mut sources = Vec::new();
    for (parameter, names) in [("$1", filter), ("$2", changes)] {
        let columns = columns(target, names)?;
        if !columns.is_empty() {
            sources.push(format!(
                "pg_catalog.jsonb_to_record({parameter}) AS r{}({})",
                sources.len(),
                definitions(&columns),
            ));
        }
    }
    Ok(Text::of(&format!("SELECT FROM {}", sources.join(", "))))
}

struct Column {
    name: String,
    oid: pg_sys::Oid,
}

impl Column {
    fn equals(&self) -> Result<String> {
        catalog::equality_operator(self.oid)
    }
}

fn columns(target: pg_sys::Oid, names: &[Text]) -> Result<Vec<Column>> {
    names
        .iter()
        .map(|name| {
            let shown = text::to_utf8(&name.0)?;
            let (_, oid) = catalog::column(target, &text::c_string(&shown)?).ok_or_else(|| {
                Error::NoColumn { table: catalog::table_name(target).table, column: shown.clone() }
            })?;
            Ok(Column { name: text::quote_identifier(&shown), oid })
        })
        .collect()
}

fn definitions(columns: &[Column]) -> String {
    columns
        .iter()
        .map(|column| format!("{} {}", column.name, catalog::type_name(column.oid)))
        .collect::<Vec<_>>()
        .join(", ")
}
