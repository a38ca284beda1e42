# A separate network for a server and its clients. Namespace NAME has bridge br0 (10.99.0.1/24) for
# the servers. NAME-c1 and NAME-c2 (and so on: at most 4) are across veth pairs with Ethernet's MTU
# of 1500; NAME-cK has 10.99.0.2K. Sourced by run and by bench/.
SERVER_ADDR=10.99.0.1

network_up() { # NAME [NUMBER]
    local n=$1 k c
    ip netns add "$n" && ip -n "$n" link set lo up &&
        # A fixed address. Otherwise the bridge has the lowest of its ports', which changes when a
        # test adds a port.
        ip -n "$n" link add br0 address 02:00:00:63:00:01 type bridge forward_delay 0 stp_state 0 &&
        ip -n "$n" addr add $SERVER_ADDR/24 dev br0 && ip -n "$n" link set br0 up || return
    for k in $(seq "${2:-2}"); do
        c=$n-c$k
        ip netns add "$c" && ip -n "$c" link set lo up &&
            ip -n "$n" link add "c$k" mtu 1500 type veth peer name eth0 netns "$c" &&
            ip -n "$n" link set "c$k" master br0 up &&
            ip -n "$c" addr add "10.99.0.2$k/24" dev eth0 && ip -n "$c" link set eth0 up || return
    done
}

network_down() { # NAME
    local c
    for c in "$1-c1" "$1-c2" "$1-c3" "$1-c4" "$1"; do ip netns del "$c" 2>/dev/null; done
}

# Removes the networks of killed runs: NAME-PID whose process does not exist.
network_forget() { # NAME-
    local n pid
    for n in $(ip netns list 2>/dev/null | awk '{ print $1 }' | grep -E "^$1[0-9]+(-c[1-4])?$"); do
        pid=${n#"$1"}
        [ -e "/proc/${pid%%-*}" ] || ip netns del "$n" 2>/dev/null
    done
}
