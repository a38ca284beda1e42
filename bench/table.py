#!/usr/bin/python3
"""table.py RESULTS: prints the results of side-by-side, one JSON object per line, as a Markdown table."""
import json
import sys


def rate(row):
    if row["megabytes_per_second"] is not None:
        return row["megabytes_per_second"], "MB/s", row["server_cpu_us_per_megabyte"], 1e-3, "ms/MB"
    return row["per_second"], "/s", row["server_cpu_us_per_item"], 1, "µs"


def cell(row):
    if row is None:
        return "-"
    value, unit, cpu, scale, cpu_unit = rate(row)
    digits = 1 if unit == "MB/s" else 0
    text = f"{value:,.{digits}f} {unit}"
    if cpu is not None:
        text += f" ({cpu * scale:.{2 if cpu_unit == 'ms/MB' else 1}f} {cpu_unit})"
    if row["errors"]:
        text += f" **{row['errors']} errors**"
    return text


def ratio(a, b):
    if a is None or b is None:
        return "-"
    x, y = rate(a), rate(b)
    text = f"{y[0] / x[0]:.1f}x" if x[0] else "-"
    if x[2] and y[2]:
        text += f", {y[2] / x[2]:.2f} of its CPU"
    return text


def main():
    with open(sys.argv[1]) as f:
        rows = [json.loads(line) for line in f]
    shown = {}
    for r in rows:
        shown.setdefault((r["operation"], r["clients"], r["threads"]), {})[r["server"]] = r
    print("| operation | clients | OpenAFS | Cellar | Cellar beside it | p99 OpenAFS, Cellar |")
    print("|---|---|---|---|---|---|")
    order = list(dict.fromkeys(r["operation"] for r in rows))
    for (operation, clients, threads), by in sorted(shown.items(), key=lambda i: (order.index(i[0][0]), i[0][1])):
        theirs, ours = by.get("openafs"), by.get("cellar")
        p99 = ", ".join(f"{r['p99_us'] / 1000:.2f} ms" if r else "-" for r in (theirs, ours))
        print(f"| {operation} | {clients} x {threads} | {cell(theirs)} | {cell(ours)} | {ratio(theirs, ours)} | {p99} |")
    resident = [r["server_resident_bytes"] for r in rows if r["server"] == "cellar" and r["server_resident_bytes"]]
    if resident:
        print(f"\nCellar resident at the end: {resident[-1] / 1e6:.0f} MB")


main()
