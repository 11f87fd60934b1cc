//! A connection of the fuzzer's, and the ways in which it says a statement.

use std::collections::HashMap;
use std::error::Error;

use lock_ext_sessions::{Answer, PgError, connect};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, SimpleQueryMessage, Statement};

use super::values::{Value, quoted};

/// The first column of each row.
pub type Rows = Vec<Option<String>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One message with the values in it.
    Literals,
    TextParameters,
    BinaryParameters,
    /// The same over a statement that stays prepared.
    Kept,
    /// PREPARE and EXECUTE.
    Prepared,
    Do,
    /// DO with a handler for every error.
    Caught,
    /// Called for each of two rows.
    Twice,
}

pub const WAYS: [Way; 8] = [
    Way::Literals,
    Way::TextParameters,
    Way::BinaryParameters,
    Way::Kept,
    Way::Prepared,
    Way::Do,
    Way::Caught,
    Way::Twice,
];

impl Way {
    pub fn takes_zero_bytes(self) -> bool {
        [Self::TextParameters, Self::BinaryParameters, Self::Kept].contains(&self)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    pub is_read_only: bool,
    pub is_serializable: bool,
}

pub struct Link {
    client: Client,
    kept: HashMap<String, Statement>,
    pub pid: i32,
    pub database: String,
    pub role: Option<String>,
    pub is_odd: bool,
    /// The transaction block that is open.
    pub block: Option<Block>,
    /// May hold locks that outlive a transaction.
    pub is_bound: bool,
}

impl Link {
    pub async fn open(database: &str, role: Option<&str>, is_odd: bool) -> Self {
        let client = connect(database, role).await;
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.expect("an answer").get(0);
        let mut link = Self {
            client,
            kept: HashMap::new(),
            pid,
            database: database.to_owned(),
            role: role.map(str::to_owned),
            is_odd,
            block: None,
            is_bound: false,
        };
        link.set_up().await;
        link
    }

    pub async fn set_up(&mut self) {
        self.kept.clear();
        // Nobody else is there who would let go of a lock.
        let mut sql = "SET statement_timeout = '400ms'; SET lock_timeout = '40ms'; SET client_min_messages = error;".to_owned();
        if self.is_odd {
            sql += "SET standard_conforming_strings = off; SET escape_string_warning = off; SET quote_all_identifiers = on; SET datestyle = 'SQL, DMY';
                    SET intervalstyle = iso_8601; SET bytea_output = escape; SET search_path = evil, pg_catalog, public; SET lock_ext.notify = on;";
        }
        self.client.batch_execute(&sql).await.expect("settings");
    }

    /// What the session's settings make of a string.
    pub fn standard_strings(&self) -> bool {
        !self.is_odd
    }

    pub async fn sql(&self, sql: &str) -> Answer<Rows> {
        let messages = self.client.simple_query(sql).await.map_err(error)?;
        messages
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) if row.is_empty() => Some(Ok(None)),
                SimpleQueryMessage::Row(row) => Some(
                    row.try_get(0).map(|value| value.map(str::to_owned)).map_err(|_| not_utf8()),
                ),
                _ => None,
            })
            .collect()
    }

    pub async fn with(&self, sql: &str, values: &[&Value], binary: bool) -> Answer<Rows> {
        let statement = self.client.prepare(sql).await.map_err(error)?;
        self.execute(&statement, values, binary).await
    }

    async fn kept(&mut self, sql: &str, values: &[&Value], binary: bool) -> Answer<Rows> {
        if self.kept.len() > 60 {
            self.kept.clear();
        }
        if !self.kept.contains_key(sql) {
            let statement = self.client.prepare(sql).await.map_err(error)?;
            self.kept.insert(sql.to_owned(), statement);
        }
        self.execute(&self.kept[sql], values, binary).await
    }

    async fn execute(
        &self,
        statement: &Statement,
        values: &[&Value],
        binary: bool,
    ) -> Answer<Rows> {
        let parameters: Vec<Parameter> =
            values.iter().map(|value| Parameter { value, binary }).collect();
        let parameters: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|p| p as _).collect();
        let rows = self.client.query(statement, &parameters).await.map_err(error)?;
        rows.iter()
            .map(|row| if row.is_empty() { Ok(None) } else { row.try_get::<_, Option<Shown>>(0) })
            .map(|value| value.ok().map(|shown| shown.map(|shown| shown.0)))
            .collect::<Option<Rows>>()
            .ok_or_else(not_utf8)
    }

    /// Says `SELECT` and what `call` makes of the values.
    pub async fn say(
        &mut self,
        call: &(dyn Fn(&[String]) -> String + Send + Sync),
        values: &[Value],
        way: Way,
    ) -> Answer<Rows> {
        let literals: Vec<String> =
            values.iter().map(|value| value.literal(self.standard_strings())).collect();
        let places: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(i, value)| format!("${}::{}", i + 1, value.of))
            .collect();
        let values: Vec<&Value> = values.iter().collect();
        match way {
            Way::Literals => self.sql(&format!("SELECT {}", call(&literals))).await,
            Way::TextParameters | Way::BinaryParameters => {
                self.with(
                    &format!("SELECT {}", call(&places)),
                    &values,
                    way == Way::BinaryParameters,
                )
                .await
            }
            Way::Kept => self.kept(&format!("SELECT {}", call(&places)), &values, true).await,
            Way::Prepared => {
                let list = |items: Vec<String>| {
                    if items.is_empty() { String::new() } else { format!("({})", items.join(", ")) }
                };
                let types = list(values.iter().map(|value| value.of.clone()).collect());
                // A statement that an error left behind is replaced.
                let _ = self.sql("DEALLOCATE ALL").await;
                self.kept.clear();
                self.sql(&format!("PREPARE fuzz_p {types} AS SELECT {}", call(&places))).await?;
                self.sql(&format!("EXECUTE fuzz_p {}", list(literals))).await
            }
            Way::Do => {
                let body = format!("BEGIN PERFORM {}; END", call(&literals));
                self.sql(&format!("DO {}", quoted(&body, self.standard_strings())))
                    .await
                    .map(|_| Rows::new())
            }
            Way::Caught => {
                let body = format!(
                    "BEGIN PERFORM pg_catalog.set_config('fuzz.code', '', false); PERFORM {};
                     EXCEPTION WHEN OTHERS THEN PERFORM pg_catalog.set_config('fuzz.code', SQLSTATE, false), pg_catalog.set_config('fuzz.message', SQLERRM, false); END",
                    call(&literals)
                );
                self.sql(&format!("DO {}", quoted(&body, self.standard_strings()))).await?;
                let shown =
                    |setting| format!("SELECT pg_catalog.current_setting('fuzz.{setting}', true)");
                let code = self.sql(&shown("code")).await?[0].clone().unwrap_or_default();
                if code.is_empty() {
                    return Ok(Rows::new());
                }
                let message = self.sql(&shown("message")).await?[0].clone().unwrap_or_default();
                Err(PgError { code, message, ..PgError::default() })
            }
            Way::Twice => {
                self.sql(&format!(
                    "SELECT {} FROM pg_catalog.generate_series(1, 2)",
                    call(&literals)
                ))
                .await
            }
        }
    }
}

fn error(error: tokio_postgres::Error) -> PgError {
    match error.as_db_error() {
        Some(_) => error.into(),
        None => PgError {
            code: PgError::CLOSED.to_owned(),
            message: format!("{error:?}"),
            ..PgError::default()
        },
    }
}

/// An answer that is no text.
fn not_utf8() -> PgError {
    PgError {
        code: "bytes".to_owned(),
        message: "the answer is not UTF-8".to_owned(),
        ..PgError::default()
    }
}

#[derive(Debug)]
struct Parameter<'a> {
    value: &'a Value,
    binary: bool,
}

impl ToSql for Parameter<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let Some(text) = &self.value.text else { return Ok(IsNull::Yes) };
        match &self.value.binary {
            Some(bytes) if self.binary => out.extend_from_slice(bytes),
            _ => out.extend_from_slice(text.as_bytes()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        if self.binary && self.value.binary.is_some() { Format::Binary } else { Format::Text }
    }

    to_sql_checked!();
}

/// A value as far as the fuzzer looks into it.
struct Shown(String);

impl<'a> FromSql<'a> for Shown {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(match *ty {
            Type::INT8 => i64::from_sql(ty, raw)?.to_string(),
            Type::INT4 => i32::from_sql(ty, raw)?.to_string(),
            Type::BOOL => if raw == [0] { "f" } else { "t" }.to_owned(),
            Type::TEXT => String::from_utf8(raw.to_vec())?,
            _ => String::from_utf8_lossy(raw).into_owned(),
        }))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
