#!/bin/bash
# Pays every player once a day. cron calls it on every node, every few minutes: one does the work, and when that one dies the next call goes on.
# What it did is on standard output, one line; what went wrong is on standard error, which cron mails.
set -euo pipefail
cd "$(dirname "$0")"

job=daily-reward
ttl=${TTL:-30}                # seconds
limit=${LIMIT:-$((10 * ttl))} # what one chunk may take, here and on the server
third=$((ttl / 3))            # what anything else may take

export PGOPTIONS="${PGOPTIONS:-} -c statement_timeout=${limit}s -c client_connection_check_interval=${third}s"
# Variables are for standard input and files: -c does not know them.
sql=(psql "connect_timeout=$third keepalives_idle=$third keepalives_interval=1 tcp_user_timeout=$((1000 * third))"
    -X -q -At -v ON_ERROR_STOP=1 -v job="$job" -v ttl="$ttl" -v holder="$(hostname):$$"
    -v zone=Europe/Berlin -v starts=00:05 -v chunk="${CHUNK:-1000}")

say() { printf '%s: %s\n' "$job" "$*"; }
ask() { timeout "${2:-$third}" "${sql[@]}" <<<"$1"; }

# The clock that nobody sets, in whole seconds, so that a deadline is too early rather than too late.
now() {
    local up rest
    read -r up rest </proc/uptime
    echo "${up%.*}"
}

token='' work=''
# shellcheck disable=SC2317 # the trap calls it
finish() {
    local status=$?
    # In a process group of its own, so that psql is ended too, and with it the statement.
    [ -z "$work" ] || kill -- "-$work" 2>/dev/null || true
    [ -z "$token" ] || ask "SELECT lease_release(:'job', :token)" >/dev/null || true
    [ "$status" -eq 0 ] || say "failed with status $status, token ${token:-none}" >&2
}
trap finish EXIT

lost() { # why
    say "lost token $token: $1" >&2
    exit 1
}
taken_over() { lost "the lease is $(ask "SELECT concat_ws(', ', state, holder, 'token ' || token) FROM lease_status WHERE name = :'job'")"; }

deadline=$(($(now) + ttl)) # counted from before the call
token=$(ask "SELECT lease_acquire(:'job', :'holder', make_interval(secs => :ttl))")
if [ -z "$token" ]; then
    say "$(ask "SELECT CASE state WHEN 'completed' THEN 'done already, until ' || completed_until
        WHEN 'held' THEN holder || ' has it' ELSE 'somebody else has it' END FROM lease_status WHERE name = :'job'")"
    exit 0
fi
sql+=(-v token="$token")
# A predecessor that is frozen in an open transaction cannot commit any more, but keeps its row locks.
evicted=$(ask "SELECT count(*) FROM lease_evict(:'job', :token)")
[ "$evicted" = 0 ] || say "ended $evicted transactions of a predecessor"

pay_all() {
    local answer=
    until [[ $answer == *done ]]; do
        answer=$(timeout --foreground $((limit + third)) "${sql[@]}" -f chunk.sql)
    done
    say "${answer##*$'\n'}"
}
set -m
pay_all &
work=$!
set +m

while kill -0 "$work" 2>/dev/null; do
    sleep 1
    asked=$(now)
    left=$((deadline - asked))
    [ "$left" -gt 0 ] || lost "it could not be extended for $ttl s"
    [ "$left" -le $((2 * third)) ] || continue
    # No answer is no loss: it is tried again until the deadline.
    held=$(ask "SELECT lease_extend(:'job', :token)" $((left < third ? left : third))) || continue
    if [ -z "$held" ]; then
        sleep 1 # The work may have completed the lease just now, and be about to end.
        kill -0 "$work" 2>/dev/null || break
        taken_over
    fi
    deadline=$((asked + ttl))
done
status=0
wait "$work" || status=$?
[ "$status" -ne 0 ] || exit 0
# The error is above. If the connection was lost, or an administrator's command has ended it (57P01), the lease may be lost as well.
[ "$(ask "SELECT lease_is_current(:'job', :token)")" = t ] || taken_over
exit "$status"
