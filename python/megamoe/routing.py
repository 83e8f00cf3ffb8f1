"""The routing operators: choose experts, bring token rows into the order of the experts, and back.

Functions named `run_...` are the operators themselves, for arrays of either framework; the public functions
send torch tensors through `torch.ops.megamoe`, so that gradients flow and torch.compile sees one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _core, settings, tensors
from .errors import invalid_type, invalid_value

__all__ = [
    "moe_gating_top_k",
    "moe_init_routing_v3",
    "moe_token_permute",
    "moe_token_permute_grad",
    "moe_token_unpermute",
    "moe_token_unpermute_grad",
    "register_torch_ops",
]

_REAL = ("float32", "float16", "bfloat16")
_IDS = ("int32", "int64")
_ROWS = (*_REAL, "int8", *(name for name in tensors.BYTE_TYPES if name not in ("float8_e8m0", "int4")))


class _Results:
    """Makes the outputs of one call in the framework of `like`, whose elements are of type `dtype`; an empty
    array stands for each output that it lacks.
    """

    def __init__(self, like: Any, dtype: str | None = None) -> None:
        self.arrays: list[Any] = []
        self._torch = None if isinstance(like, np.ndarray) else tensors.torch_if_loaded()
        self._like = like
        self._dtype = dtype or tensors.dtype_of(like)

    def __call__(self, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        absent = dtype == "undefined"
        if absent:
            dtype, shape = ("int64" if name == "expert_tokens_count_or_cumsum" else "float32"), (0,)
        kind = self._like.dtype if dtype == self._dtype else tensors.result_type(self._torch, dtype)
        array = tensors.new_array(self._torch, tensors.result_shape(dtype, shape), kind)
        self.arrays.append(array)
        return None if absent else tensors.write(name, array, dtype)


def _optional(name: str, value: Any, allowed: tuple[str, ...]) -> Any:
    return None if value is None else tensors.read(name, value, allowed)


def _rows(name: str, value: Any, x_dtype: str | None) -> Any:
    """Rows whose elements may be bytes that stand for another type."""
    if not tensors.is_array(value):
        invalid_type(f"{name} = {type(value).__name__}: expected a torch tensor or a NumPy array")
    own = tensors.dtype_of(value)
    if own == "uint8":
        if x_dtype not in _ROWS or x_dtype not in tensors.BYTE_TYPES:
            carried = ", ".join(kind for kind in _ROWS if kind in tensors.BYTE_TYPES)
            invalid_type(
                f"x_dtype = {x_dtype}: expected the type that the bytes of {name} carry, of {carried}"
            )
        return tensors.read(name, value, ("uint8",), {"uint8": x_dtype})
    if x_dtype not in (None, own):
        invalid_type(f"x_dtype = {x_dtype}: expected the type of {name}, {own}")
    return tensors.read(name, value, _ROWS)


def run_init_routing(
    x: Any,
    expert_idx: Any,
    scale: Any = None,
    offset: Any = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    mx_scale: str = "round_up",
    x_dtype: str | None = None,
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Any, Any, Any, Any]:
    scale_view = None
    if scale is not None:
        scale_view = tensors.read(
            "scale", scale, ("float32", "float8_e8m0", "uint8"), {"uint8": "float8_e8m0"}
        )
    x_view = _rows("x", x, x_dtype)
    results = _Results(x, x_dtype)
    _core.moe_init_routing_v3(
        results,
        x_view,
        tensors.read("expert_idx", expert_idx, _IDS),
        scale_view,
        _optional("offset", offset, ("float32",)),
        active_num,
        expert_capacity,
        expert_num,
        drop_pad_mode,
        expert_tokens_num_type,
        expert_tokens_num_flag,
        quant_mode,
        list(active_expert_range),
        row_idx_type,
        mx_scale,
        threads,
        isa,
    )
    return tuple(results.arrays)  # type: ignore[return-value]


def run_token_permute(
    tokens: Any,
    indices: Any,
    num_out_tokens: int | None = None,
    padded_mode: bool = False,
    quant_mode: int = -1,
    mx_scale: str = "round_up",
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Any, Any, Any]:
    tokens_view = tensors.read("tokens", tokens, (*_REAL, "int8"))
    indices_view = tensors.read("indices", indices, _IDS)
    results = _Results(tokens)
    _core.moe_token_permute(
        results, tokens_view, indices_view, num_out_tokens, padded_mode, quant_mode, mx_scale, threads, isa
    )
    return tuple(results.arrays)  # type: ignore[return-value]


def run_token_permute_grad(
    grad_permuted_tokens: Any,
    sorted_indices: Any,
    num_topk: int = 1,
    padded_mode: bool = False,
    threads: int = 0,
    isa: str | None = None,
) -> Any:
    grad_view = tensors.read("grad_permuted_tokens", grad_permuted_tokens, _REAL)
    indices_view = tensors.read("sorted_indices", sorted_indices, _IDS)
    results = _Results(grad_permuted_tokens)
    _core.moe_token_permute_grad(results, grad_view, indices_view, num_topk, padded_mode, threads, isa)
    return results.arrays[0]


def run_token_unpermute(
    permuted_tokens: Any,
    sorted_indices: Any,
    probs: Any = None,
    padded_mode: bool = False,
    threads: int = 0,
    isa: str | None = None,
) -> Any:
    permuted_view = tensors.read("permuted_tokens", permuted_tokens, _REAL)
    indices_view = tensors.read("sorted_indices", sorted_indices, _IDS)
    probs_view = _optional("probs", probs, _REAL)
    results = _Results(permuted_tokens)
    _core.moe_token_unpermute(results, permuted_view, indices_view, probs_view, padded_mode, threads, isa)
    return results.arrays[0]


def run_token_unpermute_grad(
    permuted_tokens: Any,
    grad_unpermuted_tokens: Any,
    sorted_indices: Any,
    probs: Any = None,
    padded_mode: bool = False,
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Any, Any]:
    permuted_view = tensors.read("permuted_tokens", permuted_tokens, _REAL)
    grad_view = tensors.read("grad_unpermuted_tokens", grad_unpermuted_tokens, _REAL)
    indices_view = tensors.read("sorted_indices", sorted_indices, _IDS)
    probs_view = _optional("probs", probs, _REAL)
    results = _Results(permuted_tokens)
    _core.moe_token_unpermute_grad(
        results, permuted_view, grad_view, indices_view, probs_view, padded_mode, threads, isa
    )
    return tuple(results.arrays)  # type: ignore[return-value]


def run_gating_top_k(
    logits: Any,
    k: int,
    bias: Any = None,
    scoring: str = "softmax",
    n_group: int = 1,
    topk_group: int = 1,
    renormalize: bool = False,
    routed_scaling_factor: float = 1.0,
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Any, Any]:
    logits_view = tensors.read("logits", logits, _REAL)
    bias_view = _optional("bias", bias, _REAL)
    results = _Results(logits)
    _core.moe_gating_top_k(
        results,
        logits_view,
        bias_view,
        k,
        scoring,
        n_group,
        topk_group,
        renormalize,
        routed_scaling_factor,
        threads,
        isa,
    )
    return tuple(results.arrays)  # type: ignore[return-value]


def register_torch_ops() -> None:
    """Registers the operators as `torch.ops.megamoe.*`. Importing megamoe after torch does it
    already; may be repeated.

    Raises:
        RuntimeError: the program has not imported torch.
    """
    if tensors.torch_if_loaded() is None:
        raise RuntimeError("torch is not imported: expected `import torch` before register_torch_ops()")
    from . import torch_layer, torch_ops

    torch_ops.register()
    torch_layer.register()


def _implementation(name: str, run: Callable[..., Any], **arrays: Any) -> Callable[..., Any]:
    """The torch operator if all arrays are torch tensors, else the function that needs no torch."""
    given = {key: array for key, array in arrays.items() if array is not None}
    torch = tensors.torch_if_loaded()
    if torch is None:
        return run
    if all(isinstance(array, torch.Tensor) for array in given.values()):
        register_torch_ops()
        return getattr(torch.ops.megamoe, name)
    for key, array in given.items():
        if isinstance(array, torch.Tensor) and array.requires_grad and torch.is_grad_enabled():
            invalid_value(f"{key}.requires_grad = True: expected False, or torch tensors for all arrays")
    return run


def _options(threads: Any, isa: Any) -> tuple[int, str | None]:
    return settings.integer("threads", threads), None if isa is None else settings.text("isa", isa)


def moe_init_routing_v3(
    x: Any,
    expert_idx: Any,
    *,
    scale: Any = None,
    offset: Any = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    mx_scale: str = "round_up",
    x_dtype: Any = None,
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Expands tokens into rows ordered by expert, copied or quantised. docs/routing.md has the rules and the
    table of modes; N tokens, K slots, H columns, F = N * K.

    Args:
        x: (N, H) float32, float16 or bfloat16. quant_mode -1 also takes int8, FP8, and HIFLOAT8 or packed FP4
            (N, H / 2) as uint8 with `x_dtype`.
        expert_idx: (N, K) int32 or int64: experts in [0, expert_num), or -1 for a slot that is not used.
        scale: quant_mode -1: scales of x that go along, float32 (N,), or E8M0 (N, ceil(H / 64), 2) with FP8
            and FP4 rows. 0 and 7: float32 (1,). 1: smooth scales float32 (end - start, H) or (1, H). 13:
            (1, H).
        offset: quant_mode 0: float32 (1,).
        active_num: rows of expanded_x; -1 and 0 = F.
        expert_capacity: rows per expert with drop_pad_mode 1, in [1, N].
        expert_num: number of experts; required.
        drop_pad_mode: 1 = expanded_x (expert_num, expert_capacity, H), rows past the capacity dropped.
        expert_tokens_num_type: 0 = running sums, 1 = counts, 2 = pairs (expert, count).
        expert_tokens_num_flag: whether expert_tokens_count_or_cumsum is wanted.
        quant_mode: -1, 0 to 9, 11 to 17.
        active_expert_range: (start, end); () = all experts.
        row_idx_type: 0 = where each slot went, 1 = the slots in sorted order.
        mx_scale: "round_up", or "floor" as older versions of modes 2 and 3 did.
        x_dtype: type that a uint8 `x` carries: "hifloat8", "float4_e2m1", "float8_e4m3fn", "float8_e5m2".
        threads: most threads to use; 0 = physical cores.
        isa: instruction-set level by name; None = the environment variable MEGAMOE_ISA, else the best.

    Returns:
        (expanded_x, expanded_row_idx, expert_tokens_count_or_cumsum, expanded_scale), new arrays of the
        framework of `x`; one that the arguments do not ask for is empty, of shape (0,). FP8 comes as the type
        of torch or ml_dtypes; FP4 and int4 (two per byte, shape H / 2), HIFLOAT8 and E8M0 come as uint8.

    Raises:
        TypeError, ValueError: an argument is wrong; the text names it. A tensor requires a gradient: the
            operator has none.
    """
    run = _implementation(
        "moe_init_routing_v3", run_init_routing, x=x, expert_idx=expert_idx, scale=scale, offset=offset
    )
    return run(
        x,
        expert_idx,
        scale,
        offset,
        settings.integer("active_num", active_num),
        settings.integer("expert_capacity", expert_capacity),
        settings.integer("expert_num", expert_num),
        settings.integer("drop_pad_mode", drop_pad_mode),
        settings.integer("expert_tokens_num_type", expert_tokens_num_type),
        settings.flag("expert_tokens_num_flag", expert_tokens_num_flag),
        settings.integer("quant_mode", quant_mode),
        settings.integers("active_expert_range", active_expert_range),
        settings.integer("row_idx_type", row_idx_type),
        settings.text("mx_scale", mx_scale),
        settings.dtype_name("x_dtype", x_dtype),
        *_options(threads, isa),
    )


def moe_token_permute(
    tokens: Any,
    indices: Any,
    num_out_tokens: int | None = None,
    padded_mode: bool = False,
    quant_mode: int = -1,
    *,
    mx_scale: str = "round_up",
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Any, Any, Any]:
    """Expands tokens into rows ordered by index (stable). With torch and quant_mode -1 gradients flow to
    `tokens`.

    Args:
        tokens: (N, H) float32, float16, bfloat16 or int8; quantised: float16 or bfloat16.
        indices: (N,) or (N, K) int32 or int64, from 0 on.
        num_out_tokens: rows M of permuted_tokens: None or 0 = F = N * K; n > 0 = min(n, F); n < 0 =
            max(F + n, 0).
        padded_mode: False.
        quant_mode: -1, or 2, 3 (MXFP8), 9 (MXFP4) as in `moe_init_routing_v3`.
        mx_scale, threads, isa: as in `moe_init_routing_v3`.

    Returns:
        (permuted_tokens, sorted_indices, expanded_scale): rows (M, H), FP4 as uint8 (M, H / 2); int32 (F,),
        where each slot went; E8M0 scales as uint8, float32 (0,) with quant_mode -1.

    Raises:
        TypeError, ValueError: an argument is wrong, or `tokens` requires a gradient with a quant_mode other
            than -1.
    """
    run = _implementation("moe_token_permute", run_token_permute, tokens=tokens, indices=indices)
    return run(
        tokens,
        indices,
        None if num_out_tokens is None else settings.integer("num_out_tokens", num_out_tokens),
        settings.flag("padded_mode", padded_mode),
        settings.integer("quant_mode", quant_mode),
        settings.text("mx_scale", mx_scale),
        *_options(threads, isa),
    )


def moe_token_permute_grad(
    grad_permuted_tokens: Any,
    sorted_indices: Any,
    num_topk: int = 1,
    padded_mode: bool = False,
    *,
    threads: int = 0,
    isa: str | None = None,
) -> Any:
    """Gradient of `moe_token_permute` to its tokens: (F / num_topk, H), the sum of the rows of each token.

    Args:
        grad_permuted_tokens: (M, H) float32, float16 or bfloat16.
        sorted_indices: (F,) int32 or int64, from `moe_token_permute`; one outside [0, M) adds nothing.
        num_topk: slots per token.
        padded_mode: False.
        threads, isa: as in `moe_init_routing_v3`.
    """
    run = _implementation(
        "moe_token_permute_grad",
        run_token_permute_grad,
        grad_permuted_tokens=grad_permuted_tokens,
        sorted_indices=sorted_indices,
    )
    return run(
        grad_permuted_tokens,
        sorted_indices,
        settings.integer("num_topk", num_topk),
        settings.flag("padded_mode", padded_mode),
        *_options(threads, isa),
    )


def moe_token_unpermute(
    permuted_tokens: Any,
    sorted_indices: Any,
    probs: Any = None,
    padded_mode: bool = False,
    restore_shape: Any = None,
    *,
    threads: int = 0,
    isa: str | None = None,
) -> Any:
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
    if restore_shape is not None:
        invalid_value(f"restore_shape = {restore_shape!r}: expected None")
    run = _implementation(
        "moe_token_unpermute",
        run_token_unpermute,
        permuted_tokens=permuted_tokens,
        sorted_indices=sorted_indices,
        probs=probs,
    )
    return run(
        permuted_tokens,
        sorted_indices,
        probs,
        settings.flag("padded_mode", padded_mode),
        *_options(threads, isa),
    )


def moe_token_unpermute_grad(
    permuted_tokens: Any,
    grad_unpermuted_tokens: Any,
    sorted_indices: Any,
    probs: Any = None,
    padded_mode: bool = False,
    *,
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Any, Any]:
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
    run = _implementation(
        "moe_token_unpermute_grad",
        run_token_unpermute_grad,
        permuted_tokens=permuted_tokens,
        grad_unpermuted_tokens=grad_unpermuted_tokens,
        sorted_indices=sorted_indices,
        probs=probs,
    )
    return run(
        permuted_tokens,
        grad_unpermuted_tokens,
        sorted_indices,
        probs,
        settings.flag("padded_mode", padded_mode),
        *_options(threads, isa),
    )


def moe_gating_top_k(
    logits: Any,
    k: int,
    *,
    bias: Any = None,
    scoring: str = "softmax",
    n_group: int = 1,
    topk_group: int = 1,
    renormalize: bool = False,
    routed_scaling_factor: float = 1.0,
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Any, Any]:
    """Scores all experts from router logits and chooses the k best; equal scores go to the lower expert.

    Args:
        logits: (T, E) float32, float16 or bfloat16; NaN is never chosen before a number.
        k: experts per token.
        bias: (E,) in the same types, added to the scores for the selection only.
        scoring: "softmax" or "sigmoid".
        n_group: groups of neighbouring experts; divides E.
        topk_group: groups that stay, by the sum of their two best selection scores.
        renormalize: divide the weights of a token by their sum.
        routed_scaling_factor: factor of all weights.
        threads, isa: as in `moe_init_routing_v3`.

    Returns:
        (weights, ids): float32 and int32 (T, k), best first, of the framework of `logits`.

    Raises:
        TypeError, ValueError: an argument is wrong, or a tensor requires a gradient: the operator has none.
    """
    run = _implementation("moe_gating_top_k", run_gating_top_k, logits=logits, bias=bias)
    return run(
        logits,
        settings.integer("k", k),
        bias,
        settings.text("scoring", scoring),
        settings.integer("n_group", n_group),
        settings.integer("topk_group", topk_group),
        settings.flag("renormalize", renormalize),
        settings.number("routed_scaling_factor", routed_scaling_factor),
        *_options(threads, isa),
    )
