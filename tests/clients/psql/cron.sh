#!/usr/bin/env bash
# cron.sh [SCENARIO]: the cron jobs of docs/cron.md.
#
# The scenarios are called by their names.
# shellcheck disable=SC2016,SC2317
# shellcheck source-path=SCRIPTDIR source=harness.sh
cd "$(dirname "${BASH_SOURCE[0]}")" && . ./harness.sh

players() {
    ask '' --single-transaction -f migration.sql >/dev/null
    day=(-v holder=node-1 -v zone=Europe/Berlin -v starts=00:05)
    ask 'INSERT INTO player SELECT generate_series(1, 5)'
}

# Another session that keeps the job at work until it commits.
block() {
    coproc BLOCK { "${psql[@]}"; }
    echo 'BEGIN; LOCK TABLE player; SELECT 1;' >&"${BLOCK[1]}"
    read -r _ <&"${BLOCK[0]}"
}

unblock() {
    echo 'COMMIT; SELECT 1;' >&"${BLOCK[1]}"
    read -r _ <&"${BLOCK[0]}"
}

at_work="SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT INTO reward%'"

heartbeat() {
    players
    block
    TTL=3 ./daily_reward.sh 2>"$stderr" &
    await "SELECT expires_at > acquired_at + 2 * ttl FROM lease_status WHERE name = 'daily-reward'"
    equal t "$(ask "$at_work")" 'one statement that is longer than the time to live'
    # Another node's turn in the meantime.
    ./daily_reward.sh
    equal 0 "$(ask 'SELECT count(*) FROM reward')" 'rows of the other node'
    unblock
    wait $! || fail 'the job has failed'
    equal '5 1 completed' "$(ask "SELECT (SELECT count(*) FROM reward), grants, state FROM lease_status" -F ' ')" 'players, grants, state'
    ./daily_reward.sh
    equal 1 "$(ask 'SELECT grants FROM lease_status')" 'grants of the day'
}

heartbeat_lost() {
    players
    block
    TTL=3 ./daily_reward.sh 2>"$stderr" &
    await "$at_work"
    take_over daily-reward >/dev/null
    status=0
    wait $! || status=$?
    equal 1 "$status" 'the exit status when the lease is lost'
    unblock
    await "SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE '%INSERT INTO reward%' AND pid <> pg_backend_pid()"
    equal 0 "$(ask 'SELECT count(*) FROM reward')" rows
    equal successor "$(ask 'SELECT holder FROM lease_status')" 'the holder'
}

heartbeat_without_answer() {
    local job lock
    players
    block
    TTL=3 ./daily_reward.sh 2>"$stderr" &
    await "$at_work"
    job=$!
    # No answer at all, as from a server that is cut off: while this one has the table, nobody reaches the leases.
    ask 'LOCK TABLE lock_ext.lease \; SELECT pg_sleep(600)' >/dev/null 2>&1 &
    lock=$!
    status=0
    wait "$job" || status=$?
    equal 1 "$status" 'the exit status at the deadline'
    unblock
    ask "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LOCK TABLE lock_ext.lease%'" >/dev/null
    wait "$lock" || true
}

# The first node pays two players, and is refused in the middle of the next two. The second one does the rest.
checkpoint() {
    local token
    players
    token=$(ask "SELECT lease_acquire('daily-reward', 'node-1', '60 s')")
    ask '' -v token="$token" "${day[@]}" -v chunk=2 -f chunk.sql >/dev/null
    sed "s/^COMMIT;/\\\\! psql -X -q -c \"SELECT lease_force_release('daily-reward')\"\n&/" chunk.sql >"$scratch/chunk.sql"
    try ask '' -v token="$token" "${day[@]}" -v chunk=2 -f "$scratch/chunk.sql"
    equal 3 "$status" 'refused at the commit'
    error_is "fencing token $token of lease \"daily-reward\" is not current"
    equal 2 "$(ask 'SELECT count(*) FROM reward')" 'rows of the first node'
    CHUNK=2 ./daily_reward.sh
    equal 1,2,3,4,5 "$(ask "SELECT string_agg(player::text, ',' ORDER BY player) FROM reward")" 'each player once'
}

catch_up() {
    local token today="((now() AT TIME ZONE 'Europe/Berlin') - interval '5 min')::date"
    players
    token=$(ask "SELECT lease_acquire('daily-reward', 'node-1', '60 s')")
    ask "SELECT lease_checkpoint('daily-reward', :token, jsonb_build_object('day', $today - 1, 'after', 3, 'done', false));
        SELECT lease_release('daily-reward', :token)" -v token="$token" >/dev/null
    ./daily_reward.sh
    equal 4,5 "$(ask "SELECT string_agg(player::text, ',' ORDER BY player) FROM reward WHERE day = $today - 1")" 'what was left of yesterday'
    ./daily_reward.sh
    equal '7 completed' "$(ask "SELECT (SELECT count(*) FROM reward), state FROM lease_status" -F ' ')" 'and then today'
}

# The job as a frozen node leaves it: between a write and the COMMIT. Its psql is in $frozen, the file in $1.
freeze_before_commit() { # file [psql's options]
    sed 's/^COMMIT;/\\! kill -STOP $PPID\n&/' "$1" >"$scratch/frozen.sql"
    "${psql[@]}" "${@:2}" -f "$scratch/frozen.sql" >"$scratch/frozen" 2>"$stderr" &
    frozen=$!
    await "SELECT count(*) > 0 FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%INSERT INTO re%' OR query LIKE '%lease_complete%'"
}

says() { # what the last line has to be like
    # shellcheck disable=SC2053 # a pattern
    [[ ${output##*$'\n'} == $1 ]] || fail "it says: $output, and not: $1"
}

predecessor_in_the_way() {
    local token frozen
    players
    token=$(ask "SELECT lease_acquire('daily-reward', 'node-1', '200 ms')")
    freeze_before_commit chunk.sql -v token="$token" "${day[@]}" -v chunk=1000
    await "SELECT state = 'expired' FROM lease_status"
    LIMIT=5 try ./daily_reward.sh
    equal 0 "$status" 'the exit status of the successor'
    says 'daily-reward: ????-??-?? is done'
    [[ $output == *'ended 1 transactions of a predecessor'* ]] || fail "it says: $output"
    kill -CONT "$frozen"
    status=0
    wait "$frozen" || status=$?
    equal '2 5' "$status $(ask 'SELECT count(*) FROM reward')" 'the exit status of the predecessor, rows'
}

# A node that is stopped, all of it, and wakes up after another one has done the work.
frozen_node() {
    local leader stopped
    players
    block
    TTL=3 setsid ./daily_reward.sh >"$scratch/first" 2>&1 &
    leader=$!
    await "$at_work"
    mapfile -t stopped < <(ps -o pid= -s "$leader")
    kill -STOP "${stopped[@]}"
    unblock
    await "SELECT state = 'expired' FROM lease_status"
    LIMIT=5 try ./daily_reward.sh
    says 'daily-reward: ????-??-?? is done'
    kill -CONT "${stopped[@]}"
    status=0
    wait "$leader" || status=$?
    equal 1 "$status" 'the exit status of the one that woke up'
    grep -q 'daily-reward: lost token 1: ' "$scratch/first" || fail "it says: $(cat "$scratch/first")"
    equal '5 completed' "$(ask "SELECT (SELECT count(*) FROM reward), state FROM lease_status" -F ' ')" 'players, state'
}

# The work's connection gives no more answer, and the heartbeat's does: the node must not go on leading for ever.
work_without_answer() {
    local job backend
    players
    block
    TTL=3 LIMIT=4 ./daily_reward.sh 2>"$stderr" &
    job=$!
    await "$at_work"
    backend=$(ask "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT INTO reward%'")
    kill -STOP "$backend"
    status=0
    wait "$job" || status=$?
    kill -CONT "$backend"
    equal 124 "$status" 'the exit status of a job that has no answer'
    error_is 'daily-reward: failed with status 124, token 1'
    equal free "$(ask 'SELECT state FROM lease_status')" 'the lease'
    unblock
}

# timeout(1) ends psql. What ends the statement on the server is the server.
statement_timeout() {
    players
    block
    TTL=3 LIMIT=1 try ./daily_reward.sh
    equal 3 "$status" 'the exit status'
    error_is 'canceling statement due to statement timeout'
    unblock
    sed 's/count(\*)/pg_sleep(60)::text::int/' nightly_report.sql >"$scratch/slow.sql"
    sed -i "s/'10s'/'200ms'/" "$scratch/slow.sql"
    timeout 1 "${psql[@]}" -f "$scratch/slow.sql" 2>/dev/null || true
    await "SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
}

says_what_happened() {
    players
    ask "SELECT lease_acquire('daily-reward', 'node-7:1', '60 s')" >/dev/null
    try ./daily_reward.sh
    equal '0 daily-reward: node-7:1 has it' "$status $output" 'held by another'
    ask "SELECT lease_force_release('daily-reward')" >/dev/null
    try ./daily_reward.sh
    says 'daily-reward: ????-??-?? is done'
    try ./daily_reward.sh
    says 'daily-reward: done already, until *'
    PGPORT=1 try ./daily_reward.sh
    error_is 'daily-reward: failed with status 2, token none'
}

# Also at 23:55, and also for who comes after midnight. In a zone that is hours away from the session's.
day() {
    local token chunk=(-v holder=node-1 -v zone=Asia/Tokyo -v chunk=1000)
    players
    export PGTZ=America/Los_Angeles
    for starts in 00:05 23:55; do
        ask 'TRUNCATE player'
        token=$(ask "SELECT lease_acquire('daily-reward', 'node-1', '60 s')")
        ask '' "${chunk[@]}" -v starts="$starts" -v token="$token" -f chunk.sql >"$scratch/day"
        equal "$(ask "SELECT (now() AT TIME ZONE 'Asia/Tokyo' - '$starts'::interval)::date || ' is done'")" "$(tail -n 1 "$scratch/day")" "the day that begins at $starts"
        equal t "$(ask "SELECT completed_until > now() AND completed_until <= now() + '1 day' AND (completed_until AT TIME ZONE 'Asia/Tokyo')::time = '$starts'
            FROM lease_status")" "until $starts"
        ask "SELECT lease_force_release('daily-reward')" >/dev/null
    done
}

reports() {
    players
    nightly=("${psql[@]}" -f nightly_report.sql)
}

once() {
    local nightly
    reports
    try "${nightly[@]}"
    says 'nightly-report: ????-??-?? is done'
    try "${nightly[@]}"
    says 'nightly-report: ????-??-?? was done already'
    try "${nightly[@]}" -v day=2026-11-29
    says 'nightly-report: 2026-11-29 is done'
    ask 'ALTER TABLE report RENAME TO gone'
    try "${nightly[@]}" -v day=2026-11-28
    equal 3 "$status" 'the exit status of a failure'
    ask 'ALTER TABLE gone RENAME TO report'
    try "${nightly[@]}" -v day=2026-11-28
    says 'nightly-report: 2026-11-28 is done'
    equal 3 "$(ask 'SELECT count(*) FROM report')" rows
}

# The others wait for a node that is frozen in the transaction, until the server ends it.
once_frozen() {
    local nightly frozen other
    reports
    sed "s/'1min'/'3s'/" nightly_report.sql >"$scratch/short.sql"
    freeze_before_commit "$scratch/short.sql"
    "${nightly[@]}" >"$scratch/other" 2>"$stderr" &
    other=$!
    await "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'transactionid' AND query LIKE '%once(%'"
    wait "$other" || fail 'the other one has failed'
    output=$(cat "$scratch/other")
    says 'nightly-report: ????-??-?? is done'
    kill -CONT "$frozen"
    status=0
    wait "$frozen" || status=$?
    equal '2 1' "$status $(ask 'SELECT count(*) FROM report')" 'the exit status of the one that was frozen, rows'
}

# Both lines as cron calls them: by sh, with next to nothing in the environment.
crontab() {
    local line jobs=$scratch/jobs
    reports
    mkdir "$jobs"
    cp nightly_report.sql daily_reward.sh chunk.sql "$jobs"
    for _ in 1 2; do
        while read -r line; do
            env -i HOME="$scratch" PATH=/usr/bin:/bin PGHOST="$PGHOST" PGPORT="$PGPORT" PGUSER="$PGUSER" PGDATABASE="$PGDATABASE" \
                sh -c "${line//\/opt\/jobs/$jobs}" || fail "it failed: $line"
        done < <(sed -nE 's/^[*]([^ ]* ){5} *//p' ./crontab)
    done
    equal '1 5' "$(ask 'SELECT (SELECT count(*) FROM report), (SELECT count(*) FROM reward)' -F ' ')" 'rows'
    equal '2 2' "$(grep -c 'done' "$jobs/nightly_report.log") $(grep -c 'done' "$jobs/daily_reward.log")" 'lines of the logs'
}

main ./cron.sh heartbeat heartbeat_lost heartbeat_without_answer checkpoint catch_up predecessor_in_the_way frozen_node work_without_answer \
    statement_timeout says_what_happened day once once_frozen crontab -- "$@"
