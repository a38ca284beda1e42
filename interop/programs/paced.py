#!/usr/bin/env python3
"""Repeats a command, and writes a line for each round: beginning, seconds, status, number, output.

  paced.py LOG STOP PAUSE COMMAND...

{n} in COMMAND is the number of the round. The rounds end when the file STOP is there. In COMMAND,
'stat PATH' is done by this program: the status is the name of the error.
"""

import errno
import os
import subprocess
import sys
import time

log, stop, pause, command = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]
number = 0
with open(log, "a", buffering=1, encoding="utf-8") as out:
    while not os.path.exists(stop):
        number += 1
        words = [word.replace("{n}", str(number)) for word in command]
        began, said = time.time(), ""
        if words[0] == "stat":
            try:
                os.stat(words[1])
                status = "0"
            except OSError as error:
                status = errno.errorcode[error.errno]
        else:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            status = str(done.returncode)
            lines = done.stdout.decode(errors="replace").strip().splitlines()
            said = lines[-1] if lines else ""
        print(f"{began:.3f} {time.time() - began:.3f} {status} {number} {said}", file=out)
        time.sleep(pause)
