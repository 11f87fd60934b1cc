# What the scenarios share; sourced by psql.sh and cron.sh. Each scenario is a function, run in a process and a database of its own.
# shellcheck shell=bash
set -euo pipefail

psql=(psql -X -q -At -v ON_ERROR_STOP=1)
scratch=$(mktemp -d)
stderr=$scratch/stderr
: >"$stderr"
trap 'rm -rf "$scratch"' EXIT

fail() {
    printf '%s\n' "$*" >&2
    cat "$stderr" >&2
    exit 1
}

equal() { # expected actual what
    [ "$1" = "$2" ] || fail "$3: '$1' was expected, this is '$2'"
}

error_is() { # text
    grep -qF "$1" "$stderr" || fail "the error is not: $1"
}

ask() { # statements [psql's options]
    "${psql[@]}" "${@:2}" <<<"$1"
}

# Sets status to the exit status of a command, whose standard output and error are kept.
# shellcheck disable=SC2034 # the scenarios look at both
try() {
    status=0
    output=$("$@" 2>"$stderr") || status=$?
}

await() { # statement that gives true
    local give_up=$((SECONDS + 20))
    until [ "$(ask "$1")" = t ]; do
        [ "$SECONDS" -lt "$give_up" ] || fail "it never came: $1"
        sleep 0.02
    done
}

await_waiters() { # number of those for lease busy
    await "SELECT count(*) = $1 FROM lease_waiter WHERE name = 'busy'"
}

take_over() { # lease
    ask "SELECT lease_force_release('$1')" >/dev/null
    ask "SELECT lease_acquire('$1', 'successor', '60 s')"
}

fresh_database() {
    export PGDATABASE=postgres
    ask "SET client_min_messages = warning; DROP DATABASE IF EXISTS $1 WITH (FORCE)"
    ask "CREATE DATABASE $1"
    export PGDATABASE=$1
    ask 'CREATE EXTENSION lock_ext'
}

# What a file's scenarios are called, in their order; with a name as its argument the file runs that one alone.
main() { # file scenarios... -- [scenario]
    local file=$1 scenarios=() failed=0 version why
    shift
    while [ "$1" != -- ]; do
        scenarios+=("$1")
        shift
    done
    if [ $# -gt 1 ]; then
        fresh_database "client_psql_$2"
        "$2"
        return
    fi
    version=$(psql --version | cut -d ' ' -f 3)
    for scenario in "${scenarios[@]}"; do
        # A scenario that hangs is one that failed.
        if timeout 120 "$file" "$scenario" >/dev/null 2>"$stderr"; then
            printf 'ok psql %s - %s\n' "$version" "$scenario"
        else
            failed=1
            cat "$stderr" >&2
            why=$(tr -s '\n' ' ' <"$stderr")
            printf 'not ok psql %s - %s: %s\n' "$version" "$scenario" "$why"
        fi
    done
    return "$failed"
}
