#!/usr/bin/env bash
# Builds lock_ext in release mode and installs it into the server of PG_CONFIG.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pg_config=$(find_pg_config) || die "pg_config not found; set PG_CONFIG, or run scripts/needs.sh"
if may_install "$pg_config"; then
    cargo pgrx install --package lock_ext --release --pg-config "$pg_config"
    exit
fi

# An ordinary user. Not `cargo pgrx install --sudo`, which copies onto the library in place: that would
# crash the sessions of a running server that have it loaded.
staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT
cargo pgrx package --package lock_ext --pg-config "$pg_config" --out-dir "$staged"
as_root cp --recursive --remove-destination --no-preserve=mode,ownership "$staged/." / ||
    die "could not write to $("$pg_config" --pkglibdir); run make package, and as root copy what it built to /"
