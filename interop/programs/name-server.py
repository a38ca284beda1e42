#!/usr/bin/python3
"""A name server with a few records, for tests.

    name-server.py ADDRESS RECORDS ASKED

RECORDS has lines 'NAME A ADDRESS', 'NAME SRV PRIORITY WEIGHT PORT HOST' and 'NAME AFSDB SUBTYPE HOST'.
Requests are recorded in ASKED, one per line. It answers on UDP port 53 until it is killed.
"""
import socket
import struct
import sys

TYPES = {"A": 1, "AFSDB": 18, "SRV": 33}


def encoded(name):
    labels = [label.encode() for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def data(kind, words):
    if kind == "A":
        return socket.inet_aton(words[0])
    numbers = [int(word) for word in words[:-1]]
    return struct.pack(f"!{len(numbers)}H", *numbers) + encoded(words[-1])


def main(address, records, asked):
    known = {}
    with open(records) as lines:
        for name, kind, *words in map(str.split, lines):
            known.setdefault(name, []).append((TYPES[kind], data(kind, words)))
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))
    while True:
        message, peer = server.recvfrom(1500)
        at, labels = 12, []
        while message[at]:
            labels.append(message[at + 1 : at + 1 + message[at]].decode())
            at += 1 + message[at]
        name, (kind, _) = ".".join(labels).lower(), struct.unpack("!HH", message[at + 1 : at + 5])
        with open(asked, "a") as log:
            log.write(f"{name} {kind}\n")
        found = [value for of, value in known.get(name, []) if of == kind]
        # An authoritative reply: no such name, if there is no record of it at all.
        head = message[:2] + struct.pack("!5H", 0x8580 | (0 if name in known else 3), 1, len(found), 0, 0)
        records_out = b"".join(struct.pack("!HHHIH", 0xC00C, kind, 1, 300, len(value)) + value for value in found)
        server.sendto(head + message[12 : at + 5] + records_out, peer)


main(*sys.argv[1:])
