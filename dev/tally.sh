# Counts for dev/ and interop/. Every check adds one line to $CELLAR_TALLY. The script that created
# the file prints the last line 'N passed, N failed, N skipped' from it. Sourced, never run.
#
#   passed NAME   failed NAME [WHY]   skipped NAME WHY
#   passed_many N NAME                N tests of one kind, from the summary of a test program
#   tally_begin                       creates a file unless the caller has one; tally_end prints and returns the result

tally_begin() {
    if [ -z "${CELLAR_TALLY:-}" ]; then
        CELLAR_TALLY=$(mktemp "${TMPDIR:-/tmp}/cellar-tally.XXXXXX")
        export CELLAR_TALLY
        tally_owner=$$
    fi
}

tally_line() { printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-}" >>"$CELLAR_TALLY"; }
passed() { tally_line passed 1 "$1"; }
failed() { tally_line failed 1 "$1" "${2:-}"; }
skipped() { tally_line skipped 1 "$1" "$2"; }
passed_many() { tally_line passed "$1" "$2"; }
failed_many() { tally_line failed "$1" "$2"; }
skipped_many() { tally_line skipped "$1" "$2" "$3"; }

tally_sum() { awk -F'\t' -v k="$1" '$1 == k { n += $2 } END { print n + 0 }' "$CELLAR_TALLY"; }

# Only the process that created the file prints it. In a larger run, the caller does that.
tally_end() {
    local bad
    bad=$(tally_sum failed)
    if [ "${tally_owner:-}" = $$ ]; then
        echo
        awk -F'\t' '$1 == "failed"  { print "failed: " $3 ($2 > 1 ? " (" $2 ")" : "") ($4 == "" ? "" : ": " $4) }
                    $1 == "skipped" { print "skipped: " $3 ($2 > 1 ? " (" $2 ")" : "") ": " $4 }' "$CELLAR_TALLY"
        echo "$(tally_sum passed) passed, $bad failed, $(tally_sum skipped) skipped"
        rm -f "$CELLAR_TALLY"
    fi
    [ "$bad" = 0 ]
}

# step NAME COMMAND...: runs the command, shows its output only if it fails, and counts it.
step() {
    local name=$1 log start rc
    shift
    log=$(mktemp "${TMPDIR:-/tmp}/cellar-step.XXXXXX")
    start=$SECONDS
    "$@" >"$log" 2>&1
    rc=$?
    if [ $rc = 0 ]; then
        echo "ok    $name ($((SECONDS - start)) s)"
        passed "$name"
    else
        sed 's/^/    /' "$log"
        echo "FAIL  $name ($((SECONDS - start)) s, status $rc)"
        failed "$name" "status $rc"
    fi
    rm -f "$log"
    return $rc
}
