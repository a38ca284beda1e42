#!/usr/bin/env python3
"""Locks that are set through descriptors for reading, and their ends.

    read-locks.py FILE                 each way in which they end, and those that stay
    read-locks.py FILE leave UNTIL     sets a read lock, leaves the descriptor to a child, closes it, prints "left" and
                                       stays until the file UNTIL exists
    read-locks.py FILE want SECONDS    waits for a write lock up to SECONDS: status 75 if it does not get it
"""
import fcntl
import os
import signal
import struct
import subprocess
import sys
import time

path = sys.argv[1]
OFD_SETLK = 37  # F_OFD_SETLK of Linux


def opened():
    return os.open(path, os.O_RDONLY)


def child(work):
    """A process that does it and then waits to be killed; returns when it has done it."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        try:
            work()
        except OSError as cause:
            print(cause, file=sys.stderr)
            os._exit(1)
        os.write(tell, b"x")
        os.close(tell)
        signal.alarm(60)
        signal.pause()
    os.close(tell)
    assert os.read(ready, 1) == b"x", "a child failed"
    os.close(ready)
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def wanted(how=fcntl.lockf):
    """Whether another process can get a write lock now. Locks by flock(2) and by fcntl(2) do not conflict."""
    pid = os.fork()
    if pid == 0:
        file = os.open(path, os.O_RDWR)
        try:
            how(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os._exit(75)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def within(seconds, how=fcntl.lockf):
    end = time.monotonic() + seconds
    while not wanted(how):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def stays(what, how=fcntl.lockf):
    for _ in range(8):
        if wanted(how):
            sys.exit(f"{what}: the lock has ended")
        time.sleep(0.1)


def goes(what, how=fcntl.lockf):
    if not within(1, how):
        sys.exit(f"{what}: the lock stays")


def lock(file):
    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def left_to_child():
    """A lock, and a child that has the descriptor too."""
    file = opened()
    lock(file)
    return file, child(lambda: None)


def ways():
    file = opened()
    lock(file)
    stays("an open descriptor")
    os.close(file)
    goes("a close")

    file, other = left_to_child()
    stays("two processes with a descriptor")
    os.close(file)
    goes("a close, with a child that has the descriptor")
    end(other)

    # A process that ends by itself, with such a child, whose end the pipe shows.
    pids, tell = os.pipe()
    if os.fork() == 0:
        _, other = left_to_child()
        os.write(tell, str(other).encode())
        os._exit(0)
    os.wait()
    other = int(os.read(pids, 32))
    goes("an end, with a child that has the descriptor")
    os.kill(other, signal.SIGKILL)

    # The child's own lock, through the inherited descriptor.
    file = opened()
    other = child(lambda: lock(file))
    stays("a child's")
    end(other)
    goes("a child's end, with the descriptor open here")
    os.close(file)

    # It is not the process's lock: the process that set it may end.
    file = opened()
    subprocess.run(["flock", "-s", "-n", str(file)], pass_fds=[file], check=True)
    stays("flock(2) by a child that has ended", fcntl.flock)
    os.close(file)
    goes("flock(2), closed", fcntl.flock)
    file = opened()
    if os.fork() == 0:
        fcntl.fcntl(file, OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        os._exit(0)
    os.wait()
    stays("an open file's lock by a child that has ended")
    os.close(file)
    goes("an open file's lock, closed")

    # The rule of fcntl(2): a close of any descriptor of the file that was opened during the lock.
    file = opened()
    lock(file)
    os.close(opened())
    goes("a close of another descriptor")
    os.close(file)

    # Many locks, one after the other: the kernel reuses its numbers of owners.
    for _ in range(200):
        if os.fork() == 0:
            lock(opened())
            os._exit(0)
        os.wait()
    goes("many processes")


match sys.argv[2:]:
    case []:
        ways()
    case ["leave", until]:
        file, other = left_to_child()
        os.close(file)
        print("left", flush=True)
        for _ in range(600):
            if not os.path.exists(until):
                time.sleep(0.1)
        end(other)
    case ["want", seconds]:
        sys.exit(0 if within(float(seconds)) else 75)
