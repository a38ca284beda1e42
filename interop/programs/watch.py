#!/usr/bin/python3
"""watch.py NAME SHARE   reads $AFS/NAME until it has "new".

SHARE/cached appears after the first read. SHARE/seen, with the time, appears when the change is seen. The
writer may take any time: this gives up half a minute after SHARE/written, which appears after the store.
"""
import os
import sys
import time

PATIENCE = 30


def main():
    path = os.path.join(os.environ["AFS"], sys.argv[1])
    share = sys.argv[2]
    i, given_up = 0, None
    while given_up is None or time.monotonic() < given_up:
        with open(path) as f:
            text = f.read().strip()
        if i == 20:
            open(f"{share}/cached", "w").close()
        if text == "new":
            with open(f"{share}/seen", "w") as f:
                f.write(f"{time.time():.6f}\n")
            return
        if given_up is None and os.path.exists(f"{share}/written"):
            given_up = time.monotonic() + PATIENCE
        time.sleep(0.05)
        i += 1
    sys.exit(1)


main()
