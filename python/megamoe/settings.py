"""Scalar arguments: integers, numbers, element types and the settings all ranks of a buffer agree on."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

import numpy as np

from . import _core
from .errors import invalid_type, invalid_value, plain, shown

_INT_BITS = {
    "dispatch_quant_mode": 32,
    "combine_quant_mode": 32,
    "topk_weights_type": 32,
    "topo_type": 32,
    "rank_num_per_server": 32,
    "combine_comm_mode": 32,
    "threads": 32,
}
# Names under which frameworks know a type of the operator documents.
_ALIASES = {
    "float4_e2m1fn_x2": "float4_e2m1",
    "float4_e2m1fn": "float4_e2m1",
    "float8_e8m0fnu": "float8_e8m0",
}
# Names of all element types, and those that the operator documents number.
DTYPES = frozenset(name for name, _ in _core.dtypes())
CODES = {code: name for name, code in _core.dtypes() if code >= 0} | {28: "undefined"}


def is_compiling() -> bool:
    """Whether torch.compile looks on."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and compiler.is_compiling()


def integer(name: str, value: Any) -> int:
    """`value` as an int that fits the library's type for this argument."""
    if isinstance(value, (bool, np.bool_)):
        invalid_type(f"{name} = {value}: expected an integer")
    try:
        # Sizes that torch.compile follows are ints to it and stay symbols; operator.index would fix their value.
        number = value if isinstance(value, int) else operator.index(value)
    except TypeError:
        invalid_type(f"{name} = {shown(value)}: expected an integer")
    bits = _INT_BITS.get(name, 64)
    if bits == 64 and is_compiling():
        return number  # torch's integers have 64 bits, and nobody can compare one that only the data tell
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        invalid_value(f"{name} = {shown(number)}: expected an integer of {bits} bits")
    return number


def integers(name: str, values: Any) -> list[int]:
    if not isinstance(values, (list, tuple)):
        invalid_type(f"{name} = {shown(values)}: expected a list or tuple of integers")
    return [integer(f"{name}[{i}]", value) for i, value in enumerate(values)]


def number(name: str, value: Any) -> float:
    """`value` as a float; NaN and infinities pass, the library judges them."""
    if isinstance(value, (bool, np.bool_, str, bytes)):
        invalid_type(f"{name} = {shown(value)}: expected a number")
    try:
        return float(value)
    except Exception:  # of arrays, NumPy and torch raise many kinds
        invalid_type(f"{name} = {shown(value)}: expected a number")


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        invalid_type(f"{name} = {shown(value)}: expected a string")
    if plain(value) != value:
        invalid_value(f"{name} = {shown(value)}: expected a string that UTF-8 can encode, without NUL")
    return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        invalid_type(f"{name} = {shown(value)}: expected True or False")
    return bool(value)


def dtype_name(name: str, value: Any) -> str | None:
    """Name of an element type given as torch or NumPy type, name or operator number; None if undefined."""
    if value is None:
        return None
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        if int(value) not in CODES:
            invalid_value(
                f"{name} = {shown(value)}: expected 1 (int8), 23 (float8_e5m2), 24 (float8_e4m3fn), "
                "296 (float4_e2m1) or 28 (undefined)"
            )
        value = CODES[int(value)]
    if isinstance(value, str):
        known = value
    elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.dtype):
        known = str(value).removeprefix("torch.")
    else:
        try:
            known = np.dtype(value).name
        except Exception:  # NumPy and torch raise many kinds for what is no type
            invalid_type(f"{name} = {shown(value)}: expected a torch or NumPy type, a name or an operator number")
    known = _ALIASES.get(known, known)
    if known == "undefined":
        return None
    if known not in DTYPES:
        invalid_value(f"{name} = {shown(value)}: expected an element type of the operator documents, such as int8")
    return known


# Settings that all ranks of a buffer agree on: fields of the library's BufferConfig, of the buffer, and
# arguments of the functions that make one.
BUFFER_INTEGERS = (
    "num_experts",
    "num_max_tokens_per_rank",
    "num_topk",
    "hidden",
    "intermediate_hidden",
    "max_recv_token_num",
    "dispatch_quant_mode",
    "combine_quant_mode",
    "topk_weights_type",
    "topo_type",
    "rank_num_per_server",
    "combine_comm_mode",
    "ccl_buffer_size",
)
BUFFER_TEXTS = ("comm_alg", "profile")


def buffer_config(given: dict[str, Any]) -> Any:
    """The settings among the arguments `given` as the library takes them; the others keep their defaults."""
    config = _core.BufferConfig()
    for names, convert in ((BUFFER_INTEGERS, integer), (BUFFER_TEXTS, text)):
        for name in names:
            if name in given:
                setattr(config, name, convert(name, given[name]))
    known = dtype_name("dispatch_quant_out_dtype", given["dispatch_quant_out_dtype"])
    if known is not None:
        config.dispatch_quant_out_dtype = known
    return config


def deadline_ms(value: Any) -> int:
    """Seconds to whole milliseconds, at least one."""
    seconds = number("deadline", value)
    if not 0 < seconds <= 1e9 or not math.isfinite(seconds):
        invalid_value(f"deadline = {shown(value)}: expected seconds, above 0 and at most 1e9")
    return max(1, round(seconds * 1000))


_ACTIVATION_KEYS = ("alpha", "beta", "linear_beta")


def activation(
    name: Any, clamp: Any, params: Any
) -> tuple[str, float | None, float | None, float | None, float | None]:
    """(name, clamp, alpha, beta, linear_beta) of a call; the library checks what the activation takes."""
    if params is None:
        params = {}
    if not isinstance(params, dict):
        invalid_type(f"activation_params = {shown(params)}: expected a dict with keys alpha, beta, linear_beta")
    for key in params:
        if key not in _ACTIVATION_KEYS:
            invalid_value(f"activation_params[{shown(key)}]: expected one of the keys alpha, beta, linear_beta")
    alpha, beta, linear_beta = (
        None if params.get(key) is None else number(f"activation_params[{shown(key)}]", params[key])
        for key in _ACTIVATION_KEYS
    )
    limit = None if clamp is None else number("activation_clamp", clamp)
    return text("activation", name), limit, alpha, beta, linear_beta
