#!/usr/bin/python3
"""initramfs.py OUT   writes the guest's first file system, a cpio archive ("newc", as the kernel reads it).

It holds busybox (Debian's busybox-static), the guest's init, the few files of /etc that programs from the machine's
/usr look for, and the resolver that answers the AFS client's questions about cells. Everything else that the guest
runs is the machine's own /usr, read-only.
"""
import os
import stat
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
BUSYBOX = "/usr/bin/busybox" if os.path.exists("/usr/bin/busybox") else "/bin/busybox"
DIRECTORIES = "bb dev proc sys run tmp etc etc/request-key.d usr exchange afs mnt root home opt srv var var/lib var/tmp".split()
# /bin and similar directories are links into /usr on every Debian and Ubuntu since 2023.
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "../run"}
ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "protocols", "services", "alternatives",
       "debian_version", "request-key.conf")
# The kernel asks for the servers of a cell even if they are configured, and uses the answer. The
# resolver has a prepared reply for each configured cell, in the kernel's binary form, and refuses
# any other.
RESOLVER = """#!/bb/sh
cell=${2#*:}
if [ -e "/exchange/cells/$cell" ]; then
    exec /usr/bin/keyctl pinstantiate "$1" "$3" <"/exchange/cells/$cell"
fi
exec /usr/bin/keyctl negate "$1" 5 "$3"
"""


class Archive:
    def __init__(self, out):
        self.out, self.inode = out, 0

    def add(self, name, mode, data=b"", rdev=(0, 0)):
        self.inode += 1
        encoded = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, *rdev, len(encoded), 0)
        self.pad(b"070701" + b"".join(b"%08x" % f for f in fields) + encoded)
        self.pad(data)

    def pad(self, data):
        self.out.write(data + bytes(-len(data) % 4))

    def tree(self, source, name):
        info = os.lstat(source)
        if stat.S_ISLNK(info.st_mode):
            self.add(name, 0o120777, os.readlink(source).encode())
        elif stat.S_ISDIR(info.st_mode):
            self.add(name, 0o040755)
            for entry in sorted(os.listdir(source)):
                self.tree(f"{source}/{entry}", f"{name}/{entry}")
        elif stat.S_ISREG(info.st_mode):
            with open(source, "rb") as f:
                self.add(name, stat.S_IFREG | (info.st_mode & 0o755), f.read())


def main():
    with open(sys.argv[1], "wb") as out:
        archive = Archive(out)
        for d in DIRECTORIES:
            archive.add(d, 0o040755)
        for name, target in LINKS.items():
            archive.add(name, 0o120777, target.encode())
        archive.add("dev/console", 0o020600, rdev=(5, 1))
        archive.add("dev/null", 0o020666, rdev=(1, 3))
        archive.tree(BUSYBOX, "bb/busybox")
        applets = subprocess.run([BUSYBOX, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        for applet in applets:
            if applet != "busybox":
                archive.add(f"bb/{applet}", 0o120777, b"busybox")
        with open(f"{HERE}/guest-init", "rb") as f:
            archive.add("init", 0o100755, f.read())
        for name in ETC:
            if os.path.lexists(f"/etc/{name}"):
                archive.tree(f"/etc/{name}", f"etc/{name}")
        archive.add("etc/cell-resolver", 0o100755, RESOLVER.encode())
        archive.add("etc/request-key.d/cells.conf", 0o100644, b"create dns_resolver * * /etc/cell-resolver %k %d %S\n")
        archive.add("TRAILER!!!", 0)


main()
