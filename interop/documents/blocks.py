"""Command lines and files in the pages of the documents.

A fenced block is one of these, by the first word of its fence:

    console                    command lines with their output: they run
    console untested: REASON   command lines that cannot run in a test
    toml, ini, yaml, sh, json  a file, written to the path in its first line '# /PATH'; without such a line, a part of a file
    text                       neither of both: syntax, lines of a log

A prompt is '# ' (root) or '$ ' (the user alice), both on the first machine; or '[USER@MACHINE]# ', '[MACHINE]$ '. A line that
ends in a backslash continues in the next one; lines that begin with '> ' belong to the command above. '^C' ends the newest daemon
of its machine. All other lines are output. In it, '...' stands for any text, and a line '...' for any lines. A command that
ends in '# fails' must fail.

A comment '<!-- test' up to '-->' has lines for the test alone: command lines as in a console, and those of DIRECTIVES.
"""
import re
from dataclasses import dataclass, field

PROMPT = re.compile(r"^(?:\[(?:(?P<user>[a-z]+)@)?(?P<machine>[a-z0-9]+)\])?(?P<sign>[#$]) (?P<text>(?:[a-z0-9./~\[({$]|[A-Z][A-Z0-9_]*=).*)$")
FENCE = re.compile(r"^( *)```+ *(.*?) *$")
FILES = ("toml", "ini", "yaml", "sh", "json")
# machine NAME ADDRESS...: adds a machine. setup NAME [MACHINE]: runs a file of setup/. type TEXT: the input of the
# next command. until COMMAND: repeats a command until it succeeds. lose NAME...: machines end, and their disks are empty.
# needs PROGRAM...: the page is skipped if one is missing.
DIRECTIVES = ("needs", "machine", "setup", "type", "until", "lose")
# Programs that stay in the foreground. They say by NOTIFY_SOCKET when they serve.
DAEMON = re.compile(r"^(?:\w+=\S+ +)*cellar (?:up|serve|mount|osd serve|console(?! login)|login\b.* --keep(?! +--))\b(?!.*--help)")
# A block of commands that has another fence would not run.
COMMAND = re.compile(r"^(?:[#$] )?(?:sudo +|\w+=\S+ +)*(?:cellar|unshare|vos|pts|bos|fs|kadmin|systemctl|make) +[a-z]")


@dataclass
class Command:
    line: int
    machine: str | None
    user: str
    text: str
    expected: list = field(default_factory=list)
    # The line of a directive, or '^C'.
    directive: str | None = None

    @property
    def fails(self):
        return bool(re.search(r"# fails\b[^\n]*$", self.text))

    @property
    def is_daemon(self):
        return bool(DAEMON.match(self.text))


@dataclass
class Block:
    line: int
    kind: str
    info: str
    lines: list


def blocks(text):
    """The fenced blocks and the comments for tests; a block of an unknown form raises ValueError."""
    found, current, fence, after_blank = [], None, None, True
    for number, line in enumerate(text.splitlines(), 1):
        if current is not None:
            if line.strip() == fence:
                found.append(current)
                current = None
            else:
                indent = current.info_indent
                current.lines.append(line[indent:] if not line[:indent].strip() else line)
            continue
        match = FENCE.match(line)
        if match or line == "<!-- test":
            words = match.group(2).split(maxsplit=1) if match else ["test"]
            if not words or words[0] not in ("console", "text", "test", *FILES):
                raise ValueError(f"line {number}: a fence of an unknown kind: {line.strip()}")
            current = Block(number, words[0], words[1] if len(words) > 1 else "", [])
            current.info_indent = len(match.group(1)) if match else 0
            fence = "```" if match else "-->"
        elif line.startswith("    ") and after_blank:
            raise ValueError(f"line {number}: an indented block; use a fence")
        after_blank = not line.strip()
    if current is not None:
        raise ValueError(f"line {current.line}: the block does not end")
    for block in found:
        if block.kind == "text":
            for offset, line in enumerate(block.lines, 1):
                if COMMAND.match(line):
                    raise ValueError(f"line {block.line + offset}: a command outside of a console: {line}")
    return found


def commands(block):
    """The commands of a console or of a comment for tests."""
    found = []
    lines = iter(enumerate(block.lines, block.line + 1))
    for number, line in lines:
        match = PROMPT.match(line)
        if match:
            user = match["user"] or ("root" if match["sign"] == "#" else "alice")
            found.append(Command(number, match["machine"], user, match["text"]))
            while line.endswith("\\"):
                _, line = next(lines)
                found[-1].text += "\n" + line
        elif block.kind == "test" and line.split(" ")[0] in DIRECTIVES:
            found.append(Command(number, None, "root", "", directive=line))
        elif line == "^C":
            last = found[-1]
            found.append(Command(number, last.machine, last.user, "", directive=line))
        elif not found:
            raise ValueError(f"line {number}: output without a command: {line}")
        elif line.startswith("> "):
            found[-1].text += "\n" + line[2:]
        else:
            found[-1].expected.append(line)
    return found


def matches(expected, output, more=False):
    """Whether the output is as expected; with `more`, it may have further lines."""
    pattern = ""
    for line in expected:
        words = " ".join(line.split())
        pattern += r"(?:.*\n)*?" if words == "..." else re.escape(words).replace(re.escape("..."), ".*") + r"\n"
    text = "".join(" ".join(line.split()) + "\n" for line in output.splitlines() if line.strip())
    pattern = "".join(p for p in re.split(r"(?<=\\n)", pattern) if p != r"\n")
    return re.fullmatch(pattern + (r"(?:.*\n)*" if more else ""), text) is not None
