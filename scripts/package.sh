#!/usr/bin/env bash
# package.sh [check|stage|deb|source]... [--of DIRECTORY]
#
# What is handed to others, all of it below target/packages. Without words: check, deb and, in a clone, source.
#
#   check   fails unless Cargo.toml, lock_ext.control, META.json, CHANGELOG.md and the upgrade scripts name one version
#   stage   builds for the server of PG_CONFIG, into stage/MAJOR/ as the file tree of that server
#   deb     stage, and from that a Debian package of that major
#   source  the release as lock_ext-VERSION.tar.gz and .zip, from the last commit
#
# --of packs the sources in DIRECTORY, an earlier version, instead of those that this script is part of.
#
# The same sources, compiler and paths give the same bytes: times are those of the commit, or SOURCE_DATE_EPOCH.
# DEBFULLNAME and DEBEMAIL, if set, name the maintainer of the package.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$root/target/packages
sources=$root

export TZ=UTC LC_ALL=C
# Packages are for everybody to read.
umask 022

version_in() {
    sed -nE '/^\[workspace\.package\]/,/^\[/s/^version = "(.*)"$/\1/p' "$1"
}

# The sources are their own clone only then: a tarball may be unpacked inside somebody else's.
in_git() {
    command -v git >/dev/null && [ "$(git -C "$sources" rev-parse --show-toplevel 2>/dev/null)" = "$sources" ]
}

set_epoch() {
    if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
        return
    elif in_git; then
        SOURCE_DATE_EPOCH=$(git -C "$sources" log -1 --format=%ct)
    else
        # git archive gives each file the time of the commit.
        SOURCE_DATE_EPOCH=$(stat --format %Y "$sources/Cargo.toml")
    fi
    export SOURCE_DATE_EPOCH
}

check() {
    local found bad=0
    differs() {
        printf 'package.sh: Cargo.toml says version %s, but %s\n' "$version" "$*" >&2
        bad=1
    }
    [ -n "$version" ] || die "Cargo.toml has no version below [workspace.package]"

    found=$(sed -nE "s/^default_version *= *'(.*)'$/\\1/p" "$sources/lock_ext.control")
    [ "$found" = '@CARGO_VERSION@' ] || [ "$found" = "$version" ] || differs "lock_ext.control says '$found'"

    # The distribution's and the extension's; meta-spec is on a line of its own.
    found=$(sed -nE 's/^ *"version": "(.*)",?$/\1/p' "$sources/META.json" | sort | uniq --count | sed -E 's/^ +//')
    [ "$found" = "2 $version" ] || differs "META.json says (how often, what): ${found//$'\n'/, }"

    found=$(sed -nE 's/^## ([0-9][^ ,]*).*/\1/p' "$sources/CHANGELOG.md" | head -n 1)
    [ "$found" = "$version" ] || differs "CHANGELOG.md begins with '$found'"

    # Without a way to it ALTER EXTENSION ... UPDATE says that there is none. 0.1.0 was the first.
    compgen -G "$sources/sql/lock_ext--*--$version.sql" >/dev/null || [ "$version" = 0.1.0 ] ||
        differs "no sql/lock_ext--*--$version.sql leads to it"
    return "$bad"
}

stage() {
    local pg_config label target=()
    pg_config=$(find_pg_config) || die "pg_config not found; set PG_CONFIG, or run scripts/needs.sh"
    label=$(pg_label "$pg_config")
    major=${label#pg}
    staged=$out/stage/$major
    if [ "$sources" != "$root" ]; then
        staged=$out/stage/$major-$version
        # cargo gives the library of both the same place and may take the one for the other.
        target=(env "CARGO_TARGET_DIR=$out/target-$version")
    fi
    rm -rf "$staged"
    mkdir -p "$staged"
    (cd "$sources" && "${target[@]}" cargo pgrx package --package lock_ext --pg-config "$pg_config" --out-dir "$staged" \
        --no-default-features --features "$label") >&2
    library=$staged$("$pg_config" --pkglibdir)/lock_ext.so
    extension=$staged$("$pg_config" --sharedir)/extension
    [ -f "$library" ] || die "cargo pgrx package has left no $library"
    [ -f "$extension/lock_ext--$version.sql" ] || die "cargo pgrx package has left no lock_ext--$version.sql"
    local script
    for script in "$sources"/sql/lock_ext--*--*.sql; do
        [ ! -e "$script" ] || [ -f "$extension/${script##*/}" ] || die "cargo pgrx package has left out ${script##*/}"
    done
}

# The newest version of the symbols of one kind that the library asks for: GLIBC_2.34 gives 2.34.
newest_symbol() {
    objdump --dynamic-syms "$1" | sed -nE "s/.*\\($2_([0-9][0-9.]*)\\).*/\\1/p" | sort --version-sort --unique | tail -n 1
}

# What dpkg-shlibdeps would say, which a machine that only builds does not have.
depends() {
    local library found=("postgresql-$major")
    for library in $(objdump --private-headers "$1" | sed -nE 's/^ *NEEDED +//p'); do
        case $library in
            libc.so.* | libm.so.* | ld-linux*) ;;
            libgcc_s.so.1) found+=("libgcc-s1 (>= $(newest_symbol "$1" GCC))") ;;
            *) die "the library needs $library: which package is that from?" ;;
        esac
    done
    found+=("libc6 (>= $(newest_symbol "$1" GLIBC))")
    printf '%s\n' "${found[@]}" | sort --unique | paste --serial --delimiters , | sed 's/,/, /g'
}

# The crates that are linked into the library, and the terms that ask to go along with copies. The Apache licence is
# on every Debian machine.
notices() {
    local crate name number file
    printf 'lock_ext is linked with these Rust crates:\n\n'
    (cd "$sources" && cargo tree --package lock_ext --no-default-features --features "pg$major" \
        --edges normal,no-proc-macro --prefix none --format '{p}|{l}') | sed -E 's/ \(\*\)$//; /^lock_ext v/d' | sort --unique >"$work/crates"
    sed -E 's/\|/: /' "$work/crates"
    while IFS='|' read -r crate _; do
        read -r name number _ <<<"$crate"
        for file in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name-${number#v}"/*; do
            case ${file##*/} in
                *APACHE* | *apache* | LICENSES) ;;
                LICEN[SC]E* | COPYING* | NOTICE* | licen[sc]e*)
                    [ ! -f "$file" ] || printf '\n-- %s, %s\n\n%s\n' "$name" "${file##*/}" "$(cat "$file")"
                    ;;
            esac
        done
    done <"$work/crates"
}

copyright() {
    cat <<COPYRIGHT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: lock_ext
Comment: the Rust crates that the library is linked with, and their terms, are in crates.gz beside this file.

Files: *
Copyright: $(sed -nE 's/^Copyright \(c\) //p' "$sources/LICENSE")
License: PostgreSQL
$(sed -E '1,2d; s/^$/./; s/^/ /' "$sources/LICENSE")
COPYRIGHT
}

debian_changelog() {
    cat <<CHANGELOG
$package ($debian_version) unstable; urgency=medium

  * lock_ext $version: see changelog.gz.

 -- $maintainer  $(date --rfc-email --date "@$SOURCE_DATE_EPOCH")
CHANGELOG
}

# What the files take, in KiB, and one for each directory, as Debian's own tools count.
installed_size() {
    find "$1" -mindepth 1 \( -type f -printf '%s\n' -o -printf '1024\n' \) | awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }'
}

# The server's directories are those of Debian's packages, whichever server it was built with.
deb() {
    stage
    local tree doc file
    local package=postgresql-$major-lock-ext debian_version=$version-1
    local architecture maintainer=${DEBFULLNAME:-the lock_ext authors}${DEBEMAIL:+ <$DEBEMAIL>}
    architecture=$(dpkg --print-architecture)
    tree=$work/$package
    doc=$tree/usr/share/doc/$package
    file=$out/${package}_${debian_version}_$architecture.deb

    install -D --mode 644 "$library" "$tree/usr/lib/postgresql/$major/lib/lock_ext.so"
    strip --strip-unneeded --remove-section=.comment "$tree/usr/lib/postgresql/$major/lib/lock_ext.so"
    install -D --mode 644 --target-directory "$tree/usr/share/postgresql/$major/extension" \
        "$extension/lock_ext.control" "$extension"/lock_ext--*.sql
    install -D --mode 644 --target-directory "$doc" "$sources/README.md"
    copyright >"$doc/copyright"
    notices >"$doc/crates"
    cp --no-preserve=mode "$sources/CHANGELOG.md" "$doc/changelog"
    debian_changelog >"$doc/changelog.Debian"
    gzip --best --no-name "$doc"/{README.md,crates,changelog,changelog.Debian}

    mkdir "$tree/DEBIAN"
    (cd "$tree" && find usr -type f -print0 | sort --zero-terminated | xargs --null md5sum) >"$tree/DEBIAN/md5sums"
    cat >"$tree/DEBIAN/control" <<CONTROL
Package: $package
Source: lock-ext
Version: $debian_version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(installed_size "$tree/usr")
Depends: $(depends "$tree/usr/lib/postgresql/$major/lib/lock_ext.so")
Section: database
Priority: optional
Description: fenced leases inside PostgreSQL $major
 One of many servers does the job at a time, and the one that was paused
 cannot write any more when it wakes up: each grant of a lease has a higher
 token than all earlier ones, and no transaction that writes to a fenced
 table under a superseded token commits.
 .
 After the installation: CREATE EXTENSION lock_ext. After an upgrade of this
 package: reconnect, and ALTER EXTENSION lock_ext UPDATE in each database.
CONTROL
    find "$tree" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --build "$tree" "$file" >&2
    printf '%s\n' "$file"
}

source_archives() {
    in_git || die "the archives of the release are made from a clone with git"
    local name=lock_ext-$version committed
    committed=$(git -C "$sources" show HEAD:Cargo.toml | version_in /dev/stdin)
    [ "$committed" = "$version" ] || die "the last commit is version $committed, commit $version first"
    git -C "$sources" cat-file -e HEAD:META.json || die "the last commit has no META.json"
    [ -z "$(git -C "$sources" status --porcelain)" ] ||
        printf 'package.sh: there are changes that are not committed, and not in the archives\n' >&2
    git -C "$sources" archive --format tar --prefix "$name/" HEAD | gzip --best --no-name >"$out/$name.tar.gz"
    git -C "$sources" archive --format zip -9 --prefix "$name/" --output "$out/$name.zip" HEAD
    printf '%s\n' "$out/$name.tar.gz" "$out/$name.zip"
}

words=()
while [ $# -gt 0 ]; do
    case $1 in
        check | stage | deb | source) words+=("$1") ;;
        --of)
            [ -f "${2:-}/Cargo.toml" ] || die "--of needs a directory with the sources"
            sources=$(cd "$2" && pwd)
            shift
            ;;
        *) die "usage: package.sh [check|stage|deb|source]... [--of DIRECTORY]" ;;
    esac
    shift
done
version=$(version_in "$sources/Cargo.toml")
if [ ${#words[@]} -eq 0 ]; then
    words=(check deb)
    ! in_git || words+=(source)
fi

mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
set_epoch
for word in "${words[@]}"; do
    case $word in
        source) source_archives ;;
        *) "$word" ;;
    esac
done
