#!/usr/bin/env bash
# cron.sh [SCENARIO]: the cron jobs of docs/cron.md.
#
# The scenarios are called by their names.
# shellcheck disable=SC2317
# shellcheck source-path=SCRIPTDIR source=harness.sh
cd "$(dirname "${BASH_SOURCE[0]}")" && . ./harness.sh

players() {
    ask '' --single-transaction -f migration.sql >/dev/null
    ask 'CREATE TABLE player (id bigint PRIMARY KEY); INSERT INTO player SELECT generate_series(1, 5)'
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
    # No answer at all, as from a server that is cut off: in line behind this one, who waits for the work, nobody reaches the leases.
    ask 'LOCK TABLE lock_ext.lease' -1 &
    lock=$!
    status=0
    wait "$job" || status=$?
    equal 1 "$status" 'the exit status at the deadline'
    unblock
    wait "$lock"
}

# The first node pays two players, and is refused in the middle of the next two. The second one does the rest.
checkpoint() {
    local token
    players
    token=$(ask "SELECT lease_acquire('daily-reward', 'node-1', '60 s')")
    ask '' -v token="$token" -v chunk=2 -f chunk.sql >/dev/null
    sed "s/^COMMIT;/\\\\! psql -X -q -c \"SELECT lease_force_release('daily-reward')\"\n&/" chunk.sql >"$scratch/chunk.sql"
    try ask '' -v token="$token" -v chunk=2 -f "$scratch/chunk.sql"
    equal 3 "$status" 'refused at the commit'
    error_is "fencing token $token of lease \"daily-reward\" is not current"
    equal 2 "$(ask 'SELECT count(*) FROM reward')" 'rows of the first node'
    CHUNK=2 ./daily_reward.sh
    equal 1,2,3,4,5 "$(ask "SELECT string_agg(player::text, ',' ORDER BY player) FROM reward")" 'each player once'
}

catch_up() {
    local token
    players
    token=$(ask "SELECT lease_acquire('daily-reward', 'node-1', '60 s')")
    ask "SELECT lease_checkpoint('daily-reward', :token, jsonb_build_object('day', current_date - 1, 'after', 3, 'done', false));
        SELECT lease_release('daily-reward', :token)" -v token="$token" >/dev/null
    ./daily_reward.sh
    equal 4,5 "$(ask "SELECT string_agg(player::text, ',' ORDER BY player) FROM reward WHERE day = current_date - 1")" 'what was left of yesterday'
    ./daily_reward.sh
    equal '7 completed' "$(ask "SELECT (SELECT count(*) FROM reward), state FROM lease_status" -F ' ')" 'and then today'
}

nightly() {
    players
    ask "CREATE TABLE report (day date, players int); SELECT fence_attach('report', 'nightly-report')" >/dev/null
    for _ in 1 2; do
        # [crontab]
        timeout 9m psql -X -q -v ON_ERROR_STOP=1 -v holder="$(hostname)" -f nightly.sql
        # [end crontab]
    done
    equal '1 completed' "$(ask 'SELECT (SELECT count(*) FROM report), state FROM lease_status' -F ' ')" 'a report of two nodes'
}

main ./cron.sh heartbeat heartbeat_lost heartbeat_without_answer checkpoint catch_up nightly -- "$@"
