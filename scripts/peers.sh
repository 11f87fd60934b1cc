#!/usr/bin/env bash
# peers.sh [pairs] [handover] [growth] [idle]      (default: all of them)
#
# Our leases beside a bare durable UPDATE, a lease written by hand, ShedLock's statements, advisory locks and, where they are installed, Redis,
# etcd and ZooKeeper, each with its data on the same disk and every change on the disk before it is answered (and Redis once
# more in memory), all by loopback or a unix socket. Prints CSV, and keeps it in target/bench.csv with a picture of it in target/bench.svg.
#
#   pairs      acquire and release, heartbeats, refused acquires, fenced writes, with 1, 8 and 32 clients
#   handover   from the release call to the next holder's answer, with eight waiters
#   growth     10 to 1,000,000 leases, 1 to 500 waiters, 1 to 64 writing sessions, a day of heartbeats on one row
#   idle       what a hundred sleeping waiters cost, not in the CSV
#
# ROUNDS (default 15), SECONDS_EACH (0.1), HANDOVERS in a round (30) and IDLE_SECONDS (30) say how long. ONLY names what is measured: acquire
# heartbeat heartbeat_async refused write write_in_transaction bulk, handover, leases waiters sessions day. PEERS (zookeeper etcd redis) names
# whom else to start; with PEERS= it is PostgreSQL alone, in a fraction of the time.
# Debian has the others: apt-get install --no-install-recommends zookeeper etcd-server redis-server
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program=${CARGO_TARGET_DIR:-target}/release/lock_ext_peers

if [ "${1:-}" != inside ]; then
    [ $# -gt 0 ] || set -- pairs handover growth idle
    cargo build --quiet --release --package lock_ext_peers
    mkdir -p target
    # A plan is made once, as clients that prepare their statements have it; a checkpoint in the middle would be one system's bad luck.
    LOCK_EXT_PGOPTS=$'jit = off\nplan_cache_mode = force_generic_plan\nmax_wal_size = 8GB\ncheckpoint_timeout = 1h\nmax_connections = 1200' \
        scripts/with-cluster.sh scripts/peers.sh inside "$@" | tee target/bench.csv
    exec "$program" draw target/bench.csv target/bench.svg
fi
shift

dir=$(short_temp_dir)
servers=()
clean_up() {
    for server in "${servers[@]}"; do
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    done
    rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Waits until the server started last is there.
until_there() { # name command...
    local name=$1 server=${servers[-1]}
    shift
    for _ in $(seq 300); do
        ! "$@" || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    cat "$dir/$name.log" >&2
    die "$name did not start"
}

others=()

start_zookeeper() {
    local port jar=/usr/share/java/zookeeper.jar
    if [ ! -r "$jar" ] || ! command -v java >/dev/null; then
        echo "peers.sh: ZooKeeper is not installed, left out" >&2
        return
    fi
    port=$(free_port)
    cat >"$dir/zoo.cfg" <<CFG
dataDir=$dir/zookeeper
clientPortAddress=127.0.0.1
clientPort=$port
tickTime=2000
maxClientCnxns=200
admin.enableServer=false
CFG
    java -cp "/etc/zookeeper/conf:$jar" -Dzookeeper.root.logger=WARN,CONSOLE \
        org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/zookeeper.log" 2>&1 &
    servers+=($!)
    until_there zookeeper is_open "$port"
    others+=("zookeeper=127.0.0.1:$port")
}

start_etcd() {
    local port peer
    if ! command -v etcd >/dev/null; then
        echo "peers.sh: etcd is not installed, left out" >&2
        return
    fi
    port=$(free_port)
    peer=$(free_port)
    etcd --data-dir "$dir/etcd" --log-level error --listen-client-urls "http://127.0.0.1:$port" \
        --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "http://127.0.0.1:$peer" \
        --initial-advertise-peer-urls "http://127.0.0.1:$peer" --initial-cluster "default=http://127.0.0.1:$peer" \
        >"$dir/etcd.log" 2>&1 &
    servers+=($!)
    until_there etcd is_open "$port"
    others+=("etcd=127.0.0.1:$port")
}

start_redis() { # name setting...
    local name=$1
    shift
    if ! command -v redis-server >/dev/null; then
        echo "peers.sh: Redis is not installed, left out" >&2
        return
    fi
    mkdir "$dir/$name"
    redis-server --dir "$dir/$name" --port 0 --unixsocket "$dir/$name.sock" --save '' "$@" >"$dir/$name.log" 2>&1 &
    servers+=($!)
    until_there "$name" test -S "$dir/$name.sock"
    others+=("$name=$dir/$name.sock")
}

measure() { # part
    "$program" "$1" "${others[@]}" "rounds=${ROUNDS:-15}" "seconds=${SECONDS_EACH:-0.1}" "handovers=${HANDOVERS:-30}" \
        ${ONLY:+"only=$ONLY"}
}

if [[ " $* " == *' pairs '* || " $* " == *' handover '* ]]; then
    for peer in ${PEERS-zookeeper etcd redis}; do
        case $peer in
            zookeeper) start_zookeeper ;;
            etcd) start_etcd ;;
            redis)
                start_redis redis --appendonly yes --appendfsync always
                start_redis redis_memory --appendonly no
                ;;
            *) die "PEERS may have zookeeper, etcd, redis" ;;
        esac
    done
fi
if [[ " $* " != ' growth ' ]]; then
    psql -qXv ON_ERROR_STOP=1 -f bench/peers/setup.sql >/dev/null
fi
"$program" heading
for part in "$@"; do
    case $part in
        pairs | handover) measure "$part" ;;
        growth)
            # In a database of its own: the others have leases enough already.
            psql -qXc 'CREATE DATABASE growth'
            psql -qXv ON_ERROR_STOP=1 -d growth -f bench/peers/growth.sql >/dev/null
            PGDATABASE=growth measure growth
            ;;
        idle) "$program" idle "${IDLE_SECONDS:-30}" >&2 ;;
        *) die "usage: peers.sh [pairs] [handover] [growth] [idle]" ;;
    esac
done
