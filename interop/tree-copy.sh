# tree_choose FILES BYTES: selects the part of /usr to copy, and adds some files of kinds that are
# rare in /usr.
tree_choose() {
    "$programs/tree.py" select "$share/manifest" /usr --files "$1" --bytes "$2" &&
        "$programs/tree.py" extras "$share/manifest" "$share/extras" || fail "cannot choose a tree"
}

# tree_pass IN OUT PREFIX: copies in through client IN, and back through OUT. PREFIX is the text
# that IN puts before the target of a symlink: afsd.fuse puts /afs/, with any server.
tree_pass() {
    local start=$SECONDS in out
    on $1 bash -c "'$programs/tree.py' put '$share/manifest' \"\$AFS/tree\"" || fail "copying in through ${1%% *}"
    in=$((SECONDS - start)) start=$SECONDS
    on $2 bash -c "'$programs/tree.py' check '$share/manifest' \"\$AFS/tree\" --symlinks-with '$3'" | tee "$IT_DIR/check.log"
    [ "${PIPESTATUS[0]}" = 0 ] || fail "$(grep -m1 DIFFERS "$IT_DIR/check.log" || echo "reading back through ${2%% *}")"
    out=$((SECONDS - start))
    say "in by ${1%% *} ($in s), out by ${2%% *} ($out s): $(tail -n 1 "$IT_DIR/check.log")"
}
