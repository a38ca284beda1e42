#!/usr/bin/env python3
"""nat.py INSIDE TIMEOUT LOG [OUTSIDE-ADDRESS]: an address translator for UDP, in the network namespace of its start.

It creates the device tun0 and moves it to the namespace INSIDE (with address 10.98.0.2 and the default
route). Datagrams from there leave from sockets of this namespace: one port for each port inside, as long
as at least every TIMEOUT seconds something is sent from inside. Datagrams to a forgotten port are
dropped. No port is used twice. LOG gets a line for each new and each forgotten mapping.
"""
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x1, 0x1000
UDP = 17


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def datagram(source, sport, target, tport, payload):
    """An IPv4 datagram; UDP over IPv4 needs no checksum."""
    udp = struct.pack(">HHHH", sport, tport, 8 + len(payload), 0) + payload
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, UDP, 0, source, target)
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + udp


def main():
    inside, timeout, log = sys.argv[1], float(sys.argv[2]), open(sys.argv[3], "w", buffering=1)
    outside = sys.argv[4] if len(sys.argv) > 4 else "0.0.0.0"
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
    for command in (
        f"link set tun0 netns {inside}",
        f"-n {inside} addr add 10.98.0.2/24 dev tun0",
        f"-n {inside} link set tun0 up",
        f"-n {inside} route add default dev tun0",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    log.write("ready\n")
    # By (address, port) inside: a socket, and the time of the last datagram from inside.
    mappings = {}
    while True:
        sockets = {entry[0]: key for key, entry in mappings.items()}
        ready, _, _ = select.select([tun, *sockets], [], [], 0.1)
        now = time.monotonic()
        for key, (sock, last) in list(mappings.items()):
            if now - last > timeout:
                log.write(f"given up {key[1]}\n")
                sock.close()
                del mappings[key]
        for one in ready:
            if one is tun:
                packet = os.read(tun, 65536)
                head = (packet[0] & 15) * 4
                if packet[0] >> 4 != 4 or packet[9] != UDP or struct.unpack(">H", packet[6:8])[0] & 0x3FFF:
                    continue
                sport, tport, length = struct.unpack(">HHH", packet[head : head + 6])
                key = (packet[12:16], sport)
                if key not in mappings:
                    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    sock.bind((outside, 0))
                    sock.setblocking(False)
                    log.write(f"made {sport} as {sock.getsockname()[1]}\n")
                    mappings[key] = [sock, now]
                mappings[key][1] = now
                try:
                    target = (socket.inet_ntoa(packet[16:20]), tport)
                    mappings[key][0].sendto(packet[head + 8 : head + length], target)
                except OSError:
                    pass
            elif sockets[one] in mappings:
                address, port = sockets[one]
                try:
                    payload, (source, sport) = one.recvfrom(65536)
                    os.write(tun, datagram(socket.inet_aton(source), sport, address, port, payload))
                except OSError:
                    pass


main()
