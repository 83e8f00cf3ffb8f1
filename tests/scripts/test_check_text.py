"""Broken links, machine paths and unknown hosts are reported; ordinary text is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from check_text import check_files  # noqa: E402


def problems(root: Path, name: str, text: str) -> list[str]:
    (root / "docs").mkdir(exist_ok=True)
    (root / "docs" / "other.md").write_text("# First part: a title\n")
    (root / name).write_text(text)
    return check_files(root, [name])


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.md", "See [this](docs/none.md).\n", "docs/none.md: no such file"),
        ("a.md", "See [this](docs/other.md#second).\n", "docs/other.md#second: no such heading"),
        ("a.cc", "// in /home/someone/tree\n", "a path of one machine"),
        ("a.toml", 'index = "https://registry.example/simple"\n', "a host that is not in KNOWN_HOSTS"),
        ("a.py", 'peer = "10.1.2.3"\n', "an address of one machine"),
    ],
)
def test_problem_is_reported(tmp_path: Path, name: str, text: str, problem: str) -> None:
    found = problems(tmp_path, name, text)
    assert len(found) == 1
    assert found[0].startswith(f"{name}:1: ")
    assert problem in found[0]


def test_ordinary_text_is_clean(tmp_path: Path) -> None:
    text = (
        "[a](docs/other.md#first-part-a-title) [b](#top) [c](https://semver.org) `[d](none.md)`\n"
        "# Top\n"
        "```\n[e](none.md)\n```\n"
        "src/work/a.cc, 127.0.0.1, version 0.1.0\n"
    )
    assert problems(tmp_path, "a.md", text) == []
