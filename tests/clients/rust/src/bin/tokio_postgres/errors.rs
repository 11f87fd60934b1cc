// [errors]
use tokio::time::error::Elapsed;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::lease::Failure;

pub fn sqlstate(error: &Error) -> &str {
    error.code().map_or("", SqlState::code)
}

/// Stop: the lease is lost, and so is this transaction.
pub fn is_superseded(error: &Error) -> bool {
    sqlstate(error) == "LX001"
}

pub fn is_retryable(error: &Error) -> bool {
    error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
}

/// Superseded, evicted, cut off, or without an answer: extend the lease on a new connection, or do not use its token.
pub fn may_be_lost(failure: &Failure) -> bool {
    failure.is::<Elapsed>()
        || failure.downcast_ref().is_some_and(|error: &Error| {
            is_superseded(error) || error.is_closed() || sqlstate(error) == "57P01"
        })
}

/// With the detail, which says why.
pub fn explain(failure: &Failure) -> String {
    match failure.downcast_ref().and_then(Error::as_db_error) {
        Some(error) => format!("{} {}", error.message(), error.detail().unwrap_or_default()),
        None => failure.to_string(),
    }
}
// [end errors]
