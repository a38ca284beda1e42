#!/usr/bin/python3
"""Files in objects, compared with the same files on a local disk.

    objects.py work DIR MODEL --seed N        creates and changes files in each directory of DIR and in MODEL: append in
                                              pieces, several writers, truncate, overwrite, rename, remove, link, holes
    objects.py change DIR MODEL --seed N      overwrites, truncates and removes some of the files
    objects.py compare DIR MODEL              whether DIR has the contents of MODEL
    objects.py far DIR                        writes some MiB here and there of 64 GiB into a file of each directory of DIR
    objects.py look-far DIR                   whether they are there, with holes between them
    objects.py fill DIR MODEL --bytes N --files N
                                              large files, for the next two commands
    objects.py read DIR MODEL STOP            reads and compares all files again and again until the file STOP exists
    objects.py write DIR MODEL STOP           overwrites, appends to and replaces files until then, in MODEL too
    objects.py fails DIR FILE...              checks that these files cannot be read; prints the time and the error

The last three print the longest time of one call. The seed determines the test. --without cut leaves out
the mix of truncation and writes, with which the kernel's client loses data on any server (README.md).
"""
import argparse
import errno
import os
import random
import sys
import time

STEP = 128 << 10


def failed(what):
    print(f"FAIL: {what}", flush=True)
    sys.exit(1)


class Both:
    """Repeats each operation on a file of DIR on that of MODEL."""

    def __init__(self, a, name):
        self.paths = f"{a.dir}/{name}", f"{a.model}/{name}"

    def write(self, at, data):
        for path in self.paths:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            put(fd, at, data)
            os.fsync(fd)
            os.close(fd)

    def append(self, pieces):
        for path in self.paths:
            with open(path, "ab", buffering=0) as f:
                for piece in pieces:
                    f.write(piece)
                os.fsync(f.fileno())

    def truncate(self, length):
        for path in self.paths:
            os.truncate(path, length)

    def each(self, call, *args):
        for path in self.paths:
            call(path, *args)

    def same(self, when):
        here, model = (read(path) for path in self.paths)
        if here != model:
            at = next((i for i, (x, y) in enumerate(zip(here, model)) if x != y), min(len(here), len(model)))
            failed(f"{self.paths[0]} differs at byte {at} after {when}: {len(here)} bytes, not {len(model)}")


def put(fd, at, data):
    while data:
        n = os.pwrite(fd, data, at)
        at, data = at + n, data[n:]


def read(path):
    with open(path, "rb") as f:
        return f.read()


def directories(a):
    return sorted(name for name in os.listdir(a.dir) if os.path.isdir(f"{a.dir}/{name}"))


def work(a):
    for number, name in enumerate(directories(a)):
        os.makedirs(f"{a.model}/{name}", exist_ok=True)
        work_in(a, name, random.Random(a.seed * 100 + number))


def work_in(a, where, rng):
    def both(name):
        return Both(a, f"{where}/{name}")

    small = both("small")
    small.write(0, rng.randbytes(900))
    # The file moves from the file server's disk to objects during its writes, in pieces of any
    # size.
    grown = both("grown")
    for _ in range(12):
        grown.append([rng.randbytes(rng.randrange(1, 90_000)) for _ in range(rng.randrange(1, 4))])
    grown.same("appending")
    # Four writers of one file, each with every fourth block.
    shared = both("shared")
    shared.write(0, rng.randbytes(10_000))
    writers = []
    blocks = {n: rng.randbytes(37_000) for n in range(32)}
    for writer in range(4):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for n in range(writer, 32, 4):
                    fd = os.open(shared.paths[0], os.O_RDWR)
                    put(fd, n * 37_000, blocks[n])
                    os.fsync(fd)
                    os.close(fd)
                code = 0
            finally:
                os._exit(code)
        writers.append(child)
    for child in writers:
        if os.waitpid(child, 0)[1] != 0:
            failed(f"one of several writers of {shared.paths[0]}")
    for n in range(32):
        fd = os.open(shared.paths[1], os.O_RDWR)
        put(fd, n * 37_000, blocks[n])
        os.close(fd)
    shared.same("several writers")
    # Truncated within a unit and at its start, extended, emptied, rewritten.
    cut = both("cut")
    cut.write(0, rng.randbytes(1_500_000))
    for length in () if a.without == "cut" else (1_234_567, 786_432, 900_001, 65_536, 1_100_000, 3, 0):
        cut.truncate(length)
        cut.same(f"truncating to {length}")
        if length % 2:
            cut.append([rng.randbytes(100_000)])
            cut.same(f"appending after truncating to {length}")
    cut.write(0, rng.randbytes(700_001))
    middle = both("middle")
    middle.write(0, rng.randbytes(2_000_000))
    for _ in range(20):
        middle.write(rng.randrange(1_990_000), rng.randbytes(rng.randrange(1, 150_000)))
    middle.same("overwriting in the middle")
    # Names.
    both("old").write(0, rng.randbytes(600_000))
    both("over").write(0, rng.randbytes(800_000))
    both("gone").write(0, rng.randbytes(500_000))
    both("gone").each(os.unlink)
    for top in (a.dir, a.model):
        os.rename(f"{top}/{where}/old", f"{top}/{where}/over")
        os.link(f"{top}/{where}/over", f"{top}/{where}/linked")
    both("linked").append([rng.randbytes(200_000)])
    over = both("over")
    over.same("rename over another, hard link, append by that")
    if os.stat(over.paths[0]).st_nlink != 2:
        failed(f"{over.paths[0]} has not two links")
    # Holes, at last beyond all written bytes.
    sparse = both("sparse")
    sparse.write(3_000_000, rng.randbytes(70_000))
    sparse.write(9, b"beginning")
    sparse.write(12_345_678, rng.randbytes(12_345))
    if a.without != "cut":
        sparse.truncate(20_000_000)
    sparse.same("writing with holes")


def change(a):
    for number, where in enumerate(directories(a)):
        rng = random.Random(a.seed * 1000 + number)

        def both(name):
            return Both(a, f"{where}/{name}")

        both("grown").write(100_000, rng.randbytes(200_000))
        if a.without != "cut":
            both("middle").truncate(1_000_001)
        both("shared").each(os.unlink)
        both("sparse").write(5_000_000, rng.randbytes(1_000_000))
        both("over").append([rng.randbytes(300_000)])
        both("new").write(0, rng.randbytes(900_000))


FAR = 64 << 30
PLACES = (0, 1 << 30, (4 << 30) - 1_000_000, (17 << 30) + 12_345, FAR - (3 << 20))
PIECE = 2 << 20


def far_pieces(a, where):
    rng = random.Random(f"{a.seed} {where}")
    return [(at, rng.randbytes(PIECE)) for at in PLACES]


def far(a):
    for where in directories(a):
        fd = os.open(f"{a.dir}/{where}/far", os.O_RDWR | os.O_CREAT, 0o644)
        # Not in order, and one of them twice.
        pieces = far_pieces(a, where)
        for at, data in [pieces[2], pieces[4], pieces[0], pieces[3], pieces[1], pieces[2]]:
            put(fd, at, data)
            os.fsync(fd)
        os.close(fd)
    look_far(a)


def look_far(a):
    for where in directories(a):
        path = f"{a.dir}/{where}/far"
        fd = os.open(path, os.O_RDONLY)
        pieces = far_pieces(a, where)
        length = PLACES[-1] + PIECE
        if os.fstat(fd).st_size != length:
            failed(f"{path} has {os.fstat(fd).st_size} bytes, not {length}")
        holes = [at + PIECE for at in PLACES[:-1]] + [at - STEP for at in PLACES[1:]] + [9 << 30, 40 << 30]
        for at, data in [*pieces, *((at, bytes(STEP)) for at in holes)]:
            got = b""
            while len(got) < len(data) and (piece := os.pread(fd, len(data) - len(got), at + len(got))):
                got += piece
            if got != data:
                failed(f"{path} is not what was written, at {at}")
        os.close(fd)


def names(top):
    found = set()
    for path, _, files in os.walk(top):
        found |= {os.path.relpath(f"{path}/{name}", top) for name in files}
    return found


def compare(a):
    here, model = names(a.dir), names(a.model)
    if here != model:
        failed(f"only in one: {sorted(here ^ model)}")
    for name in sorted(here):
        Both(a, name).same("everything")
    print(f"{len(here)} files, {sum(os.path.getsize(f'{a.model}/{n}') for n in model)} bytes")


def fill(a):
    rng = random.Random(a.seed)
    for where in directories(a):
        os.makedirs(f"{a.model}/{where}", exist_ok=True)
        for n in range(a.files):
            Both(a, f"{where}/{n}").write(0, rng.randbytes(a.bytes))


class Waits:
    """The durations of calls."""

    def __init__(self):
        self.longest, self.of, self.calls = 0.0, "nothing", 0

    def time(self, what, call, *args):
        start = time.monotonic()
        try:
            return call(*args)
        except OSError as cause:
            took = time.monotonic() - start
            failed(f"{what}: {errno.errorcode.get(cause.errno, cause.errno)} after {took:.2f} s")
        finally:
            took = time.monotonic() - start
            self.calls += 1
            if took > self.longest:
                self.longest, self.of = took, what

    def say(self, rounds):
        print(f"{rounds} rounds, {self.calls} calls, longest {self.longest:.2f} s ({self.of})", flush=True)


def forget(fd):
    """Makes the next read ask the file server if the system has the pages."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def read_on(a):
    waits, rounds = Waits(), 0
    files = sorted(names(a.model))
    expected = {name: read(f"{a.model}/{name}") for name in files}
    while not os.path.exists(a.stop) or rounds == 0:
        for name in files:
            fd = waits.time(f"open {name}", os.open, f"{a.dir}/{name}", os.O_RDONLY)
            at, data = 0, expected[name]
            while at < len(data):
                piece = waits.time(f"read {name} at {at}", os.pread, fd, STEP, at)
                if not piece or piece != data[at:at + len(piece)]:
                    failed(f"{name} is not what was stored, at {at}")
                at += len(piece)
            forget(fd)
            os.close(fd)
            if os.path.exists(a.stop) and rounds:
                break
        rounds += 1
        with open(f"{a.stop}.rounds", "w") as f:
            f.write(f"{rounds}\n")
    waits.say(rounds)


def write_on(a):
    waits, rounds, rng = Waits(), 0, random.Random(a.seed)
    files = sorted(names(a.model))
    while not os.path.exists(a.stop) or rounds < 3:
        name = rng.choice(files)
        path, model = f"{a.dir}/{name}", f"{a.model}/{name}"
        length = os.path.getsize(model)
        data = rng.randbytes(rng.randrange(1, 300_000))
        what = rng.choice(("overwrite", "append", "replace"))
        flags = os.O_RDWR | (os.O_TRUNC if what == "replace" else 0)
        at = {"overwrite": rng.randrange(max(1, length)), "append": length, "replace": 0}[what]
        if at + len(data) > 3 << 20:
            at = 0
        for top, timed in ((path, True), (model, False)):
            def store(top=top):
                fd = os.open(top, flags)
                put(fd, at, data)
                os.fsync(fd)
                os.close(fd)
            waits.time(f"{what} {name}", store) if timed else store()
        rounds += 1
        with open(f"{a.stop}.rounds", "w") as f:
            f.write(f"{rounds}\n")
    waits.say(rounds)


def fails(a):
    """The client chooses the errno for the server's answer, but it must report one."""
    for name in a.files_named:
        start = time.monotonic()
        try:
            read(f"{a.dir}/{name}")
        except OSError as cause:
            took = time.monotonic() - start
            print(f"{name}: {errno.errorcode.get(cause.errno, cause.errno)} after {took:.2f} s", flush=True)
            continue
        failed(f"{name} can be read")


def main():
    commands = {"work": work, "change": change, "compare": compare, "fill": fill, "read": read_on, "write": write_on,
                "fails": fails, "far": far, "look-far": look_far}
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=commands)
    parser.add_argument("dir")
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--without")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--files", type=int, default=4)
    a = parser.parse_args()
    a.files_named = a.rest
    a.model, a.stop = (a.rest[0], a.rest[-1]) if a.rest else (None, None)
    commands[a.command](a)
    # afsd.fuse stores a file after close has returned. It works on one request at a time, so this
    # call waits for the store.
    if a.command in ("work", "change", "fill", "far", "write"):
        os.mkdir(f"{a.dir}/settled.{os.getpid()}")
        os.rmdir(f"{a.dir}/settled.{os.getpid()}")


main()
