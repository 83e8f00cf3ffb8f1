"""The King James Bible as bytes; run as a program, writes the held-out windows that accuracy.py reads.

held_out.safetensors holds `windows`, uint8 [32, 257]: 16 at equal distances in each half of the held-out text, from
the byte where capture.py starts its context there.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

HERE = Path(__file__).resolve().parent
CONTEXT = 256
WINDOWS = 32
# Whole books, so that no held-out chapter borders on training text.
HELD_OUT_BOOKS = {"Ruth", "Est", "Eccl", "Jonah", "Jas"}


def bible_dump() -> str:
    """Return the text as `bible` prints it: one verse a line, "Ge1:1 In the beginning ..."."""
    dump = ["-f", "Gen1:1-Rev22:21"]
    if program := shutil.which("bible"):
        return subprocess.run([program, *dump], check=True, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE).stdout
    # Not installed: unpack the two packages in a scratch folder, which needs no root.
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "bible-kjv", "bible-kjv-text"], check=True, cwd=folder)
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        return subprocess.run([f"{folder}/usr/bin/bible", "-p", f"{folder}/usr/lib", *dump], check=True,
                              text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout


def load_text() -> tuple[Tensor, Tensor]:
    """Return (training, held-out) bytes, each uint8 [N]: verses without references, one a line."""
    dump = bible_dump()
    print(f"text: {len(dump)} bytes, sha256 {hashlib.sha256(dump.encode()).hexdigest()}")
    train, held_out = [], []
    for line in dump.splitlines():
        match = re.fullmatch(r"(\d?[A-Za-z]+)\d+:\d+ (.+)", line)
        if match is None:
            raise ValueError(f"not a verse: {line!r}")
        book, verse = match.groups()
        (held_out if book in HELD_OUT_BOOKS else train).append(verse + "\n")
    as_bytes = [torch.frombuffer(bytearray("".join(part).encode()), dtype=torch.uint8)
                for part in (train, held_out)]
    return as_bytes[0], as_bytes[1]


def held_out_windows(held_out: Tensor) -> Tensor:
    """Return uint8 [32, 257] of the held-out text, uint8 [N]."""
    half = len(held_out) // 2
    starts = torch.cat([first + torch.arange(WINDOWS // 2) * half // (WINDOWS // 2) for first in (0, half)])
    return held_out[starts[:, None] + torch.arange(CONTEXT + 1)].contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "held_out.safetensors")
    args = parser.parse_args()
    windows = held_out_windows(load_text()[1])
    save_file({"windows": windows}, args.out)
    print(f"wrote {len(windows)} windows of {windows.shape[1]} bytes to {args.out.name}")


if __name__ == "__main__":
    main()
