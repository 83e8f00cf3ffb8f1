"""Fake kernels of `torch.ops.megamoe.*`: types and shapes of the results, without memory. Sizes may be
symbols. Each takes the arguments of its operator by name.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from . import _core, layouts, packed, tensors
from .errors import invalid_value
from .quantise import rule_named, source_type

Fake = torch.Tensor
# quant_mode -> (rule, dimensions of its scales).
_MODES = {mode: (rule, dims) for mode, rule, dims in _core.quant_modes()}


def _empty(like: torch.Tensor, dtype: str, shape: tuple[Any, ...], result_types: str = "document") -> Fake:
    """A result with `shape` elements of type `dtype`."""
    kind = tensors.result_type(torch, dtype, result_types)
    return like.new_empty(tensors.result_shape(dtype, shape), dtype=kind)


def _absent(like: torch.Tensor, dtype: str = "float32") -> Fake:
    return _empty(like, dtype, (0,))


def _ceil(value: Any, divisor: int) -> Any:
    return (value + divisor - 1) // divisor


def _known(condition: Any) -> bool | None:
    """Whether a condition on sizes holds; None where only the data can tell."""
    if not isinstance(condition, torch.SymBool) or not free_unbacked_symbols(condition):
        return bool(condition)
    if statically_known_true(condition):
        return True
    return False if statically_known_true(torch.sym_not(condition)) else None


def _rows_of(wanted: Any, all_rows: Any, of_all: tuple[int, ...], of_negative: Any) -> Any:
    """`wanted` rows, at most all; all for the numbers `of_all`, `of_negative` for others below 0."""
    if any(_known(wanted == number) for number in of_all):
        return all_rows
    positive = _known(wanted > 0)
    if positive:
        return torch.sym_min(wanted, all_rows)
    if positive is None or any(_known(wanted == number) is None for number in of_all):
        return torch.library.get_ctx().new_dynamic_size()
    return of_negative


def _coded(
    like: torch.Tensor, quant_mode: int, rows: Any, shape: tuple[Any, ...], result_types: str
) -> tuple[Fake, Fake]:
    """Rows in `shape` as codes, and their scales."""
    if quant_mode not in _MODES:
        invalid_value(
            f"quant_mode = {quant_mode}: expected -1 or one of {', '.join(map(str, sorted(_MODES)))}"
        )
    name, dims = _MODES[quant_mode]
    rule = rule_named(name)
    codes = _empty(like, rule.codes, shape, result_types)
    if rule.scales is None:
        return codes, _absent(like)
    scale_shape: tuple[Any, ...] = (rows,)
    if dims == 2:  # rows of E8M0 scales are even
        even = rule.scales == "float8_e8m0"
        scale_shape = (rows, 2 * _ceil(shape[-1], 2 * rule.group) if even else _ceil(shape[-1], rule.group))
    elif dims == 3:
        scale_shape = (rows, _ceil(shape[-1], 2 * rule.group), 2)
    return codes, _empty(like, rule.scales, scale_shape, result_types)


def moe_init_routing_v3(a: SimpleNamespace) -> tuple[Fake, ...]:
    slots, width = a.x.shape[0] * a.expert_idx.shape[1], a.x.shape[1]
    if a.drop_pad_mode == 1:
        rows = a.expert_num * a.expert_capacity
        shape: tuple[Any, ...] = (a.expert_num, a.expert_capacity, width)
    else:
        rows = _rows_of(a.active_num, slots, (-1, 0), 0)  # others below 0 are refused
        shape = (rows, width)
    if a.quant_mode != -1:
        expanded_x, expanded_scale = _coded(a.x, a.quant_mode, rows, shape, a.result_types)
    else:
        expanded_x, expanded_scale = a.x.new_empty(shape), _absent(a.x)
        if a.scale is not None:
            dtype = "float32" if a.scale.dtype == torch.float32 else "float8_e8m0"
            expanded_scale = _empty(a.x, dtype, (rows, *a.scale.shape[1:]), a.result_types)
    counts: tuple[Any, ...] = (0,)
    if a.expert_tokens_num_flag:
        first, last = a.active_expert_range or (0, a.expert_num)
        counts = (a.expert_num, 2) if a.expert_tokens_num_type == 2 else (last - first,)
    index = _empty(a.x, "int32", (slots,))
    return expanded_x, index, _empty(a.x, "int64", counts), expanded_scale


def moe_token_permute(a: SimpleNamespace) -> tuple[Fake, ...]:
    slots = rows = a.indices.numel()
    n = a.num_out_tokens
    if n is not None:
        rows = _rows_of(n, slots, (0,), torch.sym_max(slots + n, 0))
    shape = (rows, a.tokens.shape[1])
    if a.quant_mode == -1:
        permuted, scale = a.tokens.new_empty(shape), _absent(a.tokens)
    else:
        permuted, scale = _coded(a.tokens, a.quant_mode, rows, shape, a.result_types)
    return permuted, _empty(a.tokens, "int32", (slots,)), scale


def moe_token_permute_grad(a: SimpleNamespace) -> Fake:
    grad = a.grad_permuted_tokens
    return grad.new_empty((a.sorted_indices.numel() // a.num_topk, grad.shape[1]))


def moe_token_unpermute(a: SimpleNamespace) -> Fake:
    tokens = a.sorted_indices.numel() if a.probs is None else a.probs.shape[0]
    return a.permuted_tokens.new_empty((tokens, a.permuted_tokens.shape[1]))


def moe_token_unpermute_grad(a: SimpleNamespace) -> tuple[Fake, Fake]:
    rows = a.permuted_tokens
    return rows.new_empty(rows.shape), _absent(rows) if a.probs is None else a.probs.new_empty(a.probs.shape)


def moe_gating_top_k(a: SimpleNamespace) -> tuple[Fake, Fake]:
    shape = (a.logits.shape[0], a.k)
    return _empty(a.logits, "float32", shape), _empty(a.logits, "int32", shape)


def quantise(a: SimpleNamespace) -> tuple[Fake, Fake]:
    rule = rule_named(a.rule)
    rows, columns = a.x.shape
    codes = _empty(a.x, rule.codes, (rows, columns), a.result_types)
    if rule.scales is None:
        return codes, _absent(a.x)
    shape = (rows,) if rule.group == 0 else (rows, _ceil(columns, rule.group))
    return codes, _empty(a.x, rule.scales, shape, a.result_types)


def dequantise(a: SimpleNamespace) -> Fake:
    return _empty(a.codes, "float32", packed.elements(a.codes, rule_named(a.rule).codes))


def cast(a: SimpleNamespace) -> Fake:
    source = source_type(a.x, a.x_dtype)
    return _empty(a.x, a.dtype, packed.elements(a.x, source), a.result_types)


def convert_layout(a: SimpleNamespace) -> Fake:
    dtype = source_type(a.x, a.x_dtype)
    logical = layouts.matrix_shape(dtype, a.source, packed.elements(a.x, dtype), a.shape)
    return a.x.new_empty(tensors.result_shape(dtype, layouts.layout_shape(dtype, a.to, logical)))


# Fake kernels by the name of their operator.
FAKES = {
    "moe_init_routing_v3": moe_init_routing_v3,
    "moe_token_permute": moe_token_permute,
    "moe_token_permute_grad": moe_token_permute_grad,
    "moe_token_unpermute": moe_token_unpermute,
    "moe_token_unpermute_grad": moe_token_unpermute_grad,
    "moe_gating_top_k": moe_gating_top_k,
    "quantise": quantise,
    "dequantise": dequantise,
    "cast": cast,
    "convert_layout": convert_layout,
}
