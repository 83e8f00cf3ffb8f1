"""Codes and scales as types of torch and ml_dtypes or as bytes, by choice of the caller."""

import ml_dtypes
import numpy as np
import pytest
import torch

import megamoe
from megamoe import ops
from routing_inputs import MODES, bits, ids, to_torch, tokens

RULES = megamoe.quant_rules()
# Element type -> name of the type of (torch, ml_dtypes) with result_types "native"; None = bytes.
NATIVE = {
    "float8_e4m3fn": ("float8_e4m3fn", "float8_e4m3fn"),
    "float8_e5m2": ("float8_e5m2", "float8_e5m2"),
    "float8_e8m0": ("float8_e8m0fnu", "float8_e8m0fnu"),
    "float4_e2m1": ("float4_e2m1fn_x2", "float4_e2m1fn"),
    "hifloat8": (None, None),
    "int4": (None, "int4"),
}


def type_name(array):
    return str(array.dtype).removeprefix("torch.")


def expected(dtype, choice, framework):
    if dtype not in NATIVE:
        return dtype
    if choice == "uint8" or (choice == "document" and not dtype.startswith(("float8_e4", "float8_e5"))):
        return "uint8"
    return NATIVE[dtype][framework == "numpy"] or "uint8"


def nibble_pairs(array):
    """Elements that take a byte each, two per byte."""
    if isinstance(array, np.ndarray) and array.dtype.name in ("float4_e2m1fn", "int4"):
        nibbles = array.view(np.uint8) & 15
        return nibbles[..., ::2] | nibbles[..., 1::2] << 4
    return bits(array)


def check(results, plain, dtypes, choice, framework):
    for result, bytes_of, dtype in zip(results, plain, dtypes):
        assert type_name(result) == expected(dtype, choice, framework)
        np.testing.assert_array_equal(nibble_pairs(result).reshape(-1), bits(bytes_of).reshape(-1))


CHOICES = pytest.mark.parametrize("choice", ["document", "native", "uint8"])
FRAMEWORKS = pytest.mark.parametrize("framework", ["numpy", "torch"])


@CHOICES
@FRAMEWORKS
@pytest.mark.parametrize("rule", sorted(RULES))
def test_quantise_and_back(rule, framework, choice):
    info = RULES[rule]
    extra = ({"scale": 3.0} if info.takes_scale else {}) | ({"offset": 1.0} if info.takes_offset else {})
    x = tokens(5, 98, "bfloat16")
    given = x if framework == "numpy" else to_torch(x)
    plain = megamoe.quantise(rule, x, result_types="uint8", **extra)
    results = megamoe.quantise(rule, given, result_types=choice, **extra)
    check(results, plain, (info.codes, info.scales or "float32"), choice, framework)
    wanted = megamoe.dequantise(rule, *plain, **extra)
    np.testing.assert_array_equal(np.asarray(megamoe.dequantise(rule, *results, **extra)), wanted)
    # The types of ml_dtypes mean the same numbers.
    if (
        framework == "numpy"
        and choice == "native"
        and info.codes != "hifloat8"
        and info.scales == "float8_e8m0"
    ):
        scales = np.repeat(results[1].astype(np.float32), 32, axis=1)[:, :98]
        np.testing.assert_array_equal(results[0].astype(np.float32) * scales, wanted)


@CHOICES
@FRAMEWORKS
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in (-1, 0, 1, 7)])
def test_routing(mode, framework, choice):
    x, index = tokens(6, 66, "bfloat16"), ids(6, 2, 4)
    convert = np.asarray if framework == "numpy" else to_torch
    rule = RULES[dict((m, r) for m, r, _ in megamoe._core.quant_modes())[mode]]
    dtypes = (rule.codes, "int32", "int64", rule.scales or "float32")
    call = dict(expert_num=4, quant_mode=mode)
    plain = ops.moe_init_routing_v3(x, index, result_types="uint8", **call)
    results = ops.moe_init_routing_v3(convert(x), convert(index), result_types=choice, **call)
    check(results, plain, dtypes, choice, framework)
    if framework == "torch":
        fake = torch.ops.megamoe.moe_init_routing_v3(
            to_torch(x).to("meta"), to_torch(index).to("meta"), result_types=choice, **call
        )
        assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in results]
    if mode in (2, 3, 9):
        permuted = ops.moe_token_permute(convert(x), convert(index), quant_mode=mode, result_types=choice)
        for mine, other in zip(permuted, (results[0], results[1], results[3])):
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(bits(mine), bits(other))


@CHOICES
def test_rows_that_are_codes_keep_their_type_and_scales_follow_the_choice(choice):
    codes = np.random.default_rng(0).integers(0, 256, (6, 32)).astype(np.uint8)
    scale = np.random.default_rng(1).integers(0, 255, (6, 1, 2)).astype(np.uint8)
    index = ids(6, 2, 3)
    call = dict(expert_num=3, result_types=choice)
    plain = ops.moe_init_routing_v3(codes, index, scale=scale, x_dtype="float4_e2m1", **call)
    assert type_name(plain[0]) == "uint8" and plain[0].shape == (12, 32)
    assert type_name(plain[3]) == expected("float8_e8m0", choice, "numpy")

    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(6, 64).view(ml_dtypes.float4_e2m1fn)
    spread = ops.moe_init_routing_v3(nibbles, index, scale=scale.view(ml_dtypes.float8_e8m0fnu), **call)
    assert spread[0].dtype == nibbles.dtype and spread[0].shape == (12, 64)
    np.testing.assert_array_equal(nibble_pairs(spread[0]), plain[0])
    np.testing.assert_array_equal(bits(spread[3]), bits(plain[3]))

    own = torch.from_numpy(codes).view(torch.float4_e2m1fn_x2)
    scales = torch.from_numpy(scale).view(torch.float8_e8m0fnu)
    got = ops.moe_init_routing_v3(own, torch.from_numpy(index), scale=scales, **call)
    assert got[0].dtype == own.dtype and type_name(got[3]) == expected("float8_e8m0", choice, "torch")
    np.testing.assert_array_equal(bits(got[0]), plain[0])
    np.testing.assert_array_equal(bits(got[3]), bits(plain[3]))


@CHOICES
@pytest.mark.parametrize("target", sorted(NATIVE))
def test_cast(target, choice):
    values = np.clip(tokens(4, 30), -2, 2)
    if target == "float8_e8m0":
        values = 2.0 ** np.arange(-60, 60, dtype=np.float32).reshape(4, 30)
    plain = megamoe.cast(values, target, result_types="uint8")
    back = megamoe.cast(plain, "float32", x_dtype=target)
    for framework, given in (("numpy", values), ("torch", torch.from_numpy(values))):
        got = megamoe.cast(given, target, result_types=choice)
        check([got], [plain], [target], choice, framework)
        own = {"x_dtype": target} if type_name(got) == "uint8" else {}
        again = megamoe.cast(got, "float32", **own)
        np.testing.assert_array_equal(np.asarray(again), back)


def test_wrong_choice():
    x, index = tokens(2, 32, "bfloat16"), ids(2, 1, 2)
    for call in (
        lambda: megamoe.quantise("mx_floor_e4m3", x, result_types="bytes"),
        lambda: megamoe.cast(x, "float32", result_types="bytes"),
        lambda: ops.moe_token_permute(x, index, result_types="bytes"),
        lambda: ops.moe_init_routing_v3(to_torch(x), to_torch(index), expert_num=2, result_types="bytes"),
    ):
        with pytest.raises(ValueError, match="result_types = bytes: expected one of document, native, uint8"):
            call()


def test_odd_number_of_elements_of_4_bits():
    odd = np.zeros((2, 3), ml_dtypes.int4)
    with pytest.raises(ValueError, match="codes has shape .* even last dimension"):
        megamoe.dequantise("int4_dynamic", odd, np.ones(2, np.float32))
