#!/usr/bin/python3
"""A real tree, copied in through one client and compared through another.

    tree.py select MANIFEST ROOT --files N --bytes N   whole subtrees of ROOT, by name, until both numbers are reached
                                                       --small N: exactly that many files, each of at most N bytes and none
                                                       with further names
    tree.py extras MANIFEST DIR                         adds contents that are rare in a software tree: holes, odd names, modes
    tree.py put MANIFEST DEST                           writes it
    tree.py check MANIFEST DEST [--symlinks-with P]     compares names, types, modes, sizes, every byte, symlink targets
                                                        and hard links; P: see README. --sample N: all names, but only
                                                        every N-th entry

Hard links can only join names of one directory in AFS. A further name in another directory becomes a
separate file, and is counted. Set-id bits are not copied, because an anonymous caller may not set them.
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import random
import stat
import sys

PIECE = 1 << 20
WRITERS = 16
READERS = 4
MODE = 0o777


class Manifest:
    """One line of JSON per entry, parents before children; `of` is an earlier entry of the same file."""

    def __init__(self, path):
        self.path, self.entries = path, []
        if os.path.exists(path):
            with open(path) as f:
                self.entries = [json.loads(line) for line in f]

    def save(self):
        with open(self.path, "w") as f:
            for e in self.entries:
                f.write(json.dumps(e) + "\n")

    def add_tree(self, source, at):
        """Adds SOURCE as AT; returns the number of added files and bytes."""
        files = size = 0
        seen = {}
        pending = [(source, at)]
        while pending:
            path, name = pending.pop()
            info = os.lstat(path)
            entry = {"source": path, "name": name, "mode": stat.S_IMODE(info.st_mode)}
            if stat.S_ISDIR(info.st_mode):
                entry["kind"] = "d"
                pending += [(f"{path}/{n}", f"{name}/{n}") for n in sorted(os.listdir(path), reverse=True)]
            elif stat.S_ISLNK(info.st_mode):
                entry |= {"kind": "l", "to": os.readlink(path)}
            elif stat.S_ISREG(info.st_mode) and os.access(path, os.R_OK):
                entry |= {"kind": "f", "size": info.st_size}
                files += 1
                size += info.st_size
                if info.st_nlink > 1:
                    first = seen.setdefault((info.st_dev, info.st_ino), name)
                    if first != name:
                        entry["of"] = first
            else:
                continue
            self.entries.append(entry)
        return files, size


def select_small(manifest, root, want_files, largest):
    """Directories come before their contents, so the end may be cut off anywhere."""
    manifest.add_tree(root, ".")
    wanted, files = [], 0
    for e in manifest.entries[1:]:
        small = e["kind"] != "f" or (e["size"] <= largest and "of" not in e)
        if small and files < want_files:
            wanted.append(e | {"name": e["name"].removeprefix("./")})
            files += e["kind"] == "f"
    manifest.entries = wanted


def select(manifest, root, want_files, want_bytes):
    files = size = 0
    manifest.entries = []
    for d in sorted(os.listdir(root)):
        if not os.path.isdir(f"{root}/{d}") or os.path.islink(f"{root}/{d}"):
            continue
        # A second level, so that the choice ends near the requested numbers.
        manifest.entries.append({"source": f"{root}/{d}", "name": d, "kind": "d", "mode": 0o755})
        for n in sorted(os.listdir(f"{root}/{d}")):
            if files >= want_files and size >= want_bytes:
                return files, size
            f, s = manifest.add_tree(f"{root}/{d}/{n}", f"{d}/{n}")
            files, size = files + f, size + s
    return files, size


def make_extras(directory):
    rng = random.Random(7)
    os.makedirs(directory)

    def write(name, data, mode=0o644):
        path = os.path.join(os.fsencode(directory), name if isinstance(name, bytes) else name.encode())
        with open(path, "wb") as f:
            f.write(data)
        os.chmod(path, mode)
        return path

    write("empty", b"")
    for size in (1, 1023, 1024, 1025, 4095, 4096, 65535, 65536, 65537, PIECE - 1, PIECE + 1):
        write(f"size-{size}", rng.randbytes(size))
    for mode in (0o400, 0o444, 0o600, 0o640, 0o666, 0o700, 0o711, 0o755, 0o777):
        write(f"mode-{mode:o}", b"x", mode)
    write("n" * 255, b"a name of 255 bytes")
    write("name with spaces and \t tab", b"")
    write("-dash", b"")
    write(b"not-utf8-\xff\xfe", b"")
    write("ümlaut-名前", b"")
    a = write("linked", b"one file, three names")
    for n in ("linked-2", "linked-3"):
        os.link(a, os.path.join(os.fsencode(directory), n.encode()))
    os.makedirs(f"{directory}/sub/deep/er")
    os.link(a, f"{directory}/sub/linked-from-elsewhere")
    for i, to in enumerate(("linked", "../elsewhere", "/etc/hostname", "nowhere", "sub/deep/..", "t" * 1000)):
        os.symlink(to, f"{directory}/symlink-{i}")
    with open(f"{directory}/holes", "wb") as f:
        for at in (0, 10 << 20, 33 << 20):
            f.seek(at)
            f.write(rng.randbytes(5000))
        f.truncate(40 << 20)
    with open(f"{directory}/only-a-hole", "wb") as f:
        f.truncate(3 << 20)


def dest_of(dest, entry):
    return os.path.join(dest, entry["name"])


def same_directory(entry):
    return os.path.dirname(entry["of"]) == os.path.dirname(entry["name"]) if "of" in entry else False


def copy_file(source, dest):
    with open(source, "rb") as i, open(dest, "wb") as o:
        end = os.fstat(i.fileno()).st_size
        at = 0
        while at < end:
            try:
                at = os.lseek(i.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                break
            stop = os.lseek(i.fileno(), at, os.SEEK_HOLE)
            i.seek(at)
            o.seek(at)
            while at < stop:
                piece = i.read(min(PIECE, stop - at))
                if not piece:
                    break
                o.write(piece)
                at += len(piece)
        o.truncate(end)
        # A client may store only now, or at the close; and kAFS's close reports no error.
        o.flush()
        os.fsync(o.fileno())


def put_file(dest, entry):
    copy_file(entry["source"], dest_of(dest, entry))
    os.chmod(dest_of(dest, entry), entry["mode"] & MODE)


def put(manifest, dest):
    os.umask(0o022)
    os.makedirs(dest, exist_ok=True)
    by_kind = lambda k: (e for e in manifest.entries if e["kind"] == k)
    for e in by_kind("d"):
        os.mkdir(dest_of(dest, e), 0o755)
    # In many directories at once, because a server that makes each change durable answers many
    # together as fast as one.
    files = [e for e in by_kind("f") if not same_directory(e)]
    random.Random(1).shuffle(files)
    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        for _ in pool.map(lambda e: put_file(dest, e), files):
            pass
    for e in by_kind("f"):
        if same_directory(e):
            os.link(os.path.join(dest, e["of"]), dest_of(dest, e))
    for e in by_kind("l"):
        os.symlink(e["to"], dest_of(dest, e))
    for e in reversed(list(by_kind("d"))):
        if e["mode"] & MODE != 0o755:
            os.chmod(dest_of(dest, e), e["mode"] & MODE)


def differences(dest, entry, symlinks_with):
    path = dest_of(dest, entry)
    try:
        info = os.lstat(path)
    except OSError as e:
        return f"{entry['name']}: {e.strerror}"
    kind = {stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFREG: "f"}.get(stat.S_IFMT(info.st_mode))
    if kind != entry["kind"]:
        return f"{entry['name']}: a {kind}, not a {entry['kind']}"
    if kind == "l":
        to = os.readlink(path)
        return None if to == symlinks_with + entry["to"] else f"{entry['name']}: leads to {to!r}, not {entry['to']!r}"
    if info.st_mode & MODE != entry["mode"] & MODE:
        return f"{entry['name']}: mode {info.st_mode & MODE:o}, not {entry['mode'] & MODE:o}"
    if kind == "d":
        return None
    if info.st_size != entry["size"]:
        return f"{entry['name']}: {info.st_size} bytes, not {entry['size']}"
    with open(entry["source"], "rb") as a, open(path, "rb") as b:
        for at in itertools.count(0, PIECE):
            x, y = a.read(PIECE), b.read(PIECE)
            if x != y:
                first = next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))
                return f"{entry['name']}: differs from byte {at + first}"
            if not x:
                return None


def check(manifest, dest, symlinks_with, sample):
    bad = []
    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        bad += filter(None, pool.map(lambda e: differences(dest, e, symlinks_with), manifest.entries[::sample]))
    # No other names.
    names = {}
    for e in manifest.entries:
        names.setdefault(os.path.dirname(e["name"]), set()).add(os.path.basename(e["name"]))
    for d, expected in names.items():
        for n in set(os.listdir(os.path.join(dest, d))) ^ expected:
            bad.append(f"{d}/{n}: {'missing' if n in expected else 'never put there'}")
    # Hard links: the same inode, and a count that includes them all.
    groups = {}
    for e in manifest.entries:
        if same_directory(e):
            groups.setdefault(e["of"], [e["of"]]).append(e["name"])
    for first, members in groups.items():
        infos = [os.lstat(os.path.join(dest, m)) for m in members]
        if len({i.st_ino for i in infos}) != 1 or infos[0].st_nlink != len(members):
            bad.append(f"{first}: {len(members)} names are not one file")
    for line in bad[:20]:
        print("DIFFERS", line.encode(errors="backslashreplace").decode())
    return bad, sum(len(m) for m in groups.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("select", "extras", "put", "check"))
    parser.add_argument("manifest")
    parser.add_argument("place")
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=2 << 30)
    parser.add_argument("--small", type=int)
    parser.add_argument("--sample", type=int, default=1)
    parser.add_argument("--symlinks-with", default="")
    a = parser.parse_args()
    manifest = Manifest(a.manifest)
    if a.verb == "select":
        if a.small:
            select_small(manifest, a.place, a.files, a.small)
        else:
            select(manifest, a.place, a.files, a.bytes)
        manifest.save()
    elif a.verb == "extras":
        make_extras(a.place)
        manifest.add_tree(a.place, "extras")
        manifest.save()
    elif a.verb == "put":
        put(manifest, a.place)
    count = lambda k: sum(e["kind"] == k for e in manifest.entries)
    summary = (f"{count('f')} files, {sum(e.get('size', 0) for e in manifest.entries)} bytes, {count('d')} directories, "
               f"{count('l')} symlinks")
    if a.verb == "check":
        bad, linked = check(manifest, a.place, a.symlinks_with, a.sample)
        other = sum("of" in e and not same_directory(e) for e in manifest.entries)
        print(f"compared {summary}, {linked} names of linked files ({other} links to other directories became files): "
              f"{len(bad)} differences")
        sys.exit(1 if bad else 0)
    print(f"{a.verb}: {summary}")


main()
