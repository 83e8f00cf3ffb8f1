"""Finds the object files of each instruction-set level in a build directory."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

OBJECTS = Path("CMakeFiles/megamoe.dir/src/kernel/isa")


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("build", type=Path, help="build directory (Release)")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--objdump", default="objdump")
    return parser.parse_args()


def objects_by_level(build: Path) -> dict[str, list[Path]]:
    """Level name -> its object files. An empty result means that this is not a build directory."""
    root = build / OBJECTS
    levels = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return {level.name: sorted(level.glob("*.o")) for level in levels}


def compiler_of(build: Path) -> str:
    """CMake's id and the major version of the compiler of a build directory, as "GNU 12"; "" if it does not say."""
    for path in build.glob("CMakeFiles/*/CMakeCXXCompiler.cmake"):
        stated = dict(re.findall(r'^set\(CMAKE_CXX_COMPILER_(ID|VERSION) "([^".]*)', path.read_text(), re.MULTILINE))
        return f"{stated.get('ID', '')} {stated.get('VERSION', '')}"
    return ""


def run(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
