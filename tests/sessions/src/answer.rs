use std::fmt::{self, Debug, Display};

/// An error's fields as the server sent them. Tests look at these, never at the whole message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PgError {
    pub code: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    pub schema: Option<String>,
    pub table: Option<String>,
}

impl PgError {
    /// What stands for a connection that is gone: no server sends this code by itself.
    pub const CLOSED: &str = "08006";

    /// The detail has to name all of these, whatever it says about them.
    #[track_caller]
    pub fn detail_names(&self, facts: &[&dyn Display]) -> &Self {
        let detail = self.detail.as_deref().unwrap_or_default();
        for fact in facts {
            let fact = fact.to_string();
            assert!(detail.contains(&fact), "no {fact:?} in the detail of {self:?}");
        }
        self
    }

    #[track_caller]
    pub fn has_hint(&self) -> &Self {
        assert!(
            self.hint.as_deref().is_some_and(|hint| !hint.trim().is_empty()),
            "no hint in {self:?}"
        );
        self
    }

    /// The refused write was one to this table.
    #[track_caller]
    pub fn at_table(&self, schema: &str, table: &str) -> &Self {
        assert_eq!(
            (self.schema.as_deref(), self.table.as_deref()),
            (Some(schema), Some(table)),
            "in {self:?}"
        );
        self
    }
}

impl Display for PgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}

impl std::error::Error for PgError {}

impl From<tokio_postgres::Error> for PgError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(db) => Self {
                code: db.code().code().to_owned(),
                message: db.message().to_owned(),
                detail: db.detail().map(str::to_owned),
                hint: db.hint().map(str::to_owned),
                schema: db.schema().map(str::to_owned),
                table: db.table().map(str::to_owned),
            },
            None if error.is_closed()
                || std::error::Error::source(&error).is_some_and(|e| e.is::<std::io::Error>()) =>
            {
                Self {
                    code: Self::CLOSED.to_owned(),
                    message: error.to_string(),
                    ..Self::default()
                }
            }
            None => panic!("neither the server's error nor a lost connection: {error:?}"),
        }
    }
}

pub type Answer<T> = Result<T, PgError>;

/// The answer of a function that gives NULL for "no".
pub trait Asked<T> {
    /// A lease was granted.
    fn granted(self) -> T;
    /// Somebody else holds it.
    fn busy(self);
    /// The lease goes on.
    fn extended(self) -> T;
    /// The lease was lost.
    fn lost(self);
}

impl<T: Debug> Asked<T> for Answer<Option<T>> {
    #[track_caller]
    fn granted(self) -> T {
        match self {
            Ok(Some(token)) => token,
            other => panic!("not granted: {other:?}"),
        }
    }

    #[track_caller]
    fn busy(self) {
        assert!(matches!(self, Ok(None)), "not NULL: {self:?}");
    }

    #[track_caller]
    fn extended(self) -> T {
        match self {
            Ok(Some(expiry)) => expiry,
            other => panic!("not extended: {other:?}"),
        }
    }

    #[track_caller]
    fn lost(self) {
        assert!(matches!(self, Ok(None)), "not NULL: {self:?}");
    }
}

/// The answer that has to be an error.
pub trait Refused {
    fn refused(self, code: &str) -> PgError;
}

impl<T: Debug> Refused for Answer<T> {
    #[track_caller]
    fn refused(self, code: &str) -> PgError {
        match self {
            Err(error) if error.code == code => error,
            other => panic!("not refused with {code}: {other:?}"),
        }
    }
}
