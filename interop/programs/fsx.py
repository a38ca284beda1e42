#!/usr/bin/python3
"""Random operations on one file, compared with a model in memory; similar to fsx.

    fsx.py FILE --seed N --operations N [--longest BYTES] [--model PATH] [--without LETTERS]

w write, r read, t truncate, f fsync, o close and open again, m write through a shared mapping,
a append through another descriptor. The kernel's AFS client loses data when mappings and truncation are
mixed, against OpenAFS too, and no stock client appends after its own unstored data. Therefore m and a
are left out by default.
The final contents are written to PATH, for a comparison by another client. The seed determines the test.
"""
import argparse
import mmap
import os
import random
import sys


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", type=int, default=1500)
    parser.add_argument("--longest", type=int, default=400_000)
    parser.add_argument("--model")
    parser.add_argument("--without", default="ma")
    a = parser.parse_args()
    rng = random.Random(a.seed)
    model = bytearray()
    fd = os.open(a.file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    history = []

    def wrong(what):
        print(f"seed {a.seed}, operation {i}: {what}; before it: {' '.join(history[-8:])}")
        sys.exit(1)

    for i in range(a.operations):
        op = rng.choice("wwwwrrrttmfoa")
        at, length = rng.randrange(a.longest), rng.randrange(1, a.longest * 3 // 20)
        if op in a.without:
            continue
        history.append(f"{op}({at},{length})")
        if op == "w":
            data = rng.randbytes(length)
            if os.pwrite(fd, data, at) != length:
                wrong("short write")
            if len(model) < at:
                model.extend(bytes(at - len(model)))
            model[at : at + length] = data
        elif op == "r":
            got = os.pread(fd, length, at)
            if got != model[at : at + length]:
                wrong(f"read {len(got)} bytes at {at} that are not those written")
        elif op == "t":
            os.ftruncate(fd, at)
            model = model[:at] + bytes(max(0, at - len(model)))
        elif op == "m" and at < len(model):
            data = rng.randbytes(min(length, len(model) - at))
            with mmap.mmap(fd, len(model)) as m:
                m[at : at + len(data)] = data
            model[at : at + len(data)] = data
        elif op == "a" and len(model) < a.longest:
            data = rng.randbytes(length)
            other = os.open(a.file, os.O_WRONLY | os.O_APPEND)
            if os.write(other, data) != length:
                wrong("short append")
            os.close(other)
            model.extend(data)
        elif op == "f":
            os.fsync(fd)
        elif op == "o":
            os.close(fd)
            fd = os.open(a.file, os.O_RDWR)
        size = os.fstat(fd).st_size
        if size != len(model):
            wrong(f"size {size}, not {len(model)}")
    os.fsync(fd)
    os.close(fd)
    with open(a.file, "rb") as f:
        if f.read() != model:
            wrong("the final contents differ")
    if a.model:
        with open(a.model, "wb") as f:
            f.write(model)
    print(f"seed {a.seed}: {a.operations} operations, {len(model)} bytes at the end")


main()
