"""Checks the texts of the repository: links between documents resolve, and no file names a path or host of one machine.

Exit status: 0 clean, 1 problems, 2 bad usage.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TEXT_SUFFIXES = {
    ".c", ".cc", ".cfg", ".cmake", ".cpp", ".h", ".hpp", ".in", ".inc", ".json", ".md", ".py", ".sh", ".toml", ".txt",
    ".yaml", ".yml", "",
}
# Data that comes from elsewhere, and the tests of this very script.
EXEMPT = re.compile(r"^(LICENSE$|tests/data/|tests/scripts/|examples/.*\.(json|txt)$)")
KNOWN_HOSTS = {"keepachangelog.com", "semver.org", "www.apache.org", "json-schema.org", "huggingface.co"}

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^\s*(```|~~~)")
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(work|root|home|mnt|opt|Users)/[\w.-]+")
URL = re.compile(r"\bhttps?://([\w.-]+)")
ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
LOCAL_ADDRESSES = {"127.0.0.1", "0.0.0.0"}


def heading_anchors(text: str) -> set[str]:
    """Anchors of a Markdown file, made from its headings the way forges do."""
    anchors: set[str] = set()
    fenced = False
    for line in text.splitlines():
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced and line.startswith("#"):
            title = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            anchors.add(title.replace(" ", "-"))
    return anchors


def check_links(path: Path) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        if fenced:
            continue
        for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            if not target.exists():
                yield number, f"link {link}: no such file"
            elif anchor and target.suffix == ".md" and anchor not in heading_anchors(target.read_text(encoding="utf-8")):
                yield number, f"link {link}: no such heading"


def check_machine(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for match in MACHINE_PATH.finditer(line):
            yield number, f"{match[0]}: a path of one machine"
        for host in URL.findall(line):
            if host not in KNOWN_HOSTS:
                yield number, f"{host}: a host that is not in KNOWN_HOSTS of scripts/check_text.py"
        for address in ADDRESS.findall(line):
            if address not in LOCAL_ADDRESSES:
                yield number, f"{address}: an address of one machine"


def check_files(root: Path, names: list[str]) -> list[str]:
    """All problems of the named files of a tree, one text each."""
    problems: list[str] = []
    for name in names:
        path = root / name
        if path.suffix not in TEXT_SUFFIXES or path.is_symlink() or not path.is_file():
            continue
        found: list[tuple[int, str]] = []
        if path.suffix == ".md":
            found += check_links(path)
        if not EXEMPT.search(name):
            found += check_machine(path)
        problems += [f"{name}:{number}: {text}" for number, text in found]
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent, help="root of the checkout")
    root: Path = parser.parse_args().root
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        parser.error(f"root = {root}: expected a git checkout ({listing.stderr.strip()})")
    problems = check_files(root, sorted(filter(None, listing.stdout.split("\0"))))
    print("\n".join(problems) if problems else "text: clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
