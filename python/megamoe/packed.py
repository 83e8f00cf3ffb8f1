"""Elements of 4 bits: two per byte for the library, one per byte in the types of ml_dtypes, eight per int32."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import tensors
from .errors import invalid_type, invalid_value

__all__ = ["int32_view", "int4_view", "read", "unpack"]

assert sys.byteorder == "little"  # element 0 of a word lies in its first byte


def read(name: str, value: Any, allowed: tuple[str, ...], stands_for: dict[str, str] | None = None) -> Any:
    """`tensors.read` for arrays that may have the 4-bit types of ml_dtypes, whose elements are packed first."""
    if not isinstance(value, np.ndarray) or not tensors.one_per_byte(value.dtype):
        return tensors.read(name, value, allowed, stands_for)
    own = tensors.dtype_of(value)
    if own not in allowed:
        invalid_type(f"{name} = {own}: expected {' or '.join(allowed)}")
    return tensors.read(name, two_per_byte(name, value), ("uint8",), {"uint8": own})


def two_per_byte(name: str, value: Any) -> Any:
    """`value`, elements of the 4-bit types of ml_dtypes packed into bytes."""
    if not isinstance(value, np.ndarray) or not tensors.one_per_byte(value.dtype):
        return value
    if value.ndim == 0 or value.shape[-1] % 2:
        invalid_value(f"{name} has shape {value.shape}: expected an even last dimension of {value.dtype}")
    nibbles = value.view(np.uint8)
    return nibbles[..., 0::2] & 15 | nibbles[..., 1::2] << 4


def unpack(packed: Any, kind: Any) -> Any:
    """Bytes of two elements each as an array of a 4-bit type of ml_dtypes."""
    nibbles = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    nibbles[..., 0::2] = packed & 15
    nibbles[..., 1::2] = packed >> 4
    return nibbles.view(kind)


def elements(value: Any, dtype: str) -> tuple[Any, ...]:
    """Shape of an array in elements of type `dtype`."""
    if tensors.one_per_byte(value.dtype) or value.ndim == 0:
        return tuple(value.shape)
    return (*value.shape[:-1], value.shape[-1] * tensors.per_byte(dtype))


def int4_view(words: Any) -> Any:
    """int32 words seen as int4 elements, two per byte: the same memory as uint8, the last dimension times 4.

    Args:
        words: int32 (..., C / 8), eight elements per word, the first in bits 3 to 0; the last dimension has no
            gaps. Fractal storage too: the bytes of both views are the same.

    Returns:
        uint8 (..., C / 2), element 2 i in bits 3 to 0 of byte i.
    """
    return _view("words", words, "int32", 1)


def int32_view(nibbles: Any) -> Any:
    """int4 elements, two per byte, seen as int32 words of eight: the way back of `int4_view`.

    Args:
        nibbles: uint8 (..., C / 2), C a multiple of 8, rows at whole words; the last dimension has no gaps.

    Returns:
        int32 (..., C / 8), the same memory.
    """
    return _view("nibbles", nibbles, "uint8", 4)


def _view(name: str, value: Any, dtype: str, divisor: int) -> Any:
    if not tensors.is_array(value):
        invalid_type(f"{name} = {type(value).__name__}: expected a torch tensor or a NumPy array")
    if tensors.dtype_of(value) != dtype:
        invalid_type(f"{name} = {tensors.dtype_of(value)}: expected {dtype}")
    torch = tensors.framework_of(value)
    other = tensors.result_type(torch, "int32" if dtype == "uint8" else "uint8")
    if value.ndim > 0 and value.shape[-1] % divisor == 0:
        try:
            return value.view(other)
        except (RuntimeError, ValueError):
            pass  # gaps, or rows that do not begin at whole words
    invalid_value(
        f"{name} has shape {tuple(value.shape)}: expected a last dimension of whole words without gaps"
    )
