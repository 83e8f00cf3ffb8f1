"""Python in the documents: the examples run, and the signatures are those of the functions."""

import ast
import inspect
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import megamoe

ROOT = Path(__file__).parents[2]
SIGNATURE = re.compile(r"^([\w.]+)\(((?:[^()]|\(\))*)\)\s*->", re.MULTILINE)


def blocks(name):
    """The fenced Python blocks of a document."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)


SIGNATURES = [match.groups() for block in blocks("docs/python.md") for match in SIGNATURE.finditer(block)]
EXAMPLES = [block for block in blocks("docs/python.md") if not SIGNATURE.search(block)]


def written_parameters(arguments):
    """(name, whether by keyword only, default) of each parameter as it is written."""
    stated = ast.parse(f"def f({arguments}): ...").body[0].args
    empty = inspect.Parameter.empty
    missing = [empty] * (len(stated.args) - len(stated.defaults))
    defaults = [*missing, *map(ast.literal_eval, stated.defaults)]
    by_name = [empty if default is None else ast.literal_eval(default) for default in stated.kw_defaults]
    named = [(argument.arg, False, default) for argument, default in zip(stated.args, defaults)]
    return named + [(argument.arg, True, default) for argument, default in zip(stated.kwonlyargs, by_name)]


@pytest.mark.parametrize("name, arguments", SIGNATURES, ids=[name for name, _ in SIGNATURES])
def test_signatures(name, arguments):
    function = getattr(megamoe, name.removeprefix("megamoe."))
    keyword = inspect.Parameter.KEYWORD_ONLY
    actual = [(p.name, p.kind is keyword, p.default) for p in inspect.signature(function).parameters.values()]
    assert written_parameters(arguments) == actual


def test_every_operator_is_described():
    written = {name.removeprefix("megamoe.") for name, _ in SIGNATURES}
    operators = {name for name in megamoe.ops.__all__ if inspect.isfunction(getattr(megamoe.ops, name))}
    assert operators - written == {"moe_token_permute_grad", "moe_token_unpermute_grad"}  # in the text


def test_the_first_example():
    (example,) = blocks("README.md")
    names = {}
    exec(example, names)
    assert names["y"].shape == names["x"].shape
    assert names["expert_token_nums"].sum() == 32 * 4


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples(example):
    rng = np.random.default_rng(1)
    names = {
        "megamoe": megamoe,
        "logits": rng.standard_normal((5, 16)).astype(np.float32),
        "x": rng.standard_normal((5, 64)).astype(np.float32),
        "experts": lambda rows: rows * 2,
        "weights": rng.standard_normal((2, 64, 48)).astype(ml_dtypes.bfloat16),
        "nibbles": rng.integers(0, 256, (64, 32), np.uint8),
    }
    exec(example, names)
    if "results" in names:
        assert [tuple(names["results"][rank].shape) for rank in (0, 1)] == [(5, 64), (5, 64)]
    if "same" in names:
        np.testing.assert_array_equal(names["same"], names["weights"])


def test_loads_a_layer(tmp_path, monkeypatch):
    (example,) = blocks("docs/checkpoints.md")
    checkpoint = tmp_path / "path/to/checkpoint"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.symlink_to(ROOT / "examples/tiny_moe/checkpoint")
    monkeypatch.chdir(tmp_path)
    hidden = megamoe.Checkpoint("path/to/checkpoint").load_layer(3).hidden
    names = {"megamoe": megamoe, "hidden_states": np.ones((2, 3, hidden), ml_dtypes.bfloat16)}
    exec(example, names)
    assert names["y"].shape == (2, 3, hidden)
