/// The ways in which a write carries its token. A fenced write of the cases (FW) is done in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `lease_fence`, then a plain statement on a table without a token column.
    Transaction,
    /// The same on a table with a token column, which the trigger stamps.
    Stamped,
    /// The statement itself sets the token column.
    Column,
    /// `fenced_update` of the table without a token column.
    FencedUpdate,
    /// `fenced_update` of the table with one.
    FencedUpdateStamped,
}

impl Way {
    pub const ALL: [Self; 5] = [
        Self::Transaction,
        Self::Stamped,
        Self::Column,
        Self::FencedUpdate,
        Self::FencedUpdateStamped,
    ];

    pub fn table(self) -> &'static str {
        match self {
            Self::Transaction | Self::FencedUpdate => "plain",
            Self::Stamped | Self::Column | Self::FencedUpdateStamped => "stamped",
        }
    }
}
