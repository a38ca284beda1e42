#!/usr/bin/env python3
"""metric-names.py EXPORTED FILE...: EXPORTED is the text of a /metrics page. Prints each name of a metric in the
alert rules and dashboards FILE... that the page does not have, and fails if there is one."""
import re, sys

exported = set()
for line in open(sys.argv[1]):
    if not line.startswith("#"):
        exported.add(re.split(r"[{ ]", line, maxsplit=1)[0])
missing = {}
for file in sys.argv[2:]:
    names = set(re.findall(r"\b(?:cellar|process)_[a-z_]+\b", open(file).read()))
    if not names:
        sys.exit(f"{file} names no metric")
    for name in names - exported:
        missing.setdefault(name, []).append(file)
for name, files in sorted(missing.items()):
    print(f"{name}: in {', '.join(files)}, not exported")
sys.exit(bool(missing))
