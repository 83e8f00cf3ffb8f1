"""The fused layer as `torch.ops.megamoe.mega_moe`, which is what torch.compile sees of `mega_moe`.

Operators take tensors and scalars only: buffers and packed weights are passed as their handles, settings as
text and numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from . import handles, settings
from .buffer import SymmBuffer
from .errors import invalid_type
from .layer import CallArguments, new_results, run_call
from .weights import FractalTensor, LinearArguments, PackedWeights

_LAYERS = (("", 1), ("", 2), ("shared_", 1), ("shared_", 2))
_LAYER_SCHEMA = (
    "Tensor[] {0}l{1}_weights, Tensor[] {0}l{1}_weights_sf, Tensor[] {0}l{1}_bias, Tensor[] {0}l{1}_zero, "
    "Tensor[] {0}l{1}_added_bias, Tensor[] {0}l{1}_up, int {0}l{1}_packed, str? {0}weight{1}_type"
)
_FIELDS = _LAYER_SCHEMA.count(",") + 1
_SCHEMA = (
    "(Tensor x, Tensor topk_ids, Tensor topk_weights, int sym_buffer, "
    + "".join(_LAYER_SCHEMA.format(*layer) + ", " for layer in _LAYERS)
    + "bool transpose_weight1=False, bool transpose_weight2=False, int weight1_interleave=0, "
    "Tensor? x_active_mask=None, Tensor? scales=None, str? shared_expert_quant_out_dtype=None, "
    "str activation='swiglu', float? activation_clamp=None, float? alpha=None, float? beta=None, "
    "float? linear_beta=None, int? combine_comm_mode=None, int scale_group=0, int shared_scale_group=0) -> "
    "(Tensor, Tensor)"
)
# torch does not pass trailing arguments that have their default.
_DEFAULTS = (False, False, 0, None, None, None, "swiglu", None, None, None, None, None, 0, 0)


def arrays_of(name: str, weights: Any) -> tuple[list[Any], int]:
    """(arrays, 0), or ([], handle) of packed weights."""
    if isinstance(weights, PackedWeights):
        return [], weights.handle
    arrays = _list(weights)
    if any(isinstance(item, FractalTensor) for item in arrays):
        invalid_type(f"{name} = FractalTensor: expected pack_weights of it in torch.compile")
    return arrays, 0


def packed_or_arrays(name: str, arrays: Any, packed_name: str, packed: int) -> Any:
    """The way back of `arrays_of`."""
    if not packed:
        return arrays
    if arrays:
        invalid_type(f"{name} = list: expected none beside {packed_name}")
    return handles.find(packed_name, packed, PackedWeights)


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def type_text(name: str, value: Any) -> str | None:
    """An element type as text that `settings.dtype_name` reads."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    for (
        number,
        known,
    ) in settings.CODES.items():  # torch.compile may pass numbers that it can compare but not convert
        if value == number:
            return known
    return settings.dtype_name(name, value)


def _layer_arguments(layer: LinearArguments) -> list[Any]:
    weights, handle = arrays_of(layer.name("weights"), layer.weights)
    up, _ = arrays_of(layer.name("up"), layer.up)
    return [
        weights,
        _list(layer.scales),
        _list(layer.bias),
        _list(layer.zero),
        _list(layer.added_bias),
        up,
        handle,
        type_text(layer.type_name, layer.type),
    ]


def call(buffer: SymmBuffer, given: CallArguments) -> tuple[torch.Tensor, torch.Tensor]:
    """The call through the operator. Traced by torch.compile: no call into the library here."""
    flat: list[Any] = []
    for layer in given.layers:
        flat.extend(_layer_arguments(layer))
    return torch.ops.megamoe.mega_moe(
        given.x,
        given.topk_ids,
        given.topk_weights,
        buffer.handle,
        *flat,
        given.layers[0].transposed,
        given.layers[1].transposed,
        given.layers[0].interleave,
        given.x_active_mask,
        given.scales,
        type_text("shared_expert_quant_out_dtype", given.shared_expert_quant_out_dtype),
        *settings.activation(given.activation, given.activation_clamp, given.activation_params),
        given.combine_comm_mode,
        given.layers[0].scale_group,
        given.layers[2].scale_group,
    )


def _layer(prefix: str, index: int, fields: tuple[Any, ...], *orders: Any) -> LinearArguments:
    weights, scales, bias, zero, added, up, packed, stated = fields
    weights = packed_or_arrays(f"{prefix}l{index}_weights", weights, f"{prefix}l{index}_packed", packed)
    more = [value or None for value in (zero, added, up)]
    return LinearArguments(prefix, index, weights, scales or None, bias or None, stated, *orders, *more)


def _run(
    x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, sym_buffer: int, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    buffer = handles.find("sym_buffer", sym_buffer, SymmBuffer)
    count = _FIELDS * len(_LAYERS)
    swap1, swap2, order, *options = (*rest[count:], *_DEFAULTS[len(rest) - count :])
    mask, scales, shared_codes, activation, clamp, alpha, beta, linear_beta, comm_mode, *groups = options
    params = {"alpha": alpha, "beta": beta, "linear_beta": linear_beta}
    orders = {1: (swap1, order), 2: (swap2, 0)}
    layers = tuple(
        _layer(prefix, index, rest[_FIELDS * i : _FIELDS * (i + 1)], *orders[index], groups[i // 2])
        for i, (prefix, index) in enumerate(_LAYERS)
    )
    return run_call(
        buffer,
        CallArguments(
            x,
            topk_ids,
            topk_weights,
            mask,
            scales,
            layers,
            shared_codes,
            activation,
            clamp,
            params,
            comm_mode,
        ),
    )


def _fake(
    x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, sym_buffer: int, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return new_results(x, handles.find("sym_buffer", sym_buffer, SymmBuffer))


_registered: list[Any] = []


def register() -> None:
    """Registers the operator, once per process."""
    if not _registered:
        operator = torch.library.custom_op("megamoe::mega_moe", _run, mutates_args=(), schema=_SCHEMA)
        operator.register_fake(_fake)
        _registered.append(operator)
