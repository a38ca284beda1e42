#!/usr/bin/env python3
"""Appends lines to a file with O_APPEND, while another machine does so too.

    append.py FILE WHO open SHARE FIRST COUNT    by turns; the file stays open, each line is stored with fsync
    append.py FILE WHO close SHARE FIRST COUNT   by turns; the file is opened and closed for each line
    append.py FILE WHO flock|fcntl COUNT         each line under a lock on the whole file, which stays open
    append.py FILE check WHO... COUNT            checks that the file has each line of all of them, once and complete

A file in SHARE says whose turn it is; FIRST is 0 or 1.
"""
import fcntl
import os
import sys
import time

PATIENCE = 60


def line(who, number):
    """Lines of different lengths, some longer than a page."""
    length = 5000 if number % 7 == 3 else 10 + number * 37 % 100
    return f"{who} {number} ".encode().ljust(length, b".") + b"\n"


def opened(path):
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def append(fd, who, number):
    bytes_ = line(who, number)
    if os.write(fd, bytes_) != len(bytes_):
        sys.exit(f"{who}: line {number} is not written at once")


def wait_for(path):
    until = time.monotonic() + PATIENCE
    while not os.path.exists(path):
        if time.monotonic() > until:
            sys.exit(f"no {path} after {PATIENCE} s")
        time.sleep(0.01)


def by_turns(path, who, keep, share, first, count):
    fd = None
    for number in range(count):
        turn = 2 * number + first
        if turn:
            wait_for(f"{share}/{turn}")
        if fd is None:
            fd = opened(path)
        append(fd, who, number)
        if keep:
            os.fsync(fd)
        else:
            os.close(fd)
            fd = None
        open(f"{share}/{turn + 1}", "w").close()
    if fd is not None:
        os.close(fd)


def under_locks(path, who, how, count):
    fd = opened(path)
    lock = fcntl.flock if how == "flock" else fcntl.lockf
    for number in range(count):
        lock(fd, fcntl.LOCK_EX)
        append(fd, who, number)
        lock(fd, fcntl.LOCK_UN)
    os.close(fd)


def check(path, all_who, count):
    with open(path, "rb") as f:
        found = f.read().splitlines(keepends=True)
    expected = {line(who, number) for who in all_who for number in range(count)}
    lost = expected - set(found)
    strange = [text[:60] for text in found if text not in expected]
    if lost or strange or len(found) != len(expected):
        names = sorted(text[:20].split(b".")[0].decode() for text in lost)
        sys.exit(f"{len(found)} lines instead of {len(expected)}; lost: {names[:6]}; {len(strange)} are none of them, as {strange[:1]}")
    for who in all_who:
        mine = [text for text in found if text.startswith(who.encode() + b" ")]
        if mine != [line(who, number) for number in range(count)]:
            sys.exit(f"{who}'s lines are not in their order")


def main():
    path, who, *rest = sys.argv[1:]
    if who == "check":
        check(path, rest[:-1], int(rest[-1]))
    elif rest[0] in ("open", "close"):
        by_turns(path, who, rest[0] == "open", rest[1], int(rest[2]), int(rest[3]))
    else:
        under_locks(path, who, rest[0], int(rest[1]))


main()
