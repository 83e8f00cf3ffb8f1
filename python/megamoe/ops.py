"""The operators, with the argument names, order and defaults of the operator documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import _core, settings, tensors
from .buffer import SymmBuffer
from .errors import invalid_type, invalid_value
from .routing import (
    moe_gating_top_k,
    moe_init_routing_v3,
    moe_token_permute,
    moe_token_permute_grad,
    moe_token_unpermute,
    moe_token_unpermute_grad,
)
from .weights import PackedWeights, raw_weights, weights_identity

__all__ = [
    "SymmBuffer",
    "get_mega_moe_ccl_buffer_size",
    "get_symm_buffer_for_mega_moe",
    "mega_moe",
    "moe_gating_top_k",
    "moe_init_routing_v3",
    "moe_token_permute",
    "moe_token_permute_grad",
    "moe_token_unpermute",
    "moe_token_unpermute_grad",
]

_TOKEN_TYPES = ("bfloat16",)
_ID_TYPES = ("int32", "int64")
_ROUTER_TYPES = ("float32", "bfloat16")
_MASK_TYPES = ("int8", "bool")


def get_symm_buffer_for_mega_moe(
    group: Any,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    *,
    max_recv_token_num: int = 0,
    dispatch_quant_mode: int = 0,
    dispatch_quant_out_dtype: Any = None,
    combine_quant_mode: int = 0,
    comm_alg: str = "",
    topk_weights_type: int = 0,
    topo_type: int = 0,
    rank_num_per_server: int = 2,
    combine_comm_mode: int = 0,
    profile: str = "cpu",
    threads: int = 0,
    isa: str | None = None,
    deadline: float = 60.0,
    trace: bool = False,
) -> SymmBuffer:
    """Makes the memory through which the ranks of a group exchange rows. Collective over the group.

    All ranks must give the same settings, from `num_experts` to `profile`; a difference is the same
    ValueError on every rank. The arguments up to `topk_weights_type` are those of the MegaMoE operator
    document, the others are additions.

    Args:
        group: None for one rank; a `torch.distributed` process group, whose ranks must be on one host; or a
            `megamoe.Group`.
        num_experts: E, experts of all ranks together. Each rank owns the next ceil(E / ranks) of them, the
            last ranks what is left; E_local is this rank's number.
        num_max_tokens_per_rank: most tokens one rank passes in one call.
        num_topk: K, slots per token.
        hidden: H.
        intermediate_hidden: I, width after the gated activation.
        max_recv_token_num: rows one rank can receive in one call; 0 = enough for any routing,
            num_max_tokens_per_rank * ranks * K.
        dispatch_quant_mode: 0 = rows travel as bfloat16, 2 = as int8 with one scale per token.
        dispatch_quant_out_dtype: type of the codes: None, torch or NumPy type, name, or operator number (1
            int8, 23 float8_e5m2, 24 float8_e4m3fn, 296 float4_e2m1, 28 undefined).
        combine_quant_mode: 0.
        comm_alg: "".
        topk_weights_type: 0 = router weights are applied when rows are combined.
        topo_type: 0 = all ranks in one memory domain.
        rank_num_per_server: ranks per domain of the layered topologies.
        combine_comm_mode: 0 = every expert row travels back.
        profile: whose limits hold; "cpu" = only those that the arithmetic and the memory need.
        threads: threads of this rank; 0 = the physical cores divided by the ranks on this host.
        isa: instruction-set level by name, see `megamoe.info()`; None = the environment variable MEGAMOE_ISA,
            else the best for this CPU.
        deadline: longest time in seconds that one wait for other ranks may take, creation included.
        trace: record when each thread did what, see `SymmBuffer.trace_spans`.

    Raises:
        TypeError, ValueError: an argument is wrong, or ranks differ; the text names the argument, what came
            and what was expected.
        RuntimeError: a rank failed, or memory could not be reserved. `megamoe.DeadlineError`, which is also a
            TimeoutError: a rank did not come in time.
    """
    return SymmBuffer(
        group,
        num_experts,
        num_max_tokens_per_rank,
        num_topk,
        hidden,
        intermediate_hidden,
        max_recv_token_num=max_recv_token_num,
        dispatch_quant_mode=dispatch_quant_mode,
        dispatch_quant_out_dtype=dispatch_quant_out_dtype,
        combine_quant_mode=combine_quant_mode,
        comm_alg=comm_alg,
        topk_weights_type=topk_weights_type,
        topo_type=topo_type,
        rank_num_per_server=rank_num_per_server,
        combine_comm_mode=combine_comm_mode,
        profile=profile,
        threads=threads,
        isa=isa,
        deadline=deadline,
        trace=trace,
    )


def get_mega_moe_ccl_buffer_size(
    ep_world_size: int,
    moe_expert_num: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    max_recv_token_num: int = 0,
    dispatch_quant_mode: int = 0,
    dispatch_quant_out_dtype: Any = None,
    combine_quant_mode: int = 0,
    comm_alg: str = "",
    topk_weights_type: int = 0,
) -> int:
    """Bytes of symmetric memory one rank needs: `SymmBuffer.ccl_buffer_size` of a buffer with these settings.

    The arguments mean what they mean for `get_symm_buffer_for_mega_moe`; `ep_world_size` is the number of
    ranks, `moe_expert_num` is `num_experts`. Exact in 64 bits; more is a ValueError.
    """
    config = settings.buffer_config(
        num_experts=moe_expert_num,
        num_max_tokens_per_rank=num_max_tokens_per_rank,
        num_topk=num_topk,
        hidden=hidden,
        max_recv_token_num=max_recv_token_num,
        dispatch_quant_mode=dispatch_quant_mode,
        dispatch_quant_out_dtype=dispatch_quant_out_dtype,
        combine_quant_mode=combine_quant_mode,
        comm_alg=comm_alg,
        topk_weights_type=topk_weights_type,
    )
    return _core.ccl_buffer_size(settings.integer("ep_world_size", ep_world_size), config)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (list, tuple)) and not value)


def _check_reserved(reserved: dict[str, Any]) -> None:
    for name, value in reserved.items():
        if not _is_empty(value):
            invalid_value(
                f"{name} = {type(value).__name__}: expected None, the scenarios of this version have none"
            )


def _check_weight_type(name: str, value: Any, of: str, weights: Any) -> None:
    """A stated weight type adds nothing to what the weights are, so it must agree with them."""
    stated = settings.dtype_name(name, value)
    if stated is None:
        return
    first = weights[0] if isinstance(weights, (list, tuple)) and weights else weights
    actual = first.dtype if isinstance(first, PackedWeights) else None
    if tensors.is_array(first):
        actual = tensors.dtype_of(first)
    if stated != actual:
        invalid_value(f"{name} = {stated}: expected the type of {of}, {actual}")


def _side(name: str, weights: Any, scales: Any) -> tuple[PackedWeights | None, Any]:
    """Packed or raw weights of one linear layer; exactly one of the two."""
    if not isinstance(weights, PackedWeights):
        return None, raw_weights(name, weights, None if _is_empty(scales) else scales)
    if not _is_empty(scales):
        invalid_value(f"{name}_weights_sf = {type(scales).__name__}: expected None, {name}_weights is packed")
    return weights, None


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
    shared_l1_weights: Sequence[Any] | None = None,
    shared_l2_weights: Sequence[Any] | None = None,
    shared_l1_weights_sf: Sequence[Any] | None = None,
    shared_l2_weights_sf: Sequence[Any] | None = None,
    shared_l1_bias: Sequence[Any] | None = None,
    shared_l2_bias: Sequence[Any] | None = None,
) -> tuple[Any, Any]:
    """The mixture-of-experts layer: dispatch, Linear1, activation, Linear2 and combine in one call.

    Collective over the ranks of `sym_buffer`: every rank calls, also one without tokens (T = 0). Which
    scenario runs follows from the weights: bfloat16 with dispatch_quant_mode 0 (A16W16), int8 with
    dispatch_quant_mode 2 (A8W8-INT). The formulas and roundings are those of the MegaMoE operator document;
    docs/numerics.md writes them out.

    Arrays are torch CPU tensors or NumPy arrays (bfloat16: `ml_dtypes.bfloat16`), of any strides; nothing
    large is copied. No gradient flows through the call.

    Args:
        x: (T, H) bfloat16, T at most num_max_tokens_per_rank; T may differ between ranks.
        topk_ids: (T, K) int32 or int64: experts in [0, E), or -1 for a slot that is not used.
        topk_weights: (T, K) float32 or bfloat16.
        l1_weights: Linear1 of this rank's experts: one array (E_local, H, 2I) or a list of E_local arrays (H,
            2I), bfloat16 or int8, gate columns before up columns (gelu: all columns pass the activation); or
            `PackedWeights`. The weights may change in place between calls, packed ones do not follow.
            [] on a rank that owns no expert.
        l2_weights: Linear2, (E_local, I, H) or a list of (I, H), or `PackedWeights`.
        sym_buffer: from `get_symm_buffer_for_mega_moe`.
        l1_weights_sf: scales of int8 weights per output channel, (E_local, 2I) or a list of (2I,): uint64
            with the float32 bits in the low half (int64 carries the same bits), or float32. None for bfloat16
            and packed weights.
        l2_weights_sf: the same for Linear2, (E_local, H) or a list of (H,).
        x_active_mask: (T,) int8 or bool; 0 = the token takes no part, its row of y is 0.
        activation: "swiglu", "swiglustep", "swigluoai", "situglu" or "gelu".
        activation_clamp: limit of the activation's inputs; None and 0 = not clamped.
        activation_params: dict with keys among alpha, beta (swigluoai) and beta, linear_beta (situglu).
        weight1_type, weight2_type: None, or the type the weights have anyway.
        l1_bias, l2_bias, shared_l1_weights, shared_l2_weights, shared_l1_weights_sf, shared_l2_weights_sf,
            shared_l1_bias, shared_l2_bias: reserved, must be None.

    Returns:
        (y, expert_token_nums), new arrays of the framework of `x`: y (T, H) bfloat16; expert_token_nums
        (E_local,) int32, rows each expert of this rank received from all ranks.

    Raises:
        TypeError, ValueError: an argument of some rank is wrong, or more tokens came than there is room for.
            The same error on every rank; the next call works.
        RuntimeError: another rank failed or left, or the buffer was destroyed; `megamoe.DeadlineError` when a
            wait took longer than the buffer's deadline. The buffer cannot be used any more.
        Each has an attribute `code`, a `megamoe.Code`.
    """
    if not isinstance(sym_buffer, SymmBuffer):
        invalid_type(f"sym_buffer = {type(sym_buffer).__name__}: expected a SymmBuffer")

    def plan() -> Any:
        parameters = settings.activation(activation, activation_clamp, activation_params)
        key = (
            weights_identity(l1_weights),
            weights_identity(l2_weights),
            weights_identity(l1_weights_sf),
            weights_identity(l2_weights_sf),
            tuple(map(repr, parameters)),  # as text, in which NaN equals itself
        )

        def make() -> Any:
            packed1, raw1 = _side("l1", l1_weights, l1_weights_sf)
            packed2, raw2 = _side("l2", l2_weights, l2_weights_sf)
            return _core.Plan.create(
                sym_buffer.context, packed1, packed2, raw1, raw2, _core.Activation(*parameters)
            )

        return sym_buffer.plan(key, make)

    def prepare() -> Callable[[], tuple[Any, Any]]:
        _check_reserved(
            {
                "l1_bias": l1_bias,
                "l2_bias": l2_bias,
                "shared_l1_weights": shared_l1_weights,
                "shared_l2_weights": shared_l2_weights,
                "shared_l1_weights_sf": shared_l1_weights_sf,
                "shared_l2_weights_sf": shared_l2_weights_sf,
                "shared_l1_bias": shared_l1_bias,
                "shared_l2_bias": shared_l2_bias,
            }
        )
        _check_weight_type("weight1_type", weight1_type, "l1_weights", l1_weights)
        _check_weight_type("weight2_type", weight2_type, "l2_weights", l2_weights)
        planned = plan()
        x_view = tensors.read("x", x, _TOKEN_TYPES)
        ids_view = tensors.read("topk_ids", topk_ids, _ID_TYPES)
        weights_view = tensors.read("topk_weights", topk_weights, _ROUTER_TYPES)
        mask_view = None
        if x_active_mask is not None:
            mask_view = tensors.read("x_active_mask", x_active_mask, _MASK_TYPES, {"bool": "uint8"})
        rows = x.shape[0] if x.ndim == 2 else 0
        y = tensors.new_like(x, (rows, sym_buffer.hidden))
        expert_token_nums = tensors.new_int32(x, (sym_buffer.experts_per_rank,))
        y_view = tensors.write("y", y)
        nums_view = tensors.write("expert_token_nums", expert_token_nums)

        def run() -> tuple[Any, Any]:
            planned.run(x_view, ids_view, weights_view, mask_view, y_view, nums_view)
            return y, expert_token_nums

        return run

    return sym_buffer.run_exclusively(prepare)
