"""The fused mixture-of-experts layer on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import _core, settings, tensors
from .buffer import SymmBuffer
from .errors import invalid_type, invalid_value, shown
from .weights import LinearArguments, native_layers

__all__ = ["mega_moe"]

_TOKEN_TYPES = ("bfloat16", "float16")
_ID_TYPES = ("int32", "int64")
_ROUTER_TYPES = ("float32", "bfloat16")
_MASK_TYPES = ("int8", "bool")
_SCALE_TYPES = ("float8_e8m0", "uint8")


def mega_moe(
    x: Any,
    topk_ids: Any,
    topk_weights: Any,
    l1_weights: Any,
    l2_weights: Any,
    sym_buffer: SymmBuffer,
    *,
    l1_weights_sf: Any = None,
    l2_weights_sf: Any = None,
    l1_bias: Any = None,
    l2_bias: Any = None,
    x_active_mask: Any = None,
    activation: str = "swiglu",
    activation_clamp: float | None = None,
    activation_params: dict[str, float] | None = None,
    weight1_type: Any = None,
    weight2_type: Any = None,
    shared_l1_weights: Any = None,
    shared_l2_weights: Any = None,
    shared_l1_weights_sf: Any = None,
    shared_l2_weights_sf: Any = None,
    shared_l1_bias: Any = None,
    shared_l2_bias: Any = None,
    scales: Any = None,
    shared_expert_quant_out_dtype: Any = None,
    shared_weight1_type: Any = None,
    shared_weight2_type: Any = None,
    transpose_weight1: bool = False,
    transpose_weight2: bool = False,
    weight1_interleave: int = 0,
    combine_comm_mode: int | None = None,
    scale_group: int = 0,
    l1_zero: Any = None,
    l2_zero: Any = None,
    l1_added_bias: Any = None,
    l2_added_bias: Any = None,
    l1_up: Any = None,
    shared_scale_group: int = 0,
    shared_l1_zero: Any = None,
    shared_l2_zero: Any = None,
    shared_l1_added_bias: Any = None,
    shared_l2_added_bias: Any = None,
    shared_l1_up: Any = None,
) -> tuple[Any, Any]:
    """The mixture-of-experts layer: dispatch, Linear1, activation, Linear2 and combine in one call.

    Collective over the ranks of `sym_buffer`: every rank calls, also one without tokens (T = 0). Which
    scenario runs follows from the settings of the buffer and the type of the weights; docs/python.md has the
    table. The formulas and roundings are those of the MegaMoE operator document; docs/numerics.md writes them
    out.

    Arrays are torch CPU tensors or NumPy arrays (bfloat16, FP8 and E8M0: torch's types or those of
    ml_dtypes), of any strides; nothing large is copied. No gradient flows through the call.

    Args:
        x: (T, H) bfloat16 or float16, T at most num_max_tokens_per_rank; T may differ between ranks. Where
            the buffer passes codes through (dispatch_quant_mode 0 with an FP8 or FP4 type): codes of that
            type, FP8 also as uint8, FP4 (T, H / 2) uint8 or `torch.float4_e2m1fn_x2`.
        topk_ids: (T, K) int32 or int64: experts in [0, E), or -1 for a slot that is not used.
        topk_weights: (T, K) float32 or bfloat16.
        l1_weights: Linear1 of this rank's experts: one array or a list of E_local arrays without the first
            dimension; or a `FractalTensor` or a list of them; or `PackedWeights`. bfloat16, int8 and int4:
            (E_local, H, 2I); FP8 and FP4: (E_local, 2I, H). Gate outputs come before up outputs (gelu: all
            outputs pass the activation). int4 is int32 with 8 elements a word, or uint8 with 2, along the
            last dimension; FP4 is uint8 or `torch.float4_e2m1fn_x2` with 2. Raw weights may change in place
            between calls, packed ones do not follow. [] on a rank that owns no expert.
        l2_weights: Linear2 likewise: bfloat16 and integers (E_local, I, H), FP8 and FP4 (E_local, H, I).
        sym_buffer: from `get_symm_buffer_for_mega_moe`.
        l1_weights_sf: scales. Integer weights, one per output: (E_local, 2I) or a list of (2I,), uint64 with
            the float32 bits in the low half (int64 carries the same bits), or float32. FP8 and FP4 weights,
            one per 32 elements of the reduction: E8M0 (E_local, 2I, ceil(H / 64), 2) or a list, as uint8 or
            the type of torch or ml_dtypes. None for bfloat16 and packed weights.
        l2_weights_sf: the same for Linear2: (E_local, H), or (E_local, H, ceil(I / 64), 2).
        l1_bias, l2_bias: float32 (E_local, 2I) and (E_local, H), or lists; added to the outputs, for int4
            weights before the scale of the token as the operator document has it. None for packed weights.
        x_active_mask: (T,) int8 or bool; 0 = the token takes no part: its row of y is 0, and its ids, weights and
            row of x may be anything, such as the padding of a batch.
        activation: "swiglu", "swiglustep", "swigluoai", "situglu" or "gelu".
        activation_clamp: limit of the activation's inputs; None and 0 = not clamped.
        activation_params: dict with keys among alpha, beta (swigluoai) and beta, linear_beta (situglu).
        weight1_type, weight2_type: types of the weights; None = as their arrays say. Needed for uint8:
            "float8_e4m3fn", "float8_e5m2", "float4_e2m1" or "int4", a torch or NumPy type, or an operator
            number.
        shared_l1_weights, shared_l2_weights, shared_l1_weights_sf, shared_l2_weights_sf, shared_l1_bias,
            shared_l2_bias: up to 4 experts through which all tokens of this rank pass, unweighted, in the
            same forms; their number format may be another one.
        scales: where x is codes: their E8M0 scales, (T, ceil(H / 32)) uint8 or the type of torch or
            ml_dtypes.
        shared_expert_quant_out_dtype: type of the token codes for the shared experts; None = as dispatched.
        shared_weight1_type, shared_weight2_type: as `weight1_type`, for the shared experts.
        transpose_weight1, transpose_weight2: the last two dimensions of the weights (not of the scales) are
            swapped.
        weight1_interleave: order of the outputs of Linear1, routed and shared: 0 = the I gate outputs, then
            the I up outputs; a divisor g of I = g gate outputs and the g up outputs that belong to them, in
            turn, scales and biases as well. This and the two above state the order of raw weights; where
            all are packed, they may be left out, or must be those of `pack_weights`.
        combine_comm_mode: None, or that of the buffer.
        scale_group: length of the reduction that shares a scale, scales float32, float16 or bfloat16. 32, 64
            or 128 with int4: scales (E_local, N, ceil(K / scale_group)), N outputs and K the reduction. 128
            with float8_e4m3fn: a scale for each block of 128 x 128, (E_local, ceil(N / 128), ceil(K / 128));
            with `l1_up` the blocks of the gate outputs, then those of the up outputs. 0 = as above. Packed
            weights know theirs.
        l1_zero, l2_zero: int4 with scale_group: int8 zero points, shaped as the scales; a weight is scale *
            (code - zero).
        l1_added_bias, l2_added_bias: int4 without scale_group, whose `l1_bias` and `l2_bias` come before the
            scale of the token: biases of the same shapes that are added after all scales.
        l1_up: the up outputs of Linear1 in arrays of their own, in any form of `l1_weights`, which then hold
            the gate outputs only: both (E_local, H, I), or FP8 and FP4 (E_local, I, H). Scales, zero points
            and biases cover both, gate first.
        shared_scale_group, shared_l1_zero, shared_l2_zero, shared_l1_added_bias, shared_l2_added_bias,
            shared_l1_up: the same of the shared experts.

    Returns:
        (y, expert_token_nums), new arrays of the framework of `x`: y (T, H) of the type of `x`, bfloat16
        where `x` is codes; expert_token_nums (E_local,) int32, rows each expert of this rank received from
        all ranks.

    Raises:
        TypeError, ValueError: an argument of some rank is wrong, or more tokens came than there is room for.
            The same error on every rank; the next call works.
        RuntimeError: another rank failed or left, or the buffer was destroyed; `megamoe.DeadlineError` when a
            wait took longer than the buffer's deadline. The buffer cannot be used any more.
        Each has an attribute `code`, a `megamoe.Code`.
    """
    if not isinstance(sym_buffer, SymmBuffer):
        invalid_type(f"sym_buffer = {type(sym_buffer).__name__}: expected a SymmBuffer")
    stated = (
        l1_weights,
        l2_weights,
        l1_weights_sf,
        l2_weights_sf,
        l1_bias,
        l2_bias,
        activation,
        activation_clamp,
        activation_params,
        weight1_type,
        weight2_type,
        shared_l1_weights,
        shared_l2_weights,
        shared_l1_weights_sf,
        shared_l2_weights_sf,
        shared_l1_bias,
        shared_l2_bias,
        scales,
        shared_expert_quant_out_dtype,
        shared_weight1_type,
        shared_weight2_type,
        transpose_weight1,
        transpose_weight2,
        weight1_interleave,
        combine_comm_mode,
        scale_group,
        l1_zero,
        l2_zero,
        l1_added_bias,
        l2_added_bias,
        l1_up,
        shared_scale_group,
        shared_l1_zero,
        shared_l2_zero,
        shared_l1_added_bias,
        shared_l2_added_bias,
        shared_l1_up,
    )
    compiling = settings.is_compiling()  # then a call goes through a torch operator
    if not compiling:
        results = sym_buffer.repeat(stated, x, topk_ids, topk_weights, x_active_mask)
        if results is not None:
            return results

    layers = (
        LinearArguments(
            *("", 1, l1_weights, l1_weights_sf, l1_bias),
            type=weight1_type,
            transposed=transpose_weight1,
            interleave=weight1_interleave,
            scale_group=scale_group,
            zero=l1_zero,
            added_bias=l1_added_bias,
            up=l1_up,
        ),
        LinearArguments(
            *("", 2, l2_weights, l2_weights_sf, l2_bias),
            type=weight2_type,
            transposed=transpose_weight2,
            scale_group=scale_group,
            zero=l2_zero,
            added_bias=l2_added_bias,
        ),
        LinearArguments(
            *("shared_", 1, shared_l1_weights, shared_l1_weights_sf, shared_l1_bias),
            type=shared_weight1_type,
            transposed=transpose_weight1,
            interleave=weight1_interleave,
            scale_group=shared_scale_group,
            zero=shared_l1_zero,
            added_bias=shared_l1_added_bias,
            up=shared_l1_up,
        ),
        LinearArguments(
            *("shared_", 2, shared_l2_weights, shared_l2_weights_sf, shared_l2_bias),
            type=shared_weight2_type,
            transposed=transpose_weight2,
            scale_group=shared_scale_group,
            zero=shared_l2_zero,
            added_bias=shared_l2_added_bias,
        ),
    )
    call = CallArguments(
        *(x, topk_ids, topk_weights, x_active_mask, scales, layers, shared_expert_quant_out_dtype),
        *(activation, activation_clamp, activation_params, combine_comm_mode),
    )
    if compiling:
        from . import torch_layer

        return torch_layer.call(sym_buffer, call)
    return run_call(sym_buffer, call, stated=stated)


class CallArguments(NamedTuple):
    """The arguments of one call of `mega_moe`, as given."""

    x: Any
    topk_ids: Any
    topk_weights: Any
    x_active_mask: Any
    scales: Any
    layers: tuple[LinearArguments, LinearArguments, LinearArguments, LinearArguments]
    shared_expert_quant_out_dtype: Any
    activation: Any
    activation_clamp: Any
    activation_params: Any
    combine_comm_mode: Any
    global_bs: Any = 0
    ccl_buffer_size: Any = 0


def _plan(buffer: SymmBuffer, call: CallArguments) -> Any:
    shared_codes = settings.dtype_name("shared_expert_quant_out_dtype", call.shared_expert_quant_out_dtype)
    parameters = settings.activation(call.activation, call.activation_clamp, call.activation_params)
    key = (
        *(layer.identity() for layer in call.layers),
        shared_codes,
        tuple(map(repr, parameters)),  # as text, in which NaN equals itself
    )

    def make() -> Any:
        weights = native_layers(call.layers)
        return _core.Plan.create(buffer.context, *weights, _core.Activation(*parameters), shared_codes, buffer.tuning)

    return buffer.plans.plan(key, call.layers, make)


def _no_check() -> None:
    pass


def run_call(
    buffer: SymmBuffer,
    call: CallArguments,
    check: Callable[[], None] = _no_check,
    stated: tuple[Any, ...] | None = None,
) -> tuple[Any, Any]:
    """Checks the arguments, `check` first, and runs the call; collective in any case. `stated` is what must be the
    same for `SymmBuffer.repeat`.
    """

    def prepare() -> Callable[[], tuple[Any, Any]]:
        check()
        mode, of_buffer = call.combine_comm_mode, buffer.combine_comm_mode
        if mode is not None and settings.integer("combine_comm_mode", mode) != of_buffer:
            invalid_value(f"combine_comm_mode = {shown(mode)}: expected that of sym_buffer, {of_buffer}")
        attributes = [settings.integer(name, getattr(call, name)) for name in ("global_bs", "ccl_buffer_size")]
        planned = _plan(buffer, call)
        if stated is not None:
            buffer.plans.remember(stated, planned)
        codes = buffer.token_codes
        x_types = _TOKEN_TYPES if codes is None else (*_TOKEN_TYPES, codes, "uint8")
        inputs = (
            tensors.read("x", call.x, x_types, {"uint8": codes or ""}, _expected_tokens(buffer)),
            tensors.read_optional("scales", call.scales, _SCALE_TYPES, {"uint8": "float8_e8m0"}),
            tensors.read("topk_ids", call.topk_ids, _ID_TYPES),
            tensors.read("topk_weights", call.topk_weights, _ROUTER_TYPES),
            tensors.read_optional("x_active_mask", call.x_active_mask, _MASK_TYPES, {"bool": "uint8"}),
        )
        y, expert_token_nums = new_results(call.x, buffer)
        outputs = (tensors.write("y", y), tensors.write("expert_token_nums", expert_token_nums))

        def run() -> tuple[Any, Any]:
            planned.run(*inputs, *outputs, *attributes)
            return y, expert_token_nums

        return run

    return buffer.run_exclusively(prepare)


def _expected_tokens(buffer: SymmBuffer) -> tuple[str, ...]:
    """Types of x that the buffer takes."""
    codes = buffer.token_codes
    if codes is not None and buffer.dispatch_quant_mode == 0:
        return (codes, "uint8")
    return _TOKEN_TYPES if buffer.profile == "cpu" else _TOKEN_TYPES[:1]


def new_results(x: Any, buffer: SymmBuffer) -> tuple[Any, Any]:
    """(y, expert_token_nums) of a call with tokens `x`, without values."""
    torch = tensors.framework_of(x)
    rows = x.shape[0] if x.ndim == 2 else 0
    own = tensors.dtype_of(x)

    def new(dtype: str, *shape: Any) -> Any:
        return tensors.new_array(torch, shape, tensors.result_type(torch, dtype))

    y = new(own if own in _TOKEN_TYPES else "bfloat16", rows, buffer.hidden)
    return y, new("int32", buffer.experts_per_rank)
