#!/usr/bin/env bash
# Counts the instructions that one transaction of a pgbench script takes in its backend, under valgrind's callgrind: the
# difference of two runs of different length, so that connecting and warming up do not count. Repeatable where
# wall-clock times are not.
#
# usage: instructions.sh SCRIPT...   (names of bench/*.sql without the ending; default: all that matter)
#
# LEASES puts that many more leases into the table. PROFILE=DIRECTORY keeps what callgrind wrote of the last backend of each script,
# for callgrind_annotate.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
source "$here/scripts/lib.sh"
pg_config=$(find_pg_config) || die "pg_config not found"
bin=$("$pg_config" --bindir)
[ $# -gt 0 ] || set -- select_1 nothing bare_update extend acquire acquire_release refused insert_plain_select insert_plain_declared insert_fenced \
    insert_column_plain insert_column extend_many bulk_insert_plain bulk_insert_fenced bulk_insert_column bulk_update_plain \
    bulk_update_fenced bulk_update_trigger bulk_update_column
dir=$(short_temp_dir)
is_root && chown postgres "$dir"
trap 'as_postgres "$bin/pg_ctl" -D "$dir/data" -m immediate stop >/dev/null 2>&1 || true; wait; rm -rf "$dir"' EXIT
as_postgres "$bin/initdb" -D "$dir/data" -A trust --no-sync -E UTF8 --locale=C >/dev/null
cat >>"$dir/data/postgresql.conf" <<CONF
listen_addresses = ''
unix_socket_directories = '$dir'
autovacuum = off
fsync = off
jit = off
plan_cache_mode = force_generic_plan
enable_seqscan = off
CONF
PGUSER=$(id -un)
if is_root; then PGUSER=postgres; fi
export PGHOST=$dir PGPORT=5432 PGUSER
as_postgres "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w start >/dev/null
as_postgres psql -qXd postgres -c 'CREATE DATABASE bench'
as_postgres psql -qXd bench -v ON_ERROR_STOP=1 -f "$here/bench/setup.sql" >/dev/null
if [ -n "${LEASES:-}" ]; then
    as_postgres psql -qXd bench -v ON_ERROR_STOP=1 -v leases="$LEASES" -f "$here/bench/leases.sql" >/dev/null
fi
as_postgres "$bin/pg_ctl" -D "$dir/data" -w stop >/dev/null
as_postgres valgrind --tool=callgrind --trace-children=yes --callgrind-out-file="$dir/cg.%p" \
    "$bin/postgres" -D "$dir/data" >"$dir/valgrind" 2>&1 &
until psql -qXd bench -c 'SELECT 1' >/dev/null 2>&1; do sleep 0.2; done
i=0
run() { # script transactions -> instructions of the busiest backend
    touch "$dir/mark"
    pgbench -nM prepared -D i=$i -c 1 -t "$2" -f "$here/bench/$1.sql" bench >/dev/null 2>"$dir/err" || { cat "$dir/err" >&2; exit 1; }
    i=$((i + $2))
    # The backend writes its count when it has ended.
    while pgrep -f 'postgres: .* bench ' >/dev/null; do sleep 0.1; done
    sleep 0.5
    find "$dir" -name 'cg.*' -newer "$dir/mark" -exec awk '/^(summary|totals):/ { print $2 }' {} + | sort -n | tail -1
}
printf 'script,instructions\n'
for script in "$@"; do
    few=50 many=450
    case $script in extend_many) few=3 many=13 ;; bulk_*) few=1 many=3 ;; esac
    run "$script" "$few" >/dev/null # what a first run builds, such as the cache of the catalog
    a=$(run "$script" $few)
    b=$(run "$script" $many)
    printf '%s,%d\n' "$script" $(((b - a) / (many - few)))
    if [ -n "${PROFILE:-}" ]; then
        # The busiest one has the most to tell.
        find "$dir" -name 'cg.*' -newer "$dir/mark" -size +0 -printf '%s %p\n' | sort -n | tail -1 | cut -d ' ' -f 2 |
            xargs -I {} cp {} "$PROFILE/$script.callgrind"
    fi
done
