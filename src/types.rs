//! Values that are checked once, where they come in, and then carried as proof: whoever has a [`Label`], a [`Token`] or
//! a [`Ttl`] need not ask again whether it is one.

use crate::error::{Error, Result};
use crate::settings;
use crate::text;
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Datum, UnboxDatum};
use pgrx::nullable::Nullable;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::prelude::*;
use std::fmt;

/// Longest name, holder or key in bytes. An index entry of PostgreSQL's btree holds 2,704 bytes; a third of a page
/// would do, and nobody reads a longer name.
pub const MAX_LABEL_BYTES: usize = 1024;

/// Largest token: JSON readers keep whole numbers exactly only up to 2^53 - 1.
pub const MAX_TOKEN: i64 = (1 << 53) - 1;

/// Microseconds since 2000-01-01 00:00 UTC, as PostgreSQL keeps a `timestamptz`.
pub type Timestamp = i64;

/// `'infinity'::timestamptz`.
pub const INFINITY: Timestamp = Timestamp::MAX;

/// A `text` in the bytes of the database's encoding, whatever that encoding is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub Vec<u8>);

impl Text {
    /// A string of ours, for SQL.
    pub fn of(string: &str) -> Self {
        Text(text::to_server(string))
    }
}

/// What a [`Label`] names; the word that errors use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Lease,
    Holder,
    OnceKey,
    Resource,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Lease => "lease name",
            Kind::Holder => "holder",
            Kind::OnceKey => "once key",
            Kind::Resource => "resource",
        })
    }
}

/// A name, holder or key of 1 to [`MAX_LABEL_BYTES`] bytes. Compared byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label<'a>(&'a [u8]);

impl<'a> Label<'a> {
    pub fn new(kind: Kind, given: Option<&'a Text>) -> Result<Self> {
        let bytes = given.ok_or(Error::Null { what: kind.to_string() })?.0.as_slice();
        match bytes.len() {
            0 => Err(Error::Empty { kind }),
            n if n > MAX_LABEL_BYTES => Err(Error::TooLong { kind, bytes: n }),
            _ => Ok(Label(bytes)),
        }
    }

    /// A label that was checked before, such as one read back from a table.
    pub fn known(bytes: &'a [u8]) -> Self {
        Label(bytes)
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::shown(self.0))
    }
}

/// A fencing token as a caller gives it: any number, granted or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub i64);

impl Token {
    pub fn new(given: Option<i64>) -> Result<Self> {
        given.map(Token).ok_or_else(|| Error::Null { what: "fencing token".into() })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A time to live in microseconds: at least a millisecond, at most `lock_ext.max_ttl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(i64);

const MICROS_PER_DAY: i64 = 86_400_000_000;
const MIN_TTL: i64 = 1_000;

impl Ttl {
    pub fn new(given: Option<Interval>) -> Result<Self> {
        let given = given.ok_or_else(|| Error::Null { what: "time to live".into() })?;
        if given.months() != 0 {
            return Err(Error::TtlMonths);
        }
        // PostgreSQL 17 and later write infinity as the largest value of each field, months among them.
        let micros = i64::from(given.days())
            .checked_mul(MICROS_PER_DAY)
            .and_then(|days| days.checked_add(given.micros()))
            .ok_or(Error::TtlRange { max_ms: settings::max_ttl_ms() })?;
        if micros < MIN_TTL || micros > i64::from(settings::max_ttl_ms()) * 1_000 {
            return Err(Error::TtlRange { max_ms: settings::max_ttl_ms() });
        }
        Ok(Ttl(micros))
    }

    /// One that was granted before; a lowered `lock_ext.max_ttl` does not reach back.
    pub fn granted(micros: i64) -> Self {
        Ttl(micros)
    }

    pub fn micros(self) -> i64 {
        self.0
    }

    /// The moment at which a grant made at `now` ends.
    pub fn from(self, now: Timestamp) -> Timestamp {
        now.saturating_add(self.0)
    }
}

/// A wait in microseconds, zero for none.
pub fn wait_micros(given: Option<Interval>) -> Result<i64> {
    let given = given.ok_or_else(|| Error::Null { what: "wait".into() })?;
    let micros = i128::from(given.days()) * i128::from(MICROS_PER_DAY) + i128::from(given.micros());
    if given.months() != 0 || micros < 0 {
        return Err(Error::WaitRange);
    }
    i64::try_from(micros).map_err(|_| Error::WaitRange)
}

/// A `jsonb` that is passed on as it is. Reading it into Rust would lose numbers that no `f64` holds.
#[derive(Clone, Copy)]
pub struct Jsonb(pub pg_sys::Datum);

// SAFETY: `text` is what `from_datum` and `into_datum` below read and make.
unsafe impl SqlTranslatable for Text {
    const TYPE_IDENT: &'static str = "text";
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("text"));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("text")));
}

impl FromDatum for Text {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        typoid: pg_sys::Oid,
    ) -> Option<Self> {
        // SAFETY: a text is a varlena like a bytea, and the caller vouches for the datum.
        unsafe { Vec::<u8>::from_polymorphic_datum(datum, is_null, typoid) }.map(Text)
    }
}

impl IntoDatum for Text {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(text::text(&self.0))
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TEXTOID
    }
}

// SAFETY: the bytes are copied out of the argument, nothing refers to it afterwards.
unsafe impl<'fcx> ArgAbi<'fcx> for Text {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: the caller vouches for the argument's type.
        Text(unsafe { Vec::<u8>::unbox_arg_unchecked(arg) })
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: the caller vouches for the argument's type.
        match unsafe { Vec::<u8>::unbox_nullable_arg(arg) } {
            Nullable::Valid(bytes) => Nullable::Valid(Text(bytes)),
            Nullable::Null => Nullable::Null,
        }
    }
}

// SAFETY: as above; for the elements of arrays.
unsafe impl UnboxDatum for Text {
    type As<'src> = Text;

    unsafe fn unbox<'src>(datum: Datum<'src>) -> Text
    where
        Self: 'src,
    {
        Text(text::bytes(datum.sans_lifetime()))
    }
}

// SAFETY: a new datum in the current memory context, which is the caller's.
unsafe impl BoxRet for Text {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: `text` makes a datum of the function's return type.
        unsafe { fcinfo.return_raw_datum(text::text(&self.0)) }
    }
}

// SAFETY: the datum is never looked into.
unsafe impl SqlTranslatable for Jsonb {
    const TYPE_IDENT: &'static str = "jsonb";
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("jsonb"));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("jsonb")));
}

impl FromDatum for Jsonb {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _typoid: pg_sys::Oid,
    ) -> Option<Self> {
        (!is_null).then_some(Jsonb(datum))
    }
}

// SAFETY: as above; the datum lives as long as the call.
unsafe impl<'fcx> ArgAbi<'fcx> for Jsonb {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: a jsonb is taken as it is. A NULL never gets here: every such argument is an Option.
        unsafe { arg.unbox_arg_using_from_datum::<Self>() }.unwrap_or(Jsonb(pg_sys::Datum::null()))
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: the caller vouches for the argument's type.
        unsafe { arg.unbox_arg_using_from_datum::<Self>() }.into()
    }
}

// SAFETY: the datum was copied into the current memory context by whoever made the value.
unsafe impl BoxRet for Jsonb {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: the datum is a jsonb.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}
