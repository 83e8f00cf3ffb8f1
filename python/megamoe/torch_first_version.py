"""`mega_moe_v1` as `torch.ops.megamoe.mega_moe_v1`, which is what torch.compile sees of it."""

from __future__ import annotations

from typing import Any

import torch

from . import handles
from .buffer import SymmBuffer
from .first_version import mega_moe_v1
from .layer import new_results
from .torch_layer import arrays_of, packed_or_arrays, type_text

_SCHEMA = (
    "(Tensor x, Tensor topk_ids, Tensor topk_weights, int context, Tensor[] weight1, int weight1_packed, "
    "Tensor[] weight2, int weight2_packed, Tensor[] weight_scales1, Tensor[] weight_scales2, "
    "Tensor? x_active_mask, Tensor? scales, int moe_expert_num, int ep_world_size, int ccl_buffer_size, "
    "int max_recv_token_num, int dispatch_quant_mode, str? dispatch_quant_out_type, int combine_quant_mode, "
    "str comm_alg, int global_bs) -> (Tensor, Tensor)"
)


def call(
    context: SymmBuffer,
    x: Any,
    topk_ids: Any,
    topk_weights: Any,
    weight1: Any,
    weight2: Any,
    weight_scales1: Any,
    weight_scales2: Any,
    x_active_mask: Any,
    scales: Any,
    dispatch_quant_out_type: Any,
    **attributes: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The call through the operator: its arguments are checked inside, where every rank learns of an error."""
    arrays1, packed1 = arrays_of("weight1", weight1)
    arrays2, packed2 = arrays_of("weight2", weight2)
    return torch.ops.megamoe.mega_moe_v1(
        x,
        topk_ids,
        topk_weights,
        context.handle,
        arrays1,
        packed1,
        arrays2,
        packed2,
        arrays_of("weight_scales1", weight_scales1)[0],
        arrays_of("weight_scales2", weight_scales2)[0],
        x_active_mask,
        scales,
        dispatch_quant_out_type=type_text("dispatch_quant_out_type", dispatch_quant_out_type),
        **attributes,
    )


def _one(arrays: Any) -> Any:
    """A stacked array stands alone; torch has passed it as a list."""
    if isinstance(arrays, list) and len(arrays) == 1 and arrays[0].ndim > 2:
        return arrays[0]
    return arrays or None


def _run(
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    context: int,
    weight1: list[torch.Tensor],
    weight1_packed: int,
    weight2: list[torch.Tensor],
    weight2_packed: int,
    weight_scales1: list[torch.Tensor],
    weight_scales2: list[torch.Tensor],
    x_active_mask: torch.Tensor | None,
    scales: torch.Tensor | None,
    moe_expert_num: int,
    ep_world_size: int,
    ccl_buffer_size: int,
    max_recv_token_num: int,
    dispatch_quant_mode: int,
    dispatch_quant_out_type: str | None,
    combine_quant_mode: int,
    comm_alg: str,
    global_bs: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    return mega_moe_v1(
        handles.find("context", context, SymmBuffer),
        x,
        topk_ids,
        topk_weights,
        _one(packed_or_arrays("weight1", weight1, "weight1_packed", weight1_packed)),
        _one(packed_or_arrays("weight2", weight2, "weight2_packed", weight2_packed)),
        _one(weight_scales1),
        _one(weight_scales2),
        x_active_mask,
        scales,
        moe_expert_num=moe_expert_num,
        ep_world_size=ep_world_size,
        ccl_buffer_size=ccl_buffer_size,
        max_recv_token_num=max_recv_token_num,
        dispatch_quant_mode=dispatch_quant_mode,
        dispatch_quant_out_type=dispatch_quant_out_type,
        combine_quant_mode=combine_quant_mode,
        comm_alg=comm_alg,
        global_bs=global_bs,
    )


def _fake(
    x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, context: int, *rest: Any, **more: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return new_results(x, handles.find("context", context, SymmBuffer))


_registered: list[Any] = []


def register() -> None:
    """Registers the operator, once per process."""
    if not _registered:
        operator = torch.library.custom_op("megamoe::mega_moe_v1", _run, mutates_args=(), schema=_SCHEMA)
        operator.register_fake(_fake)
        _registered.append(operator)
