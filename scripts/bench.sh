#!/usr/bin/env bash
# What it costs: first beside others and as it grows (peers.sh), then statements of 100,000 rows with a fence and without, then the
# instructions of each call (instructions.sh), and those again with more leases in the table.
#
# Statements of many rows are a script of pgbench each, beside the same without the fence, in turn in one run, since times wander by a tenth between
# identical runs. Prints the medians of transactions per second, their spread and the median ratio as CSV.
#
# ROUNDS (default 5) and SECONDS_EACH (default 3) say how long these scripts run; peers.sh has its own defaults. ONLY names what is measured:
# see peers.sh, the scripts below, instructions.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${ROUNDS:-5}
# pgbench takes whole seconds only.
seconds=${SECONDS_EACH:-3} seconds=${seconds%.*}
[ "${seconds:-0}" -ge 1 ] || seconds=1

pairs=(
    'bulk_insert_fenced bulk_insert_plain'
    'bulk_insert_column bulk_insert_plain'
    'bulk_update_fenced bulk_update_plain'
    'bulk_update_column bulk_update_plain'
)

wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $1 "* ]]; }

if [ "${1:-}" != inside ]; then
    scripts/peers.sh
    LOCK_EXT_PGOPTS=$'jit = off\nplan_cache_mode = force_generic_plan\nenable_seqscan = off\nmax_wal_size = 4GB' \
        scripts/with-cluster.sh scripts/bench.sh inside
    wanted instructions || exit 0
    scripts/instructions.sh
    for leases in 1000 1000000; do
        printf 'with %s more leases: ' "$leases"
        LEASES=$leases scripts/instructions.sh extend acquire acquire_release refused
    done
    exit
fi

psql -qXv ON_ERROR_STOP=1 -f bench/setup.sql >/dev/null

tps() { # script
    pgbench -nM prepared -T "$seconds" -f "bench/$1.sql" | awk '/^tps/ { print $3 }'
}

median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

echo 'script,beside,tps,tps_min,tps_max,beside_tps,ratio,ratio_min,ratio_max'
for pair in "${pairs[@]}"; do
    read -r script beside <<<"$pair"
    wanted "$script" || continue
    ours=() theirs=() ratios=()
    for _ in $(seq "$rounds"); do
        a=$(tps "$script")
        b=$(tps "$beside")
        ours+=("$a") theirs+=("$b")
        ratios+=("$(awk -v a="$a" -v b="$b" 'BEGIN { printf "%.3f", a / b }')")
    done
    printf '%s,%s,%.4g,%.4g,%.4g,%.4g,%s,%s,%s\n' "$script" "$beside" \
        "$(printf '%s\n' "${ours[@]}" | median)" \
        "$(printf '%s\n' "${ours[@]}" | sort -g | head -1)" \
        "$(printf '%s\n' "${ours[@]}" | sort -g | tail -1)" \
        "$(printf '%s\n' "${theirs[@]}" | median)" \
        "$(printf '%s\n' "${ratios[@]}" | median)" \
        "$(printf '%s\n' "${ratios[@]}" | sort -g | head -1)" \
        "$(printf '%s\n' "${ratios[@]}" | sort -g | tail -1)"
done
