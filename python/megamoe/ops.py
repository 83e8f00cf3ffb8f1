"""The operators, with the argument names, order and defaults of the operator documents."""

from __future__ import annotations

from typing import Any

from . import _core, errors, settings
from .buffer import SymmBuffer
from .first_version import mega_moe_v1
from .layer import mega_moe
from .permute import (
    moe_token_permute,
    moe_token_permute_grad,
    moe_token_unpermute,
    moe_token_unpermute_grad,
)
from .routing import moe_gating_top_k, moe_init_routing_v3

__all__ = [
    "SymmBuffer",
    "get_mega_moe_ccl_buffer_size",
    "get_symm_buffer_for_mega_moe",
    "mega_moe",
    "mega_moe_v1",
    "moe_gating_top_k",
    "moe_init_routing_v3",
    "moe_token_permute",
    "moe_token_permute_grad",
    "moe_token_unpermute",
    "moe_token_unpermute_grad",
]


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
    ccl_buffer_size: int = 0,
    threads: int = 0,
    isa: str | None = None,
    deadline: float = 60.0,
    trace: bool = False,
    tuning: str | None = None,
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
        dispatch_quant_mode: how tokens travel: 0 = as bfloat16, 2 = as int8 with one scale per token, 3 = as
            E4M3 with one scale per 128, 4 = as MX codes. 0 with an MX type: tokens are given as codes.
        dispatch_quant_out_dtype: type of the codes: None, torch or NumPy type, name, or operator number (1
            int8, 23 float8_e5m2, 24 float8_e4m3fn, 296 float4_e2m1, 28 undefined).
        combine_quant_mode: how expert rows travel back: 0 = as bfloat16, 3 = as MX E5M2, 4 = as MX E4M3.
        comm_alg: "".
        topk_weights_type: router weights are applied 0 = when rows are combined, 1 = to the activated values.
        topo_type: 0 = all ranks in one memory domain; 1 and 2 = domains of rank_num_per_server ranks.
        rank_num_per_server: ranks per domain of topo_type 1 and 2; divides the number of ranks.
        combine_comm_mode: 0 = every expert row travels back; 1 = the rows of one rank for a token are merged
            before (topo_type 0), 2 = those of one domain (topo_type 1 or 2); both with combine_quant_mode 0.
        profile: whose limits hold: "cpu" = only those that the arithmetic and the memory need; or a device's,
            "ascend_a2_a3", "ascend_950", "mega_moe_v1".
        ccl_buffer_size: most bytes of symmetric memory that one rank may take; 0 = as many as needed.
        threads: threads of this rank; 0 = the physical cores divided by the ranks on this host.
        isa: instruction-set level by name, see `megamoe.info()`; None = the environment variable MEGAMOE_ISA,
            else the best for this CPU.
        deadline: longest time in seconds that one wait for other ranks may take, creation included.
        trace: record when each thread did what, see `SymmBuffer.trace_spans`.
        tuning: path of a file of `megamoe tune`, whose block sizes layers on this buffer use; it is read when
            a layer is planned. None = sizes that fit the caches. Results are the same.

    Raises:
        TypeError, ValueError: an argument is wrong, or ranks differ; the text names the argument, what came
            and what was expected.
        RuntimeError: a rank failed, or memory could not be reserved. `megamoe.DeadlineError`, which is also a
            TimeoutError: a rank did not come in time.
    """
    return SymmBuffer(**locals())


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
    *,
    profile: str = "cpu",
) -> int:
    """Bytes of symmetric memory one rank needs: `SymmBuffer.ccl_buffer_size` of a buffer with these settings.

    The arguments mean what they mean for `get_symm_buffer_for_mega_moe`; `ep_world_size` is the number of
    ranks, `moe_expert_num` is `num_experts`. Buffers of a device `profile` are smaller, because a
    token has each of their experts at most once. Exact in 64 bits; more is a ValueError.
    """
    given = locals() | {"num_experts": moe_expert_num}
    with errors.renamed({"num_experts": "moe_expert_num"}):
        config = settings.buffer_config(given)
        return _core.ccl_buffer_size(settings.integer("ep_world_size", ep_world_size), config)
