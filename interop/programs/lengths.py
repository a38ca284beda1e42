#!/usr/bin/env python3
"""Reads a file whose length and contents another machine changes, through descriptors that are already open.

    lengths.py write DIR SOCKET                the machine that changes files
    lengths.py read DIR SOCKET ROUNDS [SEED]   the machine that reads them in every way, with no lock and each kind of lock
    lengths.py release DIR SOCKET ROUNDS WANT  a read-only volume: the other machine writes, WANT requests a release

SOCKET is in a directory that both see. The reader sends each change to the writer and waits until it is
done. Its next system call is the tested one. Each byte of a file depends on its position and its writer.
"""
import ctypes
import fcntl
import json
import mmap
import os
import random
import socket
import struct
import sys
import time

PATIENCE = 120
MOST = 3 << 20
MAP = 4 << 20
CHANGES = "longer", "appended", "shorter", "replaced"
LOCKS = "none", "flock", "fcntl", "OFD"
F_OFD_SETLKW = 38
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def text(letter, start, end):
    """The bytes of a range, none of them 0."""
    line = bytes(33 + (ord(letter) * 7 + place * 13) % 90 for place in range(90 * 64))
    whole = line * ((end - start) // len(line) + 2)
    skip = start % len(line)
    return whole[skip : skip + end - start]


def lock(fd, kind, exclusive):
    if kind == "flock":
        fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    elif kind == "fcntl":
        fcntl.lockf(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    elif kind == "OFD":
        set_lock = struct.pack("hhqqi4x", fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, 0, 0, 0, 0)
        fcntl.fcntl(fd, F_OFD_SETLKW, set_lock)


def unlock(fd, kind):
    if kind == "flock":
        fcntl.flock(fd, fcntl.LOCK_UN)
    elif kind == "fcntl":
        fcntl.lockf(fd, fcntl.LOCK_UN)
    elif kind == "OFD":
        fcntl.fcntl(fd, F_OFD_SETLKW, struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 0, 0))


# ---- the machine that writes


def put(directory, held, name, kind, length, pieces, cut):
    """Writes pieces into a file: under a lock through a descriptor that stays open, else with a close."""
    path = f"{directory}/{name}"
    if kind == "none":
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    else:
        if name not in held:
            held[name] = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        fd = held[name]
        lock(fd, kind, True)
    for letter, start, end in pieces:
        data = text(letter, start, end)
        while data:
            count = os.pwrite(fd, data, start)
            data, start = data[count:], start + count
    if cut:
        os.ftruncate(fd, length)
    if kind == "none":
        os.close(fd)
    else:
        unlock(fd, kind)


def rename(directory, name, length, letter):
    """Another file gets the name."""
    new = f"{directory}/{name}.new"
    with open(new, "wb") as file:
        file.write(text(letter, 0, length))
    os.rename(new, f"{directory}/{name}")


def write(directory, path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen()
    os.rename(path + ".new", path)
    listener.settimeout(PATIENCE)
    peer, held = listener.accept()[0].makefile("rw"), {}
    for line in peer:
        order, *rest = json.loads(line)
        if order == "put":
            put(directory, held, *rest)
        elif order == "rename":
            rename(directory, *rest)
        elif order == "sync":
            os.sync()
        print("done", file=peer, flush=True)
    for fd in held.values():
        os.close(fd)


class Writer:
    def __init__(self, path):
        end = time.monotonic() + PATIENCE
        self.socket = socket.socket(socket.AF_UNIX)
        while self.socket.connect_ex(path) != 0:
            if time.monotonic() > end:
                sys.exit("FAIL: the other machine does not connect")
            time.sleep(0.05)
        self.socket.settimeout(PATIENCE)
        self.file = self.socket.makefile("rw")

    def does(self, *order):
        print(json.dumps(order), file=self.file, flush=True)
        if self.file.readline() != "done\n":
            sys.exit(f"FAIL: the other machine does not do {order}")


# ---- ways of reading


class File:
    """An open file, with the ways of reading it."""

    def __init__(self, directory, name, scratch, local):
        self.path = f"{directory}/{name}"
        self.fd = os.open(self.path, os.O_RDWR if os.access(self.path, os.W_OK) else os.O_RDONLY)
        self.map = libc.mmap(None, MAP, mmap.PROT_READ, mmap.MAP_SHARED, self.fd, 0)
        assert self.map not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
        self.copy = os.open(f"{scratch}/{name}.copy", os.O_RDWR | os.O_CREAT, 0o666) if scratch else None
        self.sent = os.open(f"{local}.{name}.sent", os.O_RDWR | os.O_CREAT, 0o666)

    def touch(self):
        """Afterwards the kernel has all its pages."""
        length = os.fstat(self.fd).st_size
        os.pread(self.fd, MOST, 0)
        self.mapped(length)

    def mapped(self, length):
        """The bytes of the mapping, or None if it is shorter. In a child, because a read beyond the end kills it."""
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            try:
                data = ctypes.string_at(self.map, length)
                with os.fdopen(theirs, "wb") as pipe:
                    pipe.write(data)
            finally:
                os._exit(0)
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            data = pipe.read()
        os.waitpid(child, 0)
        return data if len(data) == length else None

    def read(self, _length):
        os.lseek(self.fd, 0, os.SEEK_SET)
        data = b""
        while piece := os.read(self.fd, MOST):
            data += piece
        return data

    def pread(self, _length):
        return os.pread(self.fd, MOST, 0)

    def readv(self, _length):
        os.lseek(self.fd, 0, os.SEEK_SET)
        parts = [bytearray(size) for size in (1, 4095, 70_000, MOST)]
        count = os.readv(self.fd, parts)
        return b"".join(parts)[:count]

    def lseek(self, length):
        """All but the length is read by another call."""
        end = os.lseek(self.fd, 0, os.SEEK_END)
        return os.pread(self.fd, MOST, 0) if end == length else b"-" * end

    def sendfile(self, _length):
        os.ftruncate(self.sent, 0)
        os.lseek(self.sent, 0, os.SEEK_SET)
        at = 0
        while count := os.sendfile(self.sent, self.fd, at, MOST):
            at += count
        return os.pread(self.sent, MOST, 0)

    def copy_file_range(self, _length):
        if self.copy is None:
            return None
        os.ftruncate(self.copy, 0)
        at = 0
        while count := os.copy_file_range(self.fd, self.copy, MOST, at, at):
            at += count
        return os.pread(self.copy, MOST, 0)

    def splice(self, _length):
        ours, theirs = os.pipe()
        data, at = b"", 0
        while count := os.splice(self.fd, theirs, 65536, offset_src=at):
            at += count
            data += os.read(ours, count)
        os.close(ours)
        os.close(theirs)
        return data


WAYS = {way: getattr(File, way) for way in ("read", "pread", "readv", "mapped", "lseek", "sendfile", "copy_file_range", "splice")}


# ---- the machine that reads


class Contents:
    """The expected contents: which writer wrote which bytes."""

    def __init__(self, chance):
        self.chance = chance
        self.letter = 0
        self.data = b""

    def next_letter(self):
        self.letter = (self.letter + 1) % 26
        return chr(ord("A") + self.letter)

    def change(self, change):
        """The next contents; returns the instruction for the other machine."""
        length, letter = len(self.data), self.next_letter()
        # A few bytes, another page, another chunk.
        step = self.chance.choice((1, 100, 3000, 4096, 20_000, 300_000))
        if change in ("longer", "appended"):
            new = length + step
            start = 0 if change == "longer" else length
        elif change == "shorter":
            new, start = max(1, length - min(step, length // 2 + 1)), 0
        else:
            new, start = length, 0
        if new > MOST // 2:
            new, start = 5000, 0
        piece = text(letter, start, new)
        self.data = (self.data[:start] + piece)[:new]
        return [new, [[letter, start, new]], new <= length]


def differ(found, expected):
    if found is None:
        return "nothing is there"
    at = next((place for place, both in enumerate(zip(found, expected)) if both[0] != both[1]), None)
    zeros = f", {found.count(0)} zeros" if 0 in found else ""
    return f"{len(found)} bytes of {len(expected)}, other from {at} on{zeros}"


def read(directory, path, rounds, seed):
    writer, chance, bad = Writer(path), random.Random(seed), 0
    for kind in LOCKS:
        contents = Contents(chance)
        name = f"file-{kind}"
        writer.does("put", name, kind, *contents.change("longer"))
        file = File(directory, name, directory, path)
        for change in CHANGES:
            for way, look in WAYS.items():
                wrong, first = 0, ""
                for number in range(rounds):
                    if number % 3 != 2:
                        file.touch()
                    # Sometimes two changes without a read between them.
                    for _ in range(1 + (number % 4 == 3)):
                        writer.does("put", name, kind, *contents.change(change))
                    lock(file.fd, kind, False)
                    found = look(file, len(contents.data))
                    unlock(file.fd, kind)
                    if found != contents.data:
                        first = first or differ(found, contents.data)
                        wrong += 1
                if wrong:
                    print(f"lock {kind}, {change}, {way}: wrong {wrong} of {rounds}: {first}", flush=True)
                bad += wrong
    # Another file takes the name. A descriptor of the old file still reads the old file.
    for number in range(rounds):
        letters = chr(ord("a") + number % 26), chr(ord("A") + number % 26)
        lengths = chance.randrange(1, 10_000), chance.randrange(1, 10_000)
        writer.does("rename", "renamed", lengths[0], letters[0])
        old = open(f"{directory}/renamed", "rb", buffering=0)
        old.read(MOST)
        writer.does("rename", "renamed", lengths[1], letters[1])
        with open(f"{directory}/renamed", "rb") as new:
            found = new.read(), os.stat(new.name).st_size
        if found != (text(letters[1], 0, lengths[1]), lengths[1]):
            print(f"renamed: {differ(found[0], text(letters[1], 0, lengths[1]))}", flush=True)
            bad += 1
        old.close()
    tried = len(LOCKS) * len(CHANGES) * len(WAYS) * rounds + rounds
    print(f"wrong {bad} of {tried}, seed {seed}")
    sys.exit(bad != 0)


def release(directory, path, rounds, want):
    writer, chance, bad = Writer(path), random.Random(rounds), 0
    contents, number = Contents(chance), 0

    def next_release(change):
        nonlocal number
        number += 1
        writer.does("put", "file", "none", *contents.change(change))
        with open(f"{want}.new", "w") as file:
            file.write(str(number))
        os.rename(f"{want}.new", want)
        end = time.monotonic() + PATIENCE
        while not os.path.exists(f"{want}-{number}"):
            if time.monotonic() > end:
                sys.exit(f"FAIL: release {number} does not arrive")
            time.sleep(0.001)

    next_release("longer")
    end = time.monotonic() + PATIENCE
    while not os.path.exists(f"{directory}/file"):
        if time.monotonic() > end:
            sys.exit("FAIL: the first release is not seen")
        time.sleep(0.05)
    file = File(directory, "file", None, path)
    ways = {way: look for way, look in WAYS.items() if way != "copy_file_range"}
    for change in CHANGES:
        for way, look in ways.items():
            for _ in range(rounds):
                file.touch()
                next_release(change)
                if (found := look(file, len(contents.data))) != contents.data:
                    print(f"release {number}, {change}, {way}: {differ(found, contents.data)}", flush=True)
                    bad += 1
    print(f"wrong {bad} of {number - 1} releases")
    sys.exit(bad != 0)


def main():
    order, directory, path, *rest = sys.argv[1:]
    if order == "write":
        write(directory, path)
    elif order == "read":
        read(directory, path, int(rest[0]), int(rest[1]) if rest[1:] else random.randrange(1 << 30))
    else:
        release(directory, path, int(rest[0]), rest[1])


main()
