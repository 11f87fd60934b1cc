//! The statement behind `fenced_update`. It is executed by the SQL function with the rights of the caller; here it is only
//! written down. Names are quoted, values stay in the two `jsonb` parameters: $1 the filter, $2 the changes.
//!
//! Each value is turned into its column's type by the type itself, so that nothing is lost on the way, and compared by the
//! equality of that type, so that an index on the column serves.

use crate::error::{Error, Result};
use crate::pg;
use crate::types::{Label, Text};
use pgrx::prelude::*;

pub fn statement(
    target: pg_sys::Oid,
    filter: Option<&[Text]>,
    values: &[Text],
    changes: Option<&[Text]>,
    all_rows: bool,
) -> Result<String> {
    let filter = filter.ok_or_else(|| Error::Null {
        what: "filter".into(),
    })?;
    let changes = changes.ok_or_else(|| Error::Null {
        what: "changes".into(),
    })?;
    if changes.is_empty() {
        return Err(Error::EmptyChanges);
    }
    if filter.is_empty() && !all_rows {
        return Err(Error::EmptyFilter);
    }
    let set = columns(target, changes)?;
    let names: Vec<&str> = set.iter().map(|column| column.name.as_str()).collect();
    let mut sql = format!(
        "UPDATE {} AS t SET ({}) = (SELECT {} FROM pg_catalog.jsonb_to_record($2) AS r({}))",
        pg::qualified(&pg::table_name(target)),
        names.join(", "),
        names
            .iter()
            .map(|name| format!("r.{name}"))
            .collect::<Vec<_>>()
            .join(", "),
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
    Ok(sql)
}

/// A statement that turns every value into its column's type, for an update that found no row and so has not.
pub fn conversion(target: pg_sys::Oid, filter: &[Text], changes: &[Text]) -> Result<String> {
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
    Ok(format!("SELECT FROM {}", sources.join(", ")))
}

struct Column {
    name: String,
    oid: pg_sys::Oid,
}

impl Column {
    fn equals(&self) -> Result<String> {
        pg::equality_operator(self.oid)
    }
}

fn columns(target: pg_sys::Oid, names: &[Text]) -> Result<Vec<Column>> {
    names
        .iter()
        .map(|name| {
            let shown = Label::known(&name.0).to_string();
            let (_, oid) =
                pg::column(target, &pg::c_string(&shown)?).ok_or_else(|| Error::NoColumn {
                    table: pg::table_name(target).table,
                    column: shown.clone(),
                })?;
            Ok(Column {
                name: pg::quote_identifier(&shown),
                oid,
            })
        })
        .collect()
}

fn definitions(columns: &[Column]) -> String {
    columns
        .iter()
        .map(|column| format!("{} {}", column.name, pg::type_name(column.oid)))
        .collect::<Vec<_>>()
        .join(", ")
}
