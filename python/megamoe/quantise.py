"""The quantisation rules and casts on arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import _core, settings, tensors
from .errors import invalid_type, invalid_value

__all__ = ["QuantRule", "cast", "dequantise", "quant_rules", "quantise"]

_REAL = ("float32", "float16", "bfloat16")


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


def _rule(name: Any) -> QuantRule:
    rules = quant_rules()
    if settings.text("rule", name) not in rules:
        invalid_value(f"rule = {name!r}: expected one of {', '.join(rules)}")
    return rules[name]


def _framework(name: str, value: Any) -> Any:
    """torch, or None for NumPy. Tensors that require a gradient would lose it here."""
    if not tensors.is_array(value):
        invalid_type(f"{name} = {type(value).__name__}: expected a torch tensor or a NumPy array")
    if isinstance(value, np.ndarray):
        return None
    torch = tensors.torch_if_loaded()
    if value.requires_grad and torch.is_grad_enabled():
        invalid_value(f"{name}.requires_grad = True: expected False, the function has no gradient")
    return torch


def _read_as(name: str, value: Any, dtype: str) -> Any:
    """Elements of type `dtype`, which bytes may carry."""
    if dtype not in tensors.BYTE_TYPES:
        return tensors.read(name, value, (dtype,))
    return tensors.read(name, value, (dtype, "uint8"), {"uint8": dtype})


def _number(name: str, value: Any) -> float | None:
    return None if value is None else settings.number(name, value)


def _level(isa: Any) -> str | None:
    return None if isa is None else settings.text("isa", isa)


def quantise(
    rule: str,
    x: Any,
    *,
    smooth: Any = None,
    scale: float | None = None,
    offset: float | None = None,
    isa: str | None = None,
) -> tuple[Any, Any]:
    """Rows to codes and scales by one rule.

    Args:
        rule: a name of `quant_rules()`.
        x: (T, H), of a type that the rule takes.
        smooth: (H,) or (1, H) float32, factors of the columns; int8_per_token and int4_dynamic.
        scale: of int8_static and hif8_per_tensor, which need it.
        offset: of int8_static.
        isa: instruction-set level by name; the result is the same on all.

    Returns:
        (codes, scales), new arrays of the framework of `x`. codes: (T, H); FP4 and int4, two per byte, are
        uint8 (T, H / 2), HIFLOAT8 is uint8. scales: (T, ceil(H / group)), E8M0 as uint8; (T,) where the whole
        row has one; float32 (0,) where the rule has none.

    Raises:
        TypeError, ValueError: an argument is wrong, or `x` requires a gradient.
    """
    info = _rule(rule)
    torch = _framework("x", x)
    x_view = tensors.read("x", x, tuple(info.inputs))
    smooth_view = None if smooth is None else tensors.read("smooth", smooth, ("float32",))
    rows, columns = x.shape if x.ndim == 2 else (0, 0)
    codes = tensors.new_array(
        torch, tensors.result_shape(info.codes, (rows, columns)), tensors.result_type(torch, info.codes)
    )
    kind = info.scales or "float32"
    shape = (0,) if info.scales is None else (rows,) if info.group == 0 else (rows, -(-columns // info.group))
    scales = tensors.new_array(torch, shape, tensors.result_type(torch, kind))
    _core.quantise(
        rule,
        x_view,
        tensors.write("codes", codes, info.codes),
        None if info.scales is None else tensors.write("scales", scales, kind),
        smooth_view,
        _number("scale", scale),
        _number("offset", offset),
        _level(isa),
    )
    return codes, scales


def dequantise(
    rule: str,
    codes: Any,
    scales: Any = None,
    *,
    scale: float | None = None,
    offset: float | None = None,
    isa: str | None = None,
) -> Any:
    """Codes and scales of one rule back to float32 (T, H). Smooth factors are not divided out.

    Args:
        rule: a name of `quant_rules()`.
        codes: as `quantise` returns them, or of the type of torch or ml_dtypes.
        scales: as `quantise` returns them; also with padding columns, (T, padded) or (T, padded / 2, 2), as
            the routing operators return them. None or an empty array where the rule has none.
        scale, offset, isa: as in `quantise`.
    """
    info = _rule(rule)
    torch = _framework("codes", codes)
    codes_view = _read_as("codes", codes, info.codes)
    scales_view = None
    if scales is not None and (info.scales is not None or tuple(scales.shape) != (0,)):
        scales_view = _read_as("scales", scales, info.scales or "float32")
    shape = tuple(codes.shape)
    if codes.ndim == 2:
        shape = (shape[0], shape[1] * tensors.per_byte(info.codes))
    y = tensors.new_array(torch, shape, tensors.result_type(torch, "float32"))
    _core.dequantise(
        rule,
        codes_view,
        scales_view,
        tensors.write("y", y),
        _number("scale", scale),
        _number("offset", offset),
        _level(isa),
    )
    return y


def cast(x: Any, dtype: Any, *, saturate: bool = True, x_dtype: Any = None) -> Any:
    """Every element to another type, in one rounding of its value in float32.

    Args:
        x: array of any shape with up to 5 dimensions; 4-bit elements lie two per byte in the last one.
        dtype: torch or NumPy type, or name, of the result: "float8_e4m3fn", "hifloat8", "float4_e2m1", ...
        saturate: numbers past the largest become the largest and NaN +0; False = infinity and NaN.
        x_dtype: type that a uint8 `x` carries.

    Returns:
        New array of the framework of `x`; FP4, int4, E8M0 and HIFLOAT8 as uint8.
    """
    torch = _framework("x", x)
    target = settings.dtype_name("dtype", dtype)
    source = settings.dtype_name("x_dtype", x_dtype) or tensors.dtype_of(x)
    if target is None:
        invalid_value(f"dtype = {dtype!r}: expected an element type")
    if source == "uint8":
        invalid_type("x_dtype = None: expected the type that the bytes of x carry")
    if not _core.dtype_exists(source):
        invalid_type(f"x = {source}: expected an element type of the operator documents, such as float32")
    x_view = _read_as("x", x, source)
    if x.ndim == 0:
        invalid_value("x has shape (): expected at least one dimension")
    shape = (*x.shape[:-1], x.shape[-1] * tensors.per_byte(source))
    if shape[-1] % tensors.per_byte(target):
        invalid_value(f"x has shape {tuple(shape)}: expected an even last dimension for {target}")
    y = tensors.new_array(torch, tensors.result_shape(target, shape), tensors.result_type(torch, target))
    _core.cast(x_view, tensors.write("y", y, target), settings.flag("saturate", saturate))
    return y
