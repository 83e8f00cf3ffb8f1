"""The operators as torch.ops.megamoe: schemas, fake kernels, torch.compile, registration."""

import os
import subprocess
import sys

import pytest
import torch

import megamoe
from megamoe import ops
from routing_inputs import ids, to_torch

X = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
IDX = to_torch(ids(6, 2, 4))
INDEX = torch.argsort(torch.argsort(IDX.reshape(-1), stable=True)).int()


@pytest.mark.parametrize(
    "name, arguments, keywords",
    [
        ("moe_init_routing_v3", (X, IDX), {"expert_num": 4, "expert_tokens_num_flag": True}),
        ("moe_init_routing_v3", (X.bfloat16(), IDX), {"expert_num": 4, "quant_mode": 2, "active_num": 5}),
        ("moe_token_permute", (X.clone().requires_grad_(), IDX), {}),
        ("moe_token_permute", (X.half(), IDX, -2), {"quant_mode": 9}),
        ("moe_token_permute_grad", (torch.randn(12, 8), INDEX, 2), {}),
        (
            "moe_token_unpermute",
            (torch.randn(12, 8, requires_grad=True), INDEX, torch.rand(6, 2, requires_grad=True)),
            {},
        ),
        ("moe_token_unpermute", (torch.randn(12, 8, requires_grad=True), INDEX), {}),
        ("moe_token_unpermute_grad", (torch.randn(12, 8), torch.randn(6, 8), INDEX, torch.rand(6, 2)), {}),
        ("moe_gating_top_k", (X, 3), {"bias": torch.zeros(64), "scoring": "sigmoid"}),
        ("quantise", ("mx_round_up_e4m3", X.half()), {}),
        ("quantise", ("int8_per_token", X), {"smooth": torch.ones(64)}),
        ("dequantise", ("int8_per_token", torch.ones(6, 64, dtype=torch.int8), torch.ones(6)), {}),
        ("cast", (X, "hifloat8"), {}),
        ("cast", (X.to(torch.uint8), "float32"), {"x_dtype": "float4_e2m1"}),
        ("convert_layout", (X.bfloat16(), "FRACTAL_NZ"), {}),
        ("convert_layout", (torch.zeros(2, 1, 16, 8), "ND"), {"source": "FRACTAL_NZ", "shape": [6, 12]}),
    ],
)
def test_opcheck(name, arguments, keywords):
    torch.library.opcheck(getattr(torch.ops.megamoe, name).default, arguments, keywords)


def test_numbers_of_64_bits_are_named():
    with pytest.raises(ValueError, match="threads = 1099511627776: expected an integer of 32 bits"):
        torch.ops.megamoe.moe_token_permute(X, IDX, threads=2**40)


@pytest.mark.parametrize("space", [ops, torch.ops.megamoe], ids=["function", "torch.ops"])
def test_compile(space):
    def layer(x, idx, probs):
        permuted, index, _ = space.moe_token_permute(x * 2, idx)
        return space.moe_token_unpermute(permuted + 1, index, probs).square().sum()

    x, probs = torch.randn(5, 8, requires_grad=True), torch.rand(5, 2, requires_grad=True)
    idx = to_torch(ids(5, 2, 4))
    wanted = torch.autograd.grad(layer(x, idx, probs), (x, probs))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for mine, other in zip(torch.autograd.grad(compiled(x, idx, probs), (x, probs)), wanted):
        torch.testing.assert_close(mine, other)


def test_numbers_that_follow_the_batch_compile_once():
    def rows(x, idx):
        tokens = x.shape[0]
        return (
            ops.moe_token_permute(x, idx, tokens)[0],
            ops.moe_init_routing_v3(x, idx, expert_num=4, active_num=tokens)[0],
            ops.moe_init_routing_v3(x, idx, expert_num=4, drop_pad_mode=1, expert_capacity=tokens)[0],
        )

    compiled = torch.compile(rows, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(recompile_limit=1):
        for tokens in range(3, 7):
            x, idx = torch.randn(tokens, 8), to_torch(ids(tokens, 2, 4))
            for got, expected in zip(compiled(x, idx), rows(x, idx)):
                assert torch.equal(got, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_that_only_the_data_tell_compile(dynamic):
    """One graph for all numbers of rows that a tensor holds, of either sign."""

    def rows(x, idx, number):
        wanted = (number + 0).item()  # of a result: no call is compiled for its value
        return (
            ops.moe_token_permute(x, idx, wanted)[0] * 2,
            ops.moe_init_routing_v3(x, idx, expert_num=4, active_num=wanted)[0] * 2 if wanted_is_active else x,
        )

    x, idx = torch.randn(8, 16), to_torch(ids(8, 2, 4))
    with torch._dynamo.config.patch(capture_scalar_outputs=True, recompile_limit=1):
        for wanted_is_active, numbers in ((True, (5, 16, -1, 0, 30)), (False, (5, -3, 0, -30))):
            torch._dynamo.reset()
            compiled = torch.compile(rows, fullgraph=True, dynamic=dynamic, backend="aot_eager")
            for number in map(torch.tensor, numbers):
                for got, expected in zip(compiled(x, idx, number), rows(x, idx, number)):
                    assert torch.equal(got, expected), number


def test_gradients_of_as_many_rows_as_the_data_tell():
    def loss(x, idx, number):
        return ops.moe_token_permute(x, idx, number.item())[0].square().sum()

    x, idx, number = torch.randn(8, 16).requires_grad_(), to_torch(ids(8, 2, 4)), torch.tensor(-5)
    (expected,) = torch.autograd.grad(loss(x, idx, number), x)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        (got,) = torch.autograd.grad(compiled(x, idx, number), x)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("space", [megamoe, torch.ops.megamoe], ids=["function", "torch.ops"])
def test_compile_with_codes_of_every_type(space):
    """One graph for all sizes: quantise, route, convert, cast, with torch's own types in between."""

    def layer(x, idx):
        codes, scales = space.quantise("mx_floor_e2m1", x, result_types="native")
        y = space.dequantise("mx_floor_e2m1", codes, scales)
        rows, _, _, row_scales = space.moe_init_routing_v3(
            y.bfloat16(), idx, expert_num=4, quant_mode=9, result_types="native"
        )
        fp8 = torch.float8_e4m3fn if space is megamoe else "float8_e4m3fn"
        tiled = space.convert_layout(space.cast(y, fp8), "FRACTAL_NZ")
        plain = space.convert_layout(tiled, "ND", source="FRACTAL_NZ", shape=[x.shape[0], x.shape[1]])
        folded = space.moe_init_routing_v3(scales.view(torch.uint8), idx, expert_num=4, x_dtype="hifloat8")
        weights, chosen = space.moe_gating_top_k(y, 2)
        permuted, _, scale = space.moe_token_permute(y.half(), idx, quant_mode=3)
        return codes, scales, rows, row_scales, plain, weights, chosen, permuted, scale, folded[0]

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (5, 9):
        x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(tokens)).bfloat16()
        idx = to_torch(ids(tokens, 2, 4))
        for mine, other in zip(compiled(x, idx), layer(x, idx)):
            assert mine.dtype == other.dtype and mine.shape == other.shape
            assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8))


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=os.environ
    )
    assert done.returncode == 0, done.stderr


def test_numpy_alone_needs_no_torch():
    run_python(
        "import sys, numpy as np, megamoe\n"
        "x, i = np.ones((2, 4), np.float32), np.zeros((2, 1), np.int32)\n"
        "megamoe.moe_init_routing_v3(x, i, expert_num=1); megamoe.moe_token_permute(x, i)\n"
        "megamoe.moe_gating_top_k(x, 2)\n"
        "assert 'torch' not in sys.modules\n"
        "try: megamoe.register_torch_ops()\n"
        "except RuntimeError as error: assert 'import torch' in str(error)\n"
        "else: raise AssertionError\n"
    )


@pytest.mark.parametrize("imports", [
    "import torch, megamoe",
    "import megamoe, torch",
    "import megamoe; from torch.utils import dlpack; import torch",
    "import megamoe, importlib; torch = importlib.import_module('torch')",
    "import megamoe, importlib.util; assert importlib.util.find_spec('torch'); import torch",
])  # fmt: skip
def test_registration_in_either_order(imports):
    run_python(
        f"{imports}\n"
        "import sys\n"
        "assert not any('megamoe' in type(finder).__module__ for finder in sys.meta_path)\n"
        "logits = torch.tensor([[1.0, 3.0, 2.0]])\n"
        "assert torch.ops.megamoe.moe_gating_top_k(logits, 1)[1].item() == 1\n"
        "compiled = torch.compile(lambda x: megamoe.moe_gating_top_k(x, 1), fullgraph=True, backend='aot_eager')\n"
        "assert compiled(logits)[1].item() == 1\n"
        "megamoe.register_torch_ops(); megamoe.register_torch_ops()\n"
    )


def test_an_import_of_torch_that_fails_is_watched_again(tmp_path):
    broken = tmp_path / "broken"
    (broken / "torch").mkdir(parents=True)
    (broken / "torch" / "__init__.py").write_text("raise ImportError('broken')\n")
    run_python(
        "import sys, megamoe\n"
        f"sys.path.insert(0, {str(broken)!r})\n"
        "try: import torch\n"
        "except ImportError as error: assert str(error) == 'broken'\n"
        "else: raise AssertionError\n"
        "sys.path.pop(0); sys.path_importer_cache.clear()\n"
        "import torch\n"
        "assert hasattr(torch.ops.megamoe, 'moe_gating_top_k')\n"
    )


def test_an_absent_torch_is_not_found_as_ever():
    run_python(
        "import sys, megamoe\n"
        "sys.path.clear(); sys.path_importer_cache.clear()\n"
        "try: import torch\n"
        "except ModuleNotFoundError as error: assert error.name == 'torch'\n"
        "else: raise AssertionError\n"
    )
