"""Arrays of torch and NumPy as the library reads and writes them, without copies.

NumPy has no bfloat16 of its own: arrays of `ml_dtypes.bfloat16` are taken, arrays of uint16 are refused,
because nothing tells what their bits mean.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _core
from .errors import invalid_type, invalid_value
from .settings import _ALIASES

# Element type -> (name, type of the same size that DLPack and buffers know, or None if they know it itself).
_carriers: dict[Any, tuple[str, Any]] = {}


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


def _carrier(value: Any) -> tuple[str, Any]:
    found = _carriers.get(value.dtype)
    if found is None:
        name = dtype_of(value)
        substitute = None
        if isinstance(value, np.ndarray):
            if value.dtype.kind == "V" or value.dtype.num >= 256:  # types that NumPy did not define itself
                substitute = np.dtype(f"u{value.dtype.itemsize}")
        elif name.startswith(("float8", "float4")):
            substitute = torch_if_loaded().uint8
        found = _carriers[value.dtype] = (name, substitute)
    return found


def read(name: str, value: Any, allowed: tuple[str, ...], stands_for: dict[str, str] | None = None) -> Any:
    """The array `value` of argument `name` for reading, of one of the `allowed` element types.

    `stands_for` maps a type to the one the library is to see in its place.
    """
    if not is_array(value):
        invalid_type(f"{name} = {type(value).__name__}: expected a torch tensor or a NumPy array")
    dtype, substitute = _carrier(value)
    if dtype not in allowed:
        invalid_type(f"{name} = {dtype}: expected {' or '.join(allowed)}")
    if isinstance(value, np.ndarray):
        if not value.dtype.isnative:
            invalid_type(f"{name} = {value.dtype}: expected the byte order of this machine")
        if not value.flags.aligned or any(step % value.itemsize for step in value.strides):
            invalid_value(f"{name} = array with strides {value.strides}: expected whole, aligned elements")
        array = value if substitute is None else value.view(substitute)
    else:
        array = _torch_export(name, value, substitute)
    if stands_for is not None:
        dtype = stands_for.get(dtype, dtype)
    return _core.Input(name, array, dtype)


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


def write(name: str, value: Any) -> Any:
    """An array that this package made, for writing."""
    dtype, substitute = _carrier(value)
    if isinstance(value, np.ndarray):
        array = value if substitute is None else value.view(substitute)
    else:
        array = torch_if_loaded().utils.dlpack.to_dlpack(value)
    return _core.Output(name, array, dtype)


def new_like(template: Any, shape: tuple[int, ...]) -> Any:
    """A new contiguous array of the framework and element type of `template`."""
    if isinstance(template, np.ndarray):
        return np.empty(shape, template.dtype)
    return torch_if_loaded().empty(shape, dtype=template.dtype)


def new_int32(template: Any, shape: tuple[int, ...]) -> Any:
    """A new contiguous int32 array of the framework of `template`."""
    if isinstance(template, np.ndarray):
        return np.empty(shape, np.int32)
    torch = torch_if_loaded()
    return torch.empty(shape, dtype=torch.int32)


def identity(value: Any) -> tuple[Any, ...]:
    """What tells one array from another while both are alive: memory, shape, strides and element type."""
    if isinstance(value, np.ndarray):
        return (value.__array_interface__["data"][0], value.shape, value.strides, value.dtype)
    if is_torch(value):
        if value.layout != torch_if_loaded().strided:
            return (id(value),)
        return (value.data_ptr(), value.shape, value.stride(), value.dtype, value.is_neg())
    return (id(value),)
