"""The tables of docs/accuracy.md against a fresh computation, and the model they come from against its recording."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "tiny_moe"
sys.path.insert(0, str(EXAMPLE))

import accuracy

# Levels add float sums in different orders, and a code that then rounds the other way moves an error a little.
ERROR_TOLERANCE = 0.02
PERPLEXITY_TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def model() -> accuracy.Model:
    return accuracy.Model(EXAMPLE / "checkpoint")


@pytest.fixture(scope="module")
def captured() -> dict[str, torch.Tensor]:
    return safetensors_torch.load_file(EXAMPLE / "captured.safetensors")


@pytest.fixture(scope="module")
def windows() -> torch.Tensor:
    return safetensors_torch.load_file(EXAMPLE / "held_out.safetensors")["windows"]


def documented() -> dict[str, list[str]]:
    """Cells of the rows of the table, by scenario."""
    rows = {}
    for line in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8").splitlines():
        if line.startswith(("| A", "| float32")):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            rows[name] = cells
    return rows


def percent(cell: str) -> float:
    return float(cell.rstrip("%")) / 100


@torch.no_grad()
def test_the_model_sees_what_the_recording_saw(model, captured, windows) -> None:
    plain = accuracy.plain_experts(model)
    seen: list[float] = []

    def experts(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        y = plain(layer, x, ids, weights)
        # The recording ran in bfloat16, and a token may have another expert where logits tie.
        for got, name in ((x, "hidden_states"), (y, "moe_output")):
            seen.append(accuracy.relative_error(got, captured[f"layers.{layer}.{name}"]))
        return y

    model.loss(windows[[0, len(windows) // 2]], experts)
    assert len(seen) == 2 * model.layers
    assert max(seen) < 0.06, seen


@torch.no_grad()
def test_the_table_of_the_document(model, captured, windows) -> None:
    plain_loss, rows = accuracy.measure(model, captured, windows)
    table = documented()
    assert list(table) == ["float32", *(scenario.name for scenario in accuracy.SCENARIOS)]
    assert math.exp(plain_loss) == pytest.approx(float(table["float32"][-2]), abs=PERPLEXITY_TOLERANCE)
    base = rows[0]
    # Without quantisation nothing but roundings to bfloat16 is lost.
    assert base.perplexity == pytest.approx(math.exp(plain_loss), rel=1e-3)
    for row in rows:
        *errors, perplexity, more = table[row.name]
        assert row.perplexity == pytest.approx(float(perplexity), abs=PERPLEXITY_TOLERANCE), row
        assert len(row.errors) == len(errors) == model.layers
        for got, cell in zip(row.errors, errors, strict=True):
            assert got == pytest.approx(percent(cell), rel=ERROR_TOLERANCE), row
        if row is not base:
            assert row.perplexity / base.perplexity - 1 == pytest.approx(percent(more), abs=1e-3), row


def test_the_table_has_the_lines_of_the_program() -> None:
    rows = [accuracy.Row("A16W16", (0.0, 0.0), 1.0), accuracy.Row("A8W8-INT", (0.01, 0.2), 1.1)]
    assert list(accuracy.table(1.0, rows)) == [
        "| scenario | layer 0 | layer 1 | perplexity | more than A16W16 |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| float32 |  |  | 2.7183 | |",
        "| A16W16 | 0 | 0 | 2.7183 |  |",
        "| A8W8-INT | 1.00% | 20.00% | 3.0042 | 10.52% |",
    ]
