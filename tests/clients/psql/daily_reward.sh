#!/usr/bin/env bash
# Started by cron on every node: 5 0 * * * daily_reward.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# [job]
# Variables are for standard input and files: -c does not know them.
ttl=${TTL:-30}
sql=(psql -X -q -At -v ON_ERROR_STOP=1 -v ttl="$ttl" -v chunk="${CHUNK:-1000}" -v holder="$(hostname)")

# The clock that nobody sets, in whole seconds, so that a deadline is too early rather than too late.
now() {
    local up rest
    read -r up rest </proc/uptime
    echo "${up%.*}"
}

deadline=$(($(now) + ttl))
token=$("${sql[@]}" <<<"SELECT lease_acquire('daily-reward', :'holder', make_interval(secs => :ttl))")
[ -n "$token" ] || exit 0 # another node has it, or it is done
sql+=(-v token="$token")

pay_all() {
    local answer=
    until [[ $answer == *done ]]; do
        answer=$("${sql[@]}" -f chunk.sql)
    done
}

# In a process group of its own, so that it is ended together with the psql that is at work.
set -m
pay_all &
work=$!
set +m
clean_up() {
    kill -- "-$work" 2>/dev/null || true
    timeout "$ttl" "${sql[@]}" <<<"SELECT lease_release('daily-reward', :token)" >/dev/null || true
}
trap clean_up EXIT

while kill -0 "$work" 2>/dev/null; do
    sleep 1
    asked=$(now)
    [ "$asked" -lt "$deadline" ] || exit 1
    [ $((deadline - asked)) -gt $((2 * ttl / 3)) ] && continue
    # No answer is no loss: it is tried again until the deadline.
    held=$(timeout $((deadline - asked)) "${sql[@]}" <<<"SELECT lease_extend('daily-reward', :token)") || continue
    if [ -z "$held" ]; then
        sleep 1 # The work may have completed the lease just now, and be about to end.
        kill -0 "$work" 2>/dev/null && exit 1
        break
    fi
    deadline=$((asked + ttl))
done
wait "$work"
# [end job]
