#!/usr/bin/env python3
"""Checks system calls that file systems implement differently: in DIRECTORY they must work as on a local one.

    calls.py DIRECTORY
"""
import fcntl
import os
import select
import signal
import stat
import struct
import sys
import time

os.chdir(sys.argv[1])
OFD_SETLK = 37  # F_OFD_SETLK of Linux
failed = 0


def check(what, ok):
    global failed
    if not ok:
        print("wrong:", what)
        failed += 1


def opened(name, flags=os.O_RDWR):
    return os.open(name, flags | os.O_CREAT, 0o644)


def errno_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as cause:
        return os.strerror(cause.errno)
    return None


AGAIN = os.strerror(11)


class Late(Exception):
    pass


def within(seconds, what, call, *arguments):
    """Whether a call ends in time."""

    def ring(*_):
        raise Late

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        call(*arguments)
        signal.alarm(0)
    except Late:
        check(what + " waits for itself", False)


def elsewhere(call):
    """The exit status of another process that runs this."""
    pid = os.fork()
    if pid == 0:
        os._exit(call())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def takes(name, how, kind):
    """Whether another process gets such a lock on a file that it opens itself."""

    def call():
        fd = os.open(name, os.O_RDWR)
        return 0 if errno_of(how, fd, kind | fcntl.LOCK_NB) is None else 1

    return elsewhere(call) == 0


def locks():
    ex, sh, un = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN
    for first, second in ((fcntl.flock, fcntl.lockf), (fcntl.lockf, fcntl.flock)):
        for kind, other in ((ex, ex), (sh, ex), (ex, sh)):
            name = f"lock-{first.__name__}-{kind}-{other}"
            fd = opened(name)
            within(10, f"{first.__name__}, then {second.__name__}", first, fd, kind)
            within(10, f"{first.__name__}, then {second.__name__}", second, fd, other)
            for how, has in ((first, kind), (second, other)):
                check(f"{name}: another gets what is taken", not takes(name, how, ex))
                check(f"{name}: readers share", takes(name, how, sh) == (has == sh))
            first(fd, un)
            check(f"{name}: one is given back, the other stays", takes(name, first, ex) and not takes(name, second, ex))
            second(fd, un)
            check(f"{name}: it is free", takes(name, first, ex) and takes(name, second, ex))
            os.close(fd)
    # Two holders of shared locks want exclusive ones: the read lock is released before the write
    # lock is granted.
    one, two = opened("upgrade"), opened("upgrade")
    fcntl.flock(one, sh)
    fcntl.flock(two, sh)
    check("one of two readers gets it alone", errno_of(fcntl.flock, one, ex | fcntl.LOCK_NB) == AGAIN)
    within(10, "the other of two readers", fcntl.flock, two, ex)
    os.close(one)
    os.close(two)
    # A lock of an open file description ends with it, even if its process has other descriptors.
    one, two = opened("ofd"), opened("ofd")
    lock = struct.pack("hhlli", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(one, OFD_SETLK, lock)
    check("two open files of one process have it", errno_of(fcntl.fcntl, two, OFD_SETLK, lock) == AGAIN)
    os.close(one)
    for _ in range(40):
        if errno_of(fcntl.fcntl, two, OFD_SETLK, lock) is None:
            break
        time.sleep(0.05)
    else:
        check("a lock goes with its open file", False)
    os.close(two)
    # A lock by flock(2) stays while a copy of the descriptor is open; one by fcntl(2) ends with the
    # first close.
    one = opened("copied")
    two = os.dup(one)
    fcntl.flock(one, ex)
    fcntl.lockf(one, ex)
    os.close(one)
    check("flock stays with a copied descriptor", not takes("copied", fcntl.flock, ex))
    check("fcntl goes with any descriptor", takes("copied", fcntl.lockf, ex))
    os.close(two)


def modes():
    fd = os.open("mode", os.O_CREAT | os.O_RDWR, 0o600)
    os.write(fd, b"#!/bin/sh\n")
    check("a file that cannot be run", not os.access("mode", os.X_OK))
    os.fchmod(fd, 0o700)
    check("a mode that is not stored yet", os.access("mode", os.X_OK))
    os.fchmod(fd, 0o400)
    if os.geteuid() != 0 or not os.access("mode", os.W_OK):
        check("a file that may not be written", not os.access("mode", os.W_OK))
    check("and read", os.access("mode", os.R_OK))
    os.close(fd)


def removed():
    os.mkdir("gone")
    fd = os.open("gone", os.O_RDONLY)
    os.rmdir("gone")
    check("links of a removed directory", os.fstat(fd).st_nlink == 0)
    check("it is still a directory", stat.S_ISDIR(os.fstat(fd).st_mode))
    for call in (os.mkdir, os.stat, os.rmdir):
        check(f"{call.__name__} in it", errno_of(lambda call=call: call("in", dir_fd=fd)) == os.strerror(2))
    os.close(fd)
    os.mkdir("old")
    os.mkdir("new")
    fd = os.open("new", os.O_RDONLY)
    os.rename("old", "new")
    check("links of a directory that another has replaced", os.fstat(fd).st_nlink == 0)
    check("links of the one that has replaced it", os.stat("new").st_nlink == 2)
    os.close(fd)
    # The same name later is another directory.
    os.mkdir("gone")
    check("links of a directory made again", os.stat("gone").st_nlink == 2)


def numbers():
    os.makedirs("a/b", exist_ok=True)
    opened("a/b/c")
    for path in (".", "..", "a", "a/b", "a/b/c"):
        check(f"the number of {path}", 0 < os.stat(path).st_ino < 1 << 63)
    for directory in (".", "a", "a/b"):
        for entry in os.scandir(directory):
            check(f"the number of {entry.path} in its directory", 0 < entry.inode() < 1 << 63)


def asked():
    """Requests that a file system may leave unimplemented."""
    fd = opened("asked")
    os.write(fd, b"0123456789")
    for _ in range(50):
        check("isatty", not os.isatty(fd))
    check("an unknown ioctl", errno_of(fcntl.ioctl, fd, 0x1234, b"\0" * 8) == os.strerror(25))
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLOUT)
    check("poll", poll.poll(5000) == [(fd, select.POLLIN | select.POLLOUT)])
    check("posix_fallocate", errno_of(os.posix_fallocate, fd, 0, 4096) in (None, os.strerror(95)))
    os.ftruncate(fd, 10)
    check("SEEK_DATA", os.lseek(fd, 3, os.SEEK_DATA) == 3)
    check("SEEK_HOLE", os.lseek(fd, 3, os.SEEK_HOLE) == 10)
    to = opened("copy")
    check("copy_file_range", os.copy_file_range(fd, to, 10, 0, 0) == 10)
    check("what was copied", os.pread(to, 100, 0) == b"0123456789")
    check("an extended attribute", errno_of(os.removexattr, "asked", "user.x") is not None)
    check("a pipe", errno_of(os.mkfifo, "pipe") is not None or os.remove("pipe") is None)
    os.close(fd)
    os.close(to)


for work in (locks, modes, removed, numbers, asked):
    work()
sys.exit(failed != 0)
