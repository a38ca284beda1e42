# failures_test READER WRITER: two clients of files in objects, on eight devices. Some devices are
# killed, of which callers learn from the system at once. Others are stopped, of which they learn
# nothing. Contents must be right in every try. The time that READER waits depends on the load of
# the machine: it must keep the limit in one of three tries.
# shellcheck disable=SC2016

# The longest wait of a program that reads a file with copies or parity, in milliseconds.
LIMIT=2000

failures_test() {
    local reader=$1 writer=$2 d
    devices 8
    objects_volume
    used_files "$reader" copies ec
    open_directory alone
    objects_directory alone/plain
    on $reader bash -c '"$0/objects.py" fill "$AFS/alone" "$1/alone" --bytes 300000 --files 12' "$programs" "$share" || fail "the files cannot be created"
    choose_victim
    under . KILL:$victim || fail "a device is killed"
    killed=$longest
    under . STOP:$victim || fail "a device falls silent"
    silent=$longest
    # An erasure code with parity 2 tolerates two missing devices. The six others suffice for files
    # that are rewritten.
    under ec KILL:$victim STOP:$other || fail "a device is killed, another falls silent"
    without_copies "$reader"
    on $writer bash -c '"$0/objects.py" compare "$AFS" "$1"' "$programs" "$share/all" || fail "not all contents are those that were stored"
    say "longest wait of a reader $killed ms with a device killed, $silent ms with one silent, $longest ms with one of each"
    say "longest wait of a writer $stored ms; $(cat "$IT_DIR/alone")"
}

# The device with most of the files without copies, and another device.
choose_victim() {
    local files id n
    files=$(seq 0 11 | sed "s|^|$mounted/alone/plain/|")
    cellar fs osd $files -json >"$IT_DIR/alone.json" || fail "fs osd fails"
    id=$(json 'max(range(99), key=lambda o: sum(o == p["osd"] for f in d for p in f["pieces"]))' <"$IT_DIR/alone.json")
    json "'\n'.join(f['path'].rsplit('/', 1)[1] for f in d if f['pieces'][0]['osd'] == $id)" <"$IT_DIR/alone.json" >"$IT_DIR/lost"
    for n in $(seq 8); do
        if [ "$(cat "$IT_DIR/disk$n.id")" = "$id" ]; then victim=$n; else other=$n; fi
    done
    [ -n "${victim:-}" ] || fail "device $id is none of the test"
}

# under DIRECTORY SIGNAL:DEVICE...: READER reads read/DIRECTORY and WRITER changes write/DIRECTORY
# while the devices are away. $longest and $stored are their longest waits in milliseconds. The
# reader has three tries.
under() {
    local try was=''
    for try in 1 2 3; do
        under_once "$@" || return 1
        [ "$longest" -gt $LIMIT ] || return 0
        was+=" $longest"
    done
    echo "a program waited$was ms in three tries"
    return 1
}

under_once() {
    local directory=$1 rc f
    shift
    in_use "$reader" "$writer" $directory silenced "$@"
    rc=$?
    for f; do
        case $f in
        KILL:*) device_start ${f#*:} ;;
        STOP:*) device_signal ${f#*:} CONT ;;
        esac
    done
    devices_are 8
    longest=$(longest_in "$IT_DIR/reading") stored=$(longest_in "$IT_DIR/writing")
    return $rc
}

silenced() { # SIGNAL:DEVICE...
    local f
    for f; do device_signal ${f#*:} ${f%:*}; done
    # Long enough for all parties to learn that the devices are dead, and to read all files once
    # more.
    devices_are $((8 - $#))
    sleep 5
}

longest_in() { sed -n 's/.*longest \([0-9]*\)\.\([0-9][0-9]\) s.*/\1\20/p' "$1" | sed 's/^0*\([0-9]\)/\1/'; }

# A file without a copy fails while its device is away, all others can be read, and all are back
# with the device.
without_copies() {
    local files lost
    files=$(xargs <"$IT_DIR/lost")
    device_signal $victim KILL
    on $1 bash -c '"$0/objects.py" fails "$AFS/alone/plain" '"$files" "$programs" >"$IT_DIR/alone" || { cat "$IT_DIR/alone"; fail "without a device"; }
    device_start $victim
    devices_are 8
    # The file server learns it some seconds after the databases.
    lost=$(sed "s|^|$mounted/alone/plain/|" "$IT_DIR/lost" | xargs)
    for _ in $(seq 150); do
        [ "$(cellar fs osd $lost -json | json 'all(f["readable"] for f in d)')" != True ] || break
        sleep 0.2
    done
    sed -i '1s/^/one that is away: file /;1q' "$IT_DIR/alone"
    mkdir "$share/all"
    mv "$share/read" "$share/write" "$share/alone" "$share/all/"
}
