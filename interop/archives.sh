# Common functions of the tests of recall modes: an archive that is slow on request, and wiped files of each mode.
# Needs objects.sh.

# RECALL_MODES: the modes that are tried.
recall_modes=${RECALL_MODES:-wait retry refuse}
# RECALL_HOLD: seconds for which the archive delivers nothing. Longer than a call waits for a recall (60 s), and than the
# time after which clients give a silent server up.
recall_hold=${RECALL_HOLD:-80}

# recall_of CLIENT: whether that client is tried. RECALL_CLIENTS names clients, the default is all.
recall_of() { case " ${RECALL_CLIENTS:-mount fuse} " in *" $1 "*) ;; *) return 1 ;; esac; }

# recall_begin [OPTIONS of `cellar up`]: starts a cell with two devices and an archive, and creates the files.
recall_begin() {
    local mode name id
    server_down || fail "server_down"
    server_up --osds 2 "$@" || fail "a cell with two devices"
    devices_are 2
    archive="$IT_DIR/tape"
    mkdir "$archive"
    cc -O2 -shared -fPIC -o "$IT_DIR/slow-files.so" "$programs/slow-files.c" -ldl || fail "slow-files.c"
    id=$(cellar osd create tape "$device_addr" -port 7017 -archival -json | json 'd["id"]') || fail "no device"
    trap devices_end EXIT
    ip netns exec "$IT_NETNS" env LD_PRELOAD="$IT_DIR/slow-files.so" SLOW_DIR="$archive/objects/" SLOW_WHILE="$share/slow" \
        "$CELLAR" osd serve --dir "$IT_DIR/archival" --id "$id" --bind "$device_addr" --port 7017 \
        --join "$IT_DIR/server/server-etc" --archive "$id=$archive" </dev/null >>"$IT_DIR/archival.log" 2>&1 &
    echo $! >"$IT_DIR/disk-archival.pid"
    disown
    devices_are 3
    objects_volume 2
    export IT_VOLUME=objects
    open_directory online
    quietly cellar fs setpolicy plain "$mounted/online"
    for mode in $recall_modes; do
        quietly cellar osd policy add "recall-$mode" "=> osd, recall=$mode;"
        open_directory "$mode"
        # The file server learns of a policy some seconds after the database.
        for _ in $(seq 100); do
            cellar fs setpolicy "recall-$mode" "$mounted/$mode" >"$IT_DIR/setpolicy" 2>&1 && break
            sleep 0.2
        done
        cellar fs policy "$mounted/$mode" | grep -q "recall-$mode" || { cat "$IT_DIR/setpolicy"; fail "no policy for $mode"; }
        for name in "$mode-long" "$mode-interrupted" "online-$mode"; do head -c 300000 /dev/urandom >"$share/$name"; done
        quietly cellar cp --admin "$share/$mode-long" "$mounted/$mode/long"
        quietly cellar cp --admin "$share/$mode-interrupted" "$mounted/$mode/interrupted"
        quietly cellar cp --admin "$share/online-$mode" "$mounted/online/$mode"
        quietly cellar hsm archive -r "$mounted/$mode"
    done
}

# recall_try CLIENT: opens files of each mode in a client. The results are in $IT_DIR/recalls-CLIENT.
recall_try() {
    local mode
    for mode in $recall_modes; do quietly cellar hsm wipe -r "$mounted/$mode"; done
    local longer=()
    # The guest ends after a time.
    [ "$1" != kernel ] || longer=(--timeout $(((recall_hold + 200) * 3)))
    # shellcheck disable=SC2016,SC2086
    on "$1" ${longer[@]+"${longer[@]}"} bash -c '"$0/recall-modes.py" "$AFS" "$@"' "$programs" "$share" $recall_hold $recall_modes >"$IT_DIR/recalls-$1" ||
        { cat "$IT_DIR/recalls-$1"; fail "$1: recall-modes.py"; }
    sed "s/^/-- $1: /" "$IT_DIR/recalls-$1"
}

# recall_expect CLIENT MODE EXPRESSION...: checks Python expressions on the results of a mode, if the mode was tried.
recall_expect() {
    local client=$1 mode=$2 line expression
    shift 2
    case " $recall_modes " in *" $mode "*) ;; *) return 0 ;; esac
    line=$(grep "\"mode\": \"$mode\"" "$IT_DIR/recalls-$client") || fail "$client has no result for $mode"
    for expression; do
        [ "$(json "$expression" <<<"$line")" = True ] || fail "$client, $mode: not $expression: $line"
    done
}
