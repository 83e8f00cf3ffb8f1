"""Checks that every file includes only what its layer allows. Exit status: 0 clean, 1 violations, 2 bad usage."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Low to high. Folders of one layer may include one another, but not in a circle.
LAYERS: list[set[str]] = [
    {"base"},
    {"format"},
    {"quant", "activation", "kernel"},
    {"pack", "route"},
    {"comm"},
    {"moe"},
    {"c_api", "cli", "python"},
]
# Folders beside the order: what they may include, and who may include them.
BESIDE: dict[str, set[str]] = {"reference": {"base", "format"}, "checkpoint": {"base", "format"}}
TOP = LAYERS[-1]

ALLOWED: dict[str, set[str]] = {
    **{folder: set().union(*LAYERS[: level + 1]) for level, layer in enumerate(LAYERS) for folder in layer},
    **{folder: {folder} | below for folder, below in BESIDE.items()},
}
for top in TOP:
    ALLOWED[top] |= set(BESIDE)

SUFFIXES = {".cc", ".cpp", ".c", ".h", ".hpp", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
INTRINSIC_HEADER = re.compile(r"(\w*intrin|arm_neon|arm_sve|arm_acle)\.h$")
INTRINSIC_USE = re.compile(r"\b(_mm(256|512)?_\w+|__m(128|256|512)\w*|__builtin_ia32_(?!cpu|ldmxcsr|stmxcsr|pause|xgetbv)\w+)\b")
BINDING_HEADER = re.compile(r"^(nanobind/|pybind11/|torch/|ATen/|c10/|numpy/|Python\.h$)")


def includes(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, opening character and name of each include."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1], match[2]


def included_folder(root: Path, path: Path, name: str) -> str | None:
    """Folder of src/ that a quoted include leads to; None for public headers and for what is not in this tree."""
    for base in (path.parent, root / "src", root):
        target = (base / name).resolve()
        if target.is_file() and target.is_relative_to(root / "src"):
            return target.relative_to(root / "src").parts[0]
    return name.split("/")[0] if name.split("/")[0] in ALLOWED else None


def folder_of(root: Path, path: Path) -> str:
    parts = path.relative_to(root).parts
    return parts[1] if parts[0] == "src" else parts[0]


def check_source(root: Path, path: Path, edges: dict[str, set[str]]) -> Iterator[tuple[int, str]]:
    """Problems of one file under src/ or python/. Adds folder -> folder includes to `edges`."""
    folder = folder_of(root, path)
    where = path.relative_to(root).as_posix()
    if folder not in ALLOWED:
        yield 1, f"folder {folder} has no layer"
        return
    in_isa = where.startswith("src/kernel/isa/")
    for number, bracket, name in includes(path):
        if INTRINSIC_HEADER.search(name) and not in_isa:
            yield number, f"includes {name}: intrinsics belong in src/kernel/isa/"
        if name == "mpi.h" and not where.startswith("src/comm/mpi"):
            yield number, "includes mpi.h: only src/comm/mpi* may"
        if BINDING_HEADER.match(name) and folder != "python":
            yield number, f"includes {name}: binding headers belong in python/"
        target = included_folder(root, path, name) if bracket == '"' else None
        if target is None:
            continue
        if target not in ALLOWED[folder]:
            yield number, f"{folder} includes {name}: {target} is not below {folder}"
        elif target != folder:
            edges.setdefault(folder, set()).add(target)
    if not in_isa:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := INTRINSIC_USE.search(line.split("//")[0]):
                yield number, f"uses {match[0]}: intrinsics belong in src/kernel/isa/"


def check_public(path: Path) -> Iterator[tuple[int, str]]:
    """Public headers include the C++ standard library and one another, nothing else."""
    for number, bracket, name in includes(path):
        if bracket == '"' and not name.startswith("megamoe/"):
            yield number, f"includes {name}: public headers include only megamoe/ and the standard library"
        if bracket == "<" and not re.fullmatch(r"[a-z_0-9]+|std[a-z]+\.h", name):
            yield number, f"includes <{name}>: public headers include only megamoe/ and the standard library"


def circle(edges: dict[str, set[str]]) -> list[str]:
    """Folders that include one another in a circle, or an empty list."""
    def walk(trail: list[str]) -> list[str]:
        for target in sorted(edges.get(trail[-1], ())):
            if target in trail:
                return [*trail[trail.index(target):], target]
            if found := walk([*trail, target]):
                return found
        return []

    return next((found for start in sorted(edges) if (found := walk([start]))), [])


def check_tree(root: Path) -> list[str]:
    """All problems of a tree, one text each."""
    root = root.resolve()
    problems: list[str] = []
    edges: dict[str, set[str]] = {}
    for top in ("src", "python", "include"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            found = check_public(path) if top == "include" else check_source(root, path, edges)
            problems += [f"{path.relative_to(root)}:{number}: {text}" for number, text in found]
    if ring := circle(edges):
        problems.append("folders include one another in a circle: " + " -> ".join(ring))
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent, help="root of the tree")
    root: Path = parser.parse_args().root
    if not (root / "src").is_dir():
        parser.error(f"root = {root}: expected a folder with src/")
    problems = check_tree(root)
    print("\n".join(problems) if problems else "layers: clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
