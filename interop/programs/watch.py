#!/usr/bin/python3
"""watch.py NAME SHARE   reads $AFS/NAME until it says "new".

SHARE/cached appears once it has been read; SHARE/seen, with the time, when the change is seen. The writer may take as long as
it needs: this gives up when SHARE/written, which says that the change is stored, has been there for half a minute.
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
