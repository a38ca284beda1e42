#!/usr/bin/python3
"""mapped.py SIDE FILE SHARE SECONDS: two machines that have mapped the same file write into it by turns.

SIDE is 0 or 1. In each round, one machine writes a text into its mapping at a new place, and stores it:
by msync, by msync and close, or by close alone. The other machine has had the file mapped and has read
the place before. It must see the text in its mapping within SECONDS. SHARE is a directory that both see,
for their progress. SHARE/mapped-SIDE gets the longest wait of a side.
"""
import mmap
import os
import sys
import time

PAGE = 4096
LENGTH = 4 << 20
WAYS = "msync", "msync and close", "close"
ROUNDS = 9


def failed(what):
    print(f"FAIL: {what}", flush=True)
    sys.exit(1)


def wait_for(name, seconds=60):
    end = time.monotonic() + seconds
    while not os.path.exists(name):
        if time.monotonic() > end:
            failed(f"{name}: the other side never got so far")
        time.sleep(0.005)


def say(name):
    with open(f"{name}.new", "w") as f:
        f.write(str(time.monotonic()))
    os.rename(f"{name}.new", name)


def mapped(path):
    file = os.open(path, os.O_RDWR)
    pages = mmap.mmap(file, LENGTH)
    return file, pages


def main():
    side, path, share, seconds = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
    file, pages = mapped(path)
    longest = 0.0
    for number in range(ROUNDS):
        text = f"round {number} of side {number % 2} ".encode() * 20
        # At the border of two pages, and in one round of three at the border of two chunks.
        at = (1 << 20) * (1 + number // 3) - 100 if number % 3 == 0 else PAGE * (7 * number + 1) - 100
        end = at + len(text)
        wait = f"{share}/round-{number}"
        if number % 2 == side:
            wait_for(f"{wait}-read")
            pages[at:end] = text
            way = WAYS[number // 2 % 3]
            if "msync" in way:
                pages.flush()
            if "close" in way:
                pages.close()
                os.close(file)
                say(f"{wait}-written")
                file, pages = mapped(path)
            else:
                say(f"{wait}-written")
            wait_for(f"{wait}-seen")
        else:
            before = pages[at:end]
            if before == text:
                failed(f"round {number}: it is there before it is written")
            say(f"{wait}-read")
            wait_for(f"{wait}-written")
            written = float(open(f"{wait}-written").read())
            while (seen := pages[at:end]) != text:
                if time.monotonic() - written > seconds:
                    failed(f"round {number}: after {seconds} s the mapping says {seen[:30]} instead of {text[:30]}")
                time.sleep(0.01)
            longest = max(longest, time.monotonic() - written)
            say(f"{wait}-seen")
    say(f"{share}/side-{side}")
    wait_for(f"{share}/side-{1 - side}")
    with open(f"{share}/mapped-{side}", "w") as f:
        print(round(longest * 1000), file=f)


main()
