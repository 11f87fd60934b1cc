#!/usr/bin/env bash
# with-cluster.sh COMMAND [ARGUMENT...]
#
# Runs COMMAND against a throw-away PostgreSQL cluster and exits with its status. The cluster listens
# on a unix socket only and is stopped and removed afterwards, also when COMMAND fails or this
# script is interrupted. COMMAND finds it by PGHOST, PGPORT, PGUSER (a superuser) and PGDATABASE, its
# files by LOCK_EXT_PGDATA, LOCK_EXT_PGLOG and the server's programs by LOCK_EXT_PGBIN.
#
# PG_CONFIG chooses the server; the lines in LOCK_EXT_PGOPTS are appended to its postgresql.conf.
# shellcheck disable=SC2317 # the functions that a trap calls are reached
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ $# -gt 0 ] || die "usage: with-cluster.sh COMMAND [ARGUMENT...]"

# Settings of the caller's own clusters must not lead us, or COMMAND, to them.
unset PGHOST PGHOSTADDR PGPORT PGUSER PGDATABASE PGPASSWORD PGPASSFILE PGSERVICE PGSERVICEFILE \
    PGOPTIONS PGDATA PGTZ PGCLIENTENCODING PGSSLMODE PGTARGETSESSIONATTRS

pg_config=$(find_pg_config) || die "pg_config not found: install postgresql-15, or set PG_CONFIG"
bin=$("$pg_config" --bindir)
[ -x "$bin/initdb" ] || die "$bin/initdb not found: install postgresql-15, or set PG_CONFIG"

dir=$(short_temp_dir)
log=$dir/log
command_pid=

# COMMAND has a process group of its own, see below. What it stopped with SIGSTOP has to be
# woken up to notice that it is to end.
end_command() {
    [ -n "$command_pid" ] || return 0
    kill -TERM -- "-$command_pid" 2>/dev/null || return 0
    kill -CONT -- "-$command_pid" 2>/dev/null || return 0
    for _ in $(seq 50); do
        kill -0 -- "-$command_pid" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$command_pid" 2>/dev/null || true
}

server() {
    (cd "$dir" && as_postgres "$bin/pg_ctl" --pgdata "$dir/data" --log "$log" --silent -w "$@")
}

clean_up() {
    trap '' INT TERM HUP
    end_command
    if [ -f "$dir/data/postmaster.pid" ]; then
        server --timeout 20 --mode fast stop >/dev/null 2>&1 ||
            server --timeout 20 --mode immediate stop >/dev/null 2>&1 || true
    fi
    rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

if is_root; then
    chown postgres: "$dir"
fi

start() {
    (cd "$dir" && as_postgres "$bin/initdb" --pgdata "$dir/data" --username postgres --auth trust \
        --encoding UTF8 --locale C.UTF-8 --no-sync) >"$dir/initdb" 2>&1 || {
        cat "$dir/initdb" >&2
        die "initdb failed"
    }
    # The socket's directory is closed to others, hence trust.
    cat >>"$dir/data/postgresql.conf" <<CONF
listen_addresses = ''
port = 5432
unix_socket_directories = '$dir'
shared_buffers = 128MB
max_connections = 200
max_prepared_transactions = 10
fsync = on
synchronous_commit = on
log_line_prefix = '%m [%p] %q%a '
${LOCK_EXT_PGOPTS:-}
CONF
    server --timeout 60 start >/dev/null 2>&1 || {
        printf 'The last lines of the server log:\n' >&2
        tail -n 50 "$log" >&2 || true
        die "the server did not start"
    }
}
start

# The caller's options may have chosen another port.
PGPORT=$(sed -n 4p "$dir/data/postmaster.pid")
export PGHOST=$dir PGPORT PGUSER=postgres PGDATABASE=postgres
export LOCK_EXT_PGDATA=$dir/data LOCK_EXT_PGLOG=$log LOCK_EXT_PGBIN=$bin

status=0
if [ -t 0 ]; then
    # For psql and other programs that a person talks to.
    "$@" || status=$?
else
    # In the background, for a shell that waits for a foreground command looks at no signal.
    set -m
    "$@" <&0 &
    command_pid=$!
    set +m
    wait "$command_pid" || status=$?
fi

if [ "$status" -ne 0 ] && grep -qE 'PANIC|terminated by signal' "$log"; then
    printf 'The server crashed, see its log:\n' >&2
    grep -E -B 2 -A 5 'PANIC|terminated by signal' "$log" | tail -n 50 >&2
fi
exit "$status"
