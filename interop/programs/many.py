#!/usr/bin/python3
"""Many names in one directory, $AFS/many.

    many.py make N             creates N files
    many.py fill N COUNT       creates files until the directory is full; N is beyond its limit; the number goes to COUNT
    many.py check N [--keep]   lists them, looks up a sample, and removes them unless --keep is given
"""
import errno
import os
import random
import sys


def name(i):
    return f"{i:06}-" + "x" * 43


def make(count):
    made = 0
    for i in range(count):
        try:
            os.close(os.open(name(i), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except OSError as e:
            return made, e
        made += 1
    return made, None


def main():
    verb, count = sys.argv[1], int(sys.argv[2])
    directory = os.path.join(os.environ["AFS"], "many")
    if verb in ("make", "fill"):
        os.mkdir(directory)
    os.chdir(directory)
    if verb == "make":
        made, error = make(count)
        if error:
            sys.exit(f"after {made}: {error}")
    elif verb == "fill":
        made, error = make(count)
        if not error:
            sys.exit(f"{made} names and still not full")
        print(f"full after {made}: {errno.errorcode.get(error.errno, error.errno)}")
        os.unlink(name(0))
        os.close(os.open(name(0), os.O_CREAT | os.O_EXCL, 0o644))
        with open(sys.argv[3], "w") as f:
            f.write(str(made))
    elif verb == "check":
        have = sorted(os.listdir("."))
        if have != [name(i) for i in range(count)]:
            sys.exit(f"{len(have)} names, not {count}; first {have[:1]}, last {have[-1:]}")
        for i in random.Random(3).sample(range(count), min(500, count)):
            if os.stat(name(i)).st_size != 0:
                sys.exit(f"{name(i)} is not empty")
        try:
            os.stat(name(count))
            sys.exit("a name that was never made is there")
        except FileNotFoundError:
            pass
        if "--keep" not in sys.argv:
            for n in have:
                os.unlink(n)
            if os.listdir("."):
                sys.exit("names are left")
            os.chdir("..")
            os.rmdir(directory)


main()
