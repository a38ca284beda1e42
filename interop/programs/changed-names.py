#!/usr/bin/python3
"""changed-names.py reader|writer SHARE [SOCKET]   two machines, one directory of many names.

The writer changes the directory in each way. After each change, the reader must see it, and all other
names unchanged. With the socket of its mount's metrics, the reader prints how many names its kernel
looked up.
"""
import os
import socket
import sys
import time

NAMES = 3_000
role, share = sys.argv[1:3]
directory = os.path.join(os.environ["AFS"], "many")


def said(name):
    open(f"{share}/{name}", "w").close()


def heard(name):
    end = time.monotonic() + 60
    while not os.path.exists(f"{share}/{name}"):
        if time.monotonic() > end:
            sys.exit(f"{role}: no {name}")
        time.sleep(0.01)


def write(name, text):
    with open(f"{directory}/{name}", "w") as f:
        f.write(text)


def content(name):
    try:
        with open(f"{directory}/{name}") as f:
            return f.read()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        return "directory"


def replace():
    write("new", "other")
    os.rename(f"{directory}/new", f"{directory}/17")


def to_directory():
    os.remove(f"{directory}/18")
    os.mkdir(f"{directory}/18")


def away():
    os.rename(f"{directory}/19", os.environ["AFS"] + "/19")


def burst():
    for n in range(20):
        write(f"burst.{n}", "b")


# The changes, and the contents after each; None: no such name.
CHANGES = [
    (lambda: write("made", "m"), {"made": "m"}),
    (lambda: os.remove(f"{directory}/16"), {"16": None}),
    (lambda: os.rename(f"{directory}/15", f"{directory}/moved"), {"15": None, "moved": "15"}),
    (replace, {"17": "other", "new": None}),
    (to_directory, {"18": "directory"}),
    (away, {"19": None}),
    (burst, {f"burst.{n}": "b" for n in range(20)}),
    (lambda: os.link(f"{directory}/20", f"{directory}/link"), {"link": "20"}),
]


def lookups():
    if len(sys.argv) < 4:
        return 0
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(sys.argv[3])
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: s.recv(65536), b"")).decode()
    lines = [line for line in text.splitlines() if line.startswith("cellar_cache_hits_total") and '"listing"' in line]
    return int(float(lines[0].split()[-1]))


def walk(expected):
    for name, there in expected.items():
        seen = os.path.exists(f"{directory}/{name}")
        if seen != (there is not None):
            sys.exit(f"{name} {'is' if seen else 'is not'} there")


if role == "writer":
    os.mkdir(directory)
    for n in range(NAMES):
        write(n, str(n))
    said("made")
    for number, (change, _) in enumerate(CHANGES):
        heard(f"walked-{number}")
        # The client checks a directory once per second.
        time.sleep(1.1)
        begin = time.monotonic()
        change()
        print(f"change {number}: {1e3 * (time.monotonic() - begin):.1f} ms", flush=True)
        said(f"changed-{number}")
else:
    heard("made")
    expected = {str(n): str(n) for n in range(NAMES)}
    for number, (_, after) in enumerate(CHANGES):
        # The kernel also remembers names that do not exist.
        for name in after:
            expected.setdefault(name, None)
        walk(expected)
        said(f"walked-{number}")
        heard(f"changed-{number}")
        expected.update(after)
        before, begin = lookups(), time.monotonic()
        for name in after:
            seen = content(name)
            if seen != expected[name]:
                sys.exit(f"change {number}: {name} holds {seen!r}, not {expected[name]!r}")
        walk(expected)
        print(f"after change {number}: {len(expected)} names in {1e3 * (time.monotonic() - begin):.1f} ms, "
              f"{lookups() - before} asked for", flush=True)
