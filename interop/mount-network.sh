# Common functions of mount-network and mount-nat.
#
# begin NAME and step NAME SECONDS [quiet] run in the mount. begin opens a file with the text 'old'.
# step waits for the file $share/NAME. Then it measures two times: until a call is served, and until
# it sees the change of another client. With quiet, it makes no call. change NAME makes that change.
reader='
    step() {
        for _ in $(seq 2400); do [ ! -e "$share/$1" ] || break; sleep 0.05; done
        [ -e "$share/$1" ] || { echo "$1: never begun"; exit 1; }
        local from=${EPOCHREALTIME/./} said tries=0
        if [ "${3:-}" != quiet ]; then
            # A mkdir at the moment of the change gets ETIMEDOUT; the directory may exist or not.
            until said=$(LC_ALL=C mkdir "$AFS/made-$1-$tries" 2>&1); do
                tries=$((tries + 1))
                [[ $said == *"timed out"* ]] && [ $((${EPOCHREALTIME/./} - from)) -lt $(($2 * 1000000)) ] || { echo "$1: $said"; exit 1; }
                sleep 0.1
            done
            [ $((${EPOCHREALTIME/./} - from)) -lt $(($2 * 1000000)) ] || { echo "$1: a call took $((${EPOCHREALTIME/./} - from)) us"; exit 1; }
            echo "$1: calls are served after $(((${EPOCHREALTIME/./} - from) / 1000)) ms" >>"$share/times"
        fi
        # Through a descriptor that was open all the time, and through a new one.
        until [ "$(python3 -c "import os; os.write(1, os.pread(3, 3, 0))")$(cat "$AFS/$1")" = newnew ]; do
            [ $((${EPOCHREALTIME/./} - from)) -lt $(($2 * 1000000)) ] || { echo "$1: after $2 s the file says $(cat "$AFS/$1")"; exit 1; }
            sleep 0.1
        done
        echo "$1: the change is seen after $(((${EPOCHREALTIME/./} - from) / 1000)) ms" >>"$share/times"
    }
    begin() {
        [ "$(cat "$AFS/$1")" = old ] || { echo "$1: says $(cat "$AFS/$1")"; exit 1; }
        exec 3<"$AFS/$1"
        touch "$share/ready-$1"
    }'
export share
change() {
    # shellcheck disable=SC2016
    quietly on_mount -2 bash -c 'echo new >"$AFS/$0"' "$1"
}
c1=$IT_NETNS-c1
# Restores the client's address and link for the tests that follow.
as_before() {
    ip -n "$c1" addr flush dev eth0
    ip -n "$c1" addr add 10.99.0.21/24 dev eth0
    ip -n "$c1" link set eth0 up
}
trap as_before EXIT
give_up() { kill $pid 2>/dev/null; wait $pid; fail "$1"; }
told() { while read -r line; do say "$line"; done <"$share/times"; }

