"""The operator by the names, arguments and limits of the first version of its document."""

from __future__ import annotations

from typing import Any

from . import settings, tensors
from .buffer import SymmBuffer
from .errors import invalid_type, invalid_value, renamed
from .layer import CallArguments, run_call
from .weights import FractalTensor, LinearArguments

__all__ = ["mega_moe_v1"]

# Arguments of mega_moe and settings of its buffer -> their names in the first version.
_NAMES = {
    "l1_weights": "weight1",
    "l2_weights": "weight2",
    "l1_weights_sf": "weight_scales1",
    "l2_weights_sf": "weight_scales2",
    # What only weights that were packed before can bring.
    "l1_bias": "bias of weight1",
    "l2_bias": "bias of weight2",
    "l1_added_bias": "added bias of weight1",
    "l2_added_bias": "added bias of weight2",
    "l1_up": "up of weight1",
    "weight1_interleave": "order of weight1",
    "scale_group": "scale group of weight1",
    "weight1_type": "weight1",
    "weight2_type": "weight2",
    "dispatch_quant_out_dtype": "dispatch_quant_out_type",
    "num_experts": "moe_expert_num",
    "sym_buffer": "context",
}
# Attributes of a call -> those of its buffer that they must be.
_BUFFER_NUMBERS = {
    "moe_expert_num": "num_experts",
    "ep_world_size": "ep_world_size",
    "max_recv_token_num": "max_recv_token_num",
    "dispatch_quant_mode": "dispatch_quant_mode",
    "combine_quant_mode": "combine_quant_mode",
}


def mega_moe_v1(
    context: SymmBuffer,
    x: Any,
    topk_ids: Any,
    topk_weights: Any,
    weight1: Any,
    weight2: Any,
    weight_scales1: Any = None,
    weight_scales2: Any = None,
    x_active_mask: Any = None,
    scales: Any = None,
    *,
    moe_expert_num: int,
    ep_world_size: int,
    ccl_buffer_size: int,
    max_recv_token_num: int = 0,
    dispatch_quant_mode: int = 0,
    dispatch_quant_out_type: Any = None,
    combine_quant_mode: int = 0,
    comm_alg: str = "",
    global_bs: int = 0,
) -> tuple[Any, Any]:
    """The mixture-of-experts layer as the first version of the operator has it: MXFP8 tokens and weights,
    SwiGLU, no clamp. Collective over the ranks of `context`, as `mega_moe` is.

    The attributes describe the buffer and must agree with it. Its profile decides about limits:
    "mega_moe_v1" has those of the first version. "cpu" lifts them: the call is then `mega_moe` under these
    names, and runs what the buffer was made for, also that for which the first version has no argument, such
    as early router weights, merged rows, topologies and other token types.

    Args:
        context: from `get_symm_buffer_for_mega_moe` with dispatch_quant_mode 4 and dispatch_quant_out_dtype
            float8_e5m2 or float8_e4m3fn.
        x: (T, H) bfloat16.
        topk_ids: (T, K) int32.
        topk_weights: (T, K) float32 or bfloat16.
        weight1: (E_local, 2I, H) FP8 of dispatch_quant_out_type, in the type of torch or ml_dtypes or as
            uint8; outputs [0, I) pass the sigmoid.
        weight2: (E_local, H, I), the same type.
        weight_scales1: E8M0 (E_local, 2I, ceil(H / 64), 2), in the type of torch or ml_dtypes or as uint8.
        weight_scales2: E8M0 (E_local, H, ceil(I / 64), 2).
        x_active_mask, scales: reserved, None.
        moe_expert_num: experts of all ranks.
        ep_world_size: number of ranks.
        ccl_buffer_size: bytes of the buffer, at least `context.ccl_buffer_size`, and the same on every rank.
        max_recv_token_num: rows one rank can receive; 0 = automatic. Under profile "mega_moe_v1" at most T *
            ep_world_size * min(K, E_local).
        dispatch_quant_mode: 4; the default is not supported, as in the document.
        dispatch_quant_out_type: 23 (float8_e5m2) or 24 (float8_e4m3fn), a torch or NumPy type, or a name.
        combine_quant_mode: 0.
        comm_alg: "".
        global_bs: 0, or most tokens of all ranks together: a multiple of ep_world_size, at least T *
            ep_world_size, and the same on every rank. The buffer has its room from `num_max_tokens_per_rank`.

    Returns:
        (y, expert_token_nums): (T, H) bfloat16, and int32 (E_local,).

    Raises:
        As `mega_moe`, with the names of this function.
    """
    if not isinstance(context, SymmBuffer):
        invalid_type(f"context = {type(context).__name__}: expected a SymmBuffer")
    attributes = dict(
        moe_expert_num=moe_expert_num,
        ep_world_size=ep_world_size,
        ccl_buffer_size=ccl_buffer_size,
        max_recv_token_num=max_recv_token_num,
        dispatch_quant_mode=dispatch_quant_mode,
        combine_quant_mode=combine_quant_mode,
        comm_alg=comm_alg,
        global_bs=global_bs,
    )
    if settings.is_compiling():
        from . import torch_first_version

        weights = (weight1, weight2, weight_scales1, weight_scales2)
        arrays = (x, topk_ids, topk_weights, *weights, x_active_mask, scales)
        return torch_first_version.call(context, *arrays, dispatch_quant_out_type, **attributes)

    def check() -> None:
        _check_attributes(context, attributes, dispatch_quant_out_type)
        _check_max_recv_token_num(context, x)
        if x_active_mask is not None:
            invalid_value(f"x_active_mask = {type(x_active_mask).__name__}: expected None")

    def linear(index: int, weights: Any, of_weights: Any) -> LinearArguments:
        stated = context.token_codes if _has_bytes(weights) else None
        return LinearArguments("", index, weights, of_weights, None, stated, False)

    none = (LinearArguments("shared_", index, None, None, None, None, False) for index in (1, 2))
    layers = (linear(1, weight1, weight_scales1), linear(2, weight2, weight_scales2), *none)
    mode = context.combine_comm_mode
    call = CallArguments(
        *(x, topk_ids, topk_weights, None, scales, layers, None, "swiglu", None, None, mode),
        global_bs=global_bs,
        ccl_buffer_size=ccl_buffer_size,
    )
    with renamed(_NAMES):
        return run_call(context, call, check)


def _has_bytes(weights: Any) -> bool:
    """Whether there are arrays of uint8, whose type the buffer knows."""
    if isinstance(weights, (list, tuple)):
        return any(map(_has_bytes, weights))
    array = weights.data if isinstance(weights, FractalTensor) else weights
    return tensors.is_array(array) and tensors.dtype_of(array) == "uint8"


def _check_attributes(context: SymmBuffer, given: dict[str, Any], out_type: Any) -> None:
    """What a call states of its buffer is so."""
    for name, of_buffer in _BUFFER_NUMBERS.items():
        actual = getattr(context, of_buffer)
        if settings.integer(name, given[name]) != actual:
            invalid_value(f"{name} = {given[name]}: expected {actual}, that of context")
    if settings.text("comm_alg", given["comm_alg"]) != context.comm_alg:
        invalid_value(f'comm_alg = "{given["comm_alg"]}": expected "{context.comm_alg}", that of context')
    codes = settings.dtype_name("dispatch_quant_out_type", out_type)
    of_context = settings.dtype_name("dispatch_quant_out_type", context.dispatch_quant_out_dtype)
    if codes != of_context:
        invalid_value(f"dispatch_quant_out_type = {codes}: expected {of_context}, that of context")
    bytes_stated = settings.integer("ccl_buffer_size", given["ccl_buffer_size"])
    if bytes_stated < context.ccl_buffer_size:
        invalid_value(f"ccl_buffer_size = {bytes_stated}: expected at least {context.ccl_buffer_size} bytes")


def _check_max_recv_token_num(context: SymmBuffer, x: Any) -> None:
    """The first document bounds the rows by the tokens of the call, not by the room of the buffer."""
    if context.profile != "mega_moe_v1" or not tensors.is_array(x) or x.ndim != 2:
        return
    slots = min(context.num_topk, context.experts_per_rank)
    most = x.shape[0] * context.ep_world_size * slots
    if context.max_recv_token_num > most:
        invalid_value(
            f"max_recv_token_num = {context.max_recv_token_num}: expected at most {most}, {x.shape[0]} tokens x "
            f"{context.ep_world_size} (ep_world_size) x {slots} experts of a rank (profile mega_moe_v1)"
        )
