//! Which errors may come, and why. Everything else is a finding: above all XX000 and the other internal ones, syntax errors of a statement that the
//! extension made, and errors of its own SQL.

use super::link::Block;

struct May {
    codes: &'static [&'static str],
    /// Functions without their schema, or the words that the fuzzer has for other statements; none for all.
    at: &'static [&'static str],
    #[allow(dead_code, reason = "to be read")]
    why: &'static str,
}

const ATTACH: &str = "fence_attach";
const DETACH: &str = "fence_detach";
const UPDATE: &str = "fenced_update";
const WRITE: &str = "write";
const TRIGGER: &str = "trigger";
pub const COMMIT: &str = "commit";

#[rustfmt::skip]
const ALL: &[May] = &[
    May { codes: &["22004", "22023", "22001"], at: &[], why: "README: an argument is NULL, empty or out of range, too long" },
    May { codes: &["42501"], at: &[], why: "README: the lease is another role's, the table is not yours, the function is not for you" },
    May { codes: &["57014", "55P03"], at: &[], why: "the fuzzer's own statement_timeout and lock_timeout" },
    May { codes: &["40001"], at: &[WRITE, UPDATE, COMMIT], why: "PostgreSQL: a row changed since the snapshot of REPEATABLE READ" },
    May { codes: &["53400"], at: &[], why: "README: too many leases in one transaction" },
    May { codes: &["LX001", "LX002"], at: &["lease_fence", UPDATE, "lease_checkpoint", "lease_evict", "fence_observe", "carry", WRITE, COMMIT], why: "README: stale, expired" },
    May { codes: &["LX003"], at: &[UPDATE, WRITE], why: "README: no token carried" },
    May { codes: &["55000"], at: &[ATTACH, DETACH, UPDATE, "lease_release", "lease_complete", "attach_statements", "detach_statements", "attached_lease", "tokens_are_ahead"], why: "README" },
    May { codes: &["42809", "42703", "42804"], at: &[ATTACH, DETACH, UPDATE, "attach_statements", "detach_statements", "attached_lease", "update_statement", "conversion_statement", "tokens_are_ahead", WRITE], why: "README: not a table, no such column, not a bigint" },
    May { codes: &["42P01"], at: &[ATTACH, DETACH, UPDATE, "attach_statements", "detach_statements", "attached_lease", "update_statement", "conversion_statement", "tokens_are_ahead"], why: "PostgreSQL's own for an OID that is no relation's" },
    May { codes: &["39P01"], at: &[WRITE, UPDATE, "fence_check"], why: "README: a trigger that is made otherwise" },
    May { codes: &["0A000", "42804"], at: &["fence_check"], why: "PostgreSQL: a trigger function can only be called as one" },
    May { codes: &["42883"], at: &[UPDATE, "update_statement"], why: "README: a column of the filter has a type without equality" },
    May { codes: &["0A000"], at: &[COMMIT], why: "README: PREPARE TRANSACTION after lease_extend and the like" },
    May { codes: &["25001"], at: &["lease_evict"], why: "README: under a grant that is not committed" },
    May { codes: &["2200H"], at: &["lease_acquire", "lease_acquire_session", "lease_elect"], why: "README: no more tokens; the fuzzer looks whether that is so" },
    May { codes: &["22P02", "22003", "22007", "22008", "22015", "22P05", "22021", "22026", "22000", "23502", "23505", "23514", "428C9", "22P03", "22009"], at: &[UPDATE, WRITE], why: "what a column's type or a constraint refuses" },
    May { codes: &["55000", "0A000", "42809"], at: &[UPDATE, WRITE, TRIGGER], why: "PostgreSQL: a view, a foreign table, a sequence cannot be written, or not in this way" },
    May { codes: &["42P17", "42P16", "0A000", "42809", "42710", "42704", "55006"], at: &[TRIGGER], why: "PostgreSQL: such a trigger cannot be made for such a relation, or while it is in use" },
    May { codes: &["55006"], at: &[ATTACH, DETACH, WRITE], why: "PostgreSQL: the table has pending trigger events or is in use by the same session" },
    May { codes: &["22021", "22P05"], at: &[ATTACH, UPDATE, "attach_statements", "update_statement", "conversion_statement"], why: "README: names that are not UTF-8 in a SQL_ASCII database" },
    May { codes: &["22021"], at: &["trigger_arguments"], why: "bytes that are no text; in a SQL_ASCII database the client's encoding says so" },
    May { codes: &["22P05"], at: &[TRIGGER], why: "PostgreSQL: a letter that the database's encoding lacks" },
    May { codes: &["22023", "22P02", "42704", "42602", "55P02"], at: &["setting"], why: "PostgreSQL: a setting's value or name" },
];

/// `what` is a function, with or without its schema, or another word.
pub fn may(what: &str, code: &str, block: Block) -> bool {
    let what = what.rsplit('.').next().unwrap_or(what);
    // PostgreSQL dooms a SERIALIZABLE transaction for what it has read and written of the user's; the next write of any kind says so.
    code == "25006" && block.is_read_only
        || code == "40001" && block.is_serializable
        || ALL
            .iter()
            .any(|may| may.codes.contains(&code) && (may.at.is_empty() || may.at.contains(&what)))
}
