"""The routing operators that choose experts and bring token rows into the order of the experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _core, packed, settings, tensors
from .errors import invalid_type
from .operators import Array, DType, operator
from .results import Results

__all__ = ["moe_gating_top_k", "moe_init_routing_v3"]

REAL = ("float32", "float16", "bfloat16")
IDS = ("int32", "int64")
_ROWS = (*REAL, "int8", *(name for name in tensors.BYTE_TYPES if name not in ("float8_e8m0", "int4")))


def run_routing(
    name: str, like: Array, arguments: dict[str, Any], views: dict[str, Any], kept: str | None = None
) -> tuple[Array, ...]:
    """Runs a routing operator of the library. `views` are its arrays, `arguments` all arguments by name; rows
    of type `kept` are given as `like` has them, by default those of its own type.
    """
    results = Results(like, arguments.get("result_types", "document"), kept or tensors.dtype_of(like))
    threads = settings.integer("threads", arguments["threads"])  # torch passes integers of 64 bits on
    getattr(_core, name)(results.make, arguments | views, threads, arguments["isa"])
    return results.finish()


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
    return packed.read(name, value, _ROWS)


@operator
def moe_init_routing_v3(
    x: Array,
    expert_idx: Array,
    *,
    scale: Array | None = None,
    offset: Array | None = None,
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
    x_dtype: DType | None = None,
    result_types: str = "document",
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Array, Array, Array, Array]:
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
        result_types: which types codes and E8M0 scales have: "document" = FP8 is the type of torch or
            ml_dtypes, all others are uint8; "native" = also FP4 and E8M0 have the types of torch or ml_dtypes
            where those exist (in ml_dtypes FP4 and int4 take one byte per element, shape H); "uint8" = all are
            uint8. Copied rows keep the type of `x`.
        threads: most threads to use; 0 = physical cores.
        isa: instruction-set level by name; None = the environment variable MEGAMOE_ISA, else the best.

    Returns:
        (expanded_x, expanded_row_idx, expert_tokens_count_or_cumsum, expanded_scale), new arrays of the
        framework of `x`; one that the arguments do not ask for is empty, of shape (0,). As uint8, FP4 and int4
        lie two per byte, shape H / 2.

    Raises:
        TypeError, ValueError: an argument is wrong; the text names it. A tensor requires a gradient: the
            operator has none.
    """
    arguments = locals()
    views = {
        "x": _rows("x", x, x_dtype),
        "expert_idx": tensors.read("expert_idx", expert_idx, IDS),
        "scale": tensors.read_optional(
            "scale", scale, ("float32", "float8_e8m0", "uint8"), {"uint8": "float8_e8m0"}
        ),
        "offset": tensors.read_optional("offset", offset, ("float32",)),
    }
    results = run_routing("moe_init_routing_v3", x, arguments, views, x_dtype or tensors.dtype_of(x))
    return results  # type: ignore[return-value]


@operator
def moe_gating_top_k(
    logits: Array,
    k: int,
    *,
    bias: Array | None = None,
    scoring: str = "softmax",
    n_group: int = 1,
    topk_group: int = 1,
    renormalize: bool = False,
    routed_scaling_factor: float = 1.0,
    group_score: str = "top2_sum",
    threads: int = 0,
    isa: str | None = None,
) -> tuple[Array, Array]:
    """Scores all experts from router logits and chooses the k best; equal scores go to the lower expert.

    Args:
        logits: (T, E) float32, float16 or bfloat16; NaN is never chosen before a number.
        k: experts per token.
        bias: (E,) in the same types, added to the scores for the selection only.
        scoring: "softmax" or "sigmoid".
        n_group: groups of neighbouring experts; divides E.
        topk_group: groups that stay, the best by `group_score`.
        renormalize: divide the weights of a token by their sum.
        routed_scaling_factor: factor of all weights.
        group_score: of the selection scores in a group, "top2_sum" the sum of the two best, as DeepSeek-V3
            chooses, or "max" the best, as `group_limited_greedy` of DeepSeek-V2 does.
        threads, isa: as in `moe_init_routing_v3`.

    Returns:
        (weights, ids): float32 and int32 (T, k), best first, of the framework of `logits`.

    Raises:
        TypeError, ValueError: an argument is wrong, or a tensor requires a gradient: the operator has none.
    """
    arguments = locals()
    views = {
        "logits": tensors.read("logits", logits, REAL),
        "bias": tensors.read_optional("bias", bias, REAL),
    }
    return run_routing("moe_gating_top_k", logits, arguments, views)  # type: ignore[return-value]
