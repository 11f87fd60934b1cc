# The psql transcripts of a page: `awk -v want=script` gives the commands, each followed by a mark on both channels;
# `-v want=compare` reads the page, then what psql printed to standard output and to standard error, and prints what differs.

function bare(text) {
    gsub(/[ \t]+\n/, "\n", text)
    gsub(/\n+/, "\n", text)
    sub(/^\n/, "", text)
    return text
}

FNR == 1 { file++ }

file == 1 && /^```/ { inside = ($0 == "```psql"); next }
file == 1 && inside && /^=\*?# / {
    sub(/^=\*?# /, "")
    command[++steps] = $0
    next
}
file == 1 && inside { expected[steps] = expected[steps] $0 "\n" }

file > 1 && FNR == 1 { step = 1 }
file > 1 && $0 == "@@" { step++; next }
# Errors come after what was printed before.
file > 1 { printed[step] = printed[step] $0 "\n" }

END {
    if (want == "script") {
        print "\\set SHOW_CONTEXT never"
        for (i = 1; i <= steps; i++)
            printf "%s\n\\echo @@\n\\warn @@\n", command[i]
        exit
    }
    for (i = 1; i <= steps; i++)
        if (bare(expected[i]) != bare(printed[i]))
            printf "at: %s\nexpected:\n%sprinted:\n%s", command[i], bare(expected[i]), bare(printed[i])
    if (steps < 10)
        print "only " steps " commands were found"
}
