#!/usr/bin/env python3
"""Checks how the kernel handles replies and notices of FUSE: each rule that
crates/cachemanager/src/promises/coherence.rs relies on, once.

A file system with one file, /f, replies as each rule needs it, directly through /dev/fuse. Needs root.
"""
import ctypes
import mmap
import os
import struct
import sys
import tempfile
import threading
import time

# Source: linux/fuse.h.
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE, FLUSH, INIT, OPENDIR, INTERRUPT, BATCH_FORGET = 1, 2, 3, 4, 14, 15, 16, 18, 25, 26, 27, 36, 42
INVAL_INODE, INVAL_ENTRY, STORE = 2, 3, 4
KEEP_CACHE = 2
ATOMIC_O_TRUNC = 1 << 3
BIG_WRITES = 1 << 5
EXPIRE_ONLY = 1
MNT_FORCE, MNT_DETACH = 1, 2
FILE = 2
ENOSYS, ENOENT = 38, 2
VALID = 3600
PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)


class FileSystem:
    """Replies to requests with `size` and `letter`. Functions in `before` or `instead` run first, or in place, once."""

    def __init__(self):
        self.directory = tempfile.mkdtemp()
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"rules", self.directory.encode(), b"fuse", 0, options) != 0:
            sys.exit(f"no mount: {os.strerror(ctypes.get_errno())}")
        self.size, self.letter, self.keep = 10, b"a", True
        self.valid = VALID
        self.asked = []
        self.before, self.instead = {}, {}
        self.changed = threading.Condition()
        for _ in range(4):
            threading.Thread(target=self.serve, daemon=True).start()
        self.path = f"{self.directory}/f"

    def end(self):
        # All remaining requests fail: no thread stays in the kernel.
        libc.umount2(self.directory.encode(), MNT_FORCE)
        libc.umount2(self.directory.encode(), MNT_DETACH)
        os.close(self.device)
        os.rmdir(self.directory)

    # -- requests of the kernel

    def attributes(self, inode):
        is_file = inode == FILE
        size, mode = (self.size, 0o100644) if is_file else (0, 0o40755)
        return struct.pack("<QQQQQQIIIIIIIIII", inode, size, 1, 1, 1000, 1, 0, 0, 0, mode, 1, 0, 0, 0, PAGE, 0)

    def answer(self, unique, body=b"", error=0):
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
        except OSError:
            pass

    def serve(self):
        while True:
            try:
                request = os.read(self.device, 1 << 20)
            except OSError:
                return
            # One thread per request, because a request may wait for others.
            threading.Thread(target=self.one, args=(request,), daemon=True).start()

    def one(self, request):
        _, code, unique, inode = struct.unpack("<IIQQ", request[:24])
        if code == INIT:
            body = struct.pack("<IIIIHHIIHHI28x", 7, 38, 1 << 17, ATOMIC_O_TRUNC | BIG_WRITES, 16, 12, 1 << 17, 1, 32, 0, 0)
            return self.answer(unique, body)
        with self.changed:
            self.asked.append(code)
            self.changed.notify_all()
            before, instead = self.before.pop(code, None), self.instead.pop(code, None)
        if before:
            before()
        if instead:
            return instead(lambda: self.usual(code, unique, inode, request))
        return self.usual(code, unique, inode, request)

    def usual(self, code, unique, inode, request):
        if code == LOOKUP:
            if request[40:].rstrip(b"\0") != b"f":
                return self.answer(unique, error=ENOENT)
            self.answer(unique, struct.pack("<QQQQII", FILE, 0, self.valid, self.valid, 0, 0) + self.attributes(FILE))
        elif code == GETATTR:
            self.answer(unique, struct.pack("<QII", self.valid, 0, 0) + self.attributes(inode))
        elif code == SETATTR:
            valid, _, _, size = struct.unpack("<IIQQ", request[40:64])
            if valid & 8:
                self.size = size
            self.answer(unique, struct.pack("<QII", self.valid, 0, 0) + self.attributes(inode))
        elif code in (OPEN, OPENDIR):
            self.answer(unique, struct.pack("<QII", 7, KEEP_CACHE if self.keep else 0, 0))
        elif code == READ:
            _, offset, count = struct.unpack("<QQI", request[40:60])
            self.answer(unique, (self.letter * self.size)[offset : offset + count])
        elif code == WRITE:
            _, offset, count = struct.unpack("<QQI", request[40:60])
            self.size = max(self.size, offset + count)
            self.answer(unique, struct.pack("<II", count, 0))
        elif code in (RELEASE, FLUSH):
            self.answer(unique)
        elif code not in (FORGET, BATCH_FORGET, INTERRUPT):
            self.answer(unique, error=ENOSYS)

    # -- notices to the kernel

    def notice(self, code, body):
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(body), code, 0) + body)
        except OSError as error:
            if error.errno != ENOENT:
                raise

    def attributes_changed(self):
        self.notice(INVAL_INODE, struct.pack("<Qqq", FILE, -1, 0))

    def contents_changed(self):
        self.notice(INVAL_INODE, struct.pack("<Qqq", FILE, 0, 0))

    def store(self, offset, data):
        self.notice(STORE, struct.pack("<QQII", FILE, offset, len(data), 0) + data)

    def name_changed(self, flags):
        self.notice(INVAL_ENTRY, struct.pack("<QII", 1, 1, flags) + b"f\0")

    # -- for the rules

    def opened(self):
        """The file, with all its pages in the kernel."""
        fd = os.open(self.path, os.O_RDWR)
        os.fstat(fd)
        os.pread(fd, 1 << 20, 0)
        self.asked.clear()
        return fd

    def wait_for(self, code):
        with self.changed:
            if not self.changed.wait_for(lambda: code in self.asked, 10):
                raise AssertionError(f"no request {code}")

    def becomes(self, size, letter):
        self.size, self.letter = size, letter


def in_background(work):
    """Starts something; returns a function that waits for its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(work()), daemon=True)
    thread.start()

    def wait(seconds=10):
        thread.join(seconds)
        if thread.is_alive():
            raise AssertionError("it does not end")
        return result[0]

    wait.is_done = lambda seconds: thread.join(seconds) or not thread.is_alive()
    return wait


# ---- the rules


def a_notice_before_the_question_counts(fs):
    fd = fs.opened()
    fs.becomes(1010, b"b")
    fs.contents_changed()
    assert os.pread(fd, 1 << 20, 0) == b"b" * 1010
    fs.becomes(5000, b"c")
    fs.contents_changed()
    assert os.lseek(fd, 0, os.SEEK_END) == 5000


def an_answer_that_a_notice_overtakes_is_ignored(fs):
    for notice in fs.contents_changed, fs.attributes_changed:
        fd = fs.opened()
        size, letter = fs.size, fs.letter
        fs.contents_changed()
        fs.becomes(size + 1000, b"o" if letter != b"o" else b"p")
        fs.before[GETATTR] = notice
        assert len(os.pread(fd, 1 << 20, 0)) == size, "the old length"
        assert os.fstat(fd).st_size == size + 1000, "the kernel asks again"
        os.close(fd)


def stat_shows_an_answer_that_is_ignored(fs):
    fd = fs.opened()
    fs.contents_changed()
    fs.becomes(1010, b"s")
    fs.before[GETATTR] = fs.contents_changed
    assert os.fstat(fd).st_size == 1010
    fs.asked.clear()
    assert len(os.pread(fd, 1 << 20, 0)) == 1010 and GETATTR in fs.asked


def a_write_overtakes_an_answer(fs):
    fd, other = fs.opened(), os.open(fs.path, os.O_RDWR)
    fs.contents_changed()
    before = fs.size

    def late(usual):
        """The reply is prepared before another writer's change, and sent after it."""
        fs.size += 1000
        grown = fs.size
        answer = fs.answer
        held = []
        fs.answer = lambda *what: held.append(what)
        usual()
        fs.answer = answer
        fs.size = before
        os.pwrite(other, b"w" * 20, 0)
        fs.size = grown
        fs.answer(*held[0])

    fs.instead[GETATTR] = late
    found = os.pread(fd, 1 << 20, 0)
    assert len(found) == 20, f"{len(found)} bytes instead of the length after the write"


def reads_ask_only_past_the_end_and_others_do_not_ask(fs):
    fs.size = 8000
    fd, out = fs.opened(), os.open(tempfile.mkdtemp() + "/out", os.O_RDWR | os.O_CREAT)
    fs.contents_changed()
    os.pread(fd, 100, 0)
    assert GETATTR not in fs.asked, "within the length"
    os.sendfile(out, fd, 0, 1 << 20)
    assert GETATTR not in fs.asked, "sendfile"
    os.lseek(fd, 0, os.SEEK_SET)
    assert GETATTR not in fs.asked, "SEEK_SET"
    os.pread(fd, 1 << 20, 0)
    assert GETATTR in fs.asked, "past the end"


def with_a_new_length_all_pages_go(fs):
    fd = fs.opened()
    fs.becomes(1010, b"n")
    fs.attributes_changed()
    assert os.pread(fd, 1 << 20, 0) == b"n" * 1010
    fs.becomes(5, b"m")
    fs.attributes_changed()
    os.fstat(fd)
    assert os.pread(fd, 5, 0) == b"m" * 5


def with_the_same_length_pages_stay(fs):
    fd = fs.opened()
    before = fs.letter * fs.size
    fs.letter = b"z"
    fs.attributes_changed()
    os.fstat(fd)
    assert os.pread(fd, 10, 0) == before[:10]
    fs.contents_changed()
    assert os.pread(fd, 10, 0) == b"z" * 10


def a_short_answer_cuts_the_length(fs):
    fs.size = 9000
    fd = fs.opened()
    fs.becomes(5000, b"k")
    fs.contents_changed()
    assert os.pread(fd, 9000, 0) == b"k" * 5000
    assert GETATTR not in fs.asked
    fs.asked.clear()
    assert os.pread(fd, 5000, 0) == b"k" * 5000 and not fs.asked


def a_short_answer_that_is_overtaken_does_not(fs):
    fs.size = 9000
    fd = fs.opened()
    fs.becomes(5000, b"l")
    fs.contents_changed()
    fs.before[READ] = fs.attributes_changed
    assert os.pread(fd, 9000, 0) == b"l" * 5000 + bytes(4000)


def a_byte_behind_the_end_makes_the_length(fs):
    fd = fs.opened()
    old = fs.size
    fs.becomes(1010, b"y")
    fs.contents_changed()
    fs.store(1009, b"!")
    assert GETATTR not in fs.asked
    out = os.open(tempfile.mkdtemp() + "/out", os.O_RDWR | os.O_CREAT)
    assert os.sendfile(out, fd, 0, 1 << 20) == 1010, "sendfile does not ask"
    assert os.pread(out, 1010, 0) == b"y" * 1010, "the stored byte does not complete the page"
    assert READ in fs.asked
    fs.store(old - 1, b"y")
    assert os.sendfile(out, fd, 0, 1 << 20) == 1010, "a stored byte never reduces the length"


def that_byte_overtakes_an_answer(fs):
    fd = fs.opened()
    fs.contents_changed()
    fs.becomes(1010, b"x")

    def told():
        fs.contents_changed()
        fs.store(1009, b"x")

    fs.before[GETATTR] = told
    assert os.pread(fd, 1 << 20, 0) == b"x" * 1010
    fs.asked.clear()
    os.fstat(fd)
    assert GETATTR in fs.asked, "the kernel asks for the attributes again"


def a_first_byte_of_a_page_makes_the_page(fs):
    fd = fs.opened()
    fs.becomes(PAGE + 1, b"q")
    fs.contents_changed()
    fs.store(PAGE, b"!")
    assert os.pread(fd, 1, PAGE) == b"!" and READ not in fs.asked


def a_notice_about_pages_waits_for_a_read(fs):
    fd = fs.opened()
    fs.becomes(10, b"r")
    fs.contents_changed()
    let_go = threading.Event()
    fs.instead[READ] = lambda usual: (let_go.wait(10), usual())
    reading = in_background(lambda: os.pread(fd, 10, 0))
    fs.wait_for(READ)
    fs.attributes_changed()
    telling = in_background(fs.contents_changed)
    assert not telling.is_done(0.2), "the notice does not wait"
    # The number counts from the start of the request, not from its end.
    os.fstat(fd)
    fs.asked.clear()
    os.fstat(fd)
    assert GETATTR not in fs.asked, "the kernel uses a reply from after the start of the notice"
    let_go.set()
    telling()
    assert reading() == b"r" * 10
    fs.letter = b"t"
    assert os.pread(fd, 10, 0) == b"t" * 10, "the page is dropped after the wait"


def an_open_without_keep_cache_drops_pages(fs):
    fs.opened()
    old, fs.letter = fs.letter, b"v"
    again = os.open(fs.path, os.O_RDONLY)
    assert os.pread(again, 10, 0) == old * 10, "kept"
    fs.keep = False
    again = os.open(fs.path, os.O_RDONLY)
    assert os.pread(again, 10, 0) == b"v" * 10, "dropped"


def a_new_length_by_our_own_call_drops_pages(fs):
    fs.size = 9000
    fd = fs.opened()
    fs.letter = b"h"
    os.ftruncate(fd, 5000)
    assert os.pread(fd, 5000, 0) == b"h" * 5000


def our_own_writes_stay(fs):
    fs.size = 2 * PAGE
    fd = fs.opened()
    os.pwrite(fd, b"W" * PAGE, 2 * PAGE)
    os.fstat(fd)
    fs.asked.clear()
    assert os.pread(fd, 3 * PAGE, 0)[2 * PAGE :] == b"W" * PAGE
    assert READ not in fs.asked, "a reply with the length after own writes drops no pages"


def a_mapping_shows_what_a_notice_left(fs):
    fs.size = 2 * PAGE
    fd = fs.opened()
    pages = mmap.mmap(fd, 2 * PAGE, prot=mmap.PROT_READ)

    def seen():
        # In a child, because a page fault here would block the threads that answer it.
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.write(theirs, pages[0:2])
            os._exit(0)
        os.close(theirs)
        data = os.read(ours, 2)
        os.close(ours)
        os.wait()
        return data

    assert seen() == fs.letter * 2
    fs.letter = b"M"
    fs.contents_changed()
    assert seen() == b"MM"


def names_are_looked_up_again_after_a_notice(fs):
    for flags in EXPIRE_ONLY, 0:
        os.stat(fs.path)
        fs.asked.clear()
        os.stat(fs.path)
        assert LOOKUP not in fs.asked
        fs.name_changed(flags)
        os.stat(fs.path)
        assert LOOKUP in fs.asked


def a_notice_about_a_name_waits_for_its_directory(fs):
    let_go = threading.Event()
    fs.instead[LOOKUP] = lambda usual: (let_go.wait(10), usual())
    looking = in_background(lambda: os.stat(fs.path).st_size)
    fs.wait_for(LOOKUP)
    telling = in_background(lambda: fs.name_changed(EXPIRE_ONLY))
    assert not telling.is_done(0.2), "the notice does not wait"
    fs.attributes_changed()
    let_go.set()
    telling()
    looking()


def main():
    rules = [rule for rule in globals().values() if getattr(rule, "__code__", None) and rule.__code__.co_varnames[:1] == ("fs",) and rule.__code__.co_argcount == 1]
    bad = 0
    for rule in rules:
        fs = FileSystem()
        # A rule that blocks does not hold.
        done = in_background(lambda: tried(rule, fs))
        try:
            problem = done(30)
        except AssertionError as error:
            problem = str(error)
        fs.end()
        if problem is not None:
            print(f"{rule.__name__}: {problem}", flush=True)
            bad += 1
    print(f"{len(rules) - bad} of {len(rules)} rules hold, Linux {os.uname().release}")
    sys.exit(bad != 0 or len(rules) == 0)


def tried(rule, fs):
    try:
        rule(fs)
    except (AssertionError, OSError) as error:
        line = error.__traceback__
        while line.tb_next:
            line = line.tb_next
        return f"line {line.tb_lineno}: {error}"


main()
