#!/usr/bin/python3
"""open-files.py DIR COUNT: writes and reads COUNT files of DIR in turn, all open at the same time; --again: only
reads them, all open at the same time. Prints the files with other contents than written."""
import os
import resource
import sys


def text(number, turn):
    return f"file {number}, turn {turn}\n".encode() * (1 + number % 40)


def failed(what):
    print(f"FAIL: {what}", flush=True)
    sys.exit(1)


def attempt(what, call, *args):
    try:
        return call(*args)
    except OSError as error:
        failed(f"{what}: {error.strerror}")


def main():
    again = sys.argv[1] == "--again"
    directory, count = sys.argv[1 + again], int(sys.argv[2 + again])
    limit = 2 * count
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, max(limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    names = [f"{directory}/{number:05}" for number in range(count)]
    flags = os.O_RDONLY if again else os.O_RDWR | os.O_CREAT
    files = [attempt(f"opening file {number} of {count}", os.open, name, flags, 0o644) for number, name in enumerate(names)]

    def compare(turn):
        for number, file in enumerate(files):
            wanted = text(number, turn)
            got = attempt(f"reading file {number} of {count}", os.pread, file, len(wanted) + 1, 0)
            if got != wanted:
                failed(f"file {number} says {got[:40]} instead of {wanted[:40]} after turn {turn}")

    for turn in [] if again else [1, 2]:
        for number, file in enumerate(files):
            attempt(f"writing file {number} of {count}, turn {turn}", os.pwrite, file, text(number, turn), 0)
            # Some files are stored at once, the others at their close.
            if number % 10 == turn:
                attempt(f"storing file {number} of {count}, turn {turn}", os.fsync, file)
        compare(turn)
    if again:
        compare(2)
    for number, file in enumerate(files):
        attempt(f"closing file {number} of {count}", os.close, file)


main()
