#!/usr/bin/env python3
"""moving.py DIRECTORY READY STOP: writes and reads in the directory, through a file that stays open and through
new ones, until the file STOP exists; creates READY after the start. Exits with 1 if any operation fails or
reads something else."""
import os, sys, time

directory, ready, stop = sys.argv[1:]
BLOCK, BLOCKS, FILES = 8, 1000, 50
failed = []
longest = 0.0
rounds = 0
fd = os.open(f"{directory}/open", os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, bytes(BLOCK * BLOCKS))
os.fsync(fd)


def once(n):
    global step
    step = "the open file"
    os.pwrite(fd, b"%08d" % n, n % BLOCKS * BLOCK)
    os.fsync(fd)
    step = "write"
    name = f"{directory}/f{n % FILES}"
    with open(name, "w") as f:
        f.write(str(n))
    step = "read"
    with open(name) as f:
        said = f.read()
    if said != str(n):
        raise ValueError(f"{name}: {said!r} instead of {n}")
    step = "directories"
    os.mkdir(f"{directory}/d{n}")
    os.rmdir(f"{directory}/d{n}")


while not os.path.exists(stop):
    start = time.monotonic()
    try:
        once(rounds)
    except (OSError, ValueError) as error:
        failed.append(f"round {rounds}: {step}: {error}")
    longest = max(longest, time.monotonic() - start)
    rounds += 1
    if rounds == 3:
        open(ready, "w").close()
for n in range(max(0, rounds - BLOCKS), rounds):
    said = os.pread(fd, BLOCK, n % BLOCKS * BLOCK)
    if said != b"%08d" % n:
        failed.append(f"block {n % BLOCKS}: {said!r} of round {n}")
try:
    os.close(fd)
except OSError as error:
    failed.append(f"close: {error!r}")
print(f"{rounds} rounds, the longest {longest:.1f} s")
print(*failed[:20], sep="\n", end="\n" if failed else "")
sys.exit(1 if failed or rounds < 3 else 0)
