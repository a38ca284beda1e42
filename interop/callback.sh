# callback_test READER LINK WRITER: client READER keeps a file open in its cache and reads it twenty
# times a second; client WRITER changes it. Before the change, the reader's interface LINK is quiet,
# because the callback promise makes requests unnecessary. After the change, the reader sees it
# within seconds, because the server broke the promise. This holds on a busy machine too, and hours
# before the promise would expire.
callback_test() {
    local reader=$1 link=$2 writer=$3 before after
    store_shared "$writer" old "$share/begun"
    on $reader "$programs/watch.py" shared "$share" &
    local pid=$!
    wait_for_file "$share/cached" 60 || { kill $pid; fail "the reader did not get that far in time"; }
    sleep 1
    before=$(packets_of "$link")
    sleep 3
    after=$(packets_of "$link")
    # ARP and neighbour discovery also send packets.
    [ $((after - before)) -lt 20 ] || fail "the reader asked the server while it held a promise: $((after - before)) packets in 3 s"
    store_shared "$writer" new "$share/written"
    wait $pid || fail "the reader never saw the change; to a new client the file says: $(on_fuse -2 bash -c 'cat "$AFS/shared"' 2>&1)"
    local late
    late=$(awk 'NR == FNR { w = $1; next } { printf "%.2f", $1 - w }' "$share/written" "$share/seen")
    awk -v l="$late" 'BEGIN { exit !(l < 10) }' || fail "the reader saw the change only after $late s"
    say "$reader saw the change by ${writer%% *} after $late s, $((after - before)) packets in 3 s of reading before it"
}

# store_shared WRITER TEXT FILE: a new client stores TEXT, then FILE exists and has the time.
# afsd.fuse sometimes dies, also after it has started, and then has not stored the text.
store_shared() {
    local i
    for i in 1 2 3; do
        # shellcheck disable=SC2016
        on $1 bash -c 'echo "$0" >"$AFS/shared" || exit 1
            sync "$AFS/shared" 2>/dev/null
            date +%s.%N >"$1.new" && mv "$1.new" "$1" && sleep 1' "$2" "$3"
        [ ! -e "$3" ] || return 0
    done
    fail "no $1 client could store '$2'"
}
