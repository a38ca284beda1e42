#!/usr/bin/python3
"""Stores files in $AFS/fill until the server refuses, then checks that the other files are undamaged.

    fill.py [--piece KB] --at-least KB --at-most KB    fills; the refusal must come between these two sizes
    fill.py --verify                                   on another client, or later: checks every stored file

The contents follow from the name, so that any client can check them.
"""
import argparse
import errno
import os
import sys
import time

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def contents(number, size):
    return (b"%08d" % number) * (size // 8)


def store(path, number, size):
    with open(path, "wb") as f:
        f.write(contents(number, size))
        f.flush()
        os.fsync(f.fileno())


def verify():
    for n in sorted(os.listdir(".")):
        number, size = map(int, n.split("-"))
        with open(n, "rb") as f:
            if f.read() != contents(number, size):
                sys.exit(f"{n} is not what was stored")
    return len(os.listdir("."))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--piece", type=int, default=128)
    parser.add_argument("--at-least", type=int)
    parser.add_argument("--at-most", type=int)
    parser.add_argument("--verify", action="store_true")
    a = parser.parse_args()
    place = os.path.join(os.environ["AFS"], "fill")
    if a.verify:
        os.chdir(place)
        print(f"{verify()} files are whole")
        return
    os.mkdir(place)
    os.chdir(place)
    size = a.piece * 1024
    number = 0
    while True:
        name = f"{number}-{size}"
        try:
            store(name, number, size)
        except OSError as e:
            if e.errno not in REFUSALS:
                sys.exit(f"refused as {errno.errorcode.get(e.errno, e.errno)}")
            refusal = errno.errorcode[e.errno]
            break
        number += 1
        if number * a.piece > a.at_most:
            sys.exit(f"{number * a.piece} KB stored and still not refused")
    if number * a.piece < a.at_least:
        sys.exit(f"refused after only {number * a.piece} KB")
    # A refused file may exist in part, and may be removed; the others must be complete.
    if os.path.exists(name):
        os.unlink(name)
    whole = verify()
    if whole != number:
        sys.exit(f"{whole} files, {number} were stored")
    for n in range(number // 2):
        os.unlink(f"{n}-{size}")
    # The server may free the space in the background. Each try has a new name, because the kernel's
    # client keeps returning a file's old error.
    for more in range(1, 31):
        try:
            store(f"{number + more}-{size}", number + more, size)
            break
        except OSError as e:
            error = e
            os.unlink(f"{number + more}-{size}")
            time.sleep(1)
    else:
        sys.exit(f"no space 30 s after {number // 2} files were removed: {error}")
    verify()
    print(f"refused ({refusal}) after {number * a.piece} KB; {number // 2} files removed, and there is space again")


main()
