"""The quantisation rules and casts on arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _core, packed, settings, tensors
from .errors import invalid_type, invalid_value, shown
from .operators import Array, DType, operator
from .results import Results

__all__ = ["QuantRule", "cast", "dequantise", "quant_rules", "quantise", "rule_named"]


class QuantRule(NamedTuple):
    """A quantisation rule; docs/formats.md lists them, docs/numerics.md has the formulas."""

    name: str
    codes: str
    scales: str | None
    group: int
    inputs: list[str]
    takes_smooth: bool
    takes_scale: bool
    takes_offset: bool


def quant_rules() -> dict[str, QuantRule]:
    """All rules by name: element types of codes and scales (None = no scales), columns that share a scale
    (0 = the whole row), element types of the rows, and which arguments the rule takes.
    """
    rules = {}
    for name, codes, scales, group, inputs, smooth, scale, offset in _core.quant_rules():
        kind = None if scales == "undefined" else scales
        rules[name] = QuantRule(name, codes, kind, group, list(inputs), smooth, scale, offset)
    return rules


def rule_named(name: str) -> QuantRule:
    rules = quant_rules()
    if name not in rules:
        invalid_value(f"rule = {shown(name)}: expected one of {', '.join(rules)}")
    return rules[name]


def _read_as(name: str, value: Any, dtype: str) -> Any:
    """Elements of type `dtype`, which bytes may carry."""
    if dtype not in tensors.BYTE_TYPES:
        return tensors.read(name, value, (dtype,))
    return packed.read(name, value, (dtype, "uint8"), {"uint8": dtype})


@operator
def quantise(
    rule: str,
    x: Array,
    *,
    smooth: Array | None = None,
    scale: float | None = None,
    offset: float | None = None,
    result_types: str = "document",
    isa: str | None = None,
) -> tuple[Array, Array]:
    """Rows to codes and scales by one rule.

    Args:
        rule: a name of `quant_rules()`.
        x: (T, H), of a type that the rule takes.
        smooth: (H,) or (1, H) float32, factors of the columns; int8_per_token and int4_dynamic.
        scale: of int8_static and hif8_per_tensor, which need it.
        offset: of int8_static.
        result_types: as in `moe_init_routing_v3`.
        isa: instruction-set level by name; the result is the same on all.

    Returns:
        (codes, scales), new arrays of the framework of `x`. codes: (T, H); as uint8, FP4 and int4 are
        (T, H / 2), two per byte. scales: (T, ceil(H / group)); (T,) where the whole row has one; float32 (0,)
        where the rule has none.

    Raises:
        TypeError, ValueError: an argument is wrong, or `x` requires a gradient.
    """
    info = rule_named(rule)
    x_view = tensors.read("x", x, tuple(info.inputs))
    smooth_view = None if smooth is None else tensors.read("smooth", smooth, ("float32",))
    rows, columns = x.shape if x.ndim == 2 else (0, 0)
    results = Results(x, result_types)
    codes = results.make("codes", info.codes, (rows, columns))
    shape = (rows,) if info.group == 0 else (rows, -(-columns // info.group))
    scales = results.make("scales", info.scales or "undefined", shape)
    _core.quantise(rule, x_view, codes, scales, smooth_view, scale, offset, isa)
    return results.finish()  # type: ignore[return-value]


@operator
def dequantise(
    rule: str,
    codes: Array,
    scales: Array | None = None,
    *,
    scale: float | None = None,
    offset: float | None = None,
    isa: str | None = None,
) -> Array:
    """Codes and scales of one rule back to float32 (T, H). Smooth factors are not divided out.

    Args:
        rule: a name of `quant_rules()`.
        codes: as `quantise` returns them, of any of its result types.
        scales: as `quantise` returns them; also with padding columns, (T, padded) or (T, padded / 2, 2), as
            the routing operators return them. None or an empty array where the rule has none.
        scale, offset, isa: as in `quantise`.
    """
    info = rule_named(rule)
    codes_view = _read_as("codes", codes, info.codes)
    if info.scales is None and scales is not None and tuple(scales.shape) != (0,):
        invalid_value(f"scales has shape {tuple(scales.shape)}: expected None or an empty array with {rule}")
    scales_view = None
    if info.scales is not None and scales is not None:
        scales_view = _read_as("scales", scales, info.scales)
    results = Results(codes)
    y = results.make("y", "float32", packed.elements(codes, info.codes))
    _core.dequantise(rule, codes_view, scales_view, y, scale, offset, isa)
    return results.finish()[0]


@operator
def cast(
    x: Array,
    dtype: DType,
    *,
    saturate: bool = True,
    x_dtype: DType | None = None,
    result_types: str = "document",
) -> Array:
    """Every element to another type, in one rounding of its value in float32.

    Args:
        x: array of any shape with up to 5 dimensions; 4-bit elements in bytes lie two per byte in the last
            one.
        dtype: torch or NumPy type, or name, of the result: "float8_e4m3fn", "hifloat8", "float4_e2m1", ...
        saturate: numbers past the largest become the largest and NaN +0; False = infinity and NaN.
        x_dtype: type that a uint8 `x` carries.
        result_types: as in `moe_init_routing_v3`.

    Returns:
        New array of the framework of `x`.
    """
    source = source_type(x, x_dtype)
    if source == "uint8":
        invalid_type("x_dtype = None: expected the type that the bytes of x carry")
    if source not in settings.DTYPES:
        invalid_type(f"x = {source}: expected an element type of the operator documents, such as float32")
    x_view = _read_as("x", x, source)
    if x.ndim == 0:
        invalid_value("x has shape (): expected at least one dimension")
    shape = packed.elements(x, source)
    if shape[-1] % tensors.per_byte(dtype):
        invalid_value(f"x has shape {tuple(shape)}: expected an even last dimension for {dtype}")
    results = Results(x, result_types)
    _core.cast(x_view, results.make("y", dtype, shape), saturate)
    return results.finish()[0]


def source_type(x: Array, x_dtype: str | None) -> str:
    """Type of the elements of `x`, which `x_dtype` says where bytes carry them."""
    if not tensors.is_array(x):
        invalid_type(f"x = {type(x).__name__}: expected a torch tensor or a NumPy array")
    own = tensors.dtype_of(x)
    if x_dtype is None or x_dtype == own:
        return own
    if own != "uint8" or x_dtype not in tensors.BYTE_TYPES:
        invalid_type(f"x_dtype = {x_dtype}: expected {own}, the type of x, or a type that a uint8 x carries")
    return x_dtype
