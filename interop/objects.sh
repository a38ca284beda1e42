# Common functions of the tests of object storage. The directories of a volume have policies for
# each shape. The servers of devices are separate processes, so that tests can kill them.

cellar() { at_server env CELLAR_DIR="$IT_DIR/server" "$CELLAR" "$@"; }

# json EXPRESSION: evaluates a Python expression for the document d from standard input
json() { /usr/bin/python3 -c 'import json, sys; d = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"; }

shapes="bysize stripes copies ec"
mounted=/afs/.$IT_CELL/objects

# objects_volume [DEVICES]: creates the volume "objects", mounted in the cell, and a policy for each
# shape that fits on DEVICES devices (default 7). By size, files over 256 KiB become objects.
objects_volume() {
    local devices=${1:-7} stripes=4 ec=4+2
    [ "$devices" -ge 7 ] || stripes=2 ec=2+1
    new_volume objects
    {
        cellar fs mkmount "$mounted" objects && cellar osd set local_disk -maxsize 256k &&
            cellar osd policy add plain "=> osd;" && cellar osd policy add stripes "=> osd, stripes=$stripes, stripe_size=64k;" &&
            cellar osd policy add copies "=> osd, stripes=$((stripes / 2)), copies=2, stripe_size=64k;" &&
            cellar osd policy add ec "=> osd, ec=$ec, stripe_size=64k;" && cellar vos setfields objects -osdpolicy 1
    } >"$IT_DIR/objects-volume.log" 2>&1 || { cat "$IT_DIR/objects-volume.log"; fail "no volume with policies"; }
    # The file server learns of devices some seconds after the databases.
    local i
    for i in $(seq 300); do
        cellar cp --admin --layout "stripes=$devices" "$interop/objects.sh" "$mounted/probe" 2>"$IT_DIR/objects-volume.log" &&
            cellar rm --admin "$mounted/probe" && return
        sleep 0.2
    done
    cat "$IT_DIR/objects-volume.log"
    fail "the file server finds no room on $devices devices"
}

# open_directory PATH: creates a directory in which every user may write.
open_directory() {
    quietly cellar mkdir "$mounted/$1"
    quietly cellar fs setacl "$mounted/$1" system:anyuser rlidwk
}

# objects_directory PATH: creates a directory whose files have the shape that its last name says.
objects_directory() {
    open_directory "$1"
    [ "${1##*/}" = bysize ] || quietly cellar fs setpolicy "${1##*/}" "$mounted/$1"
}

# shape_of FILE: prints the layout of its bytes, or "local".
shape_of() { cellar fs osd "$mounted/$1" -json | json 'd[0]["shape"] or "local"'; }

# Checks that each file has the shape of its directory's policy.
check_shapes() { # DIRECTORY...
    local directory name want got
    for directory; do
        for name in small grown middle; do
            got=$(shape_of "$directory/$name") || fail "fs osd fails for $directory/$name"
            case $directory/$name in
            bysize/small) want='local' ;;
            bysize/* | plain/*) want='one object' ;;
            stripes/*) want='4 stripes' ;;
            copies/*) want='2 copies' ;;
            ec/*) want='4 data and 2 parity' ;;
            esac
            [[ $got == *"$want"* ]] || fail "$directory/$name: $got"
        done
    done
}

# ---- files in use

# used_files CLIENT SHAPE...: creates the files that in_use reads, in read/SHAPE, and those that it
# changes, in write/SHAPE.
used_files() {
    local client=$1 top shape
    shift
    for top in read write; do
        open_directory $top
        for shape; do objects_directory $top/$shape; done
    done
    export IT_VOLUME=objects
    on $client bash -c '"$0/objects.py" fill "$AFS/read" "$1/read" --bytes 6000000 --files 3 &&
        "$0/objects.py" fill "$AFS/write" "$1/write" --bytes 1000000 --files 4' "$programs" "$share" || fail "the files cannot be created"
}

# in_use READER WRITER DIRECTORY COMMAND...: runs COMMAND while one client reads read/DIRECTORY
# again and again, and another changes write/DIRECTORY. Their output is printed, and is in
# $IT_DIR/reading and writing.
in_use() {
    local reader=$1 writer=$2 directory=$3 pids rc=0 f
    shift 3
    rm -f "$share"/stop*
    on $reader bash -c '"$0/objects.py" read "$AFS/read/$2" "$1/read/$2" "$1/stop-reading"' "$programs" "$share" $directory \
        >"$IT_DIR/reading" 2>&1 &
    pids=$!
    on $writer bash -c '"$0/objects.py" write "$AFS/write/$2" "$1/write/$2" "$1/stop-writing" --seed $3' "$programs" "$share" $directory $RANDOM \
        >"$IT_DIR/writing" 2>&1 &
    pids+=" $!"
    wait_for_file "$share/stop-reading.rounds" 60 && wait_for_file "$share/stop-writing.rounds" 60 || rc=1
    [ $rc = 1 ] || "$@" || rc=1
    touch "$share/stop-reading" "$share/stop-writing"
    for f in $pids; do wait $f || rc=1; done
    cat "$IT_DIR/reading" "$IT_DIR/writing"
    return $rc
}

# ---- single devices

# devices N [OTHERS]: starts disk1 to diskN, each as a separate process, at $device_addr, in
# addition to OTHERS existing devices. They end with the test.
device_addr=$IT_ADDR
devices() {
    local n id
    trap devices_end EXIT
    for n in $(seq "$1"); do
        id=$(cellar osd create "disk$n" "$device_addr" -port $((7010 + n)) -json | json 'd["id"]') || fail "no device disk$n"
        echo "$id" >"$IT_DIR/disk$n.id"
        device_start "$n"
    done
    devices_are $(($1 + ${2:-0}))
}

device_start() { # N
    ip netns exec "$IT_NETNS" "$CELLAR" osd serve --dir "$IT_DIR/disk$1" --id "$(cat "$IT_DIR/disk$1.id")" \
        --join "$IT_DIR/server/server-etc" --bind "$device_addr" --port $((7010 + $1)) </dev/null >>"$IT_DIR/disk$1.log" 2>&1 &
    echo $! >"$IT_DIR/disk$1.pid"
    # Prevents bash's message when it is killed.
    disown
}

device_signal() { kill "-$2" "$(cat "$IT_DIR/disk$1.pid")"; } # N SIGNAL

devices_end() {
    local f
    for f in "$IT_DIR"/disk*.pid; do
        kill -CONT "$(cat "$f")" 2>/dev/null
        kill -9 "$(cat "$f")" 2>/dev/null
    done
}

# devices_are COUNT: waits until the cell reports COUNT devices as up.
devices_are() {
    local i up
    for i in $(seq 300); do
        up=$(cellar osd list -json | json 'sum(1 for o in d if o["state"] == "up")')
        [ "$up" != "$1" ] || return 0
        sleep 0.2
    done
    cellar osd list
    fail "$up devices are up, not $1"
}
