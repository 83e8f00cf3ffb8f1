#!/usr/bin/env python3
"""Checks that the objects of each instruction-set level contain the instructions the level is named after, that the
generic level contains no wide ones, and that no tile function keeps vectors on the stack. The last is asked of g++ 12 only,
for whose registers the tiles were fitted: g++ 14 spills in the tallest ones, clang in the tightest of avx2.

Exit status: 0 clean, 1 violations, 2 no objects found.
"""

from __future__ import annotations

import re
import sys

from isa_objects import arguments, compiler_of, objects_by_level, run

# Level -> patterns that must occur somewhere in its objects.
REQUIRED: dict[str, list[str]] = {
    "generic": [],
    "avx2": [r"\bvfmadd\w+ .*%ymm", r"\bvpmaddwd .*%ymm", r"\{vex\} vpdpbusd .*%ymm"],
    "avx512": [r"\bvfmadd\w+ .*%zmm", r"\bvpmaddwd .*%zmm"],
    "avx512_vnni": [r"\bvpdpbusd .*%zmm"],
    "avx512_bf16": [r"\bvdpbf16ps .*%zmm"],
    "avx512_fp16": [r"\bvfmadd231ph .*%zmm"],
    "amx": [r"\btdpbf16ps ", r"\btdpbssd "],
}
# Level -> patterns that must not occur.
FORBIDDEN: dict[str, list[str]] = {
    "generic": [r"%[yz]mm", r"%k[0-7]", r"\bv[a-z]+\d* .*%xmm"],
    "avx2": [r"%zmm", r"%k[0-7]", r"%[xy]mm(1[6-9]|2\d|3[01])", r"\{%?evex\}"],
}
FITTED_COMPILER = "GNU 12"
# In a function with this in its name, no vector register goes to or comes from the stack. Eight bytes are no vector: g++ keeps
# pointers in vector registers.
TILE = re.compile(r"^[0-9a-f]+ <(?P<name>.*\btile_\w+.*)>:$")
SPILL = re.compile(r"^(?!.*\bvmovq ).*(?:%[xyz]mm\d+.*\(%r[sb]p|\(%r[sb]p.*%[xyz]mm\d+)")


def problems_of(level: str, disassembly: str, compiler: str = FITTED_COMPILER) -> list[str]:
    """What is wrong with the disassembly (demangled, AT&T syntax) of all objects of a level."""
    if level not in REQUIRED:
        return ["no row in REQUIRED: name the instruction the level stands for"]
    found = [f"{p!r} does not occur" for p in REQUIRED[level] if not re.search(p, disassembly)]
    for pattern in FORBIDDEN.get(level, []):
        if match := re.search(pattern, disassembly):
            line = disassembly[disassembly.rfind("\n", 0, match.start()) + 1 :].split("\n", 1)[0]
            found.append(f"{pattern!r} occurs: {' '.join(line.split())}")
    if level != "generic" and compiler == FITTED_COMPILER:
        found += spills(disassembly)
    return found


def spills(disassembly: str) -> list[str]:
    counts: dict[str, int] = {}
    tile = None
    for line in disassembly.splitlines():
        if line.endswith(">:"):
            match = TILE.match(line)
            tile = match["name"] if match else None
        elif tile and SPILL.search(line):
            counts[tile] = counts.get(tile, 0) + 1
    return [f"{count} vector accesses to the stack in {name}" for name, count in counts.items()]


def main() -> int:
    options = arguments(__doc__)
    levels = objects_by_level(options.build)
    if not levels or not all(levels.values()):
        print(f"disassembly: no objects of instruction-set levels in {options.build}", file=sys.stderr)
        return 2
    compiler = compiler_of(options.build)
    problems = []
    for level, paths in levels.items():
        text = "\n".join(run(options.objdump, "-d", "-C", "--no-show-raw-insn", path) for path in paths)
        problems += [f"{level}: {problem}" for problem in problems_of(level, text, compiler)]
    for problem in problems:
        print(problem)
    if not problems:
        print(f"disassembly: clean ({', '.join(levels)})")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
