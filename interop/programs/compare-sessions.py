#!/usr/bin/python3
"""Compares the output of a client's commands with two servers, command by command.

    compare-sessions.py OPENAFS CELLAR DIFFERENCES

OPENAFS and CELLAR are transcripts: a line per command, and below it its output, with four blanks before
each line. DIFFERENCES lists the permitted differences in their order, with the reasons:

    # The reason, one or more lines.
    WHO: COMMAND
    - a line of OpenAFS's answer
    + a line of Cellar's

'~' instead of such lines stands for the same lines in another order. Any other difference is a failure,
and so is a listed one that does not occur. Prints 'N commands, N differences'.
"""
import difflib
import sys


def transcript(path):
    commands = []
    for line in open(path, errors="replace", newline="\n"):
        line = line.rstrip("\r\n")
        if line.startswith("    "):
            commands[-1][1].append(line[4:])
        elif line:
            commands.append((line, []))
    return commands


def differences(theirs, ours):
    found = []
    for (command, old), (other, new) in zip(theirs, ours):
        assert command == other, f"{command!r} and {other!r} are not one session"
        if old == new:
            continue
        if sorted(old) == sorted(new):
            found.append((command, ["~"]))
            continue
        diff = [l for l in difflib.ndiff(old, new) if l[0] in "-+"]
        found.append((command, diff))
    return found


def allowed(path):
    found, reason = [], False
    for number, line in enumerate(open(path), 1):
        line = line.rstrip("\n")
        if line.startswith("#"):
            reason = True
        elif line[:1] in "-+~" and line:
            found[-1][1].append(line)
        elif line:
            if not reason:
                sys.exit(f"{path}:{number}: a difference without a reason")
            found.append((line, []))
        else:
            reason = False
    return found


def show(entries):
    for command, lines in entries:
        print(command)
        for line in lines:
            print(line)


theirs, ours = transcript(sys.argv[1]), transcript(sys.argv[2])
if len(theirs) != len(ours):
    sys.exit(f"{len(theirs)} and {len(ours)} commands were answered")
found, listed = differences(theirs, ours), allowed(sys.argv[3])
new = [entry for entry in found if entry not in listed]
gone = [entry for entry in listed if entry not in found]
if new:
    print("-- not listed:")
    show(new)
if gone:
    print("-- listed, but not found:")
    show(gone)
print(f"{len(theirs)} commands, {len(found)} differences")
sys.exit(1 if new or gone else 0)
