"""Token rows into the order of their experts and back: moe_token_permute, moe_token_unpermute, their gradients."""

from __future__ import annotations

from . import tensors
from .operators import Array, operator
from .routing import IDS, REAL, run_routing

__all__ = [
    "moe_token_permute",
    "moe_token_permute_grad",
    "moe_token_unpermute",
    "moe_token_unpermute_grad",
]


@operator
def moe_token_permute(
    tokens: Array,
    indices: Array,
    num_out_tokens: int | None = None,
    padded_mode: bool = False,
    quant_mode: int = -1,
    *,
    mx_scale: str = "round_up",
    result_types: str = "document",
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Array, Array, Array]:
    """Expands tokens into rows ordered by index (stable). With torch and quant_mode -1 gradients flow to
    `tokens`.

    Args:
        tokens: (N, H) float32, float16, bfloat16 or int8; quantised: float16 or bfloat16.
        indices: (N,) or (N, K) int32 or int64, from 0 on.
        num_out_tokens: rows M of permuted_tokens: None or 0 = F = N * K; n > 0 = min(n, F); n < 0 =
            max(F + n, 0).
        padded_mode: False.
        quant_mode: -1, or 2, 3 (MXFP8), 9 (MXFP4) as in `moe_init_routing_v3`.
        mx_scale, result_types, threads, isa: as in `moe_init_routing_v3`.

    Returns:
        (permuted_tokens, sorted_indices, expanded_scale): rows (M, H), FP4 as uint8 (M, H / 2); int32 (F,),
        where each slot went; E8M0 scales, float32 (0,) with quant_mode -1.

    Raises:
        TypeError, ValueError: an argument is wrong, or `tokens` requires a gradient with a quant_mode other
            than -1.
    """
    arguments = locals()
    views = {
        "tokens": tensors.read("tokens", tokens, (*REAL, "int8")),
        "indices": tensors.read("indices", indices, IDS),
    }
    return run_routing("moe_token_permute", tokens, arguments, views)  # type: ignore[return-value]


@operator
def moe_token_permute_grad(
    grad_permuted_tokens: Array,
    sorted_indices: Array,
    num_topk: int = 1,
    padded_mode: bool = False,
    *,
    threads: int = 0,
    isa: str | None = None,
) -> Array:
    """Gradient of `moe_token_permute` to its tokens: (F / num_topk, H), the sum of the rows of each token.

    Args:
        grad_permuted_tokens: (M, H) float32, float16 or bfloat16.
        sorted_indices: (F,) int32 or int64, from `moe_token_permute`; one outside [0, M) adds nothing.
        num_topk: slots per token.
        padded_mode: False.
        threads, isa: as in `moe_init_routing_v3`.
    """
    arguments = locals()
    views = {
        "grad_permuted_tokens": tensors.read("grad_permuted_tokens", grad_permuted_tokens, REAL),
        "sorted_indices": tensors.read("sorted_indices", sorted_indices, IDS),
    }
    return run_routing("moe_token_permute_grad", grad_permuted_tokens, arguments, views)[0]


@operator
def moe_token_unpermute(
    permuted_tokens: Array,
    sorted_indices: Array,
    probs: Array | None = None,
    padded_mode: bool = False,
    restore_shape: None = None,
    *,
    threads: int = 0,
    isa: str | None = None,
) -> Array:
    """Brings rows back to their tokens: out[t] = sum over k of permuted_tokens[sorted_indices[t * K + k]] *
    probs[t, k]. With torch gradients flow to `permuted_tokens` and `probs`.

    Args:
        permuted_tokens: (M, H) float32, float16 or bfloat16.
        sorted_indices: (F,) int32 or int64; slots with an index outside [0, M) are skipped.
        probs: (F / K, K) float32, float16 or bfloat16; None = K is 1 and rows are copied.
        padded_mode: False.
        restore_shape: None.
        threads, isa: as in `moe_init_routing_v3`.

    Returns:
        (F / K, H), type of `permuted_tokens`.
    """
    arguments = locals()
    views = {
        "permuted_tokens": tensors.read("permuted_tokens", permuted_tokens, REAL),
        "sorted_indices": tensors.read("sorted_indices", sorted_indices, IDS),
        "probs": tensors.read_optional("probs", probs, REAL),
    }
    return run_routing("moe_token_unpermute", permuted_tokens, arguments, views)[0]


@operator
def moe_token_unpermute_grad(
    permuted_tokens: Array,
    grad_unpermuted_tokens: Array,
    sorted_indices: Array,
    probs: Array | None = None,
    padded_mode: bool = False,
    *,
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Array, Array]:
    """Gradients of `moe_token_unpermute`.

    Args:
        permuted_tokens, sorted_indices, probs, padded_mode: as in the forward call; every row has at most one
            slot that points to it.
        grad_unpermuted_tokens: (F / K, H), type of `permuted_tokens`.
        threads, isa: as in `moe_init_routing_v3`.

    Returns:
        (permuted_grad, probs_grad): types and shapes of `permuted_tokens` and `probs`; probs_grad is float32
        (0,) without probs.
    """
    arguments = locals()
    views = {
        "permuted_tokens": tensors.read("permuted_tokens", permuted_tokens, REAL),
        "grad_unpermuted_tokens": tensors.read("grad_unpermuted_tokens", grad_unpermuted_tokens, REAL),
        "sorted_indices": tensors.read("sorted_indices", sorted_indices, IDS),
        "probs": tensors.read_optional("probs", probs, REAL),
    }
    results = run_routing("moe_token_unpermute_grad", permuted_tokens, arguments, views)
    return results  # type: ignore[return-value]
