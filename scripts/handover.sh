#!/usr/bin/env bash
# Hand-over latency: from the release call to the next holder's answer, with eight waiters. Our leases beside two bare durable UPDATEs,
# advisory locks and, where they are installed, ZooKeeper, etcd and Redis, each on loopback with its data on the same disk and
# every change on the disk before it is answered. Then what a hundred sleeping waiters cost. Prints CSV.
#
# ROUNDS (default 10), HANDOVERS in each (default 100) and IDLE_SECONDS (default 30) say how long.
# Debian has the others: apt-get install --no-install-recommends zookeeper etcd-server redis-server
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" != inside ]; then
    cargo build --quiet --release --package lock_ext_handover
    LOCK_EXT_PGOPTS='jit = off' exec scripts/with-cluster.sh scripts/handover.sh inside
fi

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

is_open() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Below the ports that the system gives away itself.
free_port() {
    local port
    while port=$((20000 + RANDOM % 10000)) && is_open "$port"; do :; done
    printf '%s\n' "$port"
}

# Waits until the server started last listens.
until_open() { # name port
    local server=${servers[-1]}
    for _ in $(seq 300); do
        ! is_open "$2" || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    cat "$dir/$1.log" >&2
    die "$1 did not start"
}

others=()

zookeeper_jar=/usr/share/java/zookeeper.jar
if [ -r "$zookeeper_jar" ] && command -v java >/dev/null; then
    port=$(free_port)
    cat >"$dir/zoo.cfg" <<CFG
dataDir=$dir/zookeeper
clientPortAddress=127.0.0.1
clientPort=$port
tickTime=2000
admin.enableServer=false
CFG
    java -cp "/etc/zookeeper/conf:$zookeeper_jar" -Dzookeeper.root.logger=WARN,CONSOLE \
        org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/zookeeper.log" 2>&1 &
    servers+=($!)
    until_open zookeeper "$port"
    others+=("zookeeper=127.0.0.1:$port")
else
    echo "handover.sh: ZooKeeper is not installed, left out" >&2
fi

if command -v etcd >/dev/null; then
    port=$(free_port)
    peer=$(free_port)
    etcd --data-dir "$dir/etcd" --log-level error --listen-client-urls "http://127.0.0.1:$port" \
        --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "http://127.0.0.1:$peer" \
        --initial-advertise-peer-urls "http://127.0.0.1:$peer" --initial-cluster "default=http://127.0.0.1:$peer" \
        >"$dir/etcd.log" 2>&1 &
    servers+=($!)
    until_open etcd "$port"
    others+=("etcd=127.0.0.1:$port")
else
    echo "handover.sh: etcd is not installed, left out" >&2
fi

if command -v redis-server >/dev/null; then
    port=$(free_port)
    mkdir "$dir/redis"
    redis-server --dir "$dir/redis" --bind 127.0.0.1 --port "$port" --appendonly yes --appendfsync always \
        >"$dir/redis.log" 2>&1 &
    servers+=($!)
    until_open redis "$port"
    others+=("redis=127.0.0.1:$port")
else
    echo "handover.sh: Redis is not installed, left out" >&2
fi

psql -qXv ON_ERROR_STOP=1 -f bench/handover/setup.sql
program=${CARGO_TARGET_DIR:-target}/release/lock_ext_handover
"$program" "${others[@]}" \
    "rounds=${ROUNDS:-10}" "handovers=${HANDOVERS:-100}"
echo
"$program" idle "${IDLE_SECONDS:-30}"
