#!/usr/bin/env python3
"""Checks that no object of an instruction-set level defines a symbol that the linker could use elsewhere.

A weak function compiled with wide instructions may replace the plain copy of the whole program. So each global or weak
symbol must carry the namespace of its level, and no object may run code before main. Exit status: 0 clean, 1 violations,
2 no objects found.
"""

from __future__ import annotations

import sys

from isa_objects import arguments, objects_by_level, run


def foreign_symbols(level: str, nm_output: str) -> list[str]:
    """Symbols of `nm --defined-only` that do not belong to the level."""
    namespace = f"isa_{level}"
    mark = f"{len(namespace)}{namespace}"  # as it stands in a mangled name
    found = []
    for line in nm_output.splitlines():
        kind, name = line.split(maxsplit=2)[-2:]
        if name.startswith("_GLOBAL__sub_I"):
            found.append(f"{name} runs before main")
        elif (kind.isupper() or kind in "uvw") and mark not in name:
            found.append(f"{name} ({kind}) is visible outside namespace {namespace}")
    return found


def main() -> int:
    options = arguments(__doc__)
    levels = objects_by_level(options.build)
    if not levels or not all(levels.values()):
        print(f"symbols: no objects of instruction-set levels in {options.build}", file=sys.stderr)
        return 2
    problems = [
        f"{path.parent.name}/{path.name}: {problem}"
        for level, paths in levels.items()
        for path in paths
        for problem in foreign_symbols(level, run(options.nm, "--defined-only", path))
    ]
    for problem in problems:
        print(problem)
    if not problems:
        print(f"symbols: clean ({', '.join(levels)})")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
