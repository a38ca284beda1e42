#!/usr/bin/python3
"""Writes all the time, and knows the expected contents.

    writer.py write DIR STATE STOP   creates, appends to, overwrites, renames and removes files in DIR until the file STOP
                                     exists; every operation must succeed. Then STATE has the contents of DIR
    writer.py check DIR STATE        whether DIR has these contents

Each operation is complete, closed and thus stored, before the next starts. It prints the longest wait for
one: the time for which a move of the volume blocked its writers.
"""
import hashlib
import json
import os
import random
import sys
import time

FILES = 200


def data_of(rng):
    return rng.randbytes(rng.choice((0, 10, 1000, 5000, 70000)))


def write(directory, state, stop):
    rng = random.Random(11)
    held, count, longest, began = {}, 0, 0.0, time.monotonic()
    os.makedirs(directory, exist_ok=True)
    what = path = ""
    try:
        while not os.path.exists(stop):
            start = time.monotonic()
            name = f"file-{rng.randrange(FILES)}"
            path = f"{directory}/{name}"
            what = rng.choice(("write", "write", "append", "append", "rename", "remove", "sub"))
            if what == "write" or name not in held:
                held[name] = data_of(rng)
                with open(path, "wb") as f:
                    f.write(held[name])
            elif what == "append":
                more = data_of(rng)
                held[name] += more
                with open(path, "ab") as f:
                    f.write(more)
                if len(held[name]) > 1 << 20:
                    os.remove(path)
                    del held[name]
            elif what == "rename":
                to = f"file-{rng.randrange(FILES)}"
                os.rename(path, f"{directory}/{to}")
                held[to] = held.pop(name)
            elif what == "remove":
                os.remove(path)
                del held[name]
            else:
                os.mkdir(f"{path}.d")
                os.rmdir(f"{path}.d")
            longest = max(longest, time.monotonic() - start)
            count += 1
    except OSError as cause:
        # The first error ends it: no operation of the servers on the volume may be visible here.
        print(f"FAIL: {what} {path}: {cause.strerror}, after {count} operations")
        sys.exit(1)
    sums = {name: hashlib.sha1(data).hexdigest() for name, data in held.items()}
    with open(state, "w") as f:
        json.dump(sums, f)
    rate = count / (time.monotonic() - began)
    print(f"{count} operations, {rate:.0f}/s, longest {longest:.2f} s")


def check(directory, state):
    with open(state) as f:
        expected = json.load(f)
    found = {}
    for name in os.listdir(directory):
        with open(f"{directory}/{name}", "rb") as f:
            found[name] = hashlib.sha1(f.read()).hexdigest()
    for name in sorted(set(found) | set(expected)):
        if found.get(name) != expected.get(name):
            what = "is lost" if name not in found else "came back" if name not in expected else "differs"
            print(f"FAIL: {name} {what}")
    if found != expected:
        sys.exit(1)
    print(f"{len(found)} files as they were written")


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
