"""The set-up finds a compiler that is new enough, and says what is missing where it cannot install it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def fake_path(folder: Path, tools: dict[str, str]) -> dict[str, str]:
    """An environment whose PATH has only the basic tools and the given ones, each a shell script."""
    for name in ("cat", "cksum", "dirname", "id", "sed", "sh", "tr"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(os.path.realpath(found))
    for name, text in tools.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def run(script: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(SCRIPTS / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        ({"g++": "12.2.0"}, "g++"),
        ({"g++": "14.2.0", "g++-12": "12.2.0"}, "g++"),
        ({"g++": "11.4.0", "g++-12": "12.3.0"}, "g++-12"),  # Ubuntu 22.04
        ({"g++": "11.4.0"}, None),
        ({}, None),
    ],
)
def test_compiler_is_new_enough(tmp_path: Path, versions: dict[str, str], chosen: str | None) -> None:
    tools = {name: f"echo {version}" for name, version in versions.items()}
    result = run("find_cxx.sh", fake_path(tmp_path, tools))
    assert (result.stdout.strip() or None) == chosen
    assert (result.returncode == 0) == (chosen is not None)


def test_named_compiler_wins(tmp_path: Path) -> None:
    result = run("find_cxx.sh", {**fake_path(tmp_path, {"g++": "echo 12.2.0"}), "CXX": "my-cxx"})
    assert result.stdout == "my-cxx\n"


def test_missing_packages_are_named_without_apt(tmp_path: Path) -> None:
    result = run("setup.sh", fake_path(tmp_path, {"cmake": ":", "pkg-config": ":"}))
    assert result.returncode == 1
    assert "missing: ninja-build g++ libgtest-dev" in result.stderr
    assert "There is no apt-get here" in result.stderr


def test_unknown_argument_is_refused(tmp_path: Path) -> None:
    result = run("setup.sh", fake_path(tmp_path, {}), "--all")
    assert result.returncode == 1
    assert "--all: expected --python or --tidy" in result.stderr
