"""The committed cases of formats, quantisers, layouts and routing operators through the package, with NumPy and
torch, with every choice of result types and on every level.
"""

import pytest
import torch

import cases
import megamoe

WITH_LEVEL = ("int8_", "ir_", "mx_", "tp_", "tu_")
LEVELS = [level["name"] for level in megamoe.info()["levels"] if level["runnable"]]
RULES = {"mx_floor": "mx_floor", "mx_roundscale": "mx_round_up", "mx_roundscale_amax": "mx_round_up_amax"}
SUFFIXES = {"float8_e4m3fn": "_e4m3", "float8_e5m2": "_e5m2", "float4_e2m1": "_e2m1"}
RESULTS = {
    "moe_init_routing_v3": (
        "expanded_x",
        "expanded_row_idx",
        "expert_tokens_count_or_cumsum",
        "expanded_scale",
    ),
    "moe_token_permute": ("permuted_tokens", "sorted_indices", "expanded_scale"),
    "moe_token_permute_grad": ("grad_tokens",),
    "moe_token_unpermute": ("out",),
    "moe_token_unpermute_grad": ("permuted_grad", "probs_grad"),
    "mx_quant": ("y", "scale"),
    "int8_per_token": ("y", "scale"),
}


def carried(tensor):
    """The type that bytes carry, where no type of ml_dtypes stands for it."""
    return tensor.dtype if tensor.dtype in ("hifloat8", "float4_e2m1", "int4") else None


def run(case, convert, options, result_types):
    """What the operator of a case returns, always as a tuple."""
    attrs = {name: value for name, value in case.attrs.items() if name != "profile"}
    inputs = {arg: convert(tensor.array) for (arg, _), tensor in case.inputs.items()}
    x = case.input("x")
    if case.op.startswith("moe_"):
        if case.op == "moe_init_routing_v3":
            attrs["x_dtype"] = carried(x)
        if case.op in ("moe_init_routing_v3", "moe_token_permute"):
            attrs["result_types"] = result_types
        result = getattr(megamoe, case.op)(**inputs, **attrs, **options)
        return result if isinstance(result, tuple) else (result,)
    if case.op == "cast":
        return (megamoe.cast(inputs["x"], attrs["to"], saturate=attrs["sat"], result_types=result_types),)
    if case.op == "decode":
        if "view" in attrs:
            nibbles = megamoe.int4_view(inputs["x"])
            assert (megamoe.int32_view(nibbles) == inputs["x"]).all()
            return (megamoe.cast(nibbles, attrs["to"], x_dtype=attrs["view"]),)
        to = case.expect["y", 0].dtype
        return (megamoe.cast(inputs["x"], to, saturate=False, x_dtype=carried(x)),)
    if case.op == "mx_quant":
        rule = RULES[attrs["rule"]] + SUFFIXES[attrs["to"]]
        return megamoe.quantise(rule, inputs["x"], result_types=result_types, **options)
    if case.op == "mx_dequant":
        rule = "mx_floor" + SUFFIXES[x.dtype]
        return (megamoe.dequantise(rule, inputs["x"], inputs["scale"], **options),)
    if case.op == "int8_per_token":
        return megamoe.quantise("int8_per_token", inputs["x"], **options)
    assert case.op == "layout"
    matrix = () if attrs["from"] == "ND" else x.shape[-2:]
    y = megamoe.convert_layout(
        inputs["x"], attrs["to"], source=attrs["from"], shape=matrix, x_dtype=carried(x)
    )
    return (y,)


def check(case, results):
    names = RESULTS.get(case.op, ("y",))
    assert {name for name, _ in case.expect} <= set(names)
    for name, result in zip(names, results):
        if (name, 0) in case.expect:
            cases.check(case.expect[name, 0], result)
        else:
            assert result.shape == (0,)


@pytest.mark.parametrize("name", cases.names("cast_", "decode_", "nz_"))
def test_numpy(name):
    case = cases.load(name)
    check(case, run(case, lambda array: array, {}, "document"))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", cases.names(*WITH_LEVEL))
def test_every_level(name, level):
    case = cases.load(name)
    check(case, run(case, lambda array: array, {"isa": level}, "document"))


@pytest.mark.parametrize("result_types", ["document", "native", "uint8"])
@pytest.mark.parametrize("name", cases.names("cast_", "decode_", "nz_", *WITH_LEVEL))
def test_torch(name, result_types):
    case = cases.load(name)
    results = run(case, cases.to_torch, {}, result_types)
    assert all(isinstance(result, torch.Tensor) for result in results)
    check(case, results)


@pytest.mark.parametrize("convert", [lambda array: array, cases.to_torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", cases.names("err_ir_", "err_tp_"))
def test_error_names_the_argument(name, convert):
    case = cases.load(name)
    with pytest.raises((ValueError, TypeError), match=case.error_arg):
        run(case, convert, {}, "document")
