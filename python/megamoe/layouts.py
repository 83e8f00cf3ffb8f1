"""Matrices between the plain and the fractal layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _core, packed, settings, tensors
from .errors import invalid_type, invalid_value
from .operators import Array, DType, operator
from .quantise import source_type
from .results import Results

__all__ = ["convert_layout", "layout_shape", "matrix_shape"]

_TILE_ROWS = 16


def _c0(dtype: str, layout: str) -> int:
    """Elements in an inner row of a tile."""
    return int(_core.fractal_storage_shape(dtype, layout, 1, 1)[3])


def layout_shape(dtype: str, layout: str, shape: Sequence[Any]) -> tuple[Any, ...]:
    """Shape of the memory of matrices of logical `shape` in a layout, in elements."""
    if layout == "ND":
        return tuple(shape)
    c0 = _c0(dtype, layout)
    rows, columns = shape[-2:]
    tiles = (columns + c0 - 1) // c0, (rows + _TILE_ROWS - 1) // _TILE_ROWS
    return (*shape[:-2], *tiles, _TILE_ROWS, c0)


def matrix_shape(dtype: str, source: str, stored: Sequence[Any], matrix: Sequence[int]) -> tuple[Any, ...]:
    """Logical shape of matrices whose memory has the shape `stored`; `matrix` as the argument `shape` of
    `convert_layout`.
    """
    if source == "ND":
        if matrix:
            invalid_value(f"shape = {tuple(matrix)}: expected () where the source has its own shape")
        if len(stored) < 2:
            invalid_value(f"x has shape {tuple(stored)}: expected a matrix or a stack of matrices")
        return tuple(stored)
    c0 = _c0(dtype, source)
    if len(stored) < 4 or tuple(stored[-2:]) != (_TILE_ROWS, c0):
        expected = f"(..., column tiles, row tiles, {_TILE_ROWS}, {c0}) in elements of {dtype}"
        invalid_value(f"x has shape {tuple(stored)}: expected {expected}")
    if not matrix:
        matrix = (stored[-3] * _TILE_ROWS, stored[-4] * c0)
    elif len(matrix) != 2:
        invalid_value(f"shape = {tuple(matrix)}: expected rows and columns")
    return (*stored[:-4], *matrix)


@operator
def convert_layout(
    x: Array,
    to: str,
    *,
    source: str = "ND",
    shape: Sequence[int] = (),
    x_dtype: DType | None = None,
) -> Array:
    """Matrices from one layout to another; docs/formats.md has the formula. Padding of tiles is zero.

    Args:
        x: ND: (..., R, C) of any strides. Fractal layouts: the contiguous memory, (..., ceil(C / C0),
            ceil(R / 16), 16, C0). 4-bit elements in bytes lie two per byte in the last dimension. Up to 3
            dimensions before the matrices.
        to: layout of the result: "ND", "FRACTAL_NZ", or "FRACTAL_NZ_C0_32" for 4-bit types.
        source: layout of `x`, of the same names.
        shape: (R, C) in elements where the source is fractal; () = all of its tiles.
        x_dtype: type that a uint8 `x` carries; None = bytes.

    Returns:
        New array of the type of `x`, shaped as `x` is described above.

    Raises:
        TypeError, ValueError: an argument is wrong, or `x` requires a gradient.
    """
    dtype = source_type(x, x_dtype)
    if dtype not in settings.DTYPES:
        invalid_type(f"x = {dtype}: expected an element type of the operator documents, such as bfloat16")
    logical = matrix_shape(dtype, source, packed.elements(x, dtype), shape)
    if len(logical) > 5:
        invalid_value(f"x has matrices of shape {logical}: expected at most 5 dimensions")
    results = Results(x, kept=dtype)
    if source == "ND":
        x_view = packed.read("x", x, (dtype, "uint8"), {"uint8": dtype})
    else:
        x_view = tensors.read_fractal("x", packed.two_per_byte("x", x), dtype, logical, source)
    y = results.array(dtype, layout_shape(dtype, to, logical))
    write = tensors.write("y", y, dtype) if to == "ND" else tensors.write_fractal("y", y, dtype, logical, to)
    _core.convert_layout(x_view, write)
    return results.finish()[0]
