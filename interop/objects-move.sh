# move_test READER WRITER ROUNDS: a volume with files in objects moves to a second Cellar file
# server of the cell and back. Meanwhile one client reads it and another writes. Neither gets an
# error, and both see what was stored. The test sources objects.sh first.
# shellcheck disable=SC2016

second=10.99.0.2

move_test() {
    local reader=$1 writer=$2 round got
    trap move_ends EXIT
    server_down || fail "server_down"
    server_up --osds 7 || fail "a cell with seven devices"
    devices_are 7
    objects_volume
    second_up
    used_files "$reader" stripes copies ec
    for round in $(seq "$3"); do
        in_use "$reader" "$writer" . there_and_back || fail "a client got an error, or read other contents"
    done
    on $writer bash -c '"$0/objects.py" compare "$AFS/read" "$1/read" && "$0/objects.py" compare "$AFS/write" "$1/write"' \
        "$programs" "$share" || fail "not all contents are those that were stored"
    # A client with an empty cache sees the same, and no file became local on the file server.
    on_fuse -2 bash -c '"$0/objects.py" compare "$AFS/read" "$1/read" && "$0/objects.py" compare "$AFS/write" "$1/write"' \
        "$programs" "$share" || fail "another client reads other contents"
    for shape in stripes copies ec; do
        for f in read write; do
            got=$(shape_of $f/$shape/0) && [ -n "$got" ] && [ "$got" != local ] || fail "$f/$shape/0 is not in objects any more: '$got'"
        done
    done
    kill -INT "$(cat "$IT_DIR/second.pid")" && wait "$(cat "$IT_DIR/second.pid")" || fail "the second server does not end well"
    say "reader: $(tail -n 1 "$IT_DIR/reading"); writer: $(tail -n 1 "$IT_DIR/writing")"
}

# After a failure too, this ends the clients and the second server.
move_ends() {
    touch "$share/stop-reading" "$share/stop-writing"
    local second_pid
    # Not the first server of the cell, which ends after the test.
    second_pid=$(cat "$IT_DIR/second.pid" 2>/dev/null) && kill -INT "$second_pid" 2>/dev/null && wait "$second_pid"
}

# Starts another file server of the cell.
second_up() {
    ip -n "$IT_NETNS" addr add $second/24 dev br0
    ip netns exec "$IT_NETNS" "$CELLAR" up --dir "$IT_DIR/second" --bind $second --join "$IT_DIR/server/server-etc" \
        </dev/null >"$IT_DIR/second.log" 2>&1 &
    echo $! >"$IT_DIR/second.pid"
    local i
    for i in $(seq 300); do
        ! cellar vos listaddrs -noresolve | grep -qF $second || return 0
        sleep 0.2
    done
    cat "$IT_DIR/second.log"
    fail "a second file server does not join"
}

there_and_back() {
    local to from=$IT_ADDR start took
    for to in $second "$IT_ADDR"; do
        sleep 3
        start=$(date +%s%N)
        quietly cellar vos move objects $from a $to a
        took=$((($(date +%s%N) - start) / 1000000))
        cellar vos listvldb -name objects -noresolve | grep -qF "server $to partition /vicepa RW Site" || fail "it is not on $to"
        say "moved from $from to $to in $took ms"
        from=$to
    done
    sleep 3
}
