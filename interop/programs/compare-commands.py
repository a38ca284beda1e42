#!/usr/bin/python3
"""Compares the output of OpenAFS's commands and cellar's, command by command.

    compare-commands.py STOCK CELLAR WORDS DIFFERENCES

STOCK and CELLAR are transcripts. They have a line per command, below it its lines of standard output
('    out: ') and standard error ('    err: '), and '    status N'. Status and standard output must be
equal. Every line of stock's standard error must be part of cellar's; cellar's may have more. Blanks and
the name of the program do not count.

WORDS lists where cellar uses other words: lines 'STOCK => CELLAR', two regular expressions, below a
line '# reason'. The first one matches a line of stock's. The second must match in cellar's output; if
it is empty, the line may be missing there.

DIFFERENCES lists commands that may differ, each below a line '# reason'. A difference that is not
listed is a failure, and so is a listed one that does not occur. Prints 'N commands, N differences'.
"""
import re
import sys


def transcript(path):
    commands = []
    for line in open(path, errors="replace", newline="\n"):
        line = line.rstrip("\n")
        if line.startswith("    "):
            commands[-1][1].append(line[4:])
        elif line:
            commands.append((line, []))
    return commands


def part(lines, kind):
    return [line[len(kind) :] for line in lines if line.startswith(kind)]


def words(line):
    line = re.sub(r"^(cellar )?(vos|pts|bos) ?: *", "", line.strip())
    line = re.sub(r"/vicep([a-z]+)", r"\1", line)
    return " ".join(plain(line).split())


def plain(line):
    return re.sub(r"'cellar (vos|pts|bos) ", r"'\1 ", line.rstrip())


def said_of(line, said, other_words):
    """Whether cellar's output covers a line of stock's."""
    line = words(line)
    if line in said:
        return True
    for stock, cellar in other_words:
        if match := re.fullmatch(stock, line):
            groups = [re.escape(group or "") for group in match.groups()]
            pattern = re.sub(r"\\([1-9])", lambda number: groups[int(number[1]) - 1], cellar)
            return cellar == "" or re.search(pattern, said) is not None
    return False


def difference(stock, cellar, other_words):
    found = []
    for kind in ("status", "out: "):
        old, new = part(stock, kind), part(cellar, kind)
        if [plain(line) for line in old] != [plain(line) for line in new]:
            found += [f"- {kind}{line}" for line in old] + [f"+ {kind}{line}" for line in new]
    said = " ".join(words(line) for line in part(cellar, "err: "))
    missing = [line for line in part(stock, "err: ") if not said_of(line, said, other_words)]
    if missing:
        found += [f"- err: {line}" for line in missing] + [f"+ err: {line}" for line in part(cellar, "err: ")]
    return found


def listed(path):
    """The lines of a file, each with its reason."""
    commands, reason = [], False
    for number, line in enumerate(open(path), 1):
        line = line.strip()
        if line.startswith("#"):
            reason = True
        elif not line:
            reason = False
        elif not reason:
            sys.exit(f"{path}:{number}: a line without a reason")
        else:
            commands.append(line)
    return commands


theirs, ours = transcript(sys.argv[1]), transcript(sys.argv[2])
if [command for command, _ in theirs] != [command for command, _ in ours]:
    sys.exit("the transcripts are not of one session")
pairs = [line.partition("=>") for line in listed(sys.argv[3])]
other_words = [(stock.strip(), cellar.strip()) for stock, _, cellar in pairs]
allowed = listed(sys.argv[4])
found = [(command, difference(old, new, other_words)) for (command, old), (_, new) in zip(theirs, ours)]
found = [(command, lines) for command, lines in found if lines]
new = [(command, lines) for command, lines in found if command not in allowed]
gone = [command for command in allowed if command not in [c for c, _ in found]]
for command, lines in new:
    print(command)
    print("\n".join(lines))
for command in gone:
    print(f"listed, but not found: {command}")
print(f"{len(theirs)} commands, {len(found)} differences")
sys.exit(1 if new or gone else 0)
