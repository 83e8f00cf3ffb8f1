"""megamoe: the mixture-of-experts layer as one fused operator for CPUs.

`megamoe.ops` has the operators, with the names and arguments of the MegaMoE operator document. NumPy alone is
enough; torch tensors and torch.distributed groups are taken wherever the program uses torch.
"""

from __future__ import annotations

import os
from typing import Any

from . import _core, ops
from ._core import Code, DeadlineError, Group
from .buffer import SymmBuffer, TraceSpan
from .checkpoint import Checkpoint, CheckpointLayer, load_layer
from .layouts import convert_layout
from .operators import register_torch_ops
from .ops import get_mega_moe_ccl_buffer_size, get_symm_buffer_for_mega_moe, mega_moe, mega_moe_v1
from .packed import int4_view, int32_view
from .permute import (
    moe_token_permute,
    moe_token_permute_grad,
    moe_token_unpermute,
    moe_token_unpermute_grad,
)
from .quantise import QuantRule, cast, dequantise, quant_rules, quantise
from .routing import moe_gating_top_k, moe_init_routing_v3
from .torch_import import when_torch_is_imported
from .weights import FractalTensor, PackedLayer, PackedWeights, pack_weights

__version__: str = _core.version()

__all__ = [
    "Checkpoint",
    "CheckpointLayer",
    "Code",
    "DeadlineError",
    "FractalTensor",
    "Group",
    "PackedLayer",
    "PackedWeights",
    "QuantRule",
    "SymmBuffer",
    "TraceSpan",
    "__version__",
    "cast",
    "convert_layout",
    "dequantise",
    "get_mega_moe_ccl_buffer_size",
    "get_symm_buffer_for_mega_moe",
    "info",
    "int4_view",
    "int32_view",
    "load_layer",
    "mega_moe",
    "mega_moe_v1",
    "moe_gating_top_k",
    "moe_init_routing_v3",
    "moe_token_permute",
    "moe_token_permute_grad",
    "moe_token_unpermute",
    "moe_token_unpermute_grad",
    "ops",
    "pack_weights",
    "quant_rules",
    "quantise",
    "register_torch_ops",
]

when_torch_is_imported(register_torch_ops)


def info() -> dict[str, Any]:
    """What this build can use on this machine.

    Returns:
        version; isa, the instruction-set level in use, and isa_reason, why; levels, all levels in ascending
        order as dicts with name, requirement, runnable and reason (why it cannot run here, or ""); cpus, the
        CPUs this process may use.

    Raises:
        ValueError: the environment variable MEGAMOE_ISA names an unknown level, or one this machine cannot
            run.
    """
    fields = ("name", "requirement", "runnable", "reason")
    return {
        "version": __version__,
        "isa": _core.default_isa(),
        "isa_reason": _core.default_isa_reason(),
        "levels": [dict(zip(fields, level)) for level in _core.isa_levels()],
        "cpus": len(os.sched_getaffinity(0)),
    }
