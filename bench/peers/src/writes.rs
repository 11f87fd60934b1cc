//! Fenced writes, beside the same without a fence and with one that is written by hand.

use crate::Plan;
use crate::compare::{Measure, System};
use crate::measures::{COMMIT, EVERYBODY, FLOOR};
use crate::sql::{Arg, Names, Step, Wanted};

const ONE: Wanted = Wanted::Tag("INSERT 0 1");
const THOUSAND: Wanted = Wanted::Tag("INSERT 0 1000");

const BEGIN_PLAIN: Step = Step(&[("BEGIN", &[]), ("SELECT 1", &[])], Wanted::Value);
const BEGIN_FENCED: Step = Step(
    &[("BEGIN", &[]), ("SELECT lease_fence('held', $1)", &[Arg::HeldToken])],
    Wanted::Anything,
);

const EMPTY_PLAIN: &str = "TRUNCATE plain";
const EMPTY_FENCED: &str = "BEGIN; SELECT lease_fence('held', token) FROM lock_ext.lease WHERE name = 'held'; TRUNCATE fenced; COMMIT";
const EMPTY_STAMPED: &str = "BEGIN; SELECT lease_fence('held', token) FROM lock_ext.lease WHERE name = 'held'; TRUNCATE stamped; COMMIT";
const EMPTY_BY_HAND: &str = "TRUNCATE by_hand, by_hand_locked";

const UNSAFE: &str = "no check at the commit, so stale writes get through";
const BLOCKS: &str = "holds up its own heartbeats; stale from an old snapshot";

/// A row in autocommit, which carries its token in a column.
pub fn write(_plan: &Plan) -> Measure {
    let systems = vec![
        System::sql(
            "INSERT without a fence",
            FLOOR,
            Names::Jobs,
            &[Step(&[("INSERT INTO plain (v, token) VALUES (1, $1)", &[Arg::HeldToken])], ONE)],
        )
        .before(EMPTY_PLAIN),
        System::sql(
            "fenced, token in a column",
            "",
            Names::Jobs,
            &[Step(&[("INSERT INTO stamped (v, token) VALUES (1, $1)", &[Arg::HeldToken])], ONE)],
        )
        .before(EMPTY_STAMPED),
        System::sql(
            "PL/pgSQL trigger by hand",
            UNSAFE,
            Names::Jobs,
            &[Step(&[("INSERT INTO by_hand (v, token) VALUES (1, $1)", &[Arg::HeldToken])], ONE)],
        )
        .before(EMPTY_BY_HAND),
        System::sql(
            "the same with FOR SHARE",
            BLOCKS,
            Names::Jobs,
            &[Step(
                &[("INSERT INTO by_hand_locked (v, token) VALUES (1, $1)", &[Arg::HeldToken])],
                ONE,
            )],
        )
        .before(EMPTY_BY_HAND),
    ];
    Measure { name: "write", unit: "rows/s", clients: EVERYBODY, systems }
}

/// A row in a transaction that carries the token.
pub fn write_in_transaction(clients: &'static [usize], name: &'static str) -> Measure {
    let systems = vec![
        System::sql(
            "BEGIN, SELECT 1, INSERT, COMMIT",
            FLOOR,
            Names::Jobs,
            &[BEGIN_PLAIN, Step(&[("INSERT INTO plain (v) VALUES (1)", &[])], ONE), COMMIT],
        )
        .before(EMPTY_PLAIN),
        System::sql(
            "fenced, with lease_fence for SELECT 1",
            "",
            Names::Jobs,
            &[BEGIN_FENCED, Step(&[("INSERT INTO fenced (v) VALUES (1)", &[])], ONE), COMMIT],
        )
        .before(EMPTY_FENCED),
    ];
    Measure { name, unit: "transactions/s", clients, systems }
}

/// A thousand rows in a statement.
pub fn bulk(_plan: &Plan) -> Measure {
    let systems = vec![
        System::sql("INSERT of 1,000 rows", FLOOR, Names::Jobs, &[
            BEGIN_PLAIN,
            Step(&[("INSERT INTO plain (v, token) SELECT v, $1 FROM generate_series(1, 1000) AS v", &[Arg::HeldToken])], THOUSAND),
            COMMIT,
        ])
        .before(EMPTY_PLAIN),
        System::sql("fenced by transaction", "", Names::Jobs, &[
            BEGIN_FENCED,
            Step(&[("INSERT INTO fenced (v, token) SELECT v, $1 FROM generate_series(1, 1000) AS v", &[Arg::HeldToken])], THOUSAND),
            COMMIT,
        ])
        .before(EMPTY_FENCED),
        System::sql("fenced, token in a column", "", Names::Jobs, &[
            BEGIN_PLAIN,
            Step(&[("INSERT INTO stamped (v, token) SELECT v, $1 FROM generate_series(1, 1000) AS v", &[Arg::HeldToken])], THOUSAND),
            COMMIT,
        ])
        .before(EMPTY_STAMPED),
        System::sql("PL/pgSQL trigger by hand", UNSAFE, Names::Jobs, &[
            BEGIN_PLAIN,
            Step(&[("INSERT INTO by_hand (v, token) SELECT v, $1 FROM generate_series(1, 1000) AS v", &[Arg::HeldToken])], THOUSAND),
            COMMIT,
        ])
        .before(EMPTY_BY_HAND),
        System::sql("the same with FOR SHARE", BLOCKS, Names::Jobs, &[
            BEGIN_PLAIN,
            Step(&[("INSERT INTO by_hand_locked (v, token) SELECT v, $1 FROM generate_series(1, 1000) AS v", &[Arg::HeldToken])], THOUSAND),
            COMMIT,
        ])
        .before(EMPTY_BY_HAND),
    ]
    .into_iter()
    .map(|system| system.each(1000.0))
    .collect();
    Measure { name: "bulk", unit: "rows/s", clients: EVERYBODY, systems }
}
