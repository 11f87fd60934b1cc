#!/usr/bin/env bash
# A client that is cut off from the network keeps its session, and the lease that is bound to it, until the server finds that out: by
# tcp_keepalives where nothing is on the way to the client, by tcp_user_timeout where something is that it has not acknowledged. Server and
# client are in network namespaces of their own, whose connection is taken down.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

is_root || die "network namespaces need root"
bin=$("$(find_pg_config)" --bindir)
dir=$(short_temp_dir)
chown postgres: "$dir"
server=lx-s-$$ client=lx-c-$$

clean_up() {
    kill "${client_pid:-}" 2>/dev/null || true
    as_postgres "$bin/pg_ctl" --pgdata "$dir/data" --mode immediate stop >/dev/null 2>&1 || true
    ip netns delete "$server" 2>/dev/null || true
    ip netns delete "$client" 2>/dev/null || true
    rm -rf "$dir"
}
trap clean_up EXIT

ip netns add "$server"
ip netns add "$client"
ip -n "$server" link add lx0 type veth peer name lx0 netns "$client"
ip -n "$server" address add 10.213.77.1/30 dev lx0
ip -n "$client" address add 10.213.77.2/30 dev lx0
ip -n "$server" link set lx0 up
ip -n "$client" link set lx0 up

(cd "$dir" && as_postgres "$bin/initdb" --pgdata "$dir/data" --username postgres --auth trust --no-sync >/dev/null)
cat >>"$dir/data/postgresql.conf" <<CONF
listen_addresses = '10.213.77.1'
unix_socket_directories = '$dir'
tcp_keepalives_idle = 1
tcp_keepalives_interval = 1
tcp_keepalives_count = 2
tcp_user_timeout = 4s
CONF
printf 'host all all 10.213.77.0/30 trust\n' >>"$dir/data/pg_hba.conf"
(cd "$dir" && ip netns exec "$server" runuser -u postgres -- "$bin/pg_ctl" --pgdata "$dir/data" --log "$dir/log" -w start >/dev/null)

ask() { PGHOST=$dir PGUSER=postgres psql -qXAt -d postgres -c "$1"; }

# Waits until the answer is that one.
until_answer() { # sql answer
    local answer
    for _ in $(seq 300); do
        answer=$(ask "$1") || die "an error from: $1"
        [ "$answer" != "$2" ] || return 0
        sleep 0.1
    done
    die "no \"$2\" to: $1"
}

ask 'CREATE EXTENSION lock_ext'
held="SELECT state || ' ' || (SELECT host(client_addr) FROM lease_session) FROM lease_status WHERE name = 'importer'"

# A client on the other side of the cable has the lease; more SQL of it is written to descriptor 3.
begin() {
    rm -f "$dir/in"
    mkfifo "$dir/in"
    ip netns exec "$client" psql -qXAt -h 10.213.77.1 -U postgres -d postgres <"$dir/in" >/dev/null 2>&1 &
    client_pid=$!
    exec 3>"$dir/in"
    echo "SELECT lease_acquire_session('importer', 'cut off');" >&3
    until_answer "$held" 'held 10.213.77.2'
    until_answer "SELECT state FROM lease_session" idle
}

# Nothing is told to the server.
cut() {
    ip -n "$client" link set lx0 down
    [ "$(ask "$held")" = 'held 10.213.77.2' ] || die "the lease ended with the connection, not with what the server knows"
}

next_one() { # after
    [ "$(ask "SELECT lease_acquire_session('importer', 'next', wait => '60 s') IS NOT NULL")" = t ] ||
        die "nobody was granted the lease $1"
    kill -0 "$client_pid" || die "the client has ended, so that nothing was shown"
    kill "$client_pid"
    exec 3>&-
    ip -n "$client" link set lx0 up
    echo "cut_off: the lease of a client that was cut off $1 went to the next one"
}

begin
# The kernel of the client takes up to 40 ms to acknowledge the last answer, which is not to be on the way any more.
until_answer "SELECT idle_since < clock_timestamp() - interval '1 s' FROM lease_session" t
cut
next_one 'while it was idle'

begin
echo "SELECT pg_sleep(2);" >&3
until_answer "SELECT state FROM lease_session" active
cut
next_one 'while an answer was on its way'
