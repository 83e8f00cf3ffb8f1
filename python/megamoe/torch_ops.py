"""The routing operators as `torch.ops.megamoe.*`: schemas, fake kernels (no memory), gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import routing, tensors
from .errors import invalid_value

_NAMESPACE = "megamoe"
# quant_mode -> (type of the codes, columns per E8M0 scale in pairs or per float32 scale; 0 = one per row,
# None = no scales, whether the scale columns are pairs in a dimension of their own).
_MODES: dict[int, tuple[str, int | None, bool, bool]] = {}


def _mode(codes: str, group: int | None, e8m0: bool, pairs: bool, *modes: int) -> None:
    for mode in modes:
        _MODES[mode] = (codes, group, e8m0, pairs)


_mode("int8", None, False, False, 0)
_mode("int8", 0, False, False, 1)
_mode("float8_e5m2", 32, True, False, 2, 16)
_mode("float8_e4m3fn", 32, True, False, 3, 17)
_mode("float8_e5m2", 128, False, False, 4, 14)
_mode("float8_e4m3fn", 128, False, False, 5, 15)
_mode("hifloat8", None, False, False, 6, 7)
_mode("hifloat8", 0, False, False, 8)
_mode("float4_e2m1", 32, True, True, 9)
_mode("float8_e5m2", 128, False, True, 11)
_mode("float8_e4m3fn", 128, False, True, 12)
_mode("int4", 0, False, False, 13)


def _coded(like: torch.Tensor, quant_mode: int, rows: Any, x_shape: tuple[Any, ...]) -> tuple[Any, Any]:
    """Fake codes of shape `x_shape` and their scales."""
    if quant_mode not in _MODES:
        invalid_value(
            f"quant_mode = {quant_mode}: expected -1 or one of {', '.join(map(str, sorted(_MODES)))}"
        )
    codes, group, e8m0, pairs = _MODES[quant_mode]
    x = like.new_empty(tensors.result_shape(codes, x_shape), dtype=tensors.result_type(torch, codes))
    if group is None:
        return x, like.new_empty((0,), dtype=torch.float32)
    shape: tuple[Any, ...] = (rows,)
    if group > 0:
        hidden = x_shape[-1]
        pair_count = (hidden + 2 * group - 1) // (2 * group)
        if pairs:
            shape = (rows, pair_count, 2)
        else:
            shape = (rows, 2 * pair_count if e8m0 else (hidden + group - 1) // group)
    return x, like.new_empty(shape, dtype=torch.uint8 if e8m0 else torch.float32)


def _fake_init_routing(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Any = (),
    row_idx_type: int = 0,
    mx_scale: str = "round_up",
    x_dtype: str | None = None,
    threads: int = 0,
    isa: str | None = None,
) -> tuple[torch.Tensor, ...]:
    slots = x.shape[0] * expert_idx.shape[1]
    width = x.shape[1]
    if drop_pad_mode == 1:
        rows = expert_num * expert_capacity
        shape: tuple[Any, ...] = (expert_num, expert_capacity, width)
    else:
        rows = slots if active_num in (-1, 0) else torch.sym_min(active_num, slots)
        shape = (rows, width)
    if quant_mode == -1:
        expanded_x = x.new_empty(shape)
        if scale is None:
            expanded_scale = x.new_empty((0,), dtype=torch.float32)
        else:
            byte_scale = scale.dtype != torch.float32
            expanded_scale = x.new_empty(
                (rows, *scale.shape[1:]), dtype=torch.uint8 if byte_scale else torch.float32
            )
    else:
        expanded_x, expanded_scale = _coded(x, quant_mode, rows, shape)
    counts: tuple[Any, ...] = (0,)
    if expert_tokens_num_flag:
        first, last = active_expert_range or (0, expert_num)
        counts = (expert_num, 2) if expert_tokens_num_type == 2 else (last - first,)
    return (
        expanded_x,
        x.new_empty((slots,), dtype=torch.int32),
        x.new_empty(counts, dtype=torch.int64),
        expanded_scale,
    )


def _fake_token_permute(
    tokens: torch.Tensor,
    indices: torch.Tensor,
    num_out_tokens: int | None = None,
    padded_mode: bool = False,
    quant_mode: int = -1,
    mx_scale: str = "round_up",
    threads: int = 0,
    isa: str | None = None,
) -> tuple[torch.Tensor, ...]:
    slots = indices.numel()
    rows = slots
    if num_out_tokens is not None and num_out_tokens != 0:
        rows = (
            torch.sym_min(num_out_tokens, slots)
            if num_out_tokens > 0
            else torch.sym_max(slots + num_out_tokens, 0)
        )
    shape = (rows, tokens.shape[1])
    if quant_mode == -1:
        permuted, scale = tokens.new_empty(shape), tokens.new_empty((0,), dtype=torch.float32)
    else:
        permuted, scale = _coded(tokens, quant_mode, rows, shape)
    return permuted, tokens.new_empty((slots,), dtype=torch.int32), scale


def _fake_token_permute_grad(
    grad_permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    num_topk: int = 1,
    padded_mode: bool = False,
    threads: int = 0,
    isa: str | None = None,
) -> torch.Tensor:
    return grad_permuted_tokens.new_empty((sorted_indices.numel() // num_topk, grad_permuted_tokens.shape[1]))


def _fake_token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    threads: int = 0,
    isa: str | None = None,
) -> torch.Tensor:
    tokens = sorted_indices.numel() if probs is None else probs.shape[0]
    return permuted_tokens.new_empty((tokens, permuted_tokens.shape[1]))


def _fake_token_unpermute_grad(
    permuted_tokens: torch.Tensor,
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    threads: int = 0,
    isa: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    missing = permuted_tokens.new_empty((0,), dtype=torch.float32)
    return (
        permuted_tokens.new_empty(permuted_tokens.shape),
        missing if probs is None else probs.new_empty(probs.shape),
    )


def _fake_gating_top_k(
    logits: torch.Tensor,
    k: int,
    bias: torch.Tensor | None = None,
    scoring: str = "softmax",
    n_group: int = 1,
    topk_group: int = 1,
    renormalize: bool = False,
    routed_scaling_factor: float = 1.0,
    threads: int = 0,
    isa: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (logits.shape[0], k)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32)


def _refuse(*names: str) -> Callable[..., None]:
    """A context for an operator whose inputs are called `names` and have no gradients."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        for name, value in zip(names, inputs):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                invalid_value(f"{name}.requires_grad = True: expected False, the operator has no gradient")

    return setup_context


def _no_backward(ctx: Any, *grads: Any) -> Any:
    invalid_value("grad: expected no backward call, the operator has no gradient")


def _permute_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    tokens, indices, quant_mode = inputs[0], inputs[1], inputs[4]
    if quant_mode != -1:
        invalid_value(f"quant_mode = {quant_mode}: expected -1 where tokens.requires_grad = True")
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.tokens_shape = tokens.shape
    ctx.topk = 1 if indices.dim() == 1 else indices.shape[1]
    ctx.options = inputs[6:8]
    ctx.arguments = len(inputs)


def _permute_backward(ctx: Any, grad: torch.Tensor, *unused: Any) -> tuple[Any, ...]:
    (sorted_indices,) = ctx.saved_tensors
    if ctx.topk == 0:
        tokens_grad = grad.new_zeros(ctx.tokens_shape)
    else:
        tokens_grad = torch.ops.megamoe.moe_token_permute_grad(
            grad, sorted_indices, ctx.topk, False, *ctx.options
        )
    return (tokens_grad, *[None] * (ctx.arguments - 1))


def _unpermute_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    permuted_tokens, sorted_indices, probs = inputs[:3]
    if probs is None:  # the rows themselves are needed for the gradient of probs only
        permuted_tokens = permuted_tokens.new_zeros(()).expand(permuted_tokens.shape)
    ctx.has_probs = probs is not None
    ctx.save_for_backward(permuted_tokens, sorted_indices, *([probs] if ctx.has_probs else []))
    ctx.options = inputs[4:6]
    ctx.arguments = len(inputs)


def _unpermute_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    permuted_tokens, sorted_indices, *probs = ctx.saved_tensors
    permuted_grad, probs_grad = torch.ops.megamoe.moe_token_unpermute_grad(
        permuted_tokens, grad, sorted_indices, probs[0] if probs else None, False, *ctx.options
    )
    rest = [None] * (ctx.arguments - 3)
    return (permuted_grad, None, probs_grad if ctx.has_probs else None, *rest)


_OPTIONS = "int threads=0, str? isa=None"
# name -> (schema, kernel, fake kernel, setup_context, backward). Without the last two torch raises when a
# gradient is to flow through the operator, not earlier: gradients may be part of a graph that nobody follows.
_OPERATORS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any], Any, Any]] = {
    "moe_init_routing_v3": (
        "(Tensor x, Tensor expert_idx, Tensor? scale=None, Tensor? offset=None, int active_num=-1, "
        "int expert_capacity=-1, int expert_num=-1, int drop_pad_mode=0, int expert_tokens_num_type=0, "
        "bool expert_tokens_num_flag=False, int quant_mode=-1, int[] active_expert_range=[], "
        f"int row_idx_type=0, str mx_scale='round_up', str? x_dtype=None, {_OPTIONS}) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        routing.run_init_routing,
        _fake_init_routing,
        _refuse("x", "expert_idx", "scale", "offset"),
        _no_backward,
    ),
    "moe_token_permute": (
        "(Tensor tokens, Tensor indices, int? num_out_tokens=None, bool padded_mode=False, "
        f"int quant_mode=-1, str mx_scale='round_up', {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
        routing.run_token_permute,
        _fake_token_permute,
        _permute_context,
        _permute_backward,
    ),
    "moe_token_permute_grad": (
        "(Tensor grad_permuted_tokens, Tensor sorted_indices, int num_topk=1, bool padded_mode=False, "
        f"{_OPTIONS}) -> Tensor",
        routing.run_token_permute_grad,
        _fake_token_permute_grad,
        None,
        None,
    ),
    "moe_token_unpermute": (
        "(Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, bool padded_mode=False, "
        f"{_OPTIONS}) -> Tensor",
        routing.run_token_unpermute,
        _fake_token_unpermute,
        _unpermute_context,
        _unpermute_backward,
    ),
    "moe_token_unpermute_grad": (
        "(Tensor permuted_tokens, Tensor grad_unpermuted_tokens, Tensor sorted_indices, Tensor? probs=None, "
        f"bool padded_mode=False, {_OPTIONS}) -> (Tensor, Tensor)",
        routing.run_token_unpermute_grad,
        _fake_token_unpermute_grad,
        None,
        None,
    ),
    "moe_gating_top_k": (
        "(Tensor logits, int k, Tensor? bias=None, str scoring='softmax', int n_group=1, int topk_group=1, "
        f"bool renormalize=False, float routed_scaling_factor=1.0, {_OPTIONS}) -> (Tensor, Tensor)",
        routing.run_gating_top_k,
        _fake_gating_top_k,
        _refuse("logits", "k", "bias"),
        _no_backward,
    ),
}
_registered: list[Any] = []


def register() -> None:
    """Registers all operators, once per process."""
    if _registered:
        return
    for name, (schema, kernel, fake, setup_context, backward) in _OPERATORS.items():
        operator = torch.library.custom_op(f"{_NAMESPACE}::{name}", kernel, mutates_args=(), schema=schema)
        operator.register_fake(fake)
        if backward is not None:
            operator.register_autograd(backward, setup_context=setup_context)
        _registered.append(operator)
