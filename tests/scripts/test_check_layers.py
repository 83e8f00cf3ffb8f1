"""A file that breaks the layer rule is reported; one that keeps it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from check_layers import check_tree  # noqa: E402


def tree(root: Path, files: dict[str, str]) -> Path:
    (root / "src").mkdir(exist_ok=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("src/base/a.cc", '#include "kernel/contract.h"\n', "kernel is not below base"),
        ("src/pack/a.cc", '#include "moe/plan.h"\n', "moe is not below pack"),
        ("src/reference/a.cc", '#include "quant/int8.h"\n', "quant is not below reference"),
        ("src/checkpoint/a.cc", '#include "kernel/contract.h"\n', "kernel is not below checkpoint"),
        ("src/moe/a.cc", '#include "reference/layer.h"\n', "reference is not below moe"),
        ("src/comm/a.h", '#include "../moe/plan.h"\n', "moe is not below comm"),
        ("src/moe/a.cc", "#include <immintrin.h>\n", "intrinsics belong in src/kernel/isa/"),
        ("src/quant/a.cc", "__m512 v;\n", "uses __m512: intrinsics belong"),
        ("src/comm/shm.cc", "#include <mpi.h>\n", "only src/comm/mpi* may"),
        ("src/c_api/a.cc", "#include <nanobind/nanobind.h>\n", "binding headers belong in python/"),
        ("src/extra/a.cc", "int a;\n", "folder extra has no layer"),
        ("include/megamoe/a.h", '#include "base/memory.h"\n', "public headers include only"),
        ("include/megamoe/a.h", "#include <hwloc.h>\n", "public headers include only"),
        ("include/megamoe/a.h", "#include <immintrin.h>\n", "public headers include only"),
    ],
)
def test_violation_is_reported(tmp_path: Path, name: str, text: str, problem: str) -> None:
    headers = {"src/moe/plan.h": "", "src/kernel/contract.h": ""}
    problems = check_tree(tree(tmp_path, {**headers, name: "// A file.\n" + text}))
    assert len(problems) == 1
    assert problems[0].startswith(f"{name}:")
    assert problem in problems[0]


def test_allowed_includes_are_clean(tmp_path: Path) -> None:
    files = {
        "include/megamoe/status.h": "#include <cstdint>\n",
        "src/base/a.h": '#include "megamoe/status.h"\n',
        "src/kernel/isa/avx2/a.cc": '#include <immintrin.h>\n#include "base/a.h"\n__m256 v;\n',
        "src/comm/mpi_transport.cc": "#include <mpi.h>\n",
        "src/cli/a.cc": '#include "moe/plan.h"\n#include "checkpoint/a.h"\n',
        "src/checkpoint/a.h": '#include "format/bf16.h"\n',
        "src/quant/a.cc": "// __m512 only in a comment\n",
        "python/megamoe/a.cc": "#include <nanobind/nanobind.h>\n",
    }
    assert check_tree(tree(tmp_path, files)) == []


def test_circle_inside_a_layer_is_reported(tmp_path: Path) -> None:
    files = {
        "src/quant/a.h": '#include "kernel/b.h"\n',
        "src/kernel/b.h": '#include "activation/c.h"\n',
        "src/activation/c.h": '#include "quant/a.h"\n',
    }
    problems = check_tree(tree(tmp_path, files))
    assert len(problems) == 1
    assert "circle" in problems[0]


def test_exit_codes(tmp_path: Path) -> None:
    def run(root: Path) -> int:
        command = [sys.executable, str(ROOT / "scripts" / "check_layers.py"), str(root)]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert run(tmp_path) == 2
    assert run(tree(tmp_path, {})) == 0
    assert run(tree(tmp_path, {"src/base/a.cc": '#include "moe/plan.h"\n'})) == 1
    assert run(ROOT) == 0
