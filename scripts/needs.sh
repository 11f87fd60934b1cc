#!/usr/bin/env bash
# needs.sh [--test|--ha|--clients|--packages|--majors|--bench]
#
# Installs what building and testing lock_ext needs on a Debian 12 machine that has Rust and git:
# Debian's PostgreSQL 15 with its headers, clang for bindgen, the matching cargo-pgrx. Where
# all of it is there it only looks, and needs no network. What it cannot install it names, with the command
# that does it, and exits with status 1. --test asks for what the tests need as well (rustfmt, clippy, faketime for the
# clients with wrong clocks), --ha for what those of servers need besides (Patroni with etcd), --clients for the
# languages and poolers of tests/clients, --packages and --majors for their tests, --bench for valgrind.
#
# With PG_CONFIG set that server is taken, and no PostgreSQL is installed.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# gcc and libc6-dev link what cargo builds, libssl-dev and pkg-config are for cargo-pgrx, and sudo is what
# cargo-pgrx runs the server of its tests with.
packages=(gcc libc6-dev make pkg-config libssl-dev clang libclang-dev sudo)
if [ -z "${PG_CONFIG:-}" ]; then
    packages+=(postgresql-15 postgresql-server-dev-15)
fi
case ${1:-} in
    '') ;;
    --test) packages+=(faketime iproute2) ;;
    --ha) packages+=(faketime iproute2 patroni python3-etcd etcd-server) ;;
    --clients)
        mapfile -t -O ${#packages[@]} packages < <(grep -hvE '^(#|$)' "${BASH_SOURCE[0]%/*}"/../tests/clients/*/packages | sort -u)
        ;;
    --packages) packages+=(debootstrap) ;;
    --majors) packages+=(python3-pip) ;;
    --bench) packages+=(valgrind) ;;
    *) die "usage: needs.sh [--test|--ha|--clients|--packages|--majors|--bench]" ;;
esac

missing_packages() {
    local package
    for package in "${packages[@]}"; do
        dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null |
            grep -qx installed || printf '%s\n' "$package"
    done
}

need_packages() {
    local missing apt=(as_root env DEBIAN_FRONTEND=noninteractive apt-get -q)
    if ! command -v dpkg-query >/dev/null; then
        printf 'needs.sh: no Debian packages here; taking it that these or their like are installed: %s\n' \
            "${packages[*]}" >&2
        return
    fi
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} -gt 0 ] || return 0

    local by_hand="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    is_root || command -v sudo >/dev/null ||
        die "packages are missing and there is no sudo; run as root: $by_hand"
    printf 'needs.sh: installing %s\n' "${missing[*]}"
    # A fresh machine knows no packages, and one with old lists asks for files that are gone.
    "${apt[@]}" update || die "apt-get update failed; run as root: $by_hand"
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
        die "apt-get install failed; run as root: $by_hand"
}

need_rust() {
    local version
    command -v cargo >/dev/null || die "cargo not found: install Rust 1.95 or newer, see https://rustup.rs"
    version=$(rustc --version | cut -d ' ' -f 2)
    printf '1.95\n%s\n' "$version" | sort --version-sort --check=quiet ||
        die "Rust 1.95 or newer is needed, this is $version; run: rustup update stable"
}

need_linters() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
    rustup component add rustfmt clippy || die "rustfmt or clippy is missing; run: rustup component add rustfmt clippy"
}

need_cargo_pgrx() {
    [ "$(cargo pgrx --version 2>/dev/null)" = "cargo-pgrx $CARGO_PGRX_VERSION" ] && return
    printf 'needs.sh: installing cargo-pgrx %s, which takes some minutes\n' "$CARGO_PGRX_VERSION"
    cargo install --locked cargo-pgrx --version "$CARGO_PGRX_VERSION" ||
        die "cargo-pgrx could not be installed; run: cargo install --locked cargo-pgrx --version $CARGO_PGRX_VERSION"
}

# pgrx builds against the servers that its configuration lists. An entry that works is left alone
# unless the caller has chosen a server.
need_pgrx_init() {
    local pg_config label config listed other
    pg_config=$(find_pg_config) || die "pg_config not found; set PG_CONFIG, or install postgresql-15"
    [ -d "$("$pg_config" --includedir-server)" ] ||
        die "the server headers of $pg_config are missing; as root: apt-get install -y postgresql-server-dev-15"
    label=$(pg_label "$pg_config")
    config=${PGRX_HOME:-$HOME/.pgrx}/config.toml
    listed=$(sed -nE "s/^$label *= *\"(.*)\"/\\1/p" "$config" 2>/dev/null || true)
    # A server that is gone would be in the way of the others.
    if [ -f "$config" ]; then
        while IFS= read -r other; do
            [ -x "$other" ] || sed -i "\\|\"$other\"|d" "$config"
        done < <(sed -nE 's/^pg[0-9]+ *= *"(.*)"/\1/p' "$config")
    fi
    [ "$listed" = "$pg_config" ] && return
    [ -z "${PG_CONFIG:-}" ] && [ -x "$listed" ] && return
    cargo pgrx init "--$label" "$pg_config" || die "pgrx could not be set up; run: cargo pgrx init --$label $pg_config"
}

need_packages
need_rust
if [ "${1:-}" = --test ]; then
    need_linters
fi
need_cargo_pgrx
need_pgrx_init
