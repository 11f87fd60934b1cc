-- Tokens have epochs from now on, and a second sequence that counts along; see src/token.rs.
CREATE SEQUENCE lock_ext.token_guard;
CREATE SEQUENCE lock_ext.token_origin;
SELECT pg_catalog.pg_extension_config_dump('lock_ext.token_origin', '');

CREATE FUNCTION lock_ext."origin"() RETURNS bigint
STRICT VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'origin_wrapper';

SELECT pg_catalog.setval('lock_ext.token_guard', last_value, is_called) FROM lock_ext.lease_token_seq;
SELECT pg_catalog.setval('lock_ext.token_origin', lock_ext.origin());

COMMENT ON SEQUENCE lock_ext.token_guard IS 'gives the tokens beside the other sequence, so that this one may be changed by hand without a token being given out twice';
COMMENT ON SEQUENCE lock_ext.token_origin IS 'cluster, database, extension and timeline that the last token was drawn on, in one number';
COMMENT ON FUNCTION lock_ext.origin() IS 'what lock_ext.token_origin is set to';

-- On a standby the process is one of the primary's.
CREATE OR REPLACE VIEW lease_session AS
    SELECT s.name,
           s.holder,
           s.token,
           s.session_pid AS pid,
           a.client_addr,
           a.state,
           CASE WHEN pg_catalog.starts_with(a.state, 'idle') THEN a.state_change END AS idle_since
      FROM lock_ext.status() AS s
      LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) s.session_pid AND NOT pg_catalog.pg_is_in_recovery()
     WHERE s.session_pid IS NOT NULL;

COMMENT ON FUNCTION lease_fence(text, bigint, boolean) IS
'The rest of this transaction writes under the token. If the token is superseded before the commit, and anything was written, to whichever table, the COMMIT is refused; so it is for each token, where there are several. Every write to a table that is fenced by the lease is checked when it happens as well.
hold: from the first write to a fenced table, or the first checkpoint, to the end of the transaction a take-over waits (default false: the transaction fails if it is superseded before it commits).
Errors: LX001 if the token is not current; LX002 with lock_ext.strict_expiry; 22004 for NULL, 22023, 22001, 25006 on a standby, 42501. Locks: an entry of the lock table from here on, which blocks nobody, and after a write one while the transaction commits, which a grant waits for.';

COMMENT ON FUNCTION fence_forget(text) IS
'Forgets the highest token of a resource: true if there was one. For a system that begins its tokens anew, or after a token that was never issued. Lower tokens are accepted again. Not for PUBLIC. Errors: 22004 for NULL, 22023, 22001, 25006. Locks: none at the call; it is forgotten at the commit, which waits for others under the same resource that are just committing or prepared.';

COMMENT ON FUNCTION lease_prune(interval) IS
'Removes the leases that nobody has held or completed for that time, with their checkpoints, and gives their number. One that a pause or a minimum hold keeps stays, and so does one that another open transaction acts under a token of. Tokens go on rising. Not for PUBLIC. Errors: 22004 for NULL, 22023, 25006.';

COMMENT ON FUNCTION lease_raise_token_floor(bigint) IS
'Every token that is granted from now on is above the floor: for a database whose tables hold tokens of an earlier one. Gives the floor now in force. Not for PUBLIC. Errors: 22004 for NULL, 22023, 25006. It is not undone by a rollback. Locks: none that a transaction keeps.';

-- A transaction is seen from its lease_fence on.
COMMENT ON FUNCTION lease_evict(text, bigint) IS
'For the present holder: ends the sessions whose open transactions have declared another token of the lease, or written under one, and gives their process ids. Such a transaction cannot commit what it writes, but it keeps its row locks until it ends.
Errors: LX001 if the token is not current, 25001 if its grant is not committed, 22004 for NULL, 22023, 22001, 25006, 42501. Locks: none.';
COMMENT ON COLUMN lease_status.writers IS 'number of open transactions that have declared a token of it, or written under one';
COMMENT ON VIEW lease_writer IS 'open transactions that have declared a token of a lease (lease_fence), or written under one; which leases as in lease_status';
COMMENT ON COLUMN lease_writer.token IS 'fencing token that it has declared, or written under';
COMMENT ON COLUMN lease_writer.superseded IS 'true if the token is no longer current: the transaction cannot commit what it writes';
COMMENT ON FUNCTION lease_evict(text) IS
'The same without a token, for administrators; ends also the session whose open transaction has acquired the lease, or ended it by force. Not for PUBLIC.';
