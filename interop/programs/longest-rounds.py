#!/usr/bin/env python3
"""Prints the longest wait of each load of paced.py in each failure, as a table.

  longest-rounds.py DIRECTORY MARKS LIMIT

A line of MARKS has a time and the failure that begins then; 'between' ends it. The wait is the time
of a round without the median of all rounds. The status is 1 if a round fails, or if a wait of
Cellar's clients is above LIMIT seconds.

Stock clients have time-outs of their own for a silent machine. If a database server is killed, its
stand-in sends them to another one. A call that the killed server had in its hands is repeated after
2.6 s at most, because the client alone knows of it. So a few waits of stock clients may be longer.

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
# The longest time after which a stock client repeats a call, with a margin, and the waits above
# LIMIT that may come from calls at the moment of a kill. Without a stand-in there are more.
STOCK_REPEATS, IN_FLIGHT_MAX = 3.0, 3
loads, wrong, repeated, in_flight = {}, [], [], set()
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
        if longest <= limit or not (is_ours or failure.endswith(("killed", "restarted"))):
            continue
        if not is_ours and longest <= STOCK_REPEATS:
            in_flight.add((name, longest))
        else:
            wrong.append(f"{name} waits {longest:.2f} s: {failure}")
    print(" ".join(row))
print(f"{len(in_flight)} stock calls were at a killed server: {', '.join(name for name, _ in in_flight) or '-'}")
if len(in_flight) > IN_FLIGHT_MAX:
    wrong.append(f"{len(in_flight)} waits of stock clients are above {limit:.0f} s")
print(f"{len(repeated)} changes had been made when their clients repeated them: {', '.join(repeated) or '-'}")
for line in wrong[:20]:
    print(line)
sys.exit(1 if wrong else 0)
