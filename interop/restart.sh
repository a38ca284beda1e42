# restart_test CLIENT: two restarts, the first after a clean stop, the second after SIGKILL. The
# client stores files. Each file that it reports as stored (see steady.py) is compared after the
# restart. The client must continue by itself.
restart_test() {
    local client=$1 way
    on $client "$programs/steady.py" "$share" "$client" &
    local pid=$!
    for way in down kill; do
        wait_for_file "$share/before-$way" 60 || { kill $pid; fail "the client did not get that far in time ($way)"; }
        server_$way || fail "server_$way"
        sleep 1
        server_up || fail "it does not start again after $way"
        touch "$share/after-$way"
    done
    wait $pid || fail "the client could not go on"
    say "$(cat "$share/result")"
}
