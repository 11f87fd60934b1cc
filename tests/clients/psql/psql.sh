#!/usr/bin/env bash
# psql.sh [SCENARIO]: psql itself, as scripts use it.
#
# The scenarios are called by their names, and what they ask is SQL in single quotes.
# shellcheck disable=SC2016,SC2317
# shellcheck source-path=SCRIPTDIR source=harness.sh
cd "$(dirname "${BASH_SOURCE[0]}")" && . ./harness.sh

# A fenced table, and the token of its lease in $token.
fenced() {
    ask 'CREATE TABLE entry (id int PRIMARY KEY, amount int, token bigint)'
    ask "SELECT fence_attach('entry', 'job', 'token')" >/dev/null
    token=$(ask "SELECT lease_acquire('job', 'node-1', '60 s')")
}

grant() {
    local token
    token=$(ask "SELECT lease_acquire(:'lease', :'holder', :'ttl')" -v lease=natural -v holder=node-1 -v ttl='30 s')
    equal 1 "$token" token
    equal '' "$(ask "SELECT lease_acquire('natural', 'node-2', '30 s')")" 'held by another'
    ask "SELECT lease_acquire('natural', 'node-2', '30 s') AS token \gset
        SELECT :'token'" >/dev/null 2>&1 && fail 'a variable is set from NULL'
    # A number in quotes is one of seconds, and without them there is no such function.
    ask "SELECT lease_acquire('quoted', 'node-1', :'ttl')" -v ttl=30 >/dev/null
    equal 00:00:30 "$(ask "SELECT ttl FROM lease_status WHERE name = 'quoted'")" ttl
    try ask "SELECT lease_acquire('plain', 'node-1', :ttl)" -v ttl=30
    equal 3 "$status" 'a plain number'
    error_is 'function lease_acquire(unknown, unknown, integer) does not exist'
    ask "SELECT lease_acquire('plain', 'node-1', make_interval(secs => :ttl))" -v ttl=30 >/dev/null
    try "${psql[@]}" -v lease=x -c "SELECT lease_acquire(:'lease', 'node-1', '30 s')"
    equal 1 "$status" '-c, which knows no variables'
    error_is 'syntax error at or near ":"'

    ask 'SELECT lease_raise_token_floor((1::bigint << 53) - 12)' >/dev/null
    token=$(ask "SELECT lease_acquire('top', 'node-1', '30 s')")
    equal 9007199254740981 "$token" 'a token near the top'
    equal t "$(ask "SELECT lease_extend('top', :token) > now()" -v token="$token")" 'a token near the top is extended'
    ask 'CREATE TABLE foreign_token (token bigint)'
    ask 'INSERT INTO foreign_token VALUES (:token)' -v token=9223372036854775807
    equal 9223372036854775807 "$(ask 'TABLE foreign_token')" bigint
}

fenced_transaction() {
    fenced
    ask "BEGIN; SELECT lease_fence('job', :token); INSERT INTO entry VALUES (1, 100); COMMIT" -v token="$token" >/dev/null
    equal "$token" "$(ask 'SELECT token FROM entry')" 'the stamp'
    # --single-transaction is a transaction too.
    ask "SELECT lease_fence('job', :token); INSERT INTO entry VALUES (2, 100)" -1 -v token="$token" >/dev/null
    try ask 'UPDATE entry SET amount = 1'
    equal 3 "$status" 'without a token'
    error_is 'write to fenced table "entry" carries no fencing token'
}

fenced_column() {
    fenced
    ask 'INSERT INTO entry VALUES (1, 100, :token); UPDATE entry SET amount = 200, token = :token' -v token="$token"
    try ask 'UPDATE entry SET amount = 1'
    error_is 'carries no fencing token'
    equal 200 "$(ask 'SELECT amount FROM entry')" amount
}

refused_write() {
    local successor
    fenced
    successor=$(take_over job)
    try ask 'INSERT INTO entry VALUES (1, 100, :token)' -v token="$token"
    equal 3 "$status" 'the exit status'
    error_is "token $successor was granted later"
    try ask "BEGIN; SELECT lease_fence('job', :token); INSERT INTO entry VALUES (1, 100); COMMIT" -v token="$token"
    equal 3 "$status" 'the exit status'
    # A script that goes on after errors finds the SQLSTATE in a variable, and the COMMIT of its transaction undoes it.
    try ask '\set ON_ERROR_STOP off
        \set VERBOSITY sqlstate
        INSERT INTO entry VALUES (1, 100, :token);
        \echo :SQLSTATE' -v token="$token"
    equal '0 LX001' "$status $output" 'without ON_ERROR_STOP'
    error_is 'ERROR:  LX001'
    equal 0 "$(ask 'SELECT count(*) FROM entry')" rows
}

# One transaction in the three ways in which psql is told one; each loses its lease before the COMMIT.
in_a_file() { try psql "$@" -f "$scratch/transaction.sql"; }
as_an_option() { try psql "$@" --single-transaction -f "$scratch/write.sql"; }
as_commands() { try psql "$@" -c BEGIN -f "$scratch/write.sql" -c COMMIT; }

# Sets status to psql's.
lose_before_commit() { # way, psql's options
    ask "SELECT lease_force_release('job')" >/dev/null
    token=$(ask "SELECT lease_acquire('job', 'node-1', '60 s')")
    "$1" -X -q -At -v token="$token" "${@:2}"
    error_is "fencing token $token of lease \"job\" is not current"
    error_is 'The transaction carries token'
}

refused_commit() {
    fenced
    cat >"$scratch/write.sql" <<'SQL'
SELECT lease_fence('job', :token);
INSERT INTO entry VALUES (1, 100);
\! psql -X -q -At -c "SELECT lease_force_release('job')"
SQL
    (echo 'BEGIN;' && cat "$scratch/write.sql" && echo 'COMMIT;') >"$scratch/transaction.sql"
    lose_before_commit in_a_file -v ON_ERROR_STOP=1
    equal 3 "$status" 'BEGIN and COMMIT in the file'
    lose_before_commit as_an_option -v ON_ERROR_STOP=1
    equal 3 "$status" '--single-transaction'
    lose_before_commit as_commands -v ON_ERROR_STOP=1
    equal 1 "$status" '-c COMMIT'
    # Without ON_ERROR_STOP psql says that all is well, unless the last -c is what has failed.
    lose_before_commit in_a_file
    equal 0 "$status" 'BEGIN and COMMIT in the file, without ON_ERROR_STOP'
    lose_before_commit as_an_option
    equal 0 "$status" '--single-transaction, without ON_ERROR_STOP'
    lose_before_commit as_commands
    equal 1 "$status" '-c COMMIT, without ON_ERROR_STOP'
    as_commands() { try psql "$@" -c BEGIN -f "$scratch/write.sql" -c COMMIT -c 'SELECT 1'; }
    lose_before_commit as_commands
    equal 0 "$status" '-c COMMIT and one more, without ON_ERROR_STOP'
    equal 0 "$(ask 'SELECT count(*) FROM entry')" rows
}

once() {
    equal t "$(ask "BEGIN; SELECT once('payout'); ROLLBACK")" 'in a transaction that is rolled back'
    equal t "$(ask "SELECT once('payout')")" 'after it'
    equal f "$(ask "SELECT once('payout')")" again
    try ask "BEGIN; SELECT once('failed'); SELECT 1 / 0; COMMIT"
    equal '3 t' "$status $(ask "SELECT once('failed')")" 'after a script that failed'
}

watch() {
    # A heartbeat at the prompt: \watch ends with an error, and only with one.
    token=$(ask "SELECT lease_acquire('watched', 'node-1', '60 s')")
    ask "SELECT 1 / (lease_extend('watched', :token) IS NOT NULL)::int AS held \watch 0.1" -v token="$token" >/dev/null 2>"$stderr" &
    await "SELECT expires_at > acquired_at + ttl + '300 ms' FROM lease_status WHERE name = 'watched'"
    take_over watched >/dev/null
    status=0
    wait $! || status=$?
    equal 3 "$status" 'the exit status when the lease is lost'
    error_is 'division by zero'
}

wait_timeout() {
    local wait="SELECT lease_acquire('busy', 'node-1', '30 s', wait => '60 s')"
    ask "SELECT lease_acquire('busy', 'other', '60 s')" >/dev/null
    PGOPTIONS='-c statement_timeout=200' try ask "$wait"
    equal 3 "$status" statement_timeout
    error_is 'canceling statement due to statement timeout'
    await_waiters 0

    # As by Ctrl-C.
    "${psql[@]}" -c "$wait" >"$scratch/answer" 2>"$stderr" &
    await_waiters 1
    kill -INT $!
    status=0
    wait $! || status=$?
    equal '1 ' "$status $(cat "$scratch/answer")" 'an interrupt'
    error_is 'canceling statement due to user request'
    await_waiters 0

    # As by timeout(1): the client is gone, and so is its place.
    "${psql[@]}" -c "$wait" >/dev/null 2>"$stderr" &
    await_waiters 1
    kill $!
    wait $! 2>/dev/null || true
    await_waiters 0
    equal '' "$(ask "SELECT lease_acquire('busy', 'node-1', '30 s', wait => '100 ms')")" 'the wait ran out'
}

lost_connection() {
    fenced
    try ask "BEGIN; SELECT lease_fence('job', :token); INSERT INTO entry VALUES (1, 100);
        SELECT pg_backend_pid() AS pid \gset
        \setenv PID :pid
        \! psql -X -q -At -c \"SELECT pg_terminate_backend(\$PID, 5000)\"
        COMMIT; INSERT INTO entry VALUES (2, 100)" -v token="$token"
    equal 2 "$status" 'the exit status'
    error_is 'terminating connection due to administrator command'
    equal 0 "$(ask 'SELECT count(*) FROM entry')" rows
    ask 'INSERT INTO entry VALUES (1, 100, :token)' -v token="$token"
}

migration() {
    local fences="SELECT count(*) FROM fence_status WHERE table_name::text = 'reward' AND hole IS NULL"
    ask '' --single-transaction -f migration.sql >/dev/null
    equal 1 "$(ask "$fences")" up
    try ask "INSERT INTO reward VALUES (1, current_date, 100)"
    error_is 'carries no fencing token'
    ask 'DROP TABLE reward'
    equal 0 "$(ask "$fences")" down
}

main ./psql.sh grant fenced_transaction fenced_column refused_write refused_commit once watch wait_timeout lost_connection migration -- "$@"
