"""Weights of the two linear layers: as the caller holds them, or packed into the order the kernels read."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _core, tensors
from ._core import PackedWeights
from .settings import flag, integer

__all__ = ["PackedLayer", "PackedWeights", "pack_weights", "raw_weights", "weights_identity"]

WEIGHT_TYPES = ("bfloat16", "int8")
SCALE_TYPES = ("uint64", "float32", "int64")


class PackedLayer(NamedTuple):
    """The packed weights of one layer; give its members as `l1_weights` and `l2_weights`."""

    l1: PackedWeights
    l2: PackedWeights


def _views(
    name: str, value: Any, types: tuple[str, ...], stands_for: dict[str, str] | None = None
) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [tensors.read(f"{name}[{i}]", item, types, stands_for) for i, item in enumerate(value)]
    return [tensors.read(name, value, types, stands_for)]


def raw_weights(name: str, weight: Any, scale: Any, transposed: bool = False) -> Any:
    """Views of one layer's weights and scales; `name` is "l1" or "l2"."""
    weight_views = _views(f"{name}_weights", weight, WEIGHT_TYPES)
    # The documents keep the float32 bits of a scale in the low half of 64 bits; int64 carries the same bits.
    scale_views = (
        [] if scale is None else _views(f"{name}_weights_sf", scale, SCALE_TYPES, {"int64": "uint64"})
    )
    return _core.RawWeights(weight_views, scale_views, transposed)


def weights_identity(value: Any) -> Any:
    """A key that is equal for the same weights in the same memory."""
    if isinstance(value, (list, tuple)):
        return tuple(tensors.identity(item) for item in value)
    return None if value is None else tensors.identity(value)


def pack_weights(
    l1: Any,
    l2: Any,
    *,
    l1_sf: Any = None,
    l2_sf: Any = None,
    gated: bool = True,
    transposed: bool = False,
    threads: int = 0,
) -> PackedLayer:
    """Brings the weights of one layer into the order the kernels read.

    Packed weights are made once and serve any number of buffers, threads and calls; the given arrays are not
    needed afterwards. Raw weights given to `mega_moe` are brought into that order again in every call.

    Args:
        l1: weights of Linear1, one array (E_local, H, 2I) or a list of E_local arrays (H, 2I): bfloat16 or
            int8. Columns [0, I) are the gate, [I, 2I) the up branch.
        l2: weights of Linear2, (E_local, I, H) or a list of (I, H), of the same type.
        l1_sf: scales per output channel of int8 weights, (E_local, 2I) or a list of (2I,): float32, or uint64
            (int64) with the float32 bits in the low half, as the operator documents have it. None for
            bfloat16.
        l2_sf: the same for Linear2, (E_local, H) or a list of (H,).
        gated: False for an activation without gate (gelu): l1 is then (H, N) with all N columns passed on to
            l2 (N, H).
        transposed: the reduction dimension is the last one, as in PyTorch's nn.Linear: l1 (E_local, 2I, H),
            l2 (E_local, H, I).
        threads: threads to pack with; 0 = all cores.

    Returns:
        A named tuple (l1, l2) of `PackedWeights`, accepted by `mega_moe` as `l1_weights` and `l2_weights`.

    Raises:
        TypeError: an argument has a type that is not listed above.
        ValueError: shapes that do not fit each other, scales missing or superfluous.
    """
    gated = flag("gated", gated)
    transposed = flag("transposed", transposed)
    count = integer("threads", threads)
    raw1 = raw_weights("l1", l1, l1_sf, transposed)
    raw2 = raw_weights("l2", l2, l2_sf, transposed)
    return PackedLayer(_core.pack_linear1(raw1, gated, count), _core.pack_linear2(raw2, count))
