"""Arrays of torch and NumPy as the library reads and writes them, without copies.

NumPy has no bfloat16 of its own: arrays of `ml_dtypes.bfloat16` are taken, arrays of uint16 are refused,
because nothing tells what their bits mean.
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from . import _core
from .errors import invalid_type, invalid_value
from .settings import _ALIASES

# Element type -> (name, type of the same size that DLPack and buffers know, or None if they know it itself).
_carriers: dict[Any, tuple[str, Any]] = {}
# Types that arrays carry as bytes, because no framework has them or not every version does.
BYTE_TYPES = ("hifloat8", "float8_e4m3fn", "float8_e5m2", "float8_e8m0", "float4_e2m1", "int4")
_PACKED_TYPES = ("float4_e2m1", "int4")
_RESULT_TYPES = ("document", "native", "uint8")
_FP8 = ("float8_e4m3fn", "float8_e5m2")
# torch.int4 is a name without operations, and torch has nothing for int4 but bytes.
_TORCH_NAMES = {"float4_e2m1": "float4_e2m1fn_x2", "float8_e8m0": "float8_e8m0fnu", "int4": "uint8"}
_core.meet_numpy(np, np.dtype(ml_dtypes.bfloat16))
_NUMPY_NAMES = {"float4_e2m1": "float4_e2m1fn", "float8_e8m0": "float8_e8m0fnu", "int4": "int4"}


def torch_if_loaded() -> Any:
    """The torch module if the program uses it; this package never imports it."""
    return sys.modules.get("torch")


def is_torch(value: Any) -> bool:
    torch = torch_if_loaded()
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_torch(value)


def dtype_of(value: Any) -> str:
    """Name of the element type of an array, as the operator documents spell it where they know it."""
    name = str(value.dtype).removeprefix("torch.")
    return _ALIASES.get(name, name)


def _carrier(value: Any, argument: str = "array") -> tuple[str, Any]:
    found = _carriers.get(value.dtype)
    if found is None:
        name = dtype_of(value)
        substitute = None
        if isinstance(value, np.ndarray):
            if name in _PACKED_TYPES:
                invalid_type(f"{argument} = {value.dtype}: expected uint8 with two elements in each byte")
            if value.dtype.kind == "V" or value.dtype.num >= 256:  # types that NumPy did not define itself
                substitute = np.dtype(f"u{value.dtype.itemsize}")
        elif name.startswith(("float8", "float4")):
            substitute = torch_if_loaded().uint8
        found = _carriers[value.dtype] = (name, substitute)
    return found


def read(
    name: str,
    value: Any,
    allowed: tuple[str, ...],
    stands_for: dict[str, str] | None = None,
    expected: tuple[str, ...] = (),
) -> Any:
    """The array `value` of argument `name` for reading, of one of the `allowed` element types.

    `stands_for` maps a type to the one the library is to see in its place. `expected` are the types that the
    text of a refusal names, where the library refuses some of those allowed.
    """
    if not is_array(value):
        invalid_type(f"{name} = {type(value).__name__}: expected a torch tensor or a NumPy array")
    dtype, substitute = _carrier(value, name)
    if dtype not in allowed:
        invalid_type(f"{name} = {dtype}: expected {' or '.join(expected or allowed)}")
    if stands_for is not None:
        dtype = stands_for.get(dtype, dtype)
    return _core.Input(name, _export(name, value, substitute), dtype)


def read_optional(
    name: str, value: Any, allowed: tuple[str, ...], stands_for: dict[str, str] | None = None
) -> Any:
    """The same for an argument that may be None."""
    return None if value is None else read(name, value, allowed, stands_for)


def read_fractal(name: str, value: Any, dtype: str, shape: tuple[int, ...], layout: str) -> Any:
    """Contiguous storage of matrices of logical shape `shape` in a fractal layout; their elements are of type
    `dtype`, whatever type carries them.
    """
    storage = _export(name, value, _carrier(value, name)[1])
    contiguous = value.flags.c_contiguous if isinstance(value, np.ndarray) else value.is_contiguous()
    if not contiguous:
        invalid_value(f"{name} = array with gaps: expected contiguous storage in layout {layout}")
    return _core.Input.fractal(name, storage, dtype, shape, layout)


def _export(name: str, value: Any, substitute: Any) -> Any:
    """What the library takes in place of an array."""
    if not isinstance(value, np.ndarray):
        return _torch_export(name, value, substitute)
    if not value.dtype.isnative:
        invalid_type(f"{name} = {value.dtype}: expected the byte order of this machine")
    if not value.flags.aligned or any(step % value.itemsize for step in value.strides):
        invalid_value(f"{name} = array with strides {value.strides}: expected whole, aligned elements")
    return value if substitute is None else value.view(substitute)


def _torch_export(name: str, value: Any, substitute: Any) -> Any:
    torch = torch_if_loaded()
    if value.device.type != "cpu" or value.layout != torch.strided:
        kind = "sparse " if value.layout != torch.strided else ""
        invalid_value(f"{name} = {kind}tensor on {value.device}: expected a dense CPU tensor")
    array = value.detach()
    if array.is_neg():
        array = array.resolve_neg()
    if substitute is not None:
        array = array.view(substitute)
    return torch.utils.dlpack.to_dlpack(array)


def write(name: str, value: Any, stands_for: str | None = None) -> Any:
    """An array that this package made, for writing; the library sees elements of type `stands_for`."""
    dtype, substitute = _carrier(value)
    array = value if substitute is None else value.view(substitute)
    if not isinstance(value, np.ndarray):
        array = torch_if_loaded().utils.dlpack.to_dlpack(array)
    return _core.Output(name, array, stands_for or dtype)


def write_fractal(name: str, value: Any, dtype: str, shape: tuple[int, ...], layout: str) -> Any:
    """Storage that this package made, for writing matrices of logical shape `shape` in a fractal layout."""
    substitute = _carrier(value, name)[1]
    array = value if substitute is None else value.view(substitute)
    if not isinstance(value, np.ndarray):
        array = torch_if_loaded().utils.dlpack.to_dlpack(array)
    return _core.Output.fractal(name, array, dtype, shape, layout)


def result_type(torch: Any, dtype: str, result_types: str = "document") -> Any:
    """The type in which results with elements of type `dtype` are given: of torch, or of NumPy if `torch` is
    None.

    `result_types` says when types that bytes may carry are the framework's own: "document" = FP8 only, as the
    operator documents have it; "native" = all that the framework has; "uint8" = none.
    """
    if result_types not in _RESULT_TYPES:
        invalid_value(f"result_types = {result_types}: expected one of {', '.join(_RESULT_TYPES)}")
    if dtype in BYTE_TYPES:
        native = result_types == "native" or (result_types == "document" and dtype in _FP8)
        if torch is None:
            name = _NUMPY_NAMES.get(dtype, dtype)
            return np.dtype(getattr(ml_dtypes, name, np.uint8) if native else np.uint8)
        name = _TORCH_NAMES.get(dtype, dtype)
        return getattr(torch, name, torch.uint8) if native else torch.uint8
    if torch is not None:
        return getattr(torch, dtype)
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def per_byte(dtype: str) -> int:
    """Elements in one byte of a packed type; 1 for others."""
    return 2 if dtype in _PACKED_TYPES else 1


def one_per_byte(kind: Any) -> bool:
    """Whether `kind` is a type of ml_dtypes that takes a byte for 4 bits."""
    return isinstance(kind, np.dtype) and kind.name in ("float4_e2m1fn", "int4")


def result_shape(dtype: str, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Shape of the array that carries `shape` elements, two of 4 bits per byte."""
    return (*shape[:-1], shape[-1] // per_byte(dtype))


def new_array(torch: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A new contiguous array of a `result_type` of the same `torch`, on the CPU whatever torch's default device."""
    return np.empty(shape, dtype) if torch is None else torch.empty(shape, dtype=dtype, device="cpu")


def framework_of(value: Any) -> Any:
    """torch for a torch tensor, None for a NumPy array: what `result_type` and `new_array` take."""
    return None if isinstance(value, np.ndarray) else torch_if_loaded()


def identity(value: Any) -> tuple[Any, ...]:
    """What tells one array from another while both are alive: memory, shape, strides and element type."""
    if isinstance(value, np.ndarray):
        return (value.__array_interface__["data"][0], value.shape, value.strides, value.dtype)
    if is_torch(value):
        if value.layout != torch_if_loaded().strided:
            return (id(value),)
        return (value.data_ptr(), value.shape, value.stride(), value.dtype, value.is_neg())
    return (id(value),)
