// [errors]
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

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
// [end errors]
