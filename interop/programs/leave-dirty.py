#!/usr/bin/env python3
"""leave-dirty.py PID kept grown cut changed gone: writes to files (of 300,000 times 'a') and kills the process
of the mount before they are closed; exits with 9. --compare FILE...: whether they are as written.
--compare-aside FILE: whether the copy that was put aside has the written bytes."""
import os, signal, sys

def text(name):
    return (name.encode() + b" was here ") * 2000

def written(name):
    old = b"a" * 300000
    new = text(name)
    if name == "grown":
        return old + bytes(1000) + new
    if name == "cut":
        return old[:1000] + bytes(500) + new
    return old[:5000] + new + old[5000 + len(new):]

if sys.argv[1] == "--compare":
    bad = [name for name in sys.argv[2:] if open(name, "rb").read() != written(name)]
    for name in bad:
        print(f"{name}: not what was written")
    sys.exit(bool(bad))
if sys.argv[1] == "--compare-aside":
    has = open(sys.argv[2], "rb").read()
    for name in ("changed", "gone"):
        if has[5000:5000 + len(text(name))] == text(name):
            sys.exit(0)
    sys.exit("what was written is not in it")
pid, names = int(sys.argv[1]), sys.argv[2:]
files = []
for name in names:
    fd = os.open(name, os.O_RDWR)
    files.append(fd)
    if name == "grown":
        os.pwrite(fd, text(name), 301000)
    elif name == "cut":
        os.ftruncate(fd, 1000)
        os.pwrite(fd, text(name), 1500)
    else:
        os.pwrite(fd, text(name), 5000)
os.kill(pid, signal.SIGKILL)
os._exit(9)
