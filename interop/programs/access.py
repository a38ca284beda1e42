#!/usr/bin/python3
"""access.py prepare DIRECTORY USER...   makes the directories below, as an administrator
access.py try DIRECTORY USER          tries the operations of USER in each of them; prints a line per directory

Each directory is named after the rights that its access list gives in addition to the administrators'
rights. The administrator creates in it: f, a file with contents; and for each user gone-USER,
gone-USER.d and from-USER, for removal and renaming.

A line is: USER DIRECTORY | ok: OPERATIONS | EACCES: OPERATIONS | ... The expected lines come from
OpenAFS's servers (outcomes/kernel-access).
"""
import errno
import fcntl
import os
import sys

BITS = {"r": 1, "w": 2, "i": 4, "l": 8, "d": 16, "k": 32, "a": 64}
DIRECTORIES = {
    "nothing": ("", ""),
    "alice-l": ("alice l", ""),
    "alice-r": ("alice r", ""),
    "alice-i": ("alice i", ""),
    "alice-rl": ("alice rl", ""),
    "alice-li": ("alice li", ""),
    "alice-lik": ("alice lik", ""),
    "alice-rli": ("alice rli", ""),
    "alice-lw": ("alice lw", ""),
    "alice-rlw": ("alice rlw", ""),
    "alice-rlk": ("alice rlk", ""),
    "alice-ld": ("alice ld", ""),
    "alice-lid": ("alice lid", ""),
    "alice-rliw": ("alice rliw", ""),
    "alice-rlidwk": ("alice rlidwk", ""),
    "alice-la": ("alice la", ""),
    "alice-all": ("alice rlidwka", ""),
    "group-rlidwk": ("admin:friends rlidwk", ""),
    "group-not-bob-dw": ("admin:friends rlidwk", "bob dw"),
    "anyuser-rl": ("system:anyuser rl", ""),
    "anyuser-rlidwk": ("system:anyuser rlidwk", ""),
    "authuser-rl": ("system:authuser rl", ""),
    "authuser-rl-not-alice": ("system:authuser rlidwk", "alice rlidwka"),
}


def acl_text(positive, negative):
    """The form of access lists in the protocol: two counts, then a line per entry."""
    def lines(text):
        words = text.split()
        pairs = zip(words[::2], words[1::2])
        return [f"{who}\t{sum(BITS[r] for r in rights)}" for who, rights in pairs]
    plus = ["system:administrators\t127"] + lines(positive)
    minus = lines(negative)
    return "\n".join([str(len(plus)), str(len(minus))] + plus + minus) + "\n\0"


def prepare(top, users):
    for name, (positive, negative) in DIRECTORIES.items():
        d = f"{top}/{name}"
        os.mkdir(d)
        for path in [f"{d}/f"] + [f"{d}/{what}-{user}" for user in users for what in ("gone", "from")]:
            with open(path, "wb") as f:
                f.write(b"content\n")
        for user in users:
            os.mkdir(f"{d}/gone-{user}.d")
        os.setxattr(d, "afs.acl", acl_text(positive, negative).encode())


def slurp(path):
    with open(path, "rb") as f:
        return f.read()


def overwrite(path, data):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def create(path):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(fd, b"made by me\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def lock(path, how, mode):
    fd = os.open(path, mode)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    finally:
        os.close(fd)


def set_acl(path):
    acl = os.getxattr(path, "afs.acl")
    os.setxattr(path, "afs.acl", acl)


def operations(d, user):
    mine = f"{d}/mine-{user}"
    yield "list", lambda: os.listdir(d)
    yield "stat", lambda: os.stat(f"{d}/f")
    yield "read", lambda: slurp(f"{d}/f") == b"content\n" or sys.exit("wrong bytes")
    yield "overwrite", lambda: overwrite(f"{d}/f", b"content\n")
    yield "truncate", lambda: os.truncate(f"{d}/f", 8)
    yield "chmod", lambda: os.chmod(f"{d}/f", 0o644)
    yield "create", lambda: create(mine)
    yield "read-mine", lambda: slurp(mine)
    yield "overwrite-mine", lambda: overwrite(mine, b"once more, made by me\n")
    yield "chmod-mine", lambda: os.chmod(mine, 0o600)
    yield "mkdir", lambda: os.mkdir(f"{mine}.d")
    yield "symlink", lambda: os.symlink("f", f"{mine}.s")
    yield "link", lambda: os.link(f"{d}/f", f"{mine}.l")
    yield "rename", lambda: os.rename(f"{d}/from-{user}", f"{d}/to-{user}")
    yield "unlink", lambda: os.unlink(f"{d}/gone-{user}")
    yield "rmdir", lambda: os.rmdir(f"{d}/gone-{user}.d")
    yield "lock-shared", lambda: lock(f"{d}/f", fcntl.LOCK_SH, os.O_RDONLY)
    yield "lock-exclusive", lambda: lock(f"{d}/f", fcntl.LOCK_EX, os.O_RDWR)
    yield "get-acl", lambda: os.getxattr(d, "afs.acl")
    yield "set-acl", lambda: os.setxattr(d, "afs.acl", acl_text(*DIRECTORIES[os.path.basename(d)]).encode())


def main():
    what, top, *users = sys.argv[1:]
    if what == "prepare":
        return prepare(top, users)
    [user] = users
    for name in DIRECTORIES:
        outcomes = {}
        for operation, do in operations(f"{top}/{name}", user):
            try:
                do()
                outcome = "ok"
            except OSError as e:
                outcome = errno.errorcode[e.errno]
            outcomes.setdefault(outcome, []).append(operation)
        parts = [f"{outcome}: {' '.join(done)}" for outcome, done in sorted(outcomes.items(), key=lambda o: (o[0] != "ok", o[0]))]
        print(f"{user} {name} | {' | '.join(parts)}", flush=True)


main()
