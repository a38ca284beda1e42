#!/usr/bin/env python3
"""afs-xattrs.py CELL VOLUME: checks the extended attributes afs.* in $AFS, the root of that volume."""
import errno, os, re, sys

cell, volume = (word.encode() for word in sys.argv[1:3])
d = os.path.join(os.environ["AFS"], "xattrs")
os.mkdir(d)
f = os.path.join(d, "file")
open(f, "w").close()

def refused(code, what, *args):
    try:
        what(*args)
    except OSError as e:
        if e.errno == code:
            return
        sys.exit(f"{args}: {errno.errorcode[e.errno]} instead of {errno.errorcode[code]}")
    sys.exit(f"{args}: not refused")

def same(got, wanted, what):
    if got != wanted:
        sys.exit(f"{what}: {got!r} instead of {wanted!r}")

for path in (d, f):
    same(os.getxattr(path, "afs.cell"), cell, "afs.cell")
    same(os.getxattr(path, "afs.volume"), volume, "afs.volume")
    if not re.fullmatch(rb"[0-9a-f]+:[0-9a-f]+:[0-9a-f]+", os.getxattr(path, "afs.fid")):
        sys.exit(f"afs.fid: {os.getxattr(path, 'afs.fid')!r}")
    vnode = int(os.getxattr(path, "afs.fid").split(b":")[1], 16)
    same(vnode % 2, int(path == d), "directories have odd numbers")
    same(os.listxattr(path), [], "the list")
acl = os.getxattr(d, "afs.acl")
if not re.match(rb"\d+\n0\n(.*\n)*system:anyuser\s+\d+\n", acl):
    sys.exit(f"afs.acl: {acl!r}")
os.setxattr(d, "afs.acl", b"2\n0\nsystem:anyuser\t127\nsystem:authuser\t9\n")
changed = os.getxattr(d, "afs.acl").rstrip(b"\0").split(b"\n")
if changed[0] != b"2" or not any(re.fullmatch(rb"system:authuser\s+9", line) for line in changed):
    sys.exit(f"afs.acl after it was set: {changed!r}")
open(f, "w").close()
refused(errno.EINVAL, os.setxattr, d, "afs.acl", acl, os.XATTR_CREATE)
refused(errno.EOPNOTSUPP, os.setxattr, d, "afs.cell", b"other")
refused(errno.EOPNOTSUPP, os.getxattr, d, "afs.yfs.acl")
refused(errno.EOPNOTSUPP, os.getxattr, d, "afs.nothing")
refused(errno.EOPNOTSUPP, os.getxattr, f, "user.mine")
refused(errno.EOPNOTSUPP, os.removexattr, d, "afs.acl")
