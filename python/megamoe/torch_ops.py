"""The operators as `torch.ops.megamoe.*`: schemas from their signatures, fake kernels, gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from .errors import invalid_value
from .operators import OPERATORS, Operator
from .torch_fakes import FAKES

_NAMESPACE = "megamoe"


def _arguments(name: str, inputs: Sequence[Any]) -> SimpleNamespace:
    return SimpleNamespace(**OPERATORS[name].given(inputs, {}))


def _refuse(name: str) -> Callable[..., None]:
    """The context of an operator whose inputs have no gradients."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        for argument, value in zip(OPERATORS[name].torch_names, inputs):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                invalid_value(
                    f"{argument}.requires_grad = True: expected False, the operator has no gradient"
                )

    return setup_context


def _no_backward(ctx: Any, *grads: Any) -> Any:
    invalid_value("grad: expected no backward call, the operator has no gradient")


def _permute_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    a = _arguments("moe_token_permute", inputs)
    if a.quant_mode != -1:
        invalid_value(f"quant_mode = {a.quant_mode}: expected -1 where tokens.requires_grad = True")
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.tokens_shape = a.tokens.shape
    ctx.topk = 1 if a.indices.dim() == 1 else a.indices.shape[1]
    ctx.options = (a.threads, a.isa)
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
    a = _arguments("moe_token_unpermute", inputs)
    rows = a.permuted_tokens
    if a.probs is None:  # the rows themselves are needed for the gradient of probs only
        rows = rows.new_zeros(()).expand(rows.shape)
    ctx.has_probs = a.probs is not None
    ctx.save_for_backward(rows, a.sorted_indices, *([a.probs] if ctx.has_probs else []))
    ctx.options = (a.threads, a.isa)
    ctx.arguments = len(inputs)


def _unpermute_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    permuted_tokens, sorted_indices, *probs = ctx.saved_tensors
    permuted_grad, probs_grad = torch.ops.megamoe.moe_token_unpermute_grad(
        permuted_tokens, grad, sorted_indices, probs[0] if probs else None, False, *ctx.options
    )
    rest = [None] * (ctx.arguments - 3)
    return (permuted_grad, None, probs_grad if ctx.has_probs else None, *rest)


# name -> (setup_context, backward). Operators that are not here refuse inputs that require a gradient.
_GRADIENTS: dict[str, tuple[Any, Any]] = {
    "moe_token_permute": (_permute_context, _permute_backward),
    "moe_token_unpermute": (_unpermute_context, _unpermute_backward),
    # Gradients may be part of a graph that nobody follows: torch raises when one is to flow through these.
    "moe_token_permute_grad": (None, None),
    "moe_token_unpermute_grad": (None, None),
}
_registered: list[Any] = []


def _kernel(described: Operator) -> Callable[..., Any]:
    return lambda *values, **named: described.run(**described.given(values, named))


def _fake(described: Operator) -> Callable[..., Any]:
    fake = FAKES[described.name]
    return lambda *values, **named: fake(SimpleNamespace(**described.given(values, named)))


def register() -> None:
    """Registers all operators, once per process."""
    if _registered:
        return
    for name, described in OPERATORS.items():
        operator = torch.library.custom_op(
            f"{_NAMESPACE}::{name}", _kernel(described), mutates_args=(), schema=described.schema()
        )
        operator.register_fake(_fake(described))
        setup_context, backward = _GRADIENTS.get(name, (_refuse(name), _no_backward))
        if backward is not None:
            operator.register_autograd(backward, setup_context=setup_context)
        _registered.append(operator)
