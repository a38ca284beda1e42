#!/usr/bin/python3
"""new-keytab.py FILE CELL   writes a keytab with one new random key for afs/CELL, version 1.

`asetkey` takes the cell's key from a keytab only; this spares the test cell a KDC. The format is that of MIT
Kerberos, version 0x0502: one entry, every count big-endian.
"""
import os
import struct
import sys

AES256_CTS_HMAC_SHA1_96 = 18
KVNO = 1


def counted(b):
    return struct.pack(">H", len(b)) + b


def main():
    path, cell = sys.argv[1:3]
    name = struct.pack(">H", 2) + counted(cell.upper().encode()) + counted(b"afs") + counted(cell.encode())
    entry = name + struct.pack(">IIB", 1, 0, KVNO) + struct.pack(">H", AES256_CTS_HMAC_SHA1_96) + counted(os.urandom(32))
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
        f.write(struct.pack(">Hi", 0x0502, len(entry)) + entry)


main()
