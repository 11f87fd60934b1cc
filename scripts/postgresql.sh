#!/usr/bin/env bash
# postgresql.sh MAJOR [PREFIX]
#
# Builds a PostgreSQL that Debian 12 does not have from the source package of a later Debian, into PREFIX (by default
# LOCK_EXT_PG_PREFIX, else target/postgresql-MAJOR, or below /var/tmp where that is closed to the user postgres), and prints the path of its pg_config; all else goes to the standard error. Where
# it is there already that is all, without network. The system's package sources stay as they are.
#
# It has what our tests use: the server and its clients, PL/pgSQL, pg_regress, test_decoding, ICU, zlib for compressed dumps.
# Additional words for configure are taken from LOCK_EXT_PG_CONFIGURE, such as --enable-cassert.
# shellcheck disable=SC2317 # the function that a trap calls is reached
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ ${1:-} =~ ^1[0-9]$ && $# -le 2 ]] || die "usage: postgresql.sh MAJOR [PREFIX]"
major=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=$root/target/postgresql-$major
# As root the server is run by the user postgres, who may not get to where a clone is.
if is_root && getent passwd postgres >/dev/null && ! as_postgres test -x "$root"; then
    prefix=/var/tmp/lock_ext/postgresql-$major
fi
prefix=${2:-${LOCK_EXT_PG_PREFIX:-$prefix}}
[[ $prefix = /* ]] || prefix=$PWD/$prefix

# The releases to look in, one after the other. A major stays in the last one only until the next major comes.
suites=(trixie forky sid)
# Perl, bison and flex make what the sources from 17 on do not bring.
packages=(gcc libc6-dev make pkg-config bzip2 perl bison flex zlib1g-dev libicu-dev)

# Says that all is well with it, or why not.
ready() {
    [ -x "$prefix/bin/pg_config" ] || return 1
    # As root the server is run by the user postgres, who has to get there.
    if is_root && getent passwd postgres >/dev/null; then
        as_postgres "$prefix/bin/postgres" --version >/dev/null 2>&1 ||
            die "the user postgres cannot run $prefix/bin/postgres; are all directories above it open to others (chmod o+x)?"
    fi
    printf '%s\n' "$prefix/bin/pg_config"
}

need_packages() {
    local package missing=() apt=(as_root env DEBIAN_FRONTEND=noninteractive apt-get -q)
    for package in "${packages[@]}"; do
        dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    local by_hand="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    printf 'postgresql.sh: installing %s\n' "${missing[*]}"
    "${apt[@]}" update || die "apt-get update failed; run as root: $by_hand"
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" || die "apt-get install failed; run as root: $by_hand"
}

# Whatever archive the machine's own packages come from has the later releases as well.
archive() {
    # shellcheck disable=SC2016 # apt fills these in
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sort -u | head -n 1
}

# apt checks the release's signature, and by it the list of sources and each file.
download() {
    local uri suite
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg
    uri=$(archive)
    [ -n "$uri" ] || die "no Debian archive among the package sources (run apt-get update once)"
    mkdir -p "$work"/apt/lists/partial "$work"/apt/cache/archives/partial "$work/sources"
    # Our directory is closed to the user that apt would load files as.
    local apt=(apt-get -q -o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=-
        -o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
    for suite in "${suites[@]}"; do
        printf 'deb-src [signed-by=%s] %s %s main\n' "$keys" "$uri" "$suite" >"$work/apt/sources.list"
        "${apt[@]}" update || die "the list of sources of Debian $suite could not be loaded"
        if (cd "$work/sources" && "${apt[@]}" source --download-only --only-source "postgresql-$major"); then
            return
        fi
        printf 'postgresql.sh: no sources of PostgreSQL %s from Debian %s\n' "$major" "$suite"
    done
    die "no sources of PostgreSQL $major in ${suites[*]}"
}

build() {
    local more=()
    read -r -a more <<<"${LOCK_EXT_PG_CONFIGURE:-}"
    tar --extract --bzip2 --file "$work"/sources/postgresql-"$major"_*.orig.tar.bz2 --directory "$work"
    cd "$work"/postgresql-"$major"*/
    ./configure --quiet --prefix "$prefix" --without-readline "${more[@]}"
    local make=(make --silent --jobs "$(nproc)")
    "${make[@]}"
    "${make[@]}" --directory contrib/test_decoding
    # Elsewhere first and then moved, so that what is at its place is whole.
    "${make[@]}" install DESTDIR="$work/out"
    "${make[@]}" --directory contrib/test_decoding install DESTDIR="$work/out"
    mkdir -p "$(dirname "$prefix")"
    rm -rf "$prefix"
    mv "$work/out$prefix" "$prefix"
}

ready && exit
# PostgreSQL makes its generated headers only where make was not called by another make.
unset MAKELEVEL MAKEFLAGS MFLAGS
# Others have to be able to read what is installed.
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
    need_packages
    download
    build
} >&2
ready
