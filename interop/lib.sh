# The functions for tests in interop/tests. The runner has created the network and started the
# server. It sets
#
#   IT_PEER    cellar or openafs: the server under test       IT_CELL, IT_ADDR   its cell's name and address
#   IT_NETNS   the servers' network namespace; afsd.fuse runs in $IT_NETNS-c1 and -c2, across a bridge, MTU 1500
#   IT_DIR     this test's own directory: server/ (the cell), server.log, share/ (seen by every client)
#   CELLAR     the program
#
# A test succeeds with status 0, is skipped with 77, and fails otherwise; `skip` and `fail` print
# the reason.

interop=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
programs=$interop/programs
share=${IT_DIR:-}/share

say() { echo "-- $*"; }
fail() { echo "FAIL: $*"; exit 1; }
skip() { echo "skip: $*"; exit 77; }
at_server() { ip netns exec "$IT_NETNS" "$@"; }
at_client() { ip netns exec "$IT_NETNS-c1" "$@"; }

# on_fuse [-2] [--root VOL | --dynroot] [--blocks KB] [-- ] COMMAND...: Runs COMMAND in afsd.fuse,
# with the scratch volume (or VOL) mounted at $AFS. --blocks is the size of its cache.
on_fuse() {
    local n=1 root=(--root "${IT_VOLUME:-scratch}") more=()
    while :; do
        case $1 in
        -2) n=2; shift ;;
        --root) root=(--root "$2"); shift 2 ;;
        --dynroot) root=(); shift ;;
        --blocks) more=(--blocks "$2"); shift 2 ;;
        --) shift; break ;;
        *) break ;;
        esac
    done
    "$interop/fuse-client/run" --netns "$IT_NETNS-c$n" --cell "$IT_CELL" --vl "$IT_ADDR" ${root[@]+"${root[@]}"} \
        ${more[@]+"${more[@]}"} --log "$IT_DIR/afsd-$n.log" -- "$@"
}

# on_kernel [-2] [--root VOL | --dynroot] [--timeout S] [--memory MB] [--] COMMAND...: runs COMMAND
# in the kernel guest.
on_kernel() {
    local ip=10.99.0.11/24 root=(--root "${IT_VOLUME:-scratch}") more=()
    while :; do
        case $1 in
        -2) ip=10.99.0.12/24; shift ;;
        --root) root=(--root "$2"); shift 2 ;;
        --dynroot) root=(); shift ;;
        --timeout | --memory) more+=("$1" "$2"); shift 2 ;;
        --) shift; break ;;
        *) break ;;
        esac
    done
    "$interop/kernel-client/run" --netns "$IT_NETNS" --cell "$IT_CELL" --vl "$IT_ADDR" --ip $ip --share "$share" \
        ${root[@]+"${root[@]}"} ${more[@]+"${more[@]}"} --keep "$IT_DIR/guest-${ip:8:2}" -- "$@"
}

# on_mount [-2] [--root VOL | --dynroot] [--cache DIR] [--size SIZE] [--cell C] [--cells FILE]
#   [--resolv FILE] [--tokens] [--as UID] [--] COMMAND...: runs COMMAND in `cellar mount`.
on_mount() {
    local n=1 root=(--root "${IT_VOLUME:-scratch}") more=()
    while :; do
        case $1 in
        -2) n=2; shift ;;
        --root) root=(--root "$2"); shift 2 ;;
        --dynroot) root=(); shift ;;
        --cache | --size | --cell | --cells | --resolv | --as) more+=("$1" "$2"); shift 2 ;;
        --tokens) more+=("$1"); shift ;;
        --) shift; break ;;
        *) break ;;
        esac
    done
    "$interop/mount-client/run" --netns "$IT_NETNS-c$n" --cell "$IT_CELL" --vl "$IT_ADDR" ${root[@]+"${root[@]}"} \
        ${more[@]+"${more[@]}"} --log "$IT_DIR/mount-$n.log" -- "$@"
}

on() { # CLIENT [OPTIONS] COMMAND...
    local client=$1
    shift
    "on_$client" "$@"
}

# ---- the server

server_pid() { # prints the process id of the file server
    case $IT_PEER in
    cellar)
        local p
        # One call for both checks: the process may end between two.
        p=$(cat "$IT_DIR/server.pid" 2>/dev/null) && grep -q '^State:.[^Z]' "/proc/$p/status" 2>/dev/null && echo "$p"
        ;;
    openafs) "$interop/openafs-cell/cell" pid --dir "$IT_DIR/server" dafileserver ;;
    esac
}

answers() { # on ports 7000 and 7003
    at_server ss -Hlun 2>/dev/null | awk '{ print $4 }' | grep -q ':7000$' && at_server ss -Hlun | awk '{ print $4 }' | grep -q ':7003$'
}

server_up() { # [OPTIONS of `cellar up`]
    case $IT_PEER in
    cellar)
        ip netns exec "$IT_NETNS" "$CELLAR" up --dir "$IT_DIR/server" --cell "$IT_CELL" --bind "$IT_ADDR" "$@" \
            </dev/null >>"$IT_DIR/server.log" 2>&1 &
        echo $! >"$IT_DIR/server.pid"
        local i
        for i in $(seq 600); do
            answers && return
            [ -n "$(server_pid)" ] || break
            sleep 0.1
        done
        tail -n 20 "$IT_DIR/server.log"
        echo "the server does not start"
        return 1
        ;;
    openafs) "$interop/openafs-cell/cell" up --dir "$IT_DIR/server" --netns "$IT_NETNS" --addr "$IT_ADDR" --cell "$IT_CELL" "$@" ;;
    esac
}

# Stops the server as Ctrl-C does, and requires a clean end.
server_down() {
    case $IT_PEER in
    cellar)
        local p i
        p=$(server_pid) || { echo "the server had already ended"; return 1; }
        kill -INT "$p"
        for i in $(seq 600); do
            [ -n "$(server_pid)" ] || break
            sleep 0.1
        done
        [ -z "$(server_pid)" ] || { echo "the server does not stop"; kill -9 "$p"; return 1; }
        ;;
    openafs) "$interop/openafs-cell/cell" down --dir "$IT_DIR/server" ;;
    esac
}

server_kill() { # kills the server, as in a crash
    case $IT_PEER in
    cellar)
        local p i
        p=$(server_pid) && kill -9 "$p"
        for i in $(seq 100); do [ -n "$(server_pid)" ] || break; sleep 0.05; done
        ;;
    openafs) kill -9 "$(cat "$IT_DIR/server/init.pid")"; sleep 1 ;;
    esac
}

# silence PID: stops the process, so that it answers nothing until SIGCONT. kill(1) alone returns
# before all threads have stopped. On a busy machine the threads that still run would answer some
# calls.
silence() {
    local i
    kill -STOP "$1" || return
    for i in $(seq 1000); do
        grep -qvE '^State:.T' < <(sed -n '/^State:/p' /proc/"$1"/task/*/status) || return 0
        sleep 0.01
    done
    echo "process $1 does not stop"
    return 1
}

# ---- common functions of tests

# new_volume NAME [QUOTA_KB]: a volume in which every user may write.
new_volume() {
    case $IT_PEER in
    cellar)
        at_server env CELLAR_DIR="$IT_DIR/server" "$CELLAR" vos create "$IT_ADDR" a "$1" -maxquota "${2:-0}" &&
            at_server env CELLAR_DIR="$IT_DIR/server" "$CELLAR" fs setacl "$1" system:anyuser rlidwk
        ;;
    openafs)
        "$interop/openafs-cell/cell" run --dir "$IT_DIR/server" -- vos create "$IT_ADDR" a "$1" -maxquota "${2:-0}" -localauth
        "$interop/openafs-cell/cell" acl --dir "$IT_DIR/server" "$1" anyuser=rlidwk administrators=rlidwka
        ;;
    esac >"$IT_DIR/new-volume.log" 2>&1 || { cat "$IT_DIR/new-volume.log"; fail "cannot make volume $1"; }
}

# cell_vos ARGUMENTS...: vos, as an administrator of either cell.
cell_vos() {
    case $IT_PEER in
    cellar) at_server env CELLAR_DIR="$IT_DIR/server" "$CELLAR" vos "$@" ;;
    openafs) "$interop/openafs-cell/cell" run --dir "$IT_DIR/server" -- vos "$@" -localauth ;;
    esac
}

# release_volume NAME: releases it, and returns when the clients know.
release_volume() {
    quietly cell_vos release "$1"
    # OpenAFS's file server breaks the promises a moment after the answer (FsyncCheckLWP).
    [ "$IT_PEER" = cellar ] || sleep 1
}

# The number of packets that a client's interface has sent and received. The interface of a kernel
# guest is on the servers' bridge.
packets_of() { # c1 | c2 | k11 | k12
    case $1 in
    c*) ip netns exec "$IT_NETNS-$1" cat /sys/class/net/eth0/statistics/{r,t}x_packets ;;
    k*) ip netns exec "$IT_NETNS" cat "/sys/class/net/$1/statistics/"{r,t}x_packets ;;
    esac | awk '{ n += $1 } END { print n }'
}

# quietly COMMAND...: shows the output only if the command fails.
quietly() {
    local said
    said=$("$@" 2>&1) || { echo "$said"; fail "$*"; }
}

wait_for_file() { # PATH [SECONDS]
    local i
    for i in $(seq $((${2:-30} * 20))); do
        [ ! -e "$1" ] || return 0
        sleep 0.05
    done
    return 1
}
