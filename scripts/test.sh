#!/usr/bin/env bash
# test.sh [STAGE...]
#
# Runs the stages named, or those of `make test` in the order of the list below. A stage is a function here; `ha`, which takes some minutes, is one
# of `make test-ha`.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stages=(fmt lint scripts in_backend model install golden sessions network)
more_stages=(ha)

pg_config=$(find_pg_config) || die "pg_config not found; run scripts/needs.sh"
label=$(pg_label "$pg_config")

fmt() {
    cargo fmt --all --check
}

lint() {
    cargo clippy --package lock_ext --all-targets --no-default-features --features "$label,pg_test" -- -D warnings
    cargo clippy --workspace --exclude lock_ext --all-targets -- -D warnings
}

# One version is named everywhere, and the pages show what is tested. shellcheck only where it is installed: nothing that is built depends on it.
scripts() {
    scripts/package.sh check
    scripts/recipes.sh --check
    if command -v shellcheck >/dev/null; then
        shellcheck --severity warning --external-sources scripts/*.sh .ci/run tests/packages/{run,inside} tests/clients/*/{run,install}
    else
        echo "shellcheck is not installed, left out"
    fi
}

# Tests that run inside a server of cargo-pgrx, together with the plain unit tests of the crate.
# The server refuses to be root's, so it is run by postgres. Where the installation directories are closed
# to an ordinary user, naming a user makes cargo-pgrx install with sudo.
in_backend() (
    local options=()
    if is_root || ! may_install "$pg_config"; then
        # With sudo cargo-pgrx copies onto the library in place, and that crashes the sessions that have it
        # loaded in whatever server runs here. They keep a file that was removed.
        as_root rm -f "$("$pg_config" --pkglibdir)/lock_ext.so"
        data=$(short_temp_dir)
        trap 'rm -rf "$data"' EXIT
        if is_root; then
            chown postgres: "$data"
            options=(--runas postgres --pgdata "$data")
        else
            options=(--runas "$(id -un)" --pgdata "$data")
        fi
    fi
    # One after the other: they share a database, and a name that another test is acquiring is refused.
    env -u RUST_BACKTRACE -u RUST_LIB_BACKTRACE RUST_TEST_THREADS=1 \
        cargo pgrx test "$label" --package lock_ext --no-default-features "${options[@]}"
)

# The protocol without PostgreSQL, state by state: as designed, and with each part of it left out.
model() {
    cargo test --package lock_ext_model -- --nocapture
}

# From here on the tests see the extension as users get it: the test build has functions of its own.
# The scripts of earlier versions go beside it, for the tests of ALTER EXTENSION ... UPDATE.
install() {
    scripts/install.sh
    as_root cp tests/upgrade/lock_ext--*.sql "$("$pg_config" --sharedir)/extension/"
}

# The documented surface, compared with what psql printed before. Results and diffs are left in
# target/pg_regress.
golden() {
    local regress tests=() out=target/pg_regress
    [ -d tests/pg_regress/sql ] || { echo "no golden tests yet"; return; }
    regress=$("$pg_config" --pkglibdir)/pgxs/src/test/regress/pg_regress
    rm -rf "$out"
    mkdir -p "$out"
    if [ -f tests/pg_regress/schedule ]; then
        tests=(--schedule tests/pg_regress/schedule)
    else
        mapfile -t tests < <(basename --suffix .sql -- tests/pg_regress/sql/*.sql)
    fi
    # shellcheck disable=SC2016 # the socket is known only inside
    scripts/with-cluster.sh sh -c 'exec "$@" --host "$PGHOST" --port "$PGPORT" --user "$PGUSER"' - \
        "$regress" --bindir "$("$pg_config" --bindir)" --inputdir tests/pg_regress --outputdir "$out" \
        --dbname lock_ext_regress --load-extension lock_ext "${tests[@]}" || {
        cat "$out/regression.diffs" >&2 || true
        return 1
    }
}

# Many real clients, among them stopped and killed ones. Commits are read back in their order by logical decoding.
sessions() {
    LOCK_EXT_PGOPTS='wal_level = logical' scripts/with-cluster.sh cargo test --package lock_ext_sessions --release -- --test-threads=8
}

# What a connection that is taken down does; needs network namespaces.
network() {
    if is_root && command -v ip >/dev/null && ip netns list >/dev/null 2>&1; then
        scripts/cut_off.sh
    else
        echo "no network namespaces here (root, iproute2), left out"
    fi
}

# Servers that crash, fail over, are restored and upgraded to the next major version that Debian's sources have, which is built first.
ha() {
    local next=${LOCK_EXT_NEXT_PG_CONFIG:-} label
    if [ -z "$next" ]; then
        next=$(scripts/postgresql.sh 18) || printf 'LEFT OUT: the upgrade to PostgreSQL 18, which could not be built\n' >&2
    fi
    if [ -n "$next" ]; then
        label=$(pg_label "$next")
        PG_CONFIG=$next scripts/needs.sh
        cargo pgrx install --package lock_ext --release --pg-config "$next" --no-default-features --features "$label"
    fi
    LOCK_EXT_NEXT_PG_CONFIG=$next LOCK_EXT_PGBIN=$("$pg_config" --bindir) \
        cargo test --package lock_ext_ha --release -- --test-threads=2
}

if [ $# -eq 0 ]; then
    set -- "${stages[@]}"
fi
for stage in "$@"; do
    [[ " ${stages[*]} ${more_stages[*]} " == *" $stage "* ]] ||
        die "no stage \"$stage\"; there are: ${stages[*]} ${more_stages[*]}"
done
for stage in "$@"; do
    printf '\n== %s\n' "$stage"
    "$stage"
done
printf '\nPassed: %s\n' "$*"
