//! Texts between the server, whose encoding is the database's, and Rust, whose strings are UTF-8.

use crate::error::{Error, Result};
use crate::raw;
use pgrx::prelude::*;
use std::ffi::{CStr, CString, c_char, c_int};

/// A new `text` in the current memory context.
pub fn text(bytes: &[u8]) -> pg_sys::Datum {
    // SAFETY: the bytes are copied.
    unsafe { pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), bytes.len() as c_int) }.into()
}

/// The bytes of a `text` that is stored in one of our tables.
pub fn bytes(text: pg_sys::Datum) -> Vec<u8> {
    // SAFETY: a datum of a text column that is not null.
    unsafe { Vec::<u8>::from_datum(text, false) }.unwrap_or_default()
}

pub fn name(name: pg_sys::Datum) -> CString {
    // SAFETY: a datum of a name column that is not null; a name is terminated.
    unsafe { CStr::from_ptr(name.cast_mut_ptr::<c_char>()) }.to_owned()
}

/// The string behind a pointer of the server's, empty for none.
pub fn string(chars: *const c_char) -> String {
    if chars.is_null() {
        return String::new();
    }
    // SAFETY: every caller passes a terminated string that the server allocated.
    shown(unsafe { CStr::from_ptr(chars) }.to_bytes())
}

fn encoding() -> pg_sys::pg_enc::Type {
    raw::GetDatabaseEncoding() as pg_sys::pg_enc::Type
}

/// Rust's strings are UTF-8, the server's are in the encoding of the database. SQL_ASCII is any bytes.
fn needs_conversion() -> bool {
    use pg_sys::pg_enc::*;
    ![PG_UTF8, PG_SQL_ASCII].contains(&encoding())
}

/// Raises the server's own error (22021) for bytes that are no text in the encoding of the database.
pub fn verify(bytes: &[u8]) {
    // SAFETY: reads the bytes; an error is turned into a panic by the guard.
    unsafe { pg_sys::pg_verifymbstr(bytes.as_ptr().cast(), bytes.len() as c_int, false) };
}

/// A text of the server's as a string; an error if it cannot be told what its bytes mean.
pub fn to_utf8(text: &[u8]) -> Result<String> {
    if !needs_conversion() {
        return String::from_utf8(text.to_vec()).map_err(|_| Error::NotText);
    }
    // SAFETY: the text is valid in the database's encoding; the result is terminated if it is another one.
    unsafe {
        let utf8 = pg_sys::pg_enc::PG_UTF8 as c_int;
        let from = text.as_ptr().cast::<c_char>();
        let converted = pg_sys::pg_server_to_any(from, text.len() as c_int, utf8);
        if converted.cast_const() == from {
            return String::from_utf8(text.to_vec()).map_err(|_| Error::NotText);
        }
        Ok(CStr::from_ptr(converted).to_string_lossy().into_owned())
    }
}

/// The same for people's eyes, whatever the bytes are.
pub fn shown(text: &[u8]) -> String {
    to_utf8(text).unwrap_or_else(|_| String::from_utf8_lossy(text).into_owned())
}

/// A string in the encoding of the database.
pub fn to_server(string: &str) -> Vec<u8> {
    if !needs_conversion() || string.is_ascii() {
        return string.as_bytes().to_vec();
    }
    // SAFETY: the string is valid UTF-8; a character that the encoding lacks is an error of the server's.
    unsafe {
        let utf8 = pg_sys::pg_enc::PG_UTF8 as c_int;
        let from = string.as_ptr().cast::<c_char>();
        let converted = pg_sys::pg_any_to_server(from, string.len() as c_int, utf8);
        CStr::from_ptr(converted).to_bytes().to_vec()
    }
}

/// A message as pgrx can send it: in a database of another encoding letters beyond ASCII are escaped.
pub fn message(message: String) -> String {
    if encoding() == pg_sys::pg_enc::PG_UTF8 || message.is_ascii() {
        return message;
    }
    message.chars().fold(String::new(), |mut safe, c| {
        if c.is_ascii() {
            safe.push(c)
        } else {
            safe.extend(c.escape_unicode())
        }
        safe
    })
}

pub fn c_string(value: &str) -> Result<CString> {
    CString::new(to_server(value)).map_err(|_| Error::Internal("a name holds a zero byte"))
}

pub fn quote_literal(value: &str) -> String {
    match c_string(value) {
        // SAFETY: a terminated string, which is copied.
        Ok(value) => string(unsafe { pg_sys::quote_literal_cstr(value.as_ptr()) }),
        Err(_) => String::new(),
    }
}

pub fn quote_identifier(value: &str) -> String {
    match c_string(value) {
        // SAFETY: a terminated string that outlives the call.
        Ok(value) => string(unsafe { pg_sys::quote_identifier(value.as_ptr()) }),
        Err(_) => String::new(),
    }
}
