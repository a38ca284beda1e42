#!/usr/bin/python3
"""dump-acl.py FILE WHO=RIGHTS...   replaces the access list of the root directory in a volume dump.

A dump is a stream of tagged items: tag 1 opens it, 2 the volume header, 3 each vnode, 4 ends it. In a vnode every
item has a fixed length by its tag, but the data, whose length precedes it. Vnode 1 is the root directory and comes
first; its item 'A' is the list as the file server keeps it: size, version, number of entries, of positive and of
negative ones, then pairs of id and rights.
"""
import struct
import sys

IDS = {"administrators": -204, "anyuser": -101, "authuser": -102}
RIGHTS = dict(zip("rwilkda", (1, 2, 4, 8, 32, 16, 64)))
ACL_BYTES = 192
# The lengths of the items before the list: type; link count and mode; version, times, owners, group
# and parent.
FIXED = {ord(tag): length for tags, length in (("t", 1), ("lb", 2), ("vmaogps", 4)) for tag in tags}


def acl_bytes(entries):
    pairs = (e.split("=") for e in entries)
    rights = [(IDS[who] if who in IDS else int(who), sum(RIGHTS[r] for r in given)) for who, given in pairs]
    # A file server keeps the entries in the order of their ids.
    body = b"".join(struct.pack(">ii", *pair) for pair in sorted(rights))
    count = len(rights)
    return struct.pack(">5i", 20 + len(body), 1, count, count, 0) + body


def root_acl_offset(dump):
    start = dump.find(b"\x03" + struct.pack(">II", 1, 1))
    if start < 0:
        sys.exit("no root directory in this dump")
    at = start + 9
    while at < len(dump):
        tag = dump[at]
        if tag == ord("A"):
            return at + 1
        if tag not in FIXED:
            sys.exit(f"vnode item {tag:#x} before the access list")
        at += 1 + FIXED[tag]
    sys.exit("no access list in the root directory")


def main():
    path, entries = sys.argv[1], sys.argv[2:]
    with open(path, "rb") as f:
        dump = bytearray(f.read())
    new = acl_bytes(entries)
    at = root_acl_offset(dump)
    dump[at : at + ACL_BYTES] = new.ljust(ACL_BYTES, b"\0")
    with open(path, "wb") as f:
        f.write(dump)


main()
