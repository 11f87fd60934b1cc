#!/usr/bin/env bash
# Wall-clock pairs: each script beside what it is compared with, in turn in one run, since times wander by a tenth between
# identical runs. Prints the medians of transactions per second, their spread and the median ratio as CSV, then the instructions,
# then how long a lease takes from one holder to the next.
#
# ROUNDS (default 5) and SECONDS_EACH (default 3) say how long, ONLY which scripts.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${ROUNDS:-5}
seconds=${SECONDS_EACH:-3}

# script, what it is compared with, leases or rows in one call
pairs=(
    'extend bare_update 1'
    'acquire bare_update 1'
    'refused select_1 1'
    'insert_fenced insert_plain_select 1'
    'insert_column insert_column_plain 1'
    'bulk_insert_fenced bulk_insert_plain 1'
    'bulk_insert_column bulk_insert_plain 1'
    'bulk_update_fenced bulk_update_plain 1'
    'bulk_update_column bulk_update_plain 1'
    'extend_many extend 1000'
)

if [ "${1:-}" != inside ]; then
    LOCK_EXT_PGOPTS=$'jit = off\nplan_cache_mode = force_generic_plan\nenable_seqscan = off\nmax_wal_size = 4GB' \
        scripts/with-cluster.sh "scripts/bench.sh" inside
    scripts/instructions.sh
    exec scripts/handover.sh
fi

psql -qXv ON_ERROR_STOP=1 -f bench/setup.sql >/dev/null

tps() { # script clients synchronous_commit
    psql -qXAtc "SELECT count(lease_extend(name, token)) FROM lease_status WHERE name LIKE 'heartbeat-%'" >/dev/null
    PGOPTIONS="-c synchronous_commit=$3" pgbench -nM prepared -D i=0 -c "$2" -j "$2" -T "$seconds" -f "bench/$1.sql" |
        awk '/^tps/ { print $3 }'
}

median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

echo 'script,beside,clients,synchronous_commit,tps,tps_min,tps_max,beside_tps,ratio'
for pair in "${pairs[@]}"; do
    read -r script beside factor <<<"$pair"
    [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $script "* ]] || continue
    clients_of=(1 8) sync_of=(on off)
    # Statements of 100,000 rows are measured by one client, as its own work.
    case $script in bulk_*) clients_of=(1) sync_of=(on) ;; esac
    for clients in "${clients_of[@]}"; do
        for sync in "${sync_of[@]}"; do
            ours=() theirs=() ratios=()
            for _ in $(seq "$rounds"); do
                a=$(tps "$script" "$clients" "$sync")
                b=$(tps "$beside" "$clients" "$sync")
                ours+=("$a") theirs+=("$b")
                ratios+=("$(awk -v a="$a" -v b="$b" -v f="$factor" 'BEGIN { printf "%.3f", a * f / b }')")
            done
            printf '%s,%s,%s,%s,%.4g,%.4g,%.4g,%.4g,%s\n' "$script" "$beside" "$clients" "$sync" \
                "$(printf '%s\n' "${ours[@]}" | median)" \
                "$(printf '%s\n' "${ours[@]}" | sort -g | head -1)" \
                "$(printf '%s\n' "${ours[@]}" | sort -g | tail -1)" \
                "$(printf '%s\n' "${theirs[@]}" | median)" \
                "$(printf '%s\n' "${ratios[@]}" | median)"
        done
    done
done
