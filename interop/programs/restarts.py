#!/usr/bin/env python3
"""Programs that continue during restarts of servers, and must notice nothing.

    restarts.py DIRECTORY UNTIL    writes, compiles if there is a compiler, and holds locks until the file UNTIL exists;
                                   prints failed operations and wrong contents
"""
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections import Counter

directory, until = sys.argv[1:3]


def work(number):
    top = f"{directory}/w{number}"
    os.mkdir(top)
    os.chdir(top)
    wrong, rounds, left = Counter(), 0, {}

    def step(name, call, *arguments):
        try:
            return call(*arguments)
        except OSError as cause:
            wrong[f"{name}: {cause.strerror}"] += 1
            return None

    def put(name, text, flags=os.O_CREAT | os.O_RDWR | os.O_TRUNC, sync=False):
        fd = step("open", os.open, name, flags, 0o644)
        if fd is None:
            return
        step("write", os.write, fd, text)
        if sync:
            step("fsync", os.fsync, fd)
        if step("close", os.close, fd) is None:
            left[name] = text

    while not os.path.exists(until):
        i = rounds = rounds + 1
        text = f"{number}-{i} ".encode() * (500 if i % 9 else 60000)
        put(f"f{i % 20}", text, sync=i % 2 == 0)
        put(f"new{i}", text[:i % 3000], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        step("rename", os.rename, f"new{i}", f"r{i % 10}")
        left[f"r{i % 10}"] = left.pop(f"new{i}", None)
        step("mkdir", os.mkdir, f"d{i}")
        step("rmdir", os.rmdir, f"d{i}")
        step("symlink", os.symlink, f"f{i % 20}", f"s{i}")
        step("link", os.link, f"f{i % 20}", f"l{i}")
        for name in (f"s{i}", f"l{i}"):
            step("unlink", os.unlink, name)
        # A file that is removed while it is open.
        fd = step("open", os.open, f"o{i}", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        if fd is not None:
            step("unlink an open file", os.unlink, f"o{i}")
            step("write to it", os.write, fd, b"x" * 3000)
            if step("read it", os.pread, fd, 10000, 0) != b"x" * 3000:
                wrong["what is read of a removed file"] += 1
            step("close it", os.close, fd)
    for name, text in left.items():
        with open(name, "rb") as file:
            if file.read() != text:
                wrong["contents"] += 1
    time.sleep(1)
    more = set(os.listdir(".")) - set(left)
    if more:
        wrong[f"more names: {sorted(more)[:5]}"] += 1
    print(f"worker {number}: {rounds} rounds, {dict(wrong)}", flush=True)
    os._exit(1 if wrong or rounds < 5 else 0)


def compile_and_run(number):
    """A program of four files, compiled, linked and run again and again; the compiler's own files are there too."""
    top = f"{directory}/w{number}"
    os.mkdir(top)
    os.chdir(top)
    os.mkdir("tmp")
    wrong, rounds = Counter(), 0
    env = dict(os.environ, TMPDIR=f"{top}/tmp")

    def run(*command):
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True)
        except OSError as cause:
            wrong[f"{command[0]}: {cause.strerror}"] += 1
            return None
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or [""])[-1]
            wrong[f"{command[0]}: status {done.returncode}, {said}"] += 1
        return done.stdout

    while not os.path.exists(until):
        rounds += 1
        try:
            with open("part.h", "w") as header:
                header.write(f"#define ROUND {rounds}\nint part0(void), part1(void), part2(void);\n")
            for part in range(3):
                with open(f"part{part}.c", "w") as source:
                    source.write(f'#include "part.h"\nint part{part}(void) {{ return ROUND * {part + 1}; }}\n')
            with open("main.c", "w") as source:
                source.write('#include "part.h"\nint printf(const char *, ...);\n'
                             'int main(void) { printf("%d\\n", part0() + part1() + part2()); return 0; }\n')
        except OSError as cause:
            wrong[f"a source: {cause.strerror}"] += 1
            continue
        names = ["part0", "part1", "part2", "main"]
        for name in names:
            run("cc", "-c", f"{name}.c", "-o", f"{name}.o")
        run("cc", "-o", "program", *(f"{name}.o" for name in names))
        if run("./program") != f"{6 * rounds}\n":
            wrong["what it prints"] += 1
    if os.listdir("tmp"):
        wrong[f"left behind: {os.listdir('tmp')[:5]}"] += 1
    print(f"compiler {number}: {rounds} rounds, {dict(wrong)}", flush=True)
    os._exit(1 if wrong or rounds < 5 else 0)


locks = []
for name, how in (("flock", fcntl.flock), ("fcntl", fcntl.lockf)):
    file = open(f"{directory}/{name}", "w")
    how(file, fcntl.LOCK_EX)
    locks.append(file)
pids = []
for number in range(4 if shutil.which("cc") else 3):
    pid = os.fork()
    if pid == 0:
        work(number) if number < 3 else compile_and_run(number)
    pids.append(pid)
bad = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
# The locks are still held, independent of the restarts.
print("locks", flush=True)
while os.path.exists(until):
    time.sleep(0.1)
for file in locks:
    file.write("under the lock")
    file.close()
sys.exit(bad != 0)
