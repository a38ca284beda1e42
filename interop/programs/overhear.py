#!/usr/bin/python3
"""overhear.py DEVICE TEXT FILE: listens to an Ethernet device until SIGTERM. Then it writes into FILE how many
frames contained TEXT, of how many in all. FILE has 0 of 0 as soon as it listens."""
import signal
import socket
import sys


def main():
    device, text, path = sys.argv[1], sys.argv[2].encode(), sys.argv[3]
    ears = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    ears.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    ears.bind((device, 0))
    heard = frames = 0

    def say(*_):
        with open(path, "w") as f:
            f.write(f"{heard} of {frames}\n")
        if frames:
            sys.exit(0)

    signal.signal(signal.SIGTERM, say)
    say()
    while True:
        frame = ears.recv(1 << 17)
        frames += 1
        heard += text in frame


main()
