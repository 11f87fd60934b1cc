# Shared by the scripts beside this file; sourced, never run.
# shellcheck shell=bash

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# The pg_config of the server that we build for: PG_CONFIG where it is set, else that of
# Debian's PostgreSQL 15 (a newer major may be installed beside it), else the one in the PATH.
find_pg_config() {
    local found
    if [ -n "${PG_CONFIG:-}" ]; then
        found=$(command -v "$PG_CONFIG") || return 1
    elif [ -x /usr/lib/postgresql/15/bin/pg_config ]; then
        found=/usr/lib/postgresql/15/bin/pg_config
    else
        found=$(command -v pg_config) || return 1
    fi
    printf '%s\n' "$found"
}

# A fresh short directory: a unix socket's path may have no more than 107 bytes.
short_temp_dir() {
    mktemp -d "${LOCK_EXT_TMPDIR:-/tmp}/lx.XXXXXX"
}

# Does anybody listen on this port of loopback?
is_open() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Below the ports that the system gives away itself.
free_port() {
    local port
    while port=$((20000 + RANDOM % 10000)) && is_open "$port"; do :; done
    printf '%s\n' "$port"
}

is_root() {
    [ "$(id -u)" -eq 0 ]
}

# Fails where there is no sudo, or it asks for a password and nobody is there to type it.
as_root() {
    if is_root; then
        "$@"
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo --non-interactive "$@"
    fi
}

# Runs a server program. They refuse to run as root, so there it is the user postgres.
# A backtrace in every error's message is not what a server's user sees.
as_postgres() {
    if is_root; then
        runuser -u postgres -- env -u RUST_BACKTRACE -u RUST_LIB_BACKTRACE "$@"
    else
        env -u RUST_BACKTRACE -u RUST_LIB_BACKTRACE "$@"
    fi
}

# The version that the pgrx crates of Cargo.toml ask for: cargo-pgrx has to be the very same.
# shellcheck disable=SC2034 # used by the scripts that source this
CARGO_PGRX_VERSION=0.18.1

# cargo's label and feature for a server: "pg15".
pg_label() {
    "$1" --version | sed -E 's/^PostgreSQL ([0-9]+).*/pg\1/'
}

# Where cargo installs to is not always in the PATH of make.
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

may_install() {
    [ -w "$("$1" --pkglibdir)" ] && [ -w "$("$1" --sharedir)/extension" ]
}
