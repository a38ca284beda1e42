#!/usr/bin/env python3
"""recall-modes.py AFS SHARE HOLD MODE...

Opens wiped files of each recall mode in a client, while their archive is slow, and prints one line of JSON for each
mode. AFS/MODE has the wiped files `long` and `interrupted`, AFS/online the file MODE. SHARE has the bytes of `long` as
MODE-long. The archive is slow while SHARE/slow exists. A mode that does not end is given its bytes after HOLD seconds.

  interrupt    seconds from SIGINT to the end of a first cat; negative: it had ended; null: more than 10 s
  kill         seconds from SIGKILL to its end, if SIGINT was not enough; null: more than 10 s
  other        seconds for the file that is online, read during the second cat; null: more than 20 s
  result       bytes, or the error of the second cat
  seconds      the time that it took
  released     of these, the time after the archive delivered; null: it ended before
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

OTHER_LONGEST = 20
SIGNAL_LONGEST = 10
# Clients repeat a call after VBUSY; afsd.fuse waits 15 s before it.
LATE_LONGEST = 120


class Cat:
    """A cat of one file, with its output in a temporary file."""

    def __init__(self, path):
        self.out = f"/tmp/recall-{os.getpid()}-{path.replace('/', '-')}"
        self.begun = time.monotonic()
        self.ended = None
        with open(self.out, "wb") as out:
            self.process = subprocess.Popen(["cat", path], stdout=out, stderr=subprocess.PIPE)
        self.waiter = threading.Thread(target=self.note_end, daemon=True)
        self.waiter.start()

    def note_end(self):
        self.process.wait()
        self.ended = time.monotonic()

    def wait(self, longest, since=None):
        """The seconds until the end, from the beginning or another moment; None: it takes longer."""
        self.waiter.join(longest)
        since = self.begun if since is None else since
        return None if self.ended is None else round(self.ended - since, 1)

    def result(self, wanted):
        if self.ended is None:
            return "no end"
        said = self.process.stderr.read().decode(errors="replace").strip()
        if self.process.returncode != 0:
            return said.rsplit(": ", 1)[-1] or f"status {self.process.returncode}"
        with open(self.out, "rb") as out, open(wanted, "rb") as model:
            return "bytes" if out.read() == model.read() else "OTHER BYTES"


def measure(afs, share, hold, mode):
    slow = f"{share}/slow"
    found = {"mode": mode}
    open(slow, "w").close()
    interrupted = Cat(f"{afs}/{mode}/interrupted")
    time.sleep(3)
    signalled = time.monotonic()
    interrupted.process.send_signal(signal.SIGINT)
    found["interrupt"] = interrupted.wait(SIGNAL_LONGEST, signalled)
    if found["interrupt"] is None:
        signalled = time.monotonic()
        interrupted.process.kill()
        found["kill"] = interrupted.wait(SIGNAL_LONGEST, signalled)
    long = Cat(f"{afs}/{mode}/long")
    time.sleep(2)
    other = Cat(f"{afs}/online/{mode}")
    found["other"] = other.wait(OTHER_LONGEST)
    long.wait(max(long.begun + hold - time.monotonic(), 0))
    released = time.monotonic()
    os.unlink(slow)
    found["seconds"] = long.wait(LATE_LONGEST)
    late = long.ended is None or long.ended > released
    found["released"] = long.wait(0, released) if late else None
    found["result"] = long.result(f"{share}/{mode}-long")
    for left_over in (other, interrupted):
        left_over.wait(LATE_LONGEST)
    return found


def main():
    afs, share, hold, *modes = sys.argv[1:]
    for mode in modes:
        print(json.dumps(measure(afs, share, float(hold), mode)), flush=True)


main()
