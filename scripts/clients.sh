#!/usr/bin/env bash
# clients.sh [LANGUAGE...]      (default: every folder of tests/clients)
#
# Real drivers, ORMs and poolers against a real server. Each folder of tests/clients has `install` (what comes from PyPI, npm or crates.io, into
# target/clients), `run`, and `packages`, the Debian packages that it needs (installed by needs.sh --clients). `run` prints a line a scenario,
#
#     ok STACK VERSION - SCENARIO
#     skip STACK VERSION - SCENARIO: why it has no meaning there
#
# and here they are counted: each stack of tests/clients/stacks has to have shown each scenario that is named there. A cluster for each language
# listens on a loopback port as well as on its socket, as some drivers know no sockets, and is gone afterwards.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

languages=("$@")
if [ $# -eq 0 ]; then
    mapfile -t languages < <(find tests/clients -mindepth 2 -maxdepth 2 -name run -printf '%h\n' | sed 's|.*/||' | sort)
fi
out=$PWD/target/clients/results
mkdir -p "$out"

failed=()
for language in "${languages[@]}"; do
    folder=tests/clients/$language
    [ -x "$folder/run" ] || die "there is no $folder/run"
    echo "== $language"
    if [ -x "$folder/install" ] && ! "$folder/install" >"$out/$language.install" 2>&1; then
        tail -n 40 "$out/$language.install" >&2
        failed+=("$language: install")
        continue
    fi
    # What drivers do when a connection ends is partly luck, and so is a busy machine: a second failure counts, and the first is shown.
    for try in first second; do
        port=$(free_port)
        LOCK_EXT_PGOPTS="listen_addresses = '127.0.0.1'
port = $port" scripts/with-cluster.sh "$folder/run" 2>"$out/$language.log" | tee "$out/$language" && break
        tail -n 40 "$out/$language.log" >&2
        echo "clients.sh: $language FAILED at the $try try" >&2
        [ "$try" = first ] || failed+=("$language: run")
    done
done

# What was to be shown, and was not.
scenarios='grant heartbeat fenced_transaction fenced_column refused_write refused_commit once checkpoint wait_timeout lost_connection'
count() { grep -cE "^$1 " "$out/$language" || true; }
: >"$out/table"
while read -r language stack wanted; do
    [[ " ${languages[*]} " == *" $language "* ]] || continue
    touch "$out/$language"
    more=()
    [ "$wanted" != all ] || more=(migration)
    for scenario in $scenarios "${more[@]}"; do
        grep -qE "^ok $stack [^ ]+ - $scenario\$" "$out/$language" || failed+=("$stack: $scenario was not shown")
    done
    version=$(sed -nE "s/^(ok|skip|not ok) $stack ([^ ]+) - .*/\2/p" "$out/$language" | head -n 1)
    printf '%-12s %-22s %-12s %3d ok %3d skipped\n' "$language" "$stack" "${version:--}" "$(count "ok $stack")" "$(count "skip $stack")" >>"$out/table"
done < <(grep -vE '^(#|$)' tests/clients/stacks)
cat "$out/table"
for failure in "${failed[@]}"; do
    echo "clients.sh: failed: $failure" >&2
done
[ ${#failed[@]} -eq 0 ]
