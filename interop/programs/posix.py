#!/usr/bin/python3
"""Checks POSIX behaviour that programs expect, on a mounted AFS directory.

    posix.py DIR --client kernel|fuse

Each check has an empty directory and prints one line. Operations that a client cannot do (afsd.fuse has
no utimensat, no chown, and rewrites symlink targets) are skipped for that client by name, never by their
outcome.
"""
import argparse
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading

CHECKS = []


def check(*without):
    def register(f):
        CHECKS.append((f, without))
        return f
    return register


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def refused(code, call, *args):
    """CODE: one errno or several."""
    try:
        call(*args)
    except OSError as e:
        codes = code if isinstance(code, tuple) else (code,)
        assert e.errno in codes, f"{call.__name__}{args}: {errno.errorcode.get(e.errno, e.errno)}"
        return
    raise AssertionError(f"{call.__name__}{args} was not refused")


@check()
def write_and_read_back():
    for size in (0, 1, 4095, 4096, 65537, 3_000_001):
        data = os.urandom(size)
        write("f", data)
        assert read("f") == data and os.stat("f").st_size == size


@check()
def overwrite_append_and_extend():
    write("f", b"0123456789" * 1000)
    with open("f", "r+b") as f:
        f.seek(5000)
        f.write(b"middle")
    with open("f", "ab") as f:
        f.write(b"end")
    data = bytearray(b"0123456789" * 1000)
    data[5000:5006] = b"middle"
    assert read("f") == bytes(data) + b"end"
    with open("f", "r+b") as f:
        f.seek(200_000)
        f.write(b"far")
    assert read("f") == (bytes(data) + b"end").ljust(200_000, b"\0") + b"far"


@check()
def truncate_down_and_up():
    write("f", b"x" * 100_000)
    os.truncate("f", 70_000)
    assert os.stat("f").st_size == 70_000
    os.truncate("f", 150_000)
    assert read("f") == b"x" * 70_000 + bytes(80_000)
    with open("f", "wb"):
        pass
    assert read("f") == b""


@check()
def sparse_beyond_four_gigabytes():
    with open("f", "wb") as f:
        f.seek(5 << 30)
        f.write(b"tail")
    assert os.stat("f").st_size == (5 << 30) + 4
    with open("f", "rb") as f:
        assert f.read(10) == bytes(10)
        f.seek(5 << 30)
        assert f.read() == b"tail"
    os.unlink("f")


@check()
def exclusive_create():
    os.close(os.open("f", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    refused(errno.EEXIST, os.open, "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


@check()
def absent_names():
    refused(errno.ENOENT, os.stat, "nothing")
    refused(errno.ENOENT, os.unlink, "nothing")
    refused(errno.ENOENT, os.rmdir, "nothing")
    refused(errno.ENOENT, os.rename, "nothing", "else")
    refused(errno.ENOENT, open, "no/such/way")


@check()
def directories():
    os.mkdir("d")
    refused(errno.EEXIST, os.mkdir, "d")
    write("d/f", b"x")
    refused((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, "d")
    refused((errno.EISDIR, errno.EPERM), os.unlink, "d")
    refused(errno.ENOTDIR, os.rmdir, "d/f")
    refused(errno.ENOTDIR, os.stat, "d/f/g")
    os.unlink("d/f")
    before = os.stat(".").st_nlink
    os.rmdir("d")
    assert os.stat(".").st_nlink == before - 1


@check()
def link_counts():
    assert os.stat(".").st_nlink == 2
    for n in ("a", "b", "c"):
        os.mkdir(n)
    assert os.stat(".").st_nlink == 5
    write("f", b"x")
    os.link("f", "g")
    assert os.stat("f").st_nlink == 2 and os.stat("f").st_ino == os.stat("g").st_ino
    os.unlink("f")
    assert read("g") == b"x" and os.stat("g").st_nlink == 1


@check()
def hard_links_share_contents():
    write("f", b"one")
    os.link("f", "g")
    write("g", b"two and more")
    assert read("f") == b"two and more"
    refused(errno.EEXIST, os.link, "f", "g")


@check()
def no_hard_link_into_another_directory():
    os.mkdir("d")
    write("f", b"x")
    # Each client has its own errno for the server's EXDEV.
    refused((errno.EXDEV, errno.EREMOTEIO, errno.EPERM, errno.EINVAL), os.link, "f", "d/g")


@check("fuse")
def symbolic_links():
    for to in ("f", "../x/y", "/absolute", "t" * 1000):
        os.symlink(to, "s")
        assert os.readlink("s") == to and os.lstat("s").st_size == len(to)
        os.unlink("s")
    write("f", b"through")
    os.symlink("f", "s")
    assert read("s") == b"through"
    refused(errno.EEXIST, os.symlink, "x", "s")


@check()
def renames():
    write("a", b"a")
    write("b", b"b")
    os.rename("a", "b")
    assert read("b") == b"a" and sorted(os.listdir(".")) == ["b"]
    os.makedirs("d/e")
    os.rename("b", "d/e/c")
    assert read("d/e/c") == b"a" and os.listdir(".") == ["d"]
    os.rename("d/e", "f")
    assert read("f/c") == b"a" and os.listdir("d") == []
    os.rename("f", "d")  # over an empty directory
    assert read("d/c") == b"a" and os.listdir(".") == ["d"]


@check()
def rename_refusals():
    os.makedirs("d/e")
    write("f", b"x")
    write("d/e/full", b"x")
    refused((errno.EINVAL, errno.EREMOTEIO), os.rename, "d", "d/e/inside-itself")
    refused((errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST), os.rename, "f", "d")
    refused((errno.ENOTDIR, errno.EEXIST), os.rename, "d", "f")
    assert read("f") == b"x" and read("d/e/full") == b"x"


@check()
def dotdot_follows_a_moved_directory():
    os.makedirs("a/moved")
    os.mkdir("b")
    write("b/here", b"")
    os.rename("a/moved", "b/moved")
    os.chdir("b/moved")
    assert os.path.exists("../here") and os.stat("..").st_ino == os.stat(os.path.dirname(os.getcwd())).st_ino


@check()
def removed_but_open():
    f = open("f", "w+b")
    f.write(b"before")
    f.flush()
    os.unlink("f")
    f.write(b" and after")
    f.flush()
    f.seek(0)
    assert f.read() == b"before and after"
    assert not os.path.exists("f")
    f.close()
    # The client may remove its name for such a file a moment later.
    assert [n for n in os.listdir(".") if not n.startswith((".__afs", ".fuse_hidden"))] == []


@check()
def modes():
    write("f", b"x")
    for mode in (0o600, 0o644, 0o755, 0o400, 0o000, 0o777):
        os.chmod("f", mode)
        assert os.stat("f").st_mode & 0o7777 == mode, oct(os.stat("f").st_mode)
    os.mkdir("d")
    os.chmod("d", 0o751)
    assert os.stat("d").st_mode & 0o7777 == 0o751


@check("fuse")
def times():
    write("f", b"x")
    os.utime("f", (981173106, 981173106))
    assert int(os.stat("f").st_mtime) == 981173106
    write("f", b"y")
    assert os.stat("f").st_mtime > 1_600_000_000


@check()
def names():
    for n in ("n" * 255, "with space", "-x", "ümlaut", "tab\there", "line\nend", "*", "'\""):
        write(n, n.encode())
        assert read(n) == n.encode() and n in os.listdir(".")
        os.unlink(n)
    refused((errno.ENAMETOOLONG, errno.ENOENT, errno.EIO), open, "n" * 300, "w")
    assert os.listdir(".") == []


@check()
def bytes_that_are_no_text():
    name = b"\xff\xfe\x80"
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    assert os.listdir(b".") == [name]
    os.unlink(name)


@check()
def listing_while_removing():
    for i in range(300):
        write(f"file-number-{i:04}", b"")
    for entry in os.scandir("."):
        os.unlink(entry.name)
    assert os.listdir(".") == []


@check()
def many_at_once():
    bad = []

    def work(k):
        try:
            for i in range(20):
                data = f"{k} {i}".encode() * 500
                write(f"{k}-{i}", data)
                os.rename(f"{k}-{i}", f"{k}-{i}.done")
                assert read(f"{k}-{i}.done") == data
        except Exception as e:
            bad.append(repr(e))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not bad, bad
    assert len(os.listdir(".")) == 160


@check()
def one_writer_seen_through_another_descriptor():
    with open("f", "wb") as w, open("f", "rb") as r:
        w.write(b"now")
        w.flush()
        assert r.read() == b"now"


@check("fuse")
def locks_between_processes():
    write("f", b"")
    with open("f", "r+b") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        other = subprocess.run(["flock", "-n", "f", "true"])
        assert other.returncode == 1, "a second exclusive lock was given"
        fcntl.flock(f, fcntl.LOCK_UN)
    subprocess.run(["flock", "-n", "f", "true"], check=True)
    with open("f", "rb") as f:
        fcntl.flock(f, fcntl.LOCK_SH)
        subprocess.run(["flock", "-n", "-s", "f", "true"], check=True)


@check("fuse")
def space_is_reported():
    s = os.statvfs(".")
    assert s.f_blocks > 0 and 0 < s.f_bfree <= s.f_blocks


@check("fuse")
def shared_mapping():
    import mmap
    write("f", bytes(100_000))
    with open("f", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        m[50_000:50_005] = b"mapmy"
        m.flush()
    data = read("f")
    assert data[50_000:50_005] == b"mapmy" and len(data) == 100_000 and not any(data[:50_000])


@check("fuse")
def extended_attributes_of_afs():
    assert os.getxattr(".", "afs.cell").decode().rstrip("\0")
    assert os.getxattr(".", "afs.volume").decode().rstrip("\0")
    volume, vnode, *rest = os.getxattr(".", "afs.fid").decode().rstrip("\0").split(":")
    assert int(vnode, 16) % 2 == 1, "a directory's vnode is odd"
    assert b"anyuser" in os.getxattr(".", "afs.acl")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("--client", choices=("kernel", "fuse"), required=True)
    a = parser.parse_args()
    os.umask(0o022)
    top = os.path.join(a.dir, "posix")
    os.makedirs(top)
    bad = run = 0
    for f, without in CHECKS:
        if a.client in without:
            continue
        place = os.path.join(top, f.__name__)
        os.mkdir(place)
        os.chdir(place)
        run += 1
        try:
            f()
            print(f"ok    {f.__name__}")
        except Exception as e:
            bad += 1
            where = e.__traceback__
            while where.tb_next and where.tb_next.tb_frame.f_code.co_filename == __file__:
                where = where.tb_next
            print(f"FAIL  {f.__name__}, line {where.tb_lineno}: {type(e).__name__} {e}")
        os.chdir(top)
        shutil.rmtree(place, ignore_errors=True)
    os.chdir("/")
    try:
        os.rmdir(top)
    except OSError as e:
        bad += 1
        print(f"FAIL  left behind: {e}")
    print(f"{run} checks, {bad} failed")
    sys.exit(1 if bad else 0)


main()
