#!/usr/bin/python3
"""listings.py reader|writer SHARE   two machines, one directory whose listing the reader's kernel caches.
listings.py change|watch SHARE      the writer changes one name after the other, while four programs list at the reader
listings.py released SHARE           a directory of a read-only volume, which is released when SHARE/want exists

After each change all names must be right at once. Between changes, the reader lists the directory until
its kernel caches the listing. Then a listing takes two requests of the mount's process.
"""
import os
import sys
import time

# More than the thousand entries that getdents(2) returns at a time.
FILES = 400 if sys.argv[1] == "released" else 2_500
# The number of names that appear and disappear during listings.
STEPS = 300
# Files that are rewritten.
REWRITTEN = range(30, 330)
# An open, its end, and incidental requests.
KEPT_MAX = 4
role, share = sys.argv[1:3]
directory = os.path.join(os.environ["AFS"], "steps" if role in ("change", "watch") else "listed")
other = os.environ["AFS"]


def die(message):
    sys.exit(f"{role}: {message}")


def said(name):
    open(f"{share}/{name}", "w").close()


def heard(name):
    end = time.monotonic() + 60
    while not os.path.exists(f"{share}/{name}"):
        if time.monotonic() > end:
            die(f"no {name}")
        time.sleep(0.01)


def requests():
    """The number of reads of the mount's process so far: one per request of the kernel."""
    with open(f"/proc/{os.environ['CLIENT_PID']}/io") as file:
        return int(dict(line.split(": ") for line in file)["syscr"])


def write(name, text="x"):
    with open(f"{directory}/{name}", "w") as f:
        f.write(text)


def check(expected, when):
    names = os.listdir(directory)
    if len(names) != len(set(names)) or set(names) != expected:
        die(f"{when}: too many {set(names) - expected}, missing {expected - set(names)}")


def keep(expected, when):
    """Lists the directory until the kernel caches the listing, also with sizes."""
    for _ in range(20):
        before = requests()
        check(expected, when)
        asked = requests() - before
        if asked <= KEPT_MAX:
            break
        time.sleep(0.05)
    else:
        die(f"{when}: {asked} requests for a listing that should be kept")
    for name in expected:
        os.lstat(f"{directory}/{name}")
    check(expected, when)
    return asked


def replace():
    write("new", "other")
    os.rename(f"{directory}/new", f"{directory}/file17")


def burst():
    for n in range(20):
        write(f"burst{n}")


# Each change, with the new names and the removed ones.
CHANGES = [
    ("make", lambda: write("made"), {"made"}, set()),
    ("remove", lambda: os.remove(f"{directory}/file16"), set(), {"file16"}),
    ("rename", lambda: os.rename(f"{directory}/file15", f"{directory}/moved"), {"moved"}, {"file15"}),
    ("replace", replace, set(), set()),
    ("rename away", lambda: os.rename(f"{directory}/file19", f"{other}/file19"), set(), {"file19"}),
    ("rename back", lambda: os.rename(f"{other}/file19", f"{directory}/back"), {"back"}, set()),
    ("mkdir", lambda: os.mkdir(f"{directory}/sub"), {"sub"}, set()),
    ("rmdir", lambda: os.rmdir(f"{directory}/sub"), set(), {"sub"}),
    ("symlink", lambda: os.symlink("made", f"{directory}/symlink"), {"symlink"}, set()),
    ("link", lambda: os.link(f"{directory}/file20", f"{directory}/link"), {"link"}, set()),
    ("burst", burst, {f"burst{n}" for n in range(20)}, set()),
]


def undo(name):
    path = f"{directory}/{name}"
    os.rmdir(path) if name == "sub" else os.remove(path)


def reader():
    heard("made")
    expected = {f"file{n}" for n in range(FILES)}
    for number, (what, _, come, go) in enumerate(CHANGES):
        keep(expected, f"before {what}")
        # A listing that was opened before the change, and is continued after it.
        with os.scandir(directory) as lines:
            early = [next(lines).name for _ in range(10)]
            said(f"kept-{number}")
            heard(f"changed-{number}")
            before = expected
            expected = expected - go | come
            check(expected, f"after {what}")
            early += [line.name for line in lines]
        if not before & expected <= set(early) <= before | expected:
            die(f"{what}: what was opened before it lacks a name, or has one too many")
        check(expected, f"after {what}, and the end of an earlier listing")
    keep(expected, "before own changes")
    # Changes by this machine itself.
    for what, change, come, go in [change for change in CHANGES if change[0] not in ("remove", "rename", "symlink", "link")]:
        if what == "rename away":
            change = lambda: os.rename(f"{directory}/file21", f"{other}/file19")
            go = {"file21"}
        keep(expected, f"before own {what}")
        come = come - expected
        change()
        expected = expected - go | come
        check(expected, f"after own {what}")
        for name in come:
            undo(name)
            expected = expected - {name}
            check(expected, f"after the end of own {what}")
            if what == "mkdir":
                os.mkdir(f"{directory}/sub")
                expected = expected | {"sub"}
    # Files change, and the directory does not: the listing brings many lengths at a time.
    keep(expected, "before files are written")
    said("kept-files")
    heard("changed-files")
    if os.stat(f"{directory}/file30").st_size != 7:
        die("an old length")
    before = requests()
    with os.scandir(directory) as lines:
        sizes = {line.name: line.stat(follow_symlinks=False).st_size for line in lines}
    with_sizes = requests() - before
    if set(sizes) != expected or any(sizes[f"file{n}"] != 7 for n in REWRITTEN):
        die("old lengths in a listing")
    if with_sizes > len(REWRITTEN) / 2:
        die(f"{with_sizes} requests for {len(REWRITTEN)} files that changed")
    asked = keep(expected, "at the end")
    print(f"-- {asked} requests for {len(expected)} names that are kept")


def writer():
    os.mkdir(directory)
    for n in range(FILES):
        write(f"file{n}")
    said("made")
    for number, (_, change, _, _) in enumerate(CHANGES):
        heard(f"kept-{number}")
        change()
        said(f"changed-{number}")
    heard("kept-files")
    for n in REWRITTEN:
        write(f"file{n}", "changed")
    said("changed-files")


def step():
    with open(f"{share}/step") as f:
        return int(f.read())


def change():
    """One or two names exist at a time: SHARE/step is the oldest permitted one."""
    heard("watching")
    for number in range(1, STEPS):
        write(f"step{number}")
        os.remove(f"{directory}/step{number - 1}")
        with open(f"{share}/step.new", "w") as f:
            f.write(str(number))
        os.rename(f"{share}/step.new", f"{share}/step")
        time.sleep(0.01 * (number % 4))


def watch():
    os.mkdir(directory)
    write("step0")
    for number in range(50):
        write(f"other{number}")
    with open(f"{share}/step", "w") as f:
        f.write("0")
    watchers = []
    while len(watchers) < 4 and 0 not in watchers:
        watchers.append(os.fork())
    if 0 in watchers:
        lists = 0
        while (before := step()) < STEPS - 1:
            there = sorted(int(name[4:]) for name in os.listdir(directory) if name.startswith("step"))
            lists += 1
            after = step()
            if not there or there[0] < before or there[-1] > after + 1:
                die(f"names {there} where {before} to {after + 1} may be")
        print(f"-- {lists} listings while names change: none is old", flush=True)
        os._exit(0)
    said("watching")
    if any([os.waitpid(watcher, 0)[1] for watcher in watchers]):
        die("an old listing")


def released():
    """Answers SHARE/want with SHARE/done: a release with one more file."""
    expected = {f"file{n}" for n in range(FILES)}
    for number in range(3):
        asked = keep(expected, f"release {number}")
        said("want")
        heard("done")
        os.remove(f"{share}/done")
        expected.add(f"release{number}")
        check(expected, f"after release {number}")
    print(f"-- {asked} requests for {len(expected)} names of a read-only volume that are kept")


globals()[role]()
