"""Block sizes from a tuning file: the plan names them, results keep their bits, files are refused by name."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import megamoe
from layers import Layer, bits


def cpu_model() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else "unknown"


def file_of(path: Path, blocks: dict[str, int]) -> str:
    layer = dict(isa="generic", scenario="A8W8-INT", hidden=64, intermediate=32, experts=4, topk=2)
    layer |= dict(ranks=1, threads=1, blocks=blocks)
    path.write_text(json.dumps({"megamoe_tuning": 1, "cpu": cpu_model(), "layers": [layer]}))
    return str(path)


def test_a_plan_takes_the_sizes_of_a_file(tmp_path):
    layer = Layer(5, 64, 32, 4, 2, int8=True)
    path = file_of(tmp_path / "tuning.json", {"piece_ns": 5000, "combine_tokens": 1})
    with layer.buffer(isa="generic") as plain, layer.buffer(isa="generic", tuning=path) as tuned:
        want, _ = megamoe.mega_moe(**layer.call(), sym_buffer=plain)
        got, _ = megamoe.mega_moe(**layer.call(), sym_buffer=tuned)
        np.testing.assert_array_equal(bits(got), bits(want))
        assert "block sizes from: defaults\n" in plain.describe()
        assert f"block sizes from: tuning {path}\n" in tuned.describe()
        assert "piece_ns 5000" in tuned.describe() and "combine_tokens 1" in tuned.describe()


def test_a_wrong_file_is_an_error_of_the_call(tmp_path):
    layer = Layer(5, 64, 32, 4, 2, int8=True)
    path = file_of(tmp_path / "tuning.json", {"strips": 1})
    with layer.buffer(tuning=path) as buffer:
        with pytest.raises(ValueError, match=re.escape(f"{path}: layers[0].blocks.strips: expected one of")):
            megamoe.mega_moe(**layer.call(), sym_buffer=buffer)
