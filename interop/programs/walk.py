#!/usr/bin/python3
"""Reads directories of a mount as `find` and `ls -l` do.

    walk.py make DIR N          creates N files in DIR, each with its name as contents
    walk.py count DIR N PID     reads all with sizes, twice; checks the number of requests of the second time
    walk.py change DIR          the changes by another client while a reader is in the middle of DIR
    walk.py read DIR SHARE      reads half of DIR, waits for the change (SHARE/changed), continues, and reads all
    walk.py forget DIR N PID    reads all again and again, while the kernel forgets them in between
"""
import os
import sys
import time


def die(message):
    sys.exit(f"walk: {message}")


def name(number):
    return f"file{number:04}"


def make(directory, count):
    os.mkdir(directory)
    for number in range(int(count)):
        with open(f"{directory}/{name(number)}", "w") as file:
            file.write(name(number) * (number % 7 + 1))


def look(directory):
    """Names and sizes, as `ls -l` reads them."""
    with os.scandir(directory) as lines:
        return {line.name: line.stat(follow_symlinks=False).st_size for line in lines}


def requests(pid):
    """The number of reads of the process so far: one per request of the kernel."""
    with open(f"/proc/{pid}/io") as file:
        return int(dict(line.split(": ") for line in file)["syscr"])


def expected(count):
    return {name(number): len(name(number)) * (number % 7 + 1) for number in range(count)}


def count(directory, count, pid):
    count = int(count)
    before = requests(pid)
    first = look(directory)
    between = requests(pid)
    second = look(directory)
    after = requests(pid)
    if first != expected(count) or second != first:
        die("names or sizes are wrong")
    print(f"-- {between - before} requests for {count} files cold, {after - between} warm")
    # Without readdirplus there would be one request per file.
    if between - before > count / 2:
        die("each file was asked for by itself")
    if after - between > count / 4:
        die("what the kernel has is not used")


def change(directory):
    os.unlink(f"{directory}/{name(0)}")
    os.unlink(f"{directory}/{name(390)}")
    os.rename(f"{directory}/{name(391)}", f"{directory}/{name(392)}")
    os.unlink(f"{directory}/{name(393)}")
    os.mkdir(f"{directory}/{name(393)}")
    with open(f"{directory}/{name(394)}", "w") as file:
        file.write("changed")


def read(directory, share):
    names = []
    # getdents(2) directly would read a page at a time; scandir keeps the directory open in the
    # middle.
    with os.scandir(directory) as lines:
        for line in lines:
            names.append(line.name)
            if len(names) == 200:
                open(f"{share}/half", "w").close()
                while not os.path.exists(f"{share}/changed"):
                    time.sleep(0.05)
                time.sleep(0.5)
    seen = {}
    for known in names:
        try:
            seen[known] = os.stat(f"{directory}/{known}")
        except FileNotFoundError:
            seen[known] = None
    if seen[name(0)] is not None or seen.get(name(390)) is not None or seen.get(name(391)) is not None:
        die("what was removed is still there")
    if not os.path.isdir(f"{directory}/{name(393)}"):
        die("what was replaced by a directory is none")
    if open(f"{directory}/{name(394)}").read() != "changed" or os.stat(f"{directory}/{name(394)}").st_size != 7:
        die("a changed file is what it was")
    if open(f"{directory}/{name(392)}").read() != name(391) * (391 % 7 + 1):
        die("a name leads where it led before the rename")
    now = look(directory)
    if len(now) != 397 or now[name(394)] != 7:
        die(f"{len(now)} names")


def forget(directory, count):
    for _ in range(20):
        if look(directory) != expected(int(count)):
            die("names or sizes are wrong")
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("2")
    if look(directory) != expected(int(count)):
        die("names or sizes are wrong")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
