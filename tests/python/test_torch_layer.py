"""torch.ops.megamoe.mega_moe: operator checks, torch.compile with all kinds of weights, handles."""

import gc

import numpy as np
import pytest
import torch

import megamoe
from coded_layers import HIDDEN, TOKENS, TOPK, Layer
from layers import BF16, bits

LAYER = Layer("float8_e4m3fn", "float4_e2m1", seed=11)
SHARED = Layer("float8_e4m3fn", "float8_e4m3fn", seed=12, experts=1)


def tensor(value):
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == BF16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    if value.dtype.num >= 256:
        return torch.from_numpy(value.view(np.uint8)).view(getattr(torch, value.dtype.name))
    return torch.from_numpy(value)


def tensors(arguments):
    return {name: tensor(value) for name, value in arguments.items()}


@pytest.fixture(scope="module")
def buffer():
    with LAYER.buffer() as made:
        yield made


def packed():
    made = megamoe.pack_weights(
        LAYER.l1, LAYER.l2, l1_sf=LAYER.sf1, l2_sf=LAYER.sf2, weight1_type=296, weight2_type=296
    )
    none = dict(l1_weights_sf=None, l2_weights_sf=None, weight1_type=None, weight2_type=None)
    return none | dict(l1_weights=made.l1, l2_weights=made.l2)


def operator_arguments(buffer, **last):
    """A full positional call with raw routed and shared weights."""
    call, shared = tensors(LAYER.call()), tensors(SHARED.weights())
    for name in ("l1_weights", "l2_weights"):  # the checks of torch cannot compare FP8
        shared[name] = shared[name].view(torch.uint8)
    none = ([], [], [], [], 0)

    def layer(source, index):
        stated = source[f"weight{index}_type"]
        return ([source[f"l{index}_weights"]], [source[f"l{index}_weights_sf"]], *none, stated)

    return (
        (call["x"], call["topk_ids"], call["topk_weights"], buffer.handle)
        + layer(call, 1)
        + layer(call, 2)
        + layer(shared, 1)
        + layer(shared, 2)
    )


def test_opcheck(buffer):
    arguments = operator_arguments(buffer)
    for keywords in ({}, dict(activation="swigluoai", alpha=1.5, x_active_mask=torch.ones(TOKENS).bool())):
        torch.library.opcheck(torch.ops.megamoe.mega_moe.default, arguments, keywords)


def test_operator_is_the_function(buffer):
    expected, counts = megamoe.mega_moe(
        sym_buffer=buffer, **tensors(LAYER.call(**SHARED.weights("shared_"))), activation_clamp=0.5
    )
    y, again = torch.ops.megamoe.mega_moe(*operator_arguments(buffer), activation_clamp=0.5)
    np.testing.assert_array_equal(bits(y), bits(expected))
    np.testing.assert_array_equal(bits(again), bits(counts))


CHANGES = {
    "raw": {},
    "torch types": dict(
        l1_weights=torch.from_numpy(LAYER.l1).view(torch.float4_e2m1fn_x2),
        l2_weights_sf=torch.from_numpy(LAYER.sf2).view(torch.float8_e8m0fnu),
        weight1_type=torch.float4_e2m1fn_x2,
        weight2_type=296,
    ),
    "lists": dict(l1_weights=list(tensor(LAYER.l1)), l1_weights_sf=list(tensor(LAYER.sf1))),
    "packed": packed(),
    "shared": tensors(SHARED.weights("shared_")) | dict(shared_expert_quant_out_dtype=24),
    "options": dict(
        x_active_mask=torch.arange(TOKENS) % 3 > 0,
        activation="situglu",
        activation_params={"beta": 1.5, "linear_beta": 2.0},
        l2_bias=torch.ones(4, HIDDEN),
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_compile(buffer, kind):
    fixed = tensors(LAYER.call()) | CHANGES[kind]
    tokens = [fixed.pop(name) for name in ("x", "topk_ids", "topk_weights")]
    mask = fixed.pop("x_active_mask", None)

    def work(x, ids, weights, mask):
        y, counts = megamoe.mega_moe(2 * x, ids, weights, sym_buffer=buffer, x_active_mask=mask, **fixed)
        return y + 1, counts

    torch._dynamo.reset()
    compiled = torch.compile(work, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (TOKENS, 4, 1):
        part = [value[:count] for value in tokens] + [None if mask is None else mask[:count]]
        for got, expected in zip(compiled(*part), work(*part)):
            np.testing.assert_array_equal(bits(got), bits(expected))


def test_fake_tensors_have_the_shapes_of_real_ones(buffer):
    from torch._subclasses.fake_tensor import FakeTensorMode

    arguments = operator_arguments(buffer)
    with FakeTensorMode(allow_non_fake_inputs=True):
        y, counts = torch.ops.megamoe.mega_moe(*arguments)
    assert (y.shape, y.dtype) == ((TOKENS, HIDDEN), torch.bfloat16)
    assert (counts.shape, counts.dtype) == ((4,), torch.int32)


def test_handles(buffer):
    arguments = list(operator_arguments(buffer))
    with pytest.raises(ValueError, match="sym_buffer = 0: expected the handle of a SymmBuffer"):
        torch.ops.megamoe.mega_moe(*arguments[:3], 0, *arguments[4:])
    made = packed()
    assert made["l1_weights"].handle != made["l2_weights"].handle
    arguments[4:12] = (*[[]] * 6, made["l1_weights"].handle, None)
    y, _ = torch.ops.megamoe.mega_moe(*arguments)
    plain, _ = torch.ops.megamoe.mega_moe(*operator_arguments(buffer))
    np.testing.assert_array_equal(bits(y), bits(plain))
    arguments[4] = [tensor(LAYER.l1)]
    with pytest.raises(TypeError, match="l1_weights = list: expected none beside l1_packed"):
        torch.ops.megamoe.mega_moe(*arguments)
    arguments[4] = []
    made.clear()
    gc.collect()
    with pytest.raises(ValueError, match="l1_packed = .*: expected the handle of a PackedWeights"):
        torch.ops.megamoe.mega_moe(*arguments)


def test_wrong_values_name_the_argument(buffer):
    arguments = list(operator_arguments(buffer))
    with pytest.raises(ValueError, match="activation = "):
        torch.ops.megamoe.mega_moe(*arguments, activation="relu")
    with pytest.raises(ValueError, match="shared_l1_bias has shape"):
        torch.ops.megamoe.mega_moe(*arguments[:22], [torch.zeros(1, 3)], *arguments[23:])
    with pytest.raises(ValueError, match=r"topk_ids has shape \(9, 1\)"):
        torch.ops.megamoe.mega_moe(arguments[0], arguments[1][:, : TOPK - 1], *arguments[2:])
