#!/usr/bin/env python3
"""forged.py SERVER PORT RATE SECONDS: sends Rx requests (VL_ProbeServer), each from another forged address and port of 10/8."""
import os
import random
import socket
import struct
import sys
import time

server, port, rate, seconds = sys.argv[1], *map(int, sys.argv[2:])
socket_ = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
socket_.connect((server, 0))
DATA, CLIENT_AND_LAST, VL, PROBE = 1, 5, 52, 514
ip = struct.Struct("!BBHHHBBH4s4s")
rest = struct.Struct("!HHHH IIIII BBBBHH I")
to = socket.inet_aton(server)
random.seed(os.getpid())
start, sent, lost = time.monotonic(), 0, 0
while (now := time.monotonic() - start) < seconds:
    due = int(now * rate) - sent
    if due <= 0:
        time.sleep(0.001)
        continue
    # A delay is not made up later by a higher rate.
    for _ in range(min(due, 500)):
        bits = random.getrandbits(96)
        # 10.128 to 10.255: no addresses of machines in this network.
        source = struct.pack("!I", 10 << 24 | 1 << 23 | bits & 0x7fffff)
        packet = ip.pack(0x45, 0, 60, 0, 0, 64, 17, 0, source, to) + rest.pack(
            1024 + (bits >> 23) % 60000, port, 40, 0,
            bits >> 40 & 0x7fffffff, bits >> 64 & 0xfffffffc, 1, 1, 1, DATA, CLIENT_AND_LAST, 0, 0, 0, VL, PROBE)
        try:
            socket_.send(packet)
        except OSError:
            lost += 1
        sent += 1
print(f"{sent - lost} datagrams of 60 bytes in {seconds} s: {(sent - lost) // seconds} a second")
