#!/usr/bin/env python3
"""Prints the longest wait of each load of paced.py in each failure, as a table.

  longest-rounds.py DIRECTORY MARKS LIMIT

A line of MARKS has a time and the failure that begins then; 'between' ends it. The wait is the time
of a round without the median of all rounds. The status is 1 if a round fails, or if a wait is above
LIMIT seconds. Stock clients have time-outs of their own for a silent machine, so the limit holds for
them only if a server is killed or restarted.

A change may be made and its answer lost. The client then repeats it at another server, which says
'already exists'. Such rounds are counted.
"""

import pathlib
import statistics
import sys

directory, limit = pathlib.Path(sys.argv[1]), float(sys.argv[3])
marks = []
for line in pathlib.Path(sys.argv[2]).read_text(encoding="utf-8").splitlines():
    at, name = line.split(" ", 1)
    marks.append((float(at), name))
failures = [
    (name, at, marks[place + 1][0] if place + 1 < len(marks) else float("inf"))
    for place, (at, name) in enumerate(marks)
    if name != "between"
]
loads, wrong, repeated = {}, [], []
for path in sorted(directory.iterdir()):
    rounds = []
    for line in path.read_text(encoding="utf-8").splitlines():
        began, seconds, status, number, *said = line.split(" ", 4)
        rounds.append((float(began), float(seconds)))
        # Volumes that do not exist: the answer of a database server.
        if status in ("0", "ENODEV", "ENOENT", "ENOMEDIUM"):
            continue
        begin, end = float(began), float(began) + float(seconds)
        in_failure = any(start < end and begin < stop for _, start, stop in failures)
        if in_failure and path.name.endswith("-write") and "already exists" in " ".join(said):
            repeated.append(f"{path.name} {number}")
        else:
            wrong.append(f"{path.name}, round {number}: status {status}: {' '.join(said)}")
    loads[path.name] = rounds
names = list(loads)
usual = {name: statistics.median(seconds for _, seconds in loads[name]) for name in names}
print(" ".join(["failure".ljust(24)] + [name.rjust(11) for name in names]))
print(" ".join(["(median round)".ljust(24)] + [f"{usual[name]:11.2f}" for name in names]))
for failure, begin, end in failures:
    row = [failure.ljust(24)]
    for name in names:
        inside = [seconds for began, seconds in loads[name] if began < end and began + seconds > begin]
        longest = max(inside, default=0) - usual[name]
        row.append(f"{max(longest, 0):11.2f}")
        is_ours = name in ("mount", "ours-read", "ours-write")
        if longest > limit and (is_ours or failure.endswith(("killed", "restarted"))):
            wrong.append(f"{name} waits {longest:.2f} s: {failure}")
    print(" ".join(row))
print(f"{len(repeated)} changes had been made when their clients repeated them: {', '.join(repeated) or '-'}")
for line in wrong[:20]:
    print(line)
sys.exit(1 if wrong else 0)
