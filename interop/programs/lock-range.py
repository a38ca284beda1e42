#!/usr/bin/env python3
"""A lock by fcntl(2) on a range of a file.

    lock-range.py FILE read|write FIRST LENGTH test          prints the conflicting lock: "free" or KIND FIRST LENGTH
    lock-range.py FILE read|write FIRST LENGTH try COMMAND   runs it under the lock; status 75 if there is a conflict
    lock-range.py FILE read|write FIRST LENGTH wait COMMAND  the same, but waits until there is no conflict
"""
import errno
import fcntl
import os
import struct
import subprocess
import sys

FORM = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid
KINDS = {"read": fcntl.F_RDLCK, "write": fcntl.F_WRLCK}

path, kind, first, length, what = sys.argv[1:6]
file = open(path, "r+b", buffering=0)
wanted = struct.pack(FORM, KINDS[kind], os.SEEK_SET, int(first), int(length), 0)
if what == "test":
    found = struct.unpack(FORM, fcntl.fcntl(file, fcntl.F_GETLK, wanted))
    names = {number: name for name, number in KINDS.items()}
    print(f"{names[found[0]]} {found[2]} {found[3]}" if found[0] in names else "free")
    sys.exit()
try:
    fcntl.fcntl(file, fcntl.F_SETLKW if what == "wait" else fcntl.F_SETLK, wanted)
except OSError as cause:
    if cause.errno not in (errno.EAGAIN, errno.EACCES):
        raise
    sys.exit(75)
sys.exit(subprocess.call(sys.argv[6:], pass_fds=[file.fileno()], env={**os.environ, "FILE": str(file.fileno())}))
