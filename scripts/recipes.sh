#!/usr/bin/env bash
# recipes.sh [--check]
#
# The code in docs/*.md is the code that the tests run: a line `<!-- include FILE -->` or `<!-- include FILE#REGION -->` is followed by a fenced block,
# and this fills it in from FILE. A region goes from a line with `[REGION]` in a comment to one with `[end REGION]`. --check changes nothing,
# and fails where a page is not what this would make of it.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

filled_in() { # page
    awk '
        function fail(why) { print FILENAME ":" FNR ": " why > "/dev/stderr"; failed = 1; exit 1 }
        # Without the indentation that all of its lines share.
        function include(what,    parts, file, region, line, inside, found, lines, count, indent, least, n) {
            split(what, parts, "#"); file = parts[1]; region = parts[2]
            inside = region == ""; count = 0; least = 999
            while ((found = (getline line < file)) > 0) {
                if (region != "" && index(line, "[end " region "]")) { inside = 0; continue }
                if (region != "" && index(line, "[" region "]")) { inside = 1; regions[what]++; continue }
                # Marks of other regions inside this one are for this script alone.
                if (line ~ /^[ \t]*(#|\/\/|--|\*) \[(end )?[a-z_0-9]+\]$/) continue
                if (!inside) continue
                lines[++count] = line
                if (line ~ /[^ \t]/) { match(line, /^[ \t]*/); if (RLENGTH < least) least = RLENGTH }
            }
            close(file)
            if (found < 0) fail("no file " file)
            if (count == 0) fail("nothing at " what)
            while (count > 0 && lines[count] !~ /[^ \t]/) count--
            for (n = 1; n <= count; n++) print substr(lines[n], least + 1)
        }
        /^<!-- include [^ ]+ -->$/ { print; what = $3; pending = 1; next }
        pending && /^```/ { print; include(what); pending = 0; skipping = 1; next }
        pending && /[^ \t]/ { fail("a fenced block has to follow the include") }
        skipping && /^```$/ { print; skipping = 0; next }
        skipping { next }
        { print }
        END { if (!failed && (pending || skipping)) fail("a fenced block is open") }
    ' "$1"
}

new=$(mktemp)
trap 'rm -f "$new"' EXIT
status=0
for page in docs/*.md; do
    [ -e "$page" ] || continue
    filled_in "$page" >"$new" || exit 1
    cmp --silent "$new" "$page" && continue
    if [ "${1:-}" = --check ]; then
        echo "recipes.sh: $page is not what the tests run; call scripts/recipes.sh" >&2
        diff "$page" "$new" | head -n 20 >&2 || true
        status=1
    else
        cat "$new" >"$page"
    fi
done
exit "$status"
