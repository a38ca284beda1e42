# A client that cannot reach the object storage devices, while the file server can. The devices have
# a separate address.
# shellcheck disable=SC2016
. "$interop/objects.sh"
device_addr=10.99.9.1
c1=$IT_NETNS-c1
ip -n "$IT_NETNS" addr add $device_addr/32 dev lo
for c in "$c1" "$IT_NETNS-c2"; do ip -n "$c" route add $device_addr dev eth0; done
# Restores the network for the tests that follow.
devices_far_end() {
    devices_end
    for c in "$c1" "$IT_NETNS-c2"; do
        ip -n "$c" route del $device_addr
        ip -n "$c" neigh del $device_addr dev eth0
    done 2>/dev/null
    ip -n "$IT_NETNS" addr del $device_addr/32 dev lo
}
# The two ways to cut the client off: no route, of which callers learn at once; or a router that
# drops the packets silently.
cut_no_route() { ip -n "$c1" route del $device_addr; }
cut_silent() { ip -n "$c1" neigh replace $device_addr lladdr 02:00:00:00:00:99 nud permanent dev eth0; }

# cut_off_test CUT READ STORE: a mount reads and stores files of each shape directly at the devices.
# After the cut it does so through the file server. No read of a file takes longer than READ
# milliseconds, no store longer than STORE. The same holds for a mount that never reached a device.
cut_off_test() {
    local read=$2 store=$3 shape n
    devices 7
    trap devices_far_end EXIT
    objects_volume
    shapes="plain stripes copies ec"
    for shape in $shapes; do objects_directory "$shape"; done
    export IT_VOLUME=objects shapes programs read store socket=$IT_DIR/metrics
    on_mount -2 bash -c '
        for n in 1 2 3 4; do
            for shape in $shapes; do
                head -c 9m /dev/urandom >"$0/$shape-$n" && cp "$0/$shape-$n" "$AFS/$shape/read-$n" || exit
            done
        done' "$share" || fail "the files cannot be created"
    for shape in $shapes; do
        [ "$(shape_of "$shape/read-1")" != local ] || fail "$shape/read-1 is in no objects"
    done
    inside='value() { "$programs/http-get.py" "$socket" | awk -v name="cellar_$1_directly_bytes_total" "\$1 == name { print \$2 }"; }
        soon() { # read|store SHAPE COMMAND...
            local from=${EPOCHREALTIME/./} took
            "${@:3}" || { echo "$1 $2: fails"; exit 1; }
            took=$(((${EPOCHREALTIME/./} - from) / 1000))
            echo "$1 $2: $took ms" >>"$times"
            [ $took -lt ${!1} ] || { echo "$1 $2: $took ms"; exit 1; }
        }
        pass() { # NUMBER
            local shape
            for shape in $shapes; do
                soon read $shape cmp "$AFS/$shape/read-$1" "$share/$shape-$1"
                soon store $shape cp "$share/$shape-$1" "$AFS/$shape/stored-$1"
            done
        }'
    export inside share times=$IT_DIR/times
    IT_MOUNT_OPTIONS="--metrics $socket" on_mount bash -c "$inside"'
        # Meanwhile the mount asks the server whether it has object storage.
        cat "$AFS/plain/read-4" >/dev/null; sleep 1.5
        pass 1
        before=$(value fetched)/$(value stored)
        [ ${before%/*} -gt 30000000 ] && [ ${before#*/} -gt 30000000 ] || { echo "only $before bytes come from devices and go there"; exit 1; }
        touch "$share/ready"
        for _ in $(seq 600); do [ ! -e "$share/cut" ] || break; sleep 0.05; done
        echo "cut off" >>"$times"
        pass 2
        pass 3
        [ "$(value fetched)/$(value stored)" = $before ] || { echo "the devices are not cut off"; exit 1; }' &
    local pid=$!
    wait_for_file "$share/ready" 60 || { kill $pid; wait $pid; fail "before it is cut off"; }
    $1
    touch "$share/cut"
    wait $pid || { cat "$IT_DIR/times"; fail "cut off"; }
    IT_MOUNT_OPTIONS="--metrics $socket" on_mount bash -c "$inside"'
        echo "never reached" >>"$times"
        ls "$AFS/plain" >/dev/null; sleep 1.5
        pass 4' || { cat "$IT_DIR/times"; fail "devices that were never reached"; }
    on_mount -2 bash -c 'for shape in $shapes; do
            for n in 1 2 3 4; do cmp "$AFS/$shape/stored-$n" "$0/$shape-$n" || exit 1; done
        done' "$share" || fail "other bytes were stored"
    say "of 24 files of 9 MiB the longest took $(longest read) ms to read and $(longest store) ms to store"
}
# longest read|store: in milliseconds, without the devices
longest() { sed -n "/cut off/,\$s/^$1 .*: \([0-9]*\) ms/\1/p" "$IT_DIR/times" | sort -n | tail -n 1; }
