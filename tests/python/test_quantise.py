"""Quantisation rules and casts on arrays: against ml_dtypes and NumPy, both frameworks, wrong values."""

import ml_dtypes
import numpy as np
import pytest
import torch

import megamoe

RULES = megamoe.quant_rules()
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def bits(array):
    if isinstance(array, torch.Tensor):
        array = array.contiguous().view(torch.uint8).numpy()
    return np.ascontiguousarray(array).view(np.uint8)


def to_torch(array):
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def rows(shape, dtype="bfloat16"):
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(TYPES[dtype])


def arguments(rule):
    info = RULES[rule]
    return ({"scale": 3.0} if info.takes_scale else {}) | ({"offset": 1.0} if info.takes_offset else {})


def test_rules():
    assert {"int8_per_token", "int4_dynamic", "mx_floor_e2m1", "mx_round_up_e4m3", "hif8_cast"} <= set(RULES)
    assert RULES["fp8_block128_e5m2"][:4] == ("fp8_block128_e5m2", "float8_e5m2", "float32", 128)
    assert RULES["hif8_cast"].scales is None


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("columns", [2, 130, 300])
def test_there_and_back(rule, columns):
    info = RULES[rule]
    for dtype in info.inputs:
        x, extra = rows((5, columns), dtype), arguments(rule)
        codes, scales = megamoe.quantise(rule, x, **extra)
        groups = {None: (0,), 0: (5,)}.get(info.scales and info.group, (5, -(-columns // (info.group or 1))))
        assert scales.shape == groups
        wide = np.zeros((10, 2 * columns), x.dtype)
        wide[::2, ::2] = x
        same = megamoe.quantise(rule, wide[::2, ::2], **extra)
        tensors = megamoe.quantise(rule, to_torch(x), **extra)
        for mine, strided, tensor in zip((codes, scales), same, tensors):
            assert isinstance(tensor, torch.Tensor) and tuple(tensor.shape) == mine.shape
            assert str(tensor.dtype).removeprefix("torch.") == mine.dtype.name
            np.testing.assert_array_equal(bits(mine), bits(strided))
            np.testing.assert_array_equal(bits(mine), bits(tensor))
        back = megamoe.dequantise(rule, codes, scales, **extra)
        assert back.dtype == np.float32 and back.shape == x.shape
        coarse = info.codes in ("float4_e2m1", "int4") or rule in ("int8_static", "hif8_per_token")
        assert np.abs(back - x.astype(np.float32)).max() <= (0.5 if coarse else 0.25)
        np.testing.assert_array_equal(back, megamoe.dequantise(rule, *tensors, **extra).numpy())


@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("source", sorted(TYPES))
def test_cast_to_fp8(source, target):
    x = np.clip(rows((4, 33), source), -400, 400)
    wanted = x.astype(np.float32).astype(getattr(ml_dtypes, target))
    for given, dtype in ((x, target), (x, getattr(ml_dtypes, target)), (to_torch(x), getattr(torch, target))):
        got = megamoe.cast(given, dtype)
        assert str(got.dtype).removeprefix("torch.") == target
        np.testing.assert_array_equal(bits(got), bits(wanted))


def test_cast_of_special_values():
    x = np.array([np.inf, -np.inf, np.nan, 1e9], np.float32)
    np.testing.assert_array_equal(bits(megamoe.cast(x, "float8_e5m2")), [0x7B, 0xFB, 0, 0x7B])
    np.testing.assert_array_equal(
        bits(megamoe.cast(x, "float8_e5m2", saturate=False))[[0, 1, 3]], [0x7C, 0xFC, 0x7C]
    )
    np.testing.assert_array_equal(megamoe.cast(x, "hifloat8"), [0x6E, 0xEE, 0, 0x6E])


def test_every_code_of_the_byte_types():
    every = np.arange(256, dtype=np.uint8)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"):
        got = megamoe.cast(every, "float32", x_dtype=name)
        np.testing.assert_array_equal(got, every.view(getattr(ml_dtypes, name)).astype(np.float32))
    pairs = megamoe.cast(every, np.float32, x_dtype="float4_e2m1")
    nibbles = np.stack([every & 15, every >> 4], 1).reshape(-1)
    np.testing.assert_array_equal(pairs, nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    np.testing.assert_array_equal(megamoe.cast(pairs, "float4_e2m1"), every)
    got = megamoe.cast(every, "float32", x_dtype="int4")
    np.testing.assert_array_equal(got, (nibbles.astype(np.int8) ^ 8) - 8)


def test_torch_types_of_codes():
    x = to_torch(rows((3, 64)))
    codes, scales = megamoe.quantise("mx_floor_e2m1", x)
    wanted = megamoe.dequantise("mx_floor_e2m1", codes, scales)
    if hasattr(torch, "float4_e2m1fn_x2") and hasattr(torch, "float8_e8m0fnu"):
        typed = codes.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu)
        assert torch.equal(megamoe.dequantise("mx_floor_e2m1", *typed), wanted)


def test_scales_of_the_routing_operators():
    x, idx = rows((4, 70)), np.zeros((4, 1), np.int32)
    for mode, rule in ((3, "mx_round_up_e4m3"), (9, "mx_floor_subnormal_e2m1"), (12, "fp8_block128_e4m3")):
        codes, _, _, scales = megamoe.moe_init_routing_v3(x, idx, expert_num=1, quant_mode=mode)
        mine = megamoe.quantise(rule, x)
        np.testing.assert_array_equal(bits(codes), bits(mine[0]))
        np.testing.assert_array_equal(
            megamoe.dequantise(rule, codes, scales), megamoe.dequantise(rule, *mine)
        )


@pytest.mark.parametrize("rule", ["int8_per_token", "fp8_group128_e4m3"])
def test_no_rows(rule):
    codes, scales = megamoe.quantise(rule, rows((0, 40)))
    assert codes.shape == (0, 40) and scales.shape[0] == 0
    assert megamoe.dequantise(rule, codes, scales).shape == (0, 40)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda: megamoe.quantise("int9", rows((2, 4))),
            ValueError,
            "rule = 'int9': expected one of int8_static",
        ),
        (lambda: megamoe.quantise("mx_floor_e4m3", rows((2, 4), "float32")), TypeError, "x = float32"),
        (lambda: megamoe.quantise("mx_floor_e2m1", rows((2, 5))), ValueError, "even number of columns"),
        (lambda: megamoe.quantise("hif8_cast", rows((4,))), ValueError, "two dimensions"),
        (lambda: megamoe.quantise("int8_static", rows((2, 4)), scale=1.0), ValueError, "offset is missing"),
        (lambda: megamoe.quantise("hif8_cast", rows((2, 4)), scale=1.0), ValueError, "scale is given"),
        (
            lambda: megamoe.quantise("hif8_cast", torch.ones(1, 2, dtype=torch.bfloat16, requires_grad=True)),
            ValueError,
            "no gradient",
        ),
        (lambda: megamoe.dequantise("hif8_cast", rows((2, 4))), TypeError, "codes = bfloat16"),
        (lambda: megamoe.dequantise("mx_floor_e5m2", np.ones((2, 4), np.uint8)), ValueError, "scales"),
        (
            lambda: megamoe.dequantise("hif8_cast", np.ones((2, 4), np.uint8), np.ones((2, 1), np.uint8)),
            ValueError,
            r"scales has shape \(2, 1\): expected None",
        ),
        (lambda: megamoe.cast(rows((2, 5)), "float4_e2m1"), ValueError, "even last dimension"),
        (lambda: megamoe.cast(np.ones(3, np.uint8), "float32"), TypeError, "x_dtype = None"),
        (lambda: megamoe.cast(np.ones(3, np.float32), "float99"), ValueError, "dtype = 'float99'"),
        (lambda: megamoe.cast([1.0], "float32"), TypeError, "x = list"),
        (lambda: megamoe.cast(np.ones(3), "float32"), TypeError, "x = float64: expected an element type"),
    ],
)
def test_wrong_arguments(call, error, text):
    with pytest.raises(error, match=text) as caught:
        call()
    assert isinstance(caught.value.code, megamoe.Code)
