#!/usr/bin/env python3
r"""Writes a table of results of `megamoe bench --json` as Markdown, with the cells that miss their targets.

    megamoe bench --shape 2048x768x128x8 --tokens 1,2,4,8,16,32,64,256,1024 --routing uniform,zipf,one \
        --scenario A8W8-INT --repeat 15 --json > A_A8W8-INT.json
    bench/table.py *.json > table.md

Shapes come in the order of the files, scenarios in that of the targets below.
"""

import argparse
import json
import statistics
from pathlib import Path

# Efficiencies to reach: where memory is the limit at 1 and at 4 rows per expert, where arithmetic is from 48 rows on.
TARGETS = {
    "A16W16": (85, 80, 76),
    "A8W8-INT": (85, 80, 78),
    "A8W4-INT": (75, 70, 72),
    "A8W8-FP": (70, 55, 72),
    "A8W4-FP": (75, 70, 80),
    "A4W4-FP": (75, 70, 55),
}
KINDS = ("1 row", "4 rows", "48 rows and more")


def bound_by_memory(row):
    """Whether the ceilings of the run allow the weights to be read later than the operations to be done."""
    ceilings = row["ceilings"]
    arithmetic = 3 / (2 / ceilings["linear1_gflops"] + 1 / ceilings["linear2_gflops"])
    return row["weight_gbps"] / ceilings["read_gbps"] > row["gflops"] / arithmetic


def target(row, topk):
    """Kind of the cell and its target in percent, or None."""
    rows = row["tokens"] * topk / row["experts"]
    if row["scenario"] not in TARGETS:
        return None
    if bound_by_memory(row):
        kind = 0 if rows < 1.5 else 1 if rows < 4.5 else None
    else:
        kind = 2 if rows >= 48 else None
    return None if kind is None else (KINDS[kind], TARGETS[row["scenario"]][kind])


def missed(row, topk):
    goal = target(row, topk)
    return goal is not None and row["efficiency"] is not None and 100 * row["efficiency"] < goal[1]


def cell(row, topk):
    share = "-" if row["efficiency"] is None else f"{100 * row['efficiency']:.0f}%"
    unsure = "?" if 2 * row["pairs"] < row["calls"] else ""
    return f"{row['ms']:.3g} ms {share}{unsure}{' *' if missed(row, topk) else ''}"


def median(values):
    known = [v for v in values if v is not None]
    return f"{statistics.median(known):.0f} ({min(known):.0f}-{max(known):.0f})" if known else "-"


def table(head, lines):
    for line in (head, ["---"] * len(head), *lines):
        print("| " + " | ".join(line) + " |")
    print()


def print_shape(shape, rows):
    topk = int(shape.split("x")[3])
    tokens = sorted({row["tokens"] for row in rows})
    print(f"## {shape}\n")
    lines = []
    for scenario, routing in dict.fromkeys((row["scenario"], row["routing"]) for row in rows):
        cells = {r["tokens"]: cell(r, topk) for r in rows if (r["scenario"], r["routing"]) == (scenario, routing)}
        lines.append([scenario, routing, *(cells.get(t, "") for t in tokens)])
    table(["scenario", "routing", *map(str, tokens)], lines)


def print_ceilings(shapes):
    print("## Ceilings\n")
    lines = []
    for shape, rows in shapes.items():
        for scenario in dict.fromkeys(row["scenario"] for row in rows):
            own = [row for row in rows if row["scenario"] == scenario]
            run = own[0]["ceilings"]
            lines.append([shape, scenario, f"{run['read_gbps']:.0f}", median([r["passes"]["read_gbps"] for r in own]),
                          f"{run['linear1_gflops']:.0f} / {run['linear2_gflops']:.0f}",
                          median([r["passes"]["gflops"] for r in own])])
    table(["shape", "scenario", "read GB/s at the start", "beside the calls", "Linear1 / Linear2 GOP/s at the start",
           "both, beside the calls"], lines)


def print_misses(shapes):
    print("## Below target\n")
    lines, counts = [], {kind: [0, 0] for kind in KINDS}
    for kind in KINDS:
        for scenario in TARGETS:
            missing = []
            for shape, rows in shapes.items():
                topk = int(shape.split("x")[3])
                for row in rows:
                    goal = target(row, topk)
                    if row["scenario"] != scenario or goal is None or goal[0] != kind:
                        continue
                    counts[kind][1] += 1
                    if missed(row, topk):
                        counts[kind][0] += 1
                        missing.append(f"{shape} {row['routing']} {row['tokens']}: {100 * row['efficiency']:.1f}%")
            if missing:
                lines.append([kind, scenario, f"{TARGETS[scenario][KINDS.index(kind)]}%", "; ".join(missing)])
    table(["cells", "scenario", "target", "shape, routing, tokens: what was reached"], lines)
    parts = ", ".join(f"{kind}: {low} of {all}" for kind, (low, all) in counts.items())
    print(f"{sum(low for low, _ in counts.values())} of {sum(all for _, all in counts.values())} cells with a target "
          f"are below it ({parts}).")


def main(paths):
    shapes = {}
    for path in paths:
        result = json.loads(Path(path).read_text())
        shapes.setdefault(result["shape"], []).extend(result["rows"])
    order = list(TARGETS)
    for rows in shapes.values():
        rows.sort(key=lambda row: order.index(row["scenario"]) if row["scenario"] in order else len(order))
    print_ceilings(shapes)
    for shape, rows in shapes.items():
        print_shape(shape, rows)
    print_misses(shapes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="results of megamoe bench --json")
    main(parser.parse_args().files)
