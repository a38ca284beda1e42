#!/usr/bin/python3
"""steady.py SHARE CLIENT   works in $AFS while the server is stopped and killed, see restart.sh.

A file counts as stored if close returned without an error after fsync. While the server is away, every
call may fail or wait. Within a minute after its return, all calls must succeed again.

afsd.fuse (CLIENT is fuse) answers neither FUSE_FSYNC nor FUSE_FLUSH. It stores at FUSE_RELEASE, for which
close(2) does not wait and which reports no error. If the server is killed during the call of a store, the
bytes are lost silently, as soon as the client has given the call up (72 s). It works on one request at a
time (-s), so the next request is answered after the store. A file counts as stored if that took less time
than giving up.
"""
import os
import sys
import time

PATIENCE = 60
# afsd.fuse gives a call up after 50 s or more.
GIVEN_UP = 20


def main():
    share, client, directory = sys.argv[1], sys.argv[2], os.path.join(os.environ["AFS"], "steady")
    stored, number = {}, 0

    def store():
        nonlocal number
        number += 1
        data = f"{number} ".encode() * (100 + 997 * number % 40_000)
        path = f"{directory}/{number}"
        with open(path, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        if client == "fuse":
            begin = time.monotonic()
            os.path.lexists(f"{directory}/{number}.next")
            if time.monotonic() - begin > GIVEN_UP:
                raise TimeoutError(f"the store of {path} was given up")
        stored[path] = data

    def compare():
        for path, data in stored.items():
            with open(path, "rb") as f:
                if f.read() != data:
                    sys.exit(f"{path} is not what was stored")

    os.mkdir(directory)
    for way in ("down", "kill"):
        for _ in range(20):
            store()
        open(f"{share}/before-{way}", "w").close()
        refused = 0
        while not os.path.exists(f"{share}/after-{way}"):
            try:
                store()
            except OSError:
                refused += 1
            time.sleep(0.05)
        start = time.monotonic()
        while True:
            try:
                store()
                compare()
                break
            except OSError as e:
                if time.monotonic() - start > PATIENCE:
                    sys.exit(f"after {way}, still: {e}")
                time.sleep(0.2)
        took = time.monotonic() - start
        print(f"after {way}: continued within {took:.1f} s, {refused} calls refused until then")
    with open(f"{share}/result", "w") as f:
        f.write(f"{len(stored)} stored files, all as they were; went on {took:.1f} s after the kill\n")


main()
