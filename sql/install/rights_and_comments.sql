-- Rights. The schema may be used, since the functions in SQL name what is in it; its tables have no rights for anybody.
GRANT USAGE ON SCHEMA lock_ext TO PUBLIC;
GRANT SELECT ON lease_status, lease_session, lease_waiter, lease_writer, fence_status, fence_observed TO PUBLIC;

-- Administration: to be granted to whom it is for.
REVOKE ALL ON FUNCTION lease_evict(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION lease_force_release(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION lease_prune(interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION lease_raise_token_floor(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION fence_forget(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION once_forget(interval) FROM PUBLIC;

-- A standby that sees no token of ours before it is promoted has to see this.
SELECT pg_catalog.setval('lock_ext.token_origin', lock_ext.origin());

-- Comments: arguments, what is returned, NULL, errors, locks.
COMMENT ON SCHEMA lock_ext IS 'private objects of the extension lock_ext';

COMMENT ON TABLE lock_ext.lease IS 'one row a lease name; read and written by the functions of lock_ext only';
COMMENT ON COLUMN lock_ext.lease.token IS 'fencing token of the last grant';
COMMENT ON COLUMN lock_ext.lease.grants IS 'how often the lease was granted';
COMMENT ON COLUMN lock_ext.lease.acquired_at IS 'when the last grant was made, by the clock of the server';
COMMENT ON COLUMN lock_ext.lease.renewed_at IS 'when the expiry was set last, by the grant or by an extension';
COMMENT ON COLUMN lock_ext.lease.ttl IS 'time to live of the last grant';
COMMENT ON COLUMN lock_ext.lease.holder_role IS 'role that acquired it; only its members extend, release, complete or write under it';
COMMENT ON COLUMN lock_ext.lease.name IS 'name of the lease, compared byte for byte';
COMMENT ON COLUMN lock_ext.lease.holder IS 'text for people that the holder gave; it proves nothing';
COMMENT ON COLUMN lock_ext.lease.expires_at IS 'when the grant expires; null: nobody holds the lease';
COMMENT ON COLUMN lock_ext.lease.released_at IS 'when it was released, completed or ended by force; null: it is granted';
COMMENT ON COLUMN lock_ext.lease.completed_until IS 'nobody is granted the lease before';
COMMENT ON COLUMN lock_ext.lease.request IS 'request that the grant answered';
COMMENT ON COLUMN lock_ext.lease.not_before IS 'minimum hold: nobody else is granted the lease before, even after a release; null: none';
COMMENT ON COLUMN lock_ext.lease.pause IS 'for how long after an expiry, or an end by force, nobody is granted the lease; null: none';
COMMENT ON COLUMN lock_ext.lease.session_pid IS 'process id of the session that the grant is bound to; null: it has a time to live';
COMMENT ON SEQUENCE lock_ext.lease_token_seq IS 'fencing tokens, of all names together';
COMMENT ON SEQUENCE lock_ext.token_guard IS 'gives the tokens beside the other sequence, so that this one may be changed by hand without a token being given out twice';
COMMENT ON SEQUENCE lock_ext.token_origin IS 'cluster, database, extension and timeline that the last token was drawn on, in one number';

COMMENT ON TABLE lock_ext.lease_checkpoint IS 'progress saved under a lease; the row of the highest token counts';
COMMENT ON COLUMN lock_ext.lease_checkpoint.token IS 'fencing token that it was saved under';
COMMENT ON COLUMN lock_ext.lease_checkpoint.saved_at IS 'when it was saved';
COMMENT ON COLUMN lock_ext.lease_checkpoint.name IS 'name of the lease';
COMMENT ON COLUMN lock_ext.lease_checkpoint.saver_role IS 'role that saved it';
COMMENT ON COLUMN lock_ext.lease_checkpoint.state IS 'what was saved';

COMMENT ON TABLE lock_ext.once_key IS 'keys whose work is done';
COMMENT ON COLUMN lock_ext.once_key.done_at IS 'when the key was marked';
COMMENT ON COLUMN lock_ext.once_key.key IS 'the key, compared byte for byte';

COMMENT ON TABLE lock_ext.observed_token IS 'highest tokens seen of resources whose tokens another system issues';
COMMENT ON COLUMN lock_ext.observed_token.token IS 'the highest one';
COMMENT ON COLUMN lock_ext.observed_token.observed_at IS 'when it was seen first';
COMMENT ON COLUMN lock_ext.observed_token.resource IS 'name of the resource, compared byte for byte';

COMMENT ON FUNCTION lease_acquire(text, text, interval, interval, uuid, interval, interval) IS
'Acquires a lease: gives the fencing token of a new grant, or NULL if somebody else holds the lease or is before us in line, it is completed, or the wait ran out.
name, holder: 1 to 1024 bytes; the holder is a text for people. ttl: time to live, 1 ms to lock_ext.max_ttl, no months. wait: how long to stand in line, first come first served; zero asks once.
request: an identity of this call; repeated after a lost answer it gives the same token again while that grant is current. NULL: none. min_hold: nobody else is granted the lease before that time is over, even after a release. pause: nobody is granted it for that long after it expired or was ended by force. Every other NULL is an error (22004).
The grant counts from its commit, which is synchronous. In an open transaction others are refused the lease until that ends.
Errors: 22004, 22023, 22001, 25006; while waiting 55P03 (lock_timeout), 57014, 40P01, as for any lock wait. Locks: a refusal takes none; a grant waits for transactions that wrote under the lease and are just committing; a wait is one for the lock of the line.';

COMMENT ON FUNCTION lease_acquire_session(text, text, interval) IS
'Acquires a lease that lasts as long as the session: no time to live, no heartbeat. It ends when the session does, for whatever reason, or with DISCARD ALL or pg_advisory_unlock_all; from then on its token is refused. Only its own session may release it (55000). Not for transaction poolers.
Arguments, NULL, errors and locks as for lease_acquire.';

COMMENT ON FUNCTION lease_elect(text, text, interval, bigint, interval, interval) IS
'One call for a leader''s heartbeat, whoever calls: with the current token it extends the lease and gives the token back; without, with another or with NULL it acquires the lease or gives NULL: not the leader.
Arguments, errors and locks as for lease_acquire and lease_extend; never waits in line. 22023 for a lease that is bound to a session.';

COMMENT ON FUNCTION lease_extend(text, bigint) IS
'Extends a lease by the time to live of its grant: gives the new expiry, now plus that time, or NULL: the lease is lost (superseded, released, completed, expired, never granted).
It never acquires and never changes the token. Unless it is a statement of its own in autocommit, the answer comes at once and takes hold with the commit; if the token is superseded by then, the commit fails (LX001).
Errors: 22004 for NULL, 22023, 22001, 25006, 42501 if the lease is another role''s. Locks: waits for another change of the same lease that is being committed, never for transactions that write under it.';

COMMENT ON FUNCTION lease_extend(text, bigint, interval) IS
'Extends a lease by another time to live than the one of its grant, which may also be shorter. ttl: 1 ms to lock_ext.max_ttl, no months; NULL is an error (22004). Otherwise as lease_extend(text, bigint).';

COMMENT ON FUNCTION lease_extend_many(text[], bigint[]) IS
'Extends many leases in one call, each by the time to live of its grant: a row for each, in the order given, with a NULL expiry for a lost one. names, tokens: equally long, no NULL in them (22004, 22023). Otherwise as lease_extend.';
COMMENT ON FUNCTION lease_extend_many(text[], bigint[], interval) IS
'Extends many leases in one call by the given time to live. Otherwise as lease_extend_many(text[], bigint[]).';

COMMENT ON FUNCTION lease_release(text, bigint) IS
'Releases a lease: true if the token was current, also when expired; false otherwise, and nothing changes. From then on the token is refused as a fence.
Unless it is a statement of its own in autocommit, the answer comes at once and takes hold with the commit; if the token is superseded by then, the commit fails (LX001). What the same transaction wrote before stays allowed.
Errors: 22004 for NULL, 22023, 22001, 25006, 42501. Locks: as a statement of its own it waits for transactions that wrote under the lease and are just committing, and for one that holds it (lease_fence with hold).';

COMMENT ON FUNCTION lease_complete(text, bigint, timestamptz) IS
'Releases a lease, and nobody acquires it before "until": ''infinity'' for never again. NULL is an error (22004). Otherwise as lease_release.';

COMMENT ON FUNCTION lease_is_current(text, bigint) IS
'May the holder rely on it: is the token the current one, and not expired? Errors: 22004 for NULL, 22023, 22001, 42501; 25006 on a standby, whose answer would be old. Locks: none.';

COMMENT ON FUNCTION lease_checkpoint(text, bigint, jsonb) IS
'Saves progress under the current token, in this transaction. It survives hand-overs. Errors: LX001 if the token is not current, at the call or at the commit; LX002 with lock_ext.strict_expiry; 22004 for NULL, 22023, 22001, 25006, 42501.
Locks: as a write under the lease; waits for another transaction that saves under the same token.';
COMMENT ON FUNCTION lease_checkpoint(text) IS
'The last checkpoint of a lease, or NULL if there is none. For members of the role that saved it and of the one that holds the lease (42501). Errors: 22004 for NULL, 22023, 22001. Locks: none.';

COMMENT ON FUNCTION lease_fence(text, bigint, boolean) IS
'The rest of this transaction writes under the token. If the token is superseded before the commit, and anything was written, to whichever table, the COMMIT is refused; so it is for each token, where there are several. Every write to a table that is fenced by the lease is checked when it happens as well.
hold: from the first write to a fenced table, or the first checkpoint, to the end of the transaction a take-over waits (default false: the transaction fails if it is superseded before it commits).
Errors: LX001 if the token is not current; LX002 with lock_ext.strict_expiry; 22004 for NULL, 22023, 22001, 25006 on a standby, 42501. Locks: an entry of the lock table from here on, which blocks nobody, and after a write one while the transaction commits, which a grant waits for.';

COMMENT ON FUNCTION fence_check() IS
'Trigger function that refuses writes that do not carry the current token of a lease. Arguments: the lease; a column of type bigint that holds tokens; a column that names the lease of each row, and then the first argument is what comes before its value. What is not there is an empty string or left out.
Without columns: BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE FOR EACH STATEMENT, or FOR EACH ROW where rows can be reached through another table. With one: BEFORE INSERT OR UPDATE OR DELETE FOR EACH ROW, in one trigger, and one more BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE FOR EACH STATEMENT, which refuses TRUNCATE and a statement without a token that finds no row.
Errors: LX001, LX002, LX003 (no token), 42501, 22004 for a row that names no lease, 39P01 for a trigger that is made otherwise.';

COMMENT ON FUNCTION fence_attach(regclass, text, text, text) IS
'Puts the fence of a lease on a table that the caller owns, and on its partitions or children: rows and TRUNCATE. Again with the same arguments changes nothing but what is missing, with others replaces.
lease: the one lease of the table; with lease_column what comes before the value of that column, NULL for nothing. token_column: a bigint column that is stamped with the token of each write and may carry it; NULL: none. lease_column: a column, of any type, that names the lease of each row; NULL: none.
Errors: 42501, 42809 for what is no ordinary or partitioned table, 42703, 42804 for another type or a generated column, 22004, 22023, 22001; 55000 if the column holds tokens above all granted ones, or the table is a partition that has its fence from above. Locks: as CREATE TRIGGER, on each table.';
COMMENT ON FUNCTION fence_detach(regclass) IS
'Takes every fence off a table that the caller owns, and off its partitions or children. Errors: 42501, 22004; 55000 for a partition that has its fence from above. Locks: as DROP TRIGGER, on each table.';

COMMENT ON FUNCTION fenced_update(regclass, bigint, jsonb, jsonb, text, boolean) IS
'One UPDATE under a token, with the rights of the caller: gives the number of rows. filter: columns and the values that they must equal, null for IS NULL; {} is an error unless all_rows is true. changes: columns and their new values. lease: the lease of the token.
A filter that matches nothing gives 0. Errors: LX001, LX002, 22004 for NULL, 22023, 42703, 42501, and those of UPDATE itself, unchanged. Locks: as UPDATE.';
COMMENT ON FUNCTION fenced_update(regclass, bigint, jsonb, jsonb, boolean) IS
'The same for the lease that the table is fenced by; 55000 if it is not, or if its rows have leases of their own.';

COMMENT ON FUNCTION fence_observe(text, bigint) IS
'This transaction acts under a token that another system has issued for a resource (an etcd revision, a ZooKeeper zxid, a lease of another database). Commits only if nobody has committed under a higher one; then the token is the highest seen, and lower ones are refused. Rolls back with its transaction or savepoint.
resource: 1 to 1024 bytes; token: any bigint. Errors: LX001 if a higher token was committed, at the call or at the commit; 22004 for NULL, 22023, 22001, 25006. Locks: none at the call; the commit waits for others under the same resource that are just committing or prepared.';

COMMENT ON FUNCTION fence_forget(text) IS
'Forgets the highest token of a resource: true if there was one. For a system that begins its tokens anew, or after a token that was never issued. Lower tokens are accepted again. Not for PUBLIC. Errors: 22004 for NULL, 22023, 22001, 25006. Locks: none at the call; it is forgotten at the commit, which waits for others under the same resource that are just committing or prepared.';

COMMENT ON FUNCTION once(text) IS
'True for exactly one committed transaction for each key, false for all later ones; rolls back with its transaction. key: 1 to 1024 bytes. Errors: 22004 for NULL, 22023, 22001, 25006.
Locks: waits for another transaction that has the same key and is not decided yet, as an INSERT into a unique index does.';
COMMENT ON FUNCTION once_forget(interval) IS
'Forgets the keys that were marked longer ago, and gives their number. Their work may then be done again. Not for PUBLIC. Errors: 22004 for NULL, 22023, 25006.';

COMMENT ON FUNCTION lease_evict(text, bigint) IS
'For the present holder: ends the sessions whose open transactions have declared another token of the lease, or written under one, and gives their process ids. Such a transaction cannot commit what it writes, but it keeps its row locks until it ends.
Errors: LX001 if the token is not current, 25001 if its grant is not committed, 22004 for NULL, 22023, 22001, 25006, 42501. Locks: none.';
COMMENT ON FUNCTION lease_evict(text) IS
'The same without a token, for administrators; ends also the session whose open transaction has acquired the lease, or ended it by force. Not for PUBLIC.';
COMMENT ON FUNCTION lease_force_release(text) IS
'Ends the grant or the completion of a lease, whoever holds it: true if there was one. Its token is refused from then on. Not for PUBLIC. Errors: 22004 for NULL, 22023, 22001, 25006. Locks: as lease_release.';
COMMENT ON FUNCTION lease_prune(interval) IS
'Removes the leases that nobody has held or completed for that time, with their checkpoints, and gives their number. One that a pause or a minimum hold keeps stays, and so does one that another open transaction acts under a token of. Tokens go on rising. Not for PUBLIC. Errors: 22004 for NULL, 22023, 25006.';
COMMENT ON FUNCTION lease_raise_token_floor(bigint) IS
'Every token that is granted from now on is above the floor: for a database whose tables hold tokens of an earlier one. Gives the floor now in force. Not for PUBLIC. Errors: 22004 for NULL, 22023, 25006. It is not undone by a rollback. Locks: none that a transaction keeps.';

COMMENT ON VIEW lease_status IS 'the leases of the roles that the caller belongs to, all for members of pg_monitor; a released one stays listed until it is pruned';
COMMENT ON COLUMN lease_status.name IS 'name of the lease';
COMMENT ON COLUMN lease_status.state IS 'held, expired, free or completed';
COMMENT ON COLUMN lease_status.holder IS 'text that the holder gave; null if nobody holds it';
COMMENT ON COLUMN lease_status.holder_role IS 'role that acquired it; null if nobody holds it';
COMMENT ON COLUMN lease_status.token IS 'fencing token of the last grant';
COMMENT ON COLUMN lease_status.acquired_at IS 'when the last grant was made';
COMMENT ON COLUMN lease_status.expires_at IS 'when the grant expires; null if nobody holds it';
COMMENT ON COLUMN lease_status.remaining IS 'time until then, zero if it is expired';
COMMENT ON COLUMN lease_status.ttl IS 'time to live of the last grant';
COMMENT ON COLUMN lease_status.session_pid IS 'process id of the session that the lease is bound to; null for a lease with a time to live';
COMMENT ON COLUMN lease_status.completed_until IS 'nobody acquires it before; null if it is not completed';
COMMENT ON COLUMN lease_status.grants IS 'how often it was granted';
COMMENT ON COLUMN lease_status.waiters IS 'number of sessions that wait in line for it';
COMMENT ON COLUMN lease_status.writers IS 'number of open transactions that have declared a token of it, or written under one';

COMMENT ON VIEW lease_waiter IS 'sessions that wait in line for a lease; which leases as in lease_status';
COMMENT ON COLUMN lease_waiter.name IS 'name of the lease';
COMMENT ON COLUMN lease_waiter.pid IS 'process id of the session';
COMMENT ON COLUMN lease_waiter.place IS 'place in line, 1 for the head, who is granted the lease next';
COMMENT ON COLUMN lease_waiter.since IS 'since when it waits; for the head of the line since its statement began';

COMMENT ON VIEW lease_session IS 'leases that are bound to a session, with what that session does; which leases as in lease_status';
COMMENT ON COLUMN lease_session.name IS 'name of the lease';
COMMENT ON COLUMN lease_session.holder IS 'text that the holder gave';
COMMENT ON COLUMN lease_session.token IS 'fencing token of the grant';
COMMENT ON COLUMN lease_session.pid IS 'process id of the session, for pg_terminate_backend';
COMMENT ON COLUMN lease_session.client_addr IS 'address of its client; null for a local one, or if the caller may not see it';
COMMENT ON COLUMN lease_session.state IS 'what the session does, as in pg_stat_activity';
COMMENT ON COLUMN lease_session.idle_since IS 'since when it is idle; null if it is not';

COMMENT ON VIEW lease_writer IS 'open transactions that have declared a token of a lease (lease_fence), or written under one; which leases as in lease_status';
COMMENT ON COLUMN lease_writer.name IS 'name of the lease';
COMMENT ON COLUMN lease_writer.pid IS 'process id of the session; null for a prepared transaction';
COMMENT ON COLUMN lease_writer.token IS 'fencing token that it has declared, or written under';
COMMENT ON COLUMN lease_writer.superseded IS 'true if the token is no longer current: the transaction cannot commit what it writes';
COMMENT ON COLUMN lease_writer.since IS 'when the transaction began; null if the caller may not see it';

COMMENT ON VIEW fence_status IS 'the fences of this database, as the catalog has them: a row each, and one more for each hole; for everybody';
COMMENT ON COLUMN fence_status.table_name IS 'table that the fence was attached to';
COMMENT ON COLUMN fence_status.lease IS 'its lease; with a lease column what comes before the column''s value, null for nothing';
COMMENT ON COLUMN fence_status.token_column IS 'column that holds the token of the last write of each row; null: none';
COMMENT ON COLUMN fence_status.lease_column IS 'column that names the lease of each row; null: one lease for the table';
COMMENT ON COLUMN fence_status.carried_by IS 'what a write carries its token by: transaction (lease_fence), or transaction or column';
COMMENT ON COLUMN fence_status.hole IS 'a way past the fence, naming the partition or child that it is at; null in the row of the fence itself';

COMMENT ON VIEW fence_observed IS 'highest tokens of resources that fence_observe was told of; for members of pg_monitor';
COMMENT ON COLUMN fence_observed.resource IS 'name of the resource';
COMMENT ON COLUMN fence_observed.token IS 'highest token that a transaction committed under';
COMMENT ON COLUMN fence_observed.observed_at IS 'when that was';

COMMENT ON FUNCTION lock_ext.origin() IS 'what lock_ext.token_origin is set to';
COMMENT ON FUNCTION lock_ext.observed() IS 'rows of fence_observed';
COMMENT ON FUNCTION lock_ext.status() IS 'rows of lease_status';
COMMENT ON FUNCTION lock_ext.writers() IS 'rows of lease_writer';
COMMENT ON FUNCTION lock_ext.waiters() IS 'rows of lease_waiter';
COMMENT ON FUNCTION lock_ext.attach_statements(oid, text, oid, text, text, text) IS 'statements that fence_attach executes';
COMMENT ON FUNCTION lock_ext.detach_statements(oid, oid) IS 'statements that fence_detach executes';
COMMENT ON FUNCTION lock_ext.trigger_arguments(bytea) IS 'arguments of a trigger, as fence_status shows them';
COMMENT ON FUNCTION lock_ext.tokens_are_ahead(oid, bigint, boolean) IS 'tells fence_attach whether to raise the token floor';
COMMENT ON FUNCTION lock_ext.attached_lease(oid, oid) IS 'lease that a table is fenced by';
COMMENT ON FUNCTION lock_ext.update_statement(oid, text, text[], text[], text, text[], boolean) IS 'statement that fenced_update executes';
COMMENT ON FUNCTION lock_ext.conversion_statement(oid, text[], text[]) IS 'statement that lets fenced_update refuse a value although it found no row';
COMMENT ON FUNCTION lock_ext.carry(text, bigint) IS 'lets the writes of fenced_update carry a token; gives what they carried before';
COMMENT ON FUNCTION lock_ext.carry_again(text, bigint) IS 'restores what the writes carried before fenced_update';
