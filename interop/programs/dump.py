#!/usr/bin/python3
"""Reads volume dumps in OpenAFS's format, compares and damages them.

    dump.py list FILE [--but DIR]             the volume's header and a line per vnode, with all that a client can see
    dump.py same A B [--but DIR] [--header]   whether two dumps have the same vnodes (and volume header)
    dump.py identical A B                     byte for byte, except for the dates and texts about the dump itself
    dump.py spoil FILE OUTDIR                 writes damaged copies, named after their damage

'-' is standard input. DIR is a directory in the root; it and all below it are left out. A file of any
length is read in pieces; directories are compared page by page.
"""
import argparse
import hashlib
import os
import struct
import sys

BEGIN, END = 0xB3A11322, 0x3A214B6E
PIECE = 1 << 20
HEADER = {"v": "I", "n": "Z", "t": "AI"}
VOLUME = dict.fromkeys("ivupcqmdfaoCAUEBDZV", "I") | dict.fromkeys("sbt", "B") | dict.fromkeys("nOM", "Z") | {"W": "AI"}
VNODE = dict.fromkeys("vmaogps", "I") | dict.fromkeys("lb", "H") | {"t": "B", "A": "ACL", "f": "D", "h": "Q"}
# Fields of a volume that are not contents: dates of copies and accesses, the server's state, the
# ids of the family.
NOT_CONTENTS = set("sbcCABODZWUiptn")


class Malformed(Exception):
    pass


class Stream:
    def __init__(self, file):
        self.file, self.at, self.first_acl = file, 0, None

    def take(self, n):
        data = self.file.read(n)
        if len(data) != n:
            raise Malformed(f"the dump ends at {self.at + len(data)}")
        self.at += n
        return data

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def text(self):
        found = bytearray()
        while (c := self.take(1)) != b"\0":
            found += c
        return bytes(found)


class Body:
    """A digest of a vnode's data; small data is kept."""

    def __init__(self, stream, length):
        self.length, self.start, self.small = length, stream.at, b""
        digest, left = hashlib.sha1(), length
        while left:
            piece = stream.take(min(PIECE, left))
            digest.update(piece)
            if length <= PIECE:
                self.small = piece
            left -= len(piece)
        self.digest = digest.hexdigest()[:20]

    def __str__(self):
        return f"{self.length}:{self.digest}"


def attributes(stream, forms):
    """The attributes of one item, and the tag of the next item."""
    found = {}
    while True:
        tag = stream.number("B")
        if tag <= 20:
            return found, tag
        name, at = chr(tag), stream.at
        match forms.get(name):
            case None:
                raise Malformed(f"unknown tag {tag:#x} at {at - 1}")
            case "Z":
                value = stream.text()
            case "AI":
                value = [stream.number("I") for _ in range(stream.number("H"))]
            case "ACL":
                block = stream.take(192)
                stream.first_acl = stream.first_acl or stream.at - 192
                total = struct.unpack_from(">I", block, 8)[0]
                value = block[: 20 + 8 * min(total, 20)].hex()
            case "D":
                value = Body(stream, stream.number("I"))
            case "Q":
                value = Body(stream, stream.number("I") << 32 | stream.number("I"))
            case form:
                value = stream.number(form)
        found["data" if name in "fh" and forms is VNODE else name] = value


class Dump:
    def __init__(self, file):
        s = self.stream = Stream(file)
        self.vnodes, self.order, self.starts = {}, [], []
        if s.number("B") != 1 or s.number("I") != BEGIN or s.number("I") != 1:
            raise Malformed("no dump")
        self.head, tag = attributes(s, HEADER)
        if tag != 2:
            raise Malformed("no volume header")
        self.starts.append(s.at - 1)
        self.volume, tag = attributes(s, VOLUME)
        while tag == 3:
            self.starts.append(s.at - 1)
            number, uniquifier = s.number("I"), s.number("I")
            if number in self.vnodes:
                raise Malformed(f"vnode {number} comes twice")
            vnode, tag = attributes(s, VNODE)
            self.vnodes[number] = vnode | {"uniquifier": uniquifier}
            self.order.append(number)
        if tag != 4 or s.number("I") != END:
            raise Malformed(f"item {tag} at {s.at}")
        self.end = s.at - 5
        if s.file.read(1):
            raise Malformed("something follows the end")

    def below(self, name):
        """The vnodes of a directory in the root and of all below it."""
        root = self.vnodes[1]["data"].small
        top = dict(entries(root)).get(name.encode())
        found = {top} if top else set()
        # Directories come in the order of their numbers, not of their depth.
        while True:
            more = {n for n, v in self.vnodes.items() if v.get("p") in found and n not in found}
            if not more:
                return found
            found |= more

    def lines(self, but=None):
        left_out = self.below(but) if but else ()
        for number, v in sorted(self.vnodes.items()):
            if number not in left_out:
                fields = " ".join(f"{k}={v[k]}" for k in sorted(v) if k != "uniquifier")
                yield f"{number}.{v['uniquifier']} {fields}"


def entries(pages):
    """Name and vnode of the entries in a directory's pages, by the chains of its hash table."""
    for chain in struct.unpack_from(">128H", pages, 32 + 128) if len(pages) >= 384 else ():
        seen = 0
        while chain and seen < 70000:
            at = chain * 32
            flag, _, following, vnode, _ = struct.unpack_from(">BBHII", pages, at)
            name = pages[at + 12 : pages.index(b"\0", at + 12)]
            yield name, vnode
            chain, seen = following, seen + 1


def opened(path):
    return sys.stdin.buffer if path == "-" else open(path, "rb")


def read(path):
    with opened(path) as file:
        try:
            return Dump(file)
        except Malformed as cause:
            sys.exit(f"{path}: {cause}")


def header_lines(dump):
    return [f"volume {k}={v}" for k, v in sorted(dump.volume.items()) if k not in NOT_CONTENTS]


def same(a, b, but, header):
    x, y = read(a), read(b)
    mine, theirs = list(x.lines(but)), list(y.lines(but))
    if header:
        mine, theirs = header_lines(x) + mine, header_lines(y) + theirs
    if x.order != y.order and not but:
        print("the vnodes come in another order")
        return 1
    differ = sorted(set(mine) ^ set(theirs))
    for line in differ[:20]:
        print("-" if line in set(mine) else "+", line)
    if not differ:
        print(f"same: {len(mine)} vnodes, {sum(v['data'].length for v in x.vnodes.values() if 'data' in v)} bytes")
    return 1 if differ else 0


def identical(a, b):
    """Every byte, except for the dates in the dump header and the fields of NOT_CONTENTS."""
    both = []
    for path in (a, b):
        dump = read(path)
        digest = hashlib.sha1()
        first = dump.starts[1] if len(dump.starts) > 1 else dump.end
        with open(path, "rb") as file:
            file.seek(first)
            while piece := file.read(PIECE):
                digest.update(piece)
        tags = "".join(dump.volume)
        both.append((tags, header_lines(dump), digest.hexdigest(), os.path.getsize(path) - first))
    if both[0] != both[1]:
        print("\n".join(f"{x}\n{y}" for x, y in zip(*both) if x != y))
        return 1
    print(f"identical: {both[0][3]} bytes of vnodes, {len(both[0][0])} attributes of the volume")
    return 0


def spoil(path, out):
    """Each kind of damage that could mislead a reader, in one or a few places."""
    with open(path, "rb") as file:
        good = file.read()
    dump = read(path)
    os.makedirs(out, exist_ok=True)

    def write(name, *parts):
        with open(f"{out}/{name}", "wb") as file:
            file.writelines(parts)

    def patched(name, at, new):
        write(name, good[:at], new, good[at + len(new) :])

    # vos itself checks the last four bytes of a file. A truncated copy has them, so that the server
    # must find the damage.
    end = struct.pack(">BI", 4, END)
    starts, vnodes = dump.starts, dump.starts[1:]
    middle = vnodes[len(vnodes) // 2]
    for k, at in enumerate(sorted({1, 5, 9, starts[0], starts[0] + 40, vnodes[0] + 4, vnodes[0] + 60, middle, middle + 30, dump.end - 1})):
        write(f"truncated-{k}", good[:at], end[1:])
    # Cut at the start of a vnode, with a correct end: vnodes are missing that directories name.
    write("without-half", good[:middle], end)
    write("without-root", good[: vnodes[0]], good[vnodes[1] :])
    patched("begin", 1, b"\xde\xad\xbe\xef")
    patched("root-is-a-file", vnodes[0] + 9, b"t\x01")
    patched("tag-zero", middle, b"\0")
    patched("tag-high", middle + 9, b"\xee")
    patched("critical-tag", middle + 9, b"~z")
    patched("item-again", middle, b"\x02")
    write("twice", good[: vnodes[1]], good[vnodes[0] : vnodes[1]], good[vnodes[1] :])
    write("more-after", good, end)
    # The last attribute of the dump's header: a count, and one pair of dates.
    patched("many-dates", starts[0] - 10, b"\xff\xff")
    # Contents: a length beyond all limits, in both forms; in the pages of the root.
    number, first = dump.order[0], vnodes[0]
    root = dump.vnodes[number]["data"]
    patched("huge-body", root.start - 4, b"\xff\xff\xff\xf0")
    write("endless-body", good[: root.start - 5], b"h", b"\x7f\xff\xff\xff" * 2, good[root.start :])
    patched("pages-cut", root.start - 4, struct.pack(">I", root.length - 100))
    patched("page-tag", root.start + 2, b"\0\0")
    patched("hash-to-nowhere", root.start + 32 + 128, b"\xff\xf0" * 128)
    patched("name-without-end", root.start + 13 * 32, b"\x01\x00\x00\x00" + b"x" * (root.length - 13 * 32 - 4))
    acl = dump.stream.first_acl
    patched("acl-count", acl + 8, struct.pack(">I", 4000))
    patched("acl-negative", acl + 12, struct.pack(">i", -5))
    patched("vnode-zero", first + 1, struct.pack(">I", 0))
    patched("vnode-huge", middle + 1, struct.pack(">I", 0xFFFFFFFE))
    patched("odd-is-a-file", vnodes[1] + 9, b"t\x01")
    print(len(os.listdir(out)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("list", "same", "identical", "spoil"))
    p.add_argument("paths", nargs="+")
    p.add_argument("--but")
    p.add_argument("--header", action="store_true")
    a = p.parse_args()
    match a.what:
        case "list":
            dump = read(a.paths[0])
            print("\n".join(header_lines(dump) + list(dump.lines(a.but))))
        case "same":
            sys.exit(same(*a.paths, a.but, a.header))
        case "identical":
            sys.exit(identical(*a.paths))
        case "spoil":
            spoil(*a.paths)


if __name__ == "__main__":
    main()
