#!/usr/bin/python3
"""watch.py NAME SHARE   reads $AFS/NAME until it says "new".

SHARE/cached appears once it has been read; SHARE/seen, with the time, when the change is seen. 150 seconds at most: the writer may need a minute to start.
"""
import os
import sys
import time


def main():
    path = os.path.join(os.environ["AFS"], sys.argv[1])
    share = sys.argv[2]
    for i in range(3000):
        with open(path) as f:
            text = f.read().strip()
        if i == 20:
            open(f"{share}/cached", "w").close()
        if text == "new":
            with open(f"{share}/seen", "w") as f:
                f.write(f"{time.time():.6f}\n")
            return
        time.sleep(0.05)
    sys.exit(1)


main()
