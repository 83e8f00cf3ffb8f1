"""The table of benchmarks marks the cells below their targets and counts them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import table  # noqa: E402


def row(tokens: int, experts: float, efficiency: float | None, gbps: float, gflops: float, pairs: int = 9) -> dict:
    return {
        "scenario": "A8W8-INT", "routing": "uniform", "tokens": tokens, "experts": experts, "ms": 1.5, "calls": 10,
        "pairs": pairs, "efficiency": efficiency, "weight_gbps": gbps, "gflops": gflops,
        "passes": {"read_gbps": 50.0, "gflops": None},
        "ceilings": {"linear1_gflops": 2000.0, "linear2_gflops": 2000.0, "read_gbps": 50.0},
    }  # fmt: skip


def test_targets_by_limit_and_rows() -> None:
    assert table.target(row(1, 8, 0.9, 40, 80), 8) == ("1 row", 85)
    assert table.target(row(4, 8, 0.9, 40, 80), 8) == ("4 rows", 80)
    assert table.target(row(8, 8, 0.9, 40, 80), 8) is None  # 8 rows
    assert table.target(row(64, 8, 0.9, 5, 1800), 8) == ("48 rows and more", 78)
    assert table.target(row(4, 8, 0.9, 5, 1800), 8) is None  # few rows, yet arithmetic is the limit


def test_cells_and_misses(tmp_path: Path, capsys) -> None:
    rows = [row(1, 8, 0.849, 40, 80), row(4, 8, 0.8, 40, 80, pairs=2), row(64, 8, None, 5, 1800, pairs=0)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"shape": "64x32x8x8", "rows": rows}))
    table.main([str(path)])
    text = capsys.readouterr().out
    assert "| A8W8-INT | uniform | 1.5 ms 85% * | 1.5 ms 80%? | 1.5 ms -? |" in text
    assert "| 1 row | A8W8-INT | 85% | 64x32x8x8 uniform 1: 84.9% |" in text
    assert "1 of 3 cells with a target are below it (1 row: 1 of 1, 4 rows: 0 of 1, 48 rows and more: 0 of 1)." in text
