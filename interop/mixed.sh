# Cells with file servers of both kinds. A test that uses them has 'needs: tools openafs' and
# sources this file.
#
#   ours     Cellar's file server ($OURS); with --peer openafs, another of OpenAFS's
#   theirs   OpenAFS's file server ($THEIRS), at the place of the second client
#
# The location database is Cellar's, or OpenAFS's (at_their_database).

OURS=$IT_ADDR THEIRS=10.99.0.22
theirs_dir=$IT_DIR/theirs mixed_database=$IT_PEER joined=
case $IT_PEER in
cellar) mixed_etc=$IT_DIR/server/server-etc ;;
openafs) mixed_etc=$IT_DIR/server/etc/server ;;
esac

# OpenAFS's file server joins the cell that the runner has started.
theirs_up() { # also after theirs_kill
    local join=(--join "$mixed_etc")
    [ -z "$joined" ] || join=()
    trap mixed_down EXIT
    theirs up --netns "$IT_NETNS-c2" --addr $THEIRS --cell "$IT_CELL" "${join[@]}" >"$IT_DIR/theirs.log" 2>&1 ||
        { cat "$IT_DIR/theirs.log"; fail "OpenAFS's file server does not start"; }
}
theirs() { "$interop/openafs-cell/cell" "$1" --dir "$theirs_dir" "${@:2}"; }
theirs_kill() { kill -9 "$(cat "$theirs_dir/init.pid")"; sleep 1; }

# The reverse: OpenAFS has the databases, and Cellar's file server joins them at a separate address.
at_their_database() {
    joined=$IT_DIR/joined mixed_database=openafs mixed_etc=$theirs_dir/etc/server OURS=10.99.0.2 IT_ADDR=$THEIRS
    ip -n "$IT_NETNS" addr add $OURS/24 dev br0
    theirs_up
    # A second partition that fills up quickly.
    mkdir -p "$joined"/vicep{a,b} && mount -t tmpfs -o size=120m,mode=700 small "$joined/vicepb" || fail "no small partition"
    ours_up --join "$mixed_etc"
}
ours_up() {
    local i
    # Not at_server: with a function, $! would be a shell.
    ip netns exec "$IT_NETNS" "$CELLAR" up --dir "$joined" --bind $OURS "$@" </dev/null >>"$IT_DIR/joined.log" 2>&1 &
    echo $! >"$IT_DIR/joined.pid"
    for i in $(seq 600); do
        vos listaddrs -noresolve 2>/dev/null | grep -qxF $OURS && return
        sleep 0.1
    done
    cat "$IT_DIR/joined.log"
    fail "Cellar's file server does not join"
}
mixed_down() {
    theirs down >/dev/null
    [ -z "$joined" ] || { kill -INT "$(cat "$IT_DIR/joined.pid")" && wait "$(cat "$IT_DIR/joined.pid")"; }
}

# vos WORDS...: OpenAFS's command with the cell's key.
vos() { at_server timeout "${VOS_SECONDS:-240}" vos "$@" -localauth -config "$mixed_etc"; }

# mixed_volume NAME SERVER: a volume in which every user may write.
mixed_volume() {
    quietly vos create "$2" a "$1" -maxquota 0
    open_to_all "$1"
}
# open_to_all NAME: changes the access list in a dump, because OpenAFS's file server changes lists
# only for callers with tokens.
open_to_all() {
    local server part t=$IT_DIR/acl.dump
    read -r server part < <(site_of "$1")
    quietly vos dump "$1" -file "$t"
    "$interop/openafs-cell/dump-acl.py" "$t" anyuser=rlidwka administrators=rlidwka || fail "the list of $1"
    quietly vos restore "$server" "$part" "$1" -file "$t" -overwrite full
}

# site_of NAME: server and partition of the read-write volume, from the location database.
site_of() {
    vos listvldb -name "$1" -noresolve 2>/dev/null |
        sed -nE 's/^ *server ([0-9.]+) partition \/vicep([a-z]+) RW Site.*/\1 \2/p' | head -n 1
}
# volumes_on SERVER: one line 'NAME ID KIND STATE' per volume.
volumes_on() {
    vos listvol "$1" -noresolve 2>/dev/null | awk '$2 ~ /^[0-9]+$/ && $3 ~ /^(RW|RO|BK)$/ { print $1, $2, $3, $NF }'
}

# unlisted: volumes on either server that the location database does not have.
unlisted() {
    local known
    known=$(vos listvldb -noresolve 2>/dev/null | grep -oE '(RWrite|ROnly|Backup): [0-9]+' | grep -oE '[0-9]+')
    { volumes_on $OURS; volumes_on $THEIRS; } | awk -v known="$known" 'BEGIN { split(known, list); for (i in list) is[list[i]] } !($2 in is)' | sort
}

# dump_of NAME FILE [OPTIONS]: dumps a volume of any site.
dump_of() { quietly vos dump "$1" -file "$2" "${@:3}"; }
# same_contents WHAT A B [OPTIONS]: checks that two dumps have the same vnodes.
same_contents() {
    local said
    said=$("$programs/dump.py" same "$2" "$3" "${@:4}") || { echo "$said"; fail "$1: the contents differ"; }
    say "$1: ${said##*$'\n'}"
}

# client COMMAND...: runs cellar as system:anyuser, on the client's side, in the cell whose
# databases are at $IT_ADDR.
client() { at_client env CELLAR_CELLSERVDB="$IT_DIR/CellServDB" "$CELLAR" "$@"; }
# mounted NAME: prints a path to the volume for cellar's commands.
mounted() {
    local at=/afs/.$IT_CELL/$1
    if [ "$mixed_database" = openafs ] && [ ! -e "$IT_DIR/root-is-open" ]; then
        open_to_all root.cell
        touch "$IT_DIR/root-is-open"
    fi
    printf '>%s\n%s #vl\n' "$IT_CELL" "$IT_ADDR" >"$IT_DIR/CellServDB"
    client fs lsmount "$at" -noauth >/dev/null 2>&1 || case $mixed_database in
    cellar) quietly at_server env CELLAR_DIR="$IT_DIR/server" "$CELLAR" fs mkmount "$at" "$1" -rw ;;
    openafs) quietly client fs mkmount "$at" "$1" -rw -noauth ;;
    esac
    echo "$at"
}

# fill NAME FILES: fills a volume with every kind of contents, most of it real files.
fill() {
    local at tree=$share/$1.tree manifest=$share/$1.manifest
    at=$(mounted "$1") || fail "$at"
    "$programs/tree.py" select "$manifest" /usr/share --files "$2" --small 65536 >/dev/null &&
        "$programs/tree.py" put "$manifest" "$tree" || fail "cannot choose a tree"
    quietly client cp -r --noauth "$tree" "$at/tree"
    [ -e "$share/extras" ] || "$programs/tree.py" extras "$share/manifest.extras" "$share/extras" >/dev/null || fail "no extras"
    quietly on_fuse --root "$1" bash -c "'$programs/tree.py' put '$share/manifest.extras' \"\$AFS/more\" && mkdir \"\$AFS/written\""
    quietly client fs mkmount "$at/mount-point" root.cell -noauth
    quietly client fs mkmount "$at/mount-point-rw" root.cell -rw -noauth
    quietly client fs setacl "$at/more/extras/sub" system:authuser rl system:administrators none -noauth
    quietly client fs setacl "$at/more/extras/sub/deep" system:authuser rlik -negative -noauth
}
# as_filled NAME: checks that a client sees the contents of fill: every name, and every tenth file
# byte for byte.
as_filled() {
    local manifest=$share/${1%.readonly}.manifest
    quietly on_fuse --root "$1" bash -c "'$programs/tree.py' check '$manifest' \"\$AFS/tree\" --sample 10 &&
        '$programs/tree.py' check '$share/manifest.extras' \"\$AFS/more\" --symlinks-with /afs/"
}

# writing NAME COMMAND...: runs COMMAND while a client writes to the volume. The client must get no
# error, and another client must see its files.
writing() {
    local volume=$1 pid
    shift
    rm -f "$share/stop" "$share/state"
    on_fuse --root "$volume" bash -c "'$programs/writer.py' write \"\$AFS/written\" '$share/state' '$share/stop'" \
        >"$IT_DIR/writer.log" 2>&1 &
    pid=$!
    sleep 2
    "$@"
    touch "$share/stop"
    wait $pid || { cat "$IT_DIR/writer.log"; fail "the client that wrote to $volume at the same time got an error"; }
    say "meanwhile a client: $(tail -n 1 "$IT_DIR/writer.log")"
    quietly on_fuse --root "$volume" bash -c "'$programs/writer.py' check \"\$AFS/written\" '$share/state' && rm -rf \"\$AFS/written\"/*"
}

# move NAME SERVER [PARTITION]: moves by OpenAFS's command, and checks the new place.
move() {
    local server part start
    read -r server part < <(site_of "$1")
    start=$(date +%s.%N)
    quietly vos move "$1" "$server" "$part" "$2" "${3:-a}"
    say "$1 moved from $server to $2 in $(since "$start") s"
    only_at "$1" "$2" "${3:-a}"
}
since() { awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }'; }
# only_at NAME SERVER PARTITION: checks that there is one read-write volume, on line, at the place
# in the location database.
only_at() {
    local found
    found=$(for s in $OURS $THEIRS; do volumes_on $s | awk -v n="$1" -v s="$s" '$1 == n && $3 == "RW" { print s, $4 }'; done)
    [ "$found" = "$2 On-line" ] || fail "$1 should be on $2 alone, but is: ${found//$'\n'/, }"
    [ "$(site_of "$1")" = "$2 $3" ] || fail "the location database has $1 on $(site_of "$1"), not on $2 $3"
}

there_and_back() { # NAME
    local from there=$THEIRS
    from=$(site_of "$1")
    [ "${from% *}" = $OURS ] || there=$OURS
    move "$1" $there
    sleep 1
    move "$1" "${from% *}"
}

# Releases the volume and compares the read-only volume at each site with it.
released() { # NAME WHAT SERVER...
    local name=$1 what=$2 server start
    start=$(date +%s.%N)
    quietly vos release "$name"
    say "$what: released in $(since "$start") s"
    shift 2
    dump_of "$name" "$IT_DIR/rw.dump"
    for server; do
        dump_of "$name.readonly" "$IT_DIR/ro.dump" -server "$server" -partition a
        same_contents "$what, at $server" "$IT_DIR/rw.dump" "$IT_DIR/ro.dump"
    done
}

# said LOG WORDS PID: waits until the program has printed WORDS; fails if it ends without.
said() {
    until grep -q "$2" "$1"; do
        kill -0 "$3" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$3/status" || { grep -q "$2" "$1"; return; }
        sleep 0.01
    done
}

# Moves the volume away, and kills OpenAFS's servers as soon as vos prints STEP. One copy must
# remain that the database names and clients use. Remains on the other side must not disturb.
killed_in_mid_move() { # NAME TO STEP
    local name=$1 from part to=$2 step=$3 pid log=$IT_DIR/killed.log
    read -r from part < <(site_of "$name")
    : >"$log"
    at_server timeout 200 vos move "$name" "$from" "$part" "$to" a -verbose -localauth -config "$mixed_etc" >"$log" 2>&1 &
    pid=$!
    said "$log" "$step" $pid
    theirs_kill
    wait $pid
    grep -q "moved from" "$log" && { theirs_up; say "moved before '$step' could be hit"; return; }
    theirs_up
    echo "killed at '$step': $(tail -n 3 "$log")"
    read -r from part < <(site_of "$name")
    quietly vos unlock "$name"
    as_filled "$name"
    quietly vos syncvldb "$from"
    quietly vos syncserv "$from"
    as_filled "$name"
    say "killed at '$step' on the way to $to: it is on $from, whole"
    move "$name" "$([ "$from" = $OURS ] && echo $THEIRS || echo $OURS)"
}
