"""Weights of the linear layers: as the caller holds them, or packed into the order the kernels read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from . import _core, handles, settings, tensors
from .errors import invalid_type, invalid_value, renamed

__all__ = ["FractalTensor", "LinearArguments", "PackedLayer", "PackedWeights", "pack_weights"]

# Of these the operator documents store (N, K) matrices, the reduction last; of all others (K, N).
_MX_TYPES = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1")
_CARRIED_TYPES = (*_MX_TYPES, "int4")  # types that bytes carry
_WEIGHT_TYPES = ("bfloat16", "int8", "int32", *_MX_TYPES)
# The documents keep the float32 bits of a scale in the low half of 64 bits; int64 carries the same bits.
_SCALE_TYPES = ("uint64", "float32", "int64", "float8_e8m0", "uint8", "float16", "bfloat16")
_SCALES_STAND_FOR = {"int64": "uint64", "uint8": "float8_e8m0"}


class FractalTensor:
    """Weights in one of the tiled layouts of the operator documents, for use wherever weights are taken.

    Args:
        data: the storage, a contiguous array of any shape: per matrix (ceil(C / C0), ceil(R / 16), 16, C0)
            elements, padding included; int32 words hold eight int4.
        shape: (R, C) or (experts, R, C), the logical shape; C counts elements, also of packed types.
        layout: "FRACTAL_NZ", inner rows of 32 bytes; or "FRACTAL_NZ_C0_32", inner rows of 32 elements.
    """

    __slots__ = ("data", "layout", "shape")

    def __init__(self, data: Any, shape: Sequence[int], layout: str = "FRACTAL_NZ") -> None:
        if not tensors.is_array(data):
            invalid_type(f"data = {type(data).__name__}: expected a torch tensor or a NumPy array")
        self.data = data
        self.shape = tuple(settings.integers("shape", shape))
        self.layout = settings.text("layout", layout)

    @property
    def dtype(self) -> Any:
        """Type of the elements of `data`."""
        return self.data.dtype

    def __repr__(self) -> str:
        return f"<megamoe.FractalTensor {self.shape} of {tensors.dtype_of(self)}, {self.layout}>"


class PackedWeights:
    """Weights of one linear layer in the order the kernels read; made by `pack_weights`.

    Attributes:
        dtype: name of the element type.
        experts, k, n: number of matrices, length of the reduction, output columns (both halves of a gated
            Linear1).
        shape: (experts, k, n).
        nbytes: bytes of memory held.
        format: the element type, and with scales of groups or blocks their length: "int4 with scale_group 128".
        scenarios: names of the scenarios that multiply such weights.
        gated: of Linear1: outputs are gate and up columns.
        interleave: order of gate and up columns they were packed from, as `weight1_interleave`.
        transposed: order of the dimensions they were packed from, as `transpose_weight1`.
        layout: layout they were packed from: "ND", "FRACTAL_NZ" or "FRACTAL_NZ_C0_32".
        scale_group: length of the reduction that shares a scale; 0 = a scale for each output, or as MX has it.
        has_bias, has_added_bias: whether they hold biases.
    """

    __slots__ = ("__weakref__", "handle", "native")

    def __init__(self, native: _core.PackedWeights) -> None:
        self.native = native
        self.handle = handles.register(self)

    @property
    def dtype(self) -> str:
        return self.native.dtype

    @property
    def experts(self) -> int:
        return self.native.experts

    @property
    def k(self) -> int:
        return self.native.k

    @property
    def n(self) -> int:
        return self.native.n

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.experts, self.k, self.n

    @property
    def nbytes(self) -> int:
        return self.native.nbytes

    @property
    def format(self) -> str:
        return self.native.format

    @property
    def scenarios(self) -> tuple[str, ...]:
        return tuple(self.native.scenarios)

    @property
    def gated(self) -> bool:
        return self.native.gated

    @property
    def interleave(self) -> int:
        return self.native.interleave

    @property
    def transposed(self) -> bool:
        return self.native.k_last != (self.dtype in _MX_TYPES)

    @property
    def layout(self) -> str:
        return self.native.layout

    @property
    def scale_group(self) -> int:
        return self.native.scale_group

    @property
    def has_bias(self) -> bool:
        return self.native.has_bias

    @property
    def has_added_bias(self) -> bool:
        return self.native.has_added_bias

    def __repr__(self) -> str:
        return f"<megamoe.PackedWeights {self.dtype} ({self.experts}, {self.k}, {self.n})>"


class PackedLayer(NamedTuple):
    """The packed weights of one layer; give its members as `l1_weights` and `l2_weights`."""

    l1: PackedWeights
    l2: PackedWeights


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (list, tuple)) and not value)


def _each(name: str, value: Any, read: Callable[[str, Any], Any]) -> list[Any]:
    """read(name, array) for one array or every array of a list."""
    if isinstance(value, (list, tuple)):
        return [read(f"{name}[{i}]", item) for i, item in enumerate(value)]
    return [] if value is None else [read(name, value)]


def _read_scale(name: str, value: Any) -> Any:
    return tensors.read(name, value, _SCALE_TYPES, _SCALES_STAND_FOR)


def _read_bias(name: str, value: Any) -> Any:
    return tensors.read(name, value, ("float32",))


def _read_zero(name: str, value: Any) -> Any:
    return tensors.read(name, value, ("int8",))


def _identity(value: Any) -> Any:
    """A key that is equal for the same arrays in the same memory."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return tuple(map(_identity, value))
    if isinstance(value, PackedWeights):
        return value.handle  # unlike id() never that of another object
    if isinstance(value, FractalTensor):
        return (value.shape, value.layout, tensors.identity(value.data))
    return tensors.identity(value)


class LinearArguments(NamedTuple):
    """What a call says about one linear layer. Error texts use the names of the arguments of `mega_moe`."""

    prefix: str  # "" or "shared_"
    index: int  # 1 or 2
    weights: Any
    scales: Any
    bias: Any
    type: Any
    transposed: Any
    interleave: Any = 0  # of Linear1
    scale_group: Any = 0
    zero: Any = None
    added_bias: Any = None
    up: Any = None  # of Linear1

    def name(self, of: str) -> str:
        """Name of the argument that holds the "weights", "weights_sf", "bias", "zero", ..."""
        return f"{self.prefix}l{self.index}_{of}"

    @property
    def type_name(self) -> str:
        return f"{self.prefix}weight{self.index}_type"

    def _stated(self) -> str | None:
        return settings.dtype_name(self.type_name, self.type)

    def _swapped(self) -> bool:
        return settings.flag(f"transpose_weight{self.index}", self.transposed)

    def _order(self) -> int:
        return settings.integer("weight1_interleave", self.interleave)

    def _group(self) -> int:
        return settings.integer(f"{self.prefix}scale_group", self.scale_group)

    def _beside(self) -> dict[str, Any]:
        """The arrays beside those of the weights, by the names of their arguments."""
        arrays = (self.scales, self.bias, self.zero, self.added_bias, self.up)
        return dict(zip(map(self.name, ("weights_sf", "bias", "zero", "added_bias", "up")), arrays))

    def identity(self) -> Any:
        """A key that is equal for the same arguments."""
        arrays = map(_identity, (self.weights, *self._beside().values()))
        return (*arrays, self._stated(), self._swapped(), self._order(), self._group())

    def native(self) -> Any:
        """The weights as the library takes them, packed or raw."""
        weights = self.name("weights")
        packed = isinstance(self.weights, PackedWeights)
        if packed or (self.prefix and _is_empty(self.weights)):
            for name, value in self._beside().items():
                if not _is_empty(value):
                    why = f"{weights} is packed" if packed else f"there are no {weights}"
                    invalid_value(f"{name} = {type(value).__name__}: expected None, {why}")
        stated = self._stated()
        if self.prefix and _is_empty(self.weights):
            for name, value in ((f"{self.prefix}scale_group", self._group()), (self.type_name, stated)):
                if value:
                    least = "None" if value is stated else "0"
                    invalid_value(f"{name} = {value}: expected {least}, there are no {weights}")
        if packed:
            if stated not in (None, self.weights.dtype):
                self._refuse_type(stated, self.weights.dtype)
            self._refuse_other(f"{self.prefix}scale_group", self._group(), self.weights.scale_group)
            return self.weights.native
        if self.weights is None and not self.prefix:
            invalid_type(f"{weights} = NoneType: expected torch tensors, NumPy arrays or packed weights")
        types: set[str] = set()
        views = _each(weights, self.weights, lambda name, value: self._read_weight(name, value, types))
        k_last = any(kind in _MX_TYPES for kind in types) != self._swapped()
        read = (_read_scale, _read_bias, _read_zero, _read_bias, lambda n, v: self._read_weight(n, v, types))
        beside = [_each(*item, how) for item, how in zip(self._beside().items(), read)]
        return _core.RawWeights(views, *beside, k_last, self._order(), self._group())

    def _refuse_other(self, name: str, stated: Any, actual: Any) -> None:
        """Refuses a setting that is not the one with which the weights were packed; 0 and False leave it open."""
        if stated and stated != actual:
            invalid_value(f"{name} = {stated}: expected {actual}, {self.name('weights')} is packed")

    def refuse_other_order(self) -> None:
        """Refuses an order of packed weights that is not theirs."""
        if not isinstance(self.weights, PackedWeights):
            return
        self._refuse_other(f"transpose_weight{self.index}", self._swapped(), self.weights.transposed)
        self._refuse_other("weight1_interleave", self._order(), self.weights.interleave)

    def is_raw(self) -> bool:
        return not isinstance(self.weights, PackedWeights) and not _is_empty(self.weights)

    def _refuse_type(self, stated: str | None, actual: str) -> NoReturn:
        invalid_value(f"{self.type_name} = {stated}: expected the type of {self.name('weights')}, {actual}")

    def _read_weight(self, name: str, value: Any, types: set[str]) -> Any:
        """The view of one array of weights; adds its type to `types`."""
        stated = self._stated()
        fractal = isinstance(value, FractalTensor)
        array = value.data if fractal else value
        if not tensors.is_array(array):
            invalid_type(f"{name} = {type(array).__name__}: expected a torch tensor or a NumPy array")
        own = tensors.dtype_of(array)
        if own == "uint8":
            if stated not in _CARRIED_TYPES:
                expected = f"expected the type that the bytes of {name} carry, of {', '.join(_CARRIED_TYPES)}"
                invalid_type(f"{self.type_name} = {stated}: {expected}")
            kind = stated
        else:
            kind = "int4" if own == "int32" else own
            if own in _WEIGHT_TYPES and stated not in (None, kind):
                self._refuse_type(stated, kind)
        types.add(kind)
        if fractal and own in (*_WEIGHT_TYPES, "uint8"):
            shape = value.shape
            # The documents tell words of eight int4 from int4; the tiles of both are the same memory.
            if own == "int32" and shape and shape[-1] % 8 == 0:
                return tensors.read_fractal(name, array, own, (*shape[:-1], shape[-1] // 8), value.layout)
            return tensors.read_fractal(name, array, kind, shape, value.layout)
        return tensors.read(name, array, (*_WEIGHT_TYPES, "uint8"), {"uint8": kind})


def native_layers(layers: Sequence[LinearArguments]) -> list[Any]:
    """The weights of a call as the library takes them.

    Routed and shared experts share the arguments that state an order. It is that of the raw ones among them;
    where all are packed, it must be theirs.
    """
    for layer in layers:
        if not any(other.is_raw() for other in layers if other.index == layer.index):
            layer.refuse_other_order()
    return [layer.native() for layer in layers]


# Arguments of mega_moe -> those of pack_weights.
_PACK_NAMES = {
    "l1_weights": "l1",
    "l2_weights": "l2",
    "l1_weights_sf": "l1_sf",
    "l2_weights_sf": "l2_sf",
    "l1_weights.up": "l1_up",
    "l1_weights.zero": "l1_zero",
    "l2_weights.zero": "l2_zero",
    "l1_weights.scale_group": "scale_group",
    "l2_weights.scale_group": "scale_group",
    "transpose_weight1": "transposed",
    "transpose_weight2": "transposed",
}


def pack_weights(
    l1: Any,
    l2: Any,
    *,
    l1_sf: Any = None,
    l2_sf: Any = None,
    l1_bias: Any = None,
    l2_bias: Any = None,
    l1_added_bias: Any = None,
    l2_added_bias: Any = None,
    l1_up: Any = None,
    weight1_type: Any = None,
    weight2_type: Any = None,
    gated: bool = True,
    transposed: bool = False,
    weight1_interleave: int = 0,
    scale_group: int = 0,
    l1_zero: Any = None,
    l2_zero: Any = None,
    threads: int = 0,
) -> PackedLayer:
    """Brings the weights of one layer into the order the kernels read; routed and shared experts alike.

    Packed weights are made once and serve any number of buffers, threads and calls; the given arrays are not
    needed afterwards. They keep the width of the stored type. Raw weights given to `mega_moe` are brought
    into that order again in every call.

    Args:
        l1: weights of Linear1, as `l1_weights` of `mega_moe`: one array of E matrices or a list of E
            matrices. Outputs [0, I) are the gate, [I, 2I) the up branch.
        l2: weights of Linear2, as `l2_weights`, of the same type.
        l1_sf, l2_sf: scales, as `l1_weights_sf` and `l2_weights_sf`.
        l1_bias, l2_bias: float32 (E, 2I) and (E, H), or lists.
        l1_added_bias, l2_added_bias: biases added after all scales, see `mega_moe`.
        l1_up: the up outputs in arrays of their own, see `mega_moe`.
        weight1_type, weight2_type: types that uint8 arrays carry.
        gated: False for an activation without gate (gelu): all outputs of Linear1 are passed on to Linear2.
        transposed: the last two dimensions are swapped: bfloat16 and integer weights (E, N, K), as in
            PyTorch's nn.Linear, MX weights (E, K, N).
        weight1_interleave: order of the outputs of Linear1, see `mega_moe`.
        scale_group, l1_zero, l2_zero: scales and zero points of groups and blocks, see `mega_moe`.
        threads: threads to pack with; 0 = all cores.

    Returns:
        A named tuple (l1, l2) of `PackedWeights`, accepted by `mega_moe` as `l1_weights` and `l2_weights`.

    Raises:
        TypeError: an argument has a type that is not listed above.
        ValueError: shapes that do not fit each other, scales missing or superfluous.
    """
    gated = settings.flag("gated", gated)
    transposed = settings.flag("transposed", transposed)
    count = settings.integer("threads", threads)
    order, group = weight1_interleave, scale_group
    first = LinearArguments(
        "", 1, l1, l1_sf, l1_bias, weight1_type, transposed, order, group, l1_zero, l1_added_bias, l1_up
    )
    second = LinearArguments(
        "", 2, l2, l2_sf, l2_bias, weight2_type, transposed, 0, group, l2_zero, l2_added_bias
    )
    with renamed(_PACK_NAMES):
        for given in (first, second):
            if isinstance(given.weights, PackedWeights):
                invalid_type(f"{given.name('weights')} = PackedWeights: expected weights that are not packed")
        raw1, raw2 = first.native(), second.native()
        packed1 = _core.pack_linear1(raw1, gated, count)
        packed2 = _core.pack_linear2(raw2, count)
        _core.check_pair(packed1, packed2)
    return PackedLayer(PackedWeights(packed1), PackedWeights(packed2))
