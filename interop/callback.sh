# callback_test READER LINK WRITER: READER (a client) keeps a file open in its cache and reads it twenty times a second;
# WRITER (another client) changes it. Until then the reader's interface LINK is quiet, because a callback promise says
# that nobody need ask; afterwards the reader sees the change within two seconds, because the server broke it.
callback_test() {
    local reader=$1 link=$2 writer=$3 before after
    on $writer bash -c 'echo old >"$AFS/shared"'
    on $reader "$programs/watch.py" shared "$share" &
    local pid=$!
    wait_for_file "$share/cached" 60 || { kill $pid; fail "the reader never got so far"; }
    sleep 1
    before=$(packets_of "$link")
    sleep 3
    after=$(packets_of "$link")
    # ARP, neighbour discovery and the like are packets too.
    [ $((after - before)) -lt 20 ] || fail "the reader asked the server while it held a promise: $((after - before)) packets in 3 s"
    on $writer bash -c 'echo new >"$AFS/shared" && sync "$AFS/shared" 2>/dev/null; date +%s.%N >'"'$share/written'; sleep 1"
    wait $pid || fail "the reader never saw the change"
    local late
    late=$(awk 'NR == FNR { w = $1; next } { printf "%.2f", $1 - w }' "$share/written" "$share/seen")
    awk -v l="$late" 'BEGIN { exit !(l < 2) }' || fail "the reader saw the change only after $late s"
    say "$reader saw the change by ${writer%% *} after $late s, $((after - before)) packets in 3 s of reading before it"
}
