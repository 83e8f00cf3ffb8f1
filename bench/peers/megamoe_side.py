"""The fused layer of this library."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import megamoe
from megamoe import ops

from .layer import Layer, Side


class _Scenario(NamedTuple):
    width: str  # width class of the weights
    mode: int  # dispatch_quant_mode
    tokens: str | None  # dispatch_quant_out_dtype
    weights: str | None  # weight types
    rule: str | None  # quantisation rule of the weights' rows
    reduction_last: bool  # (N, K) matrices need no flag


_SCENARIOS = {
    "A16W16": _Scenario("bf16", 0, None, None, None, False),
    "A8W8-INT": _Scenario("8-bit int", 2, "int8", "int8", "int8_per_token", False),
    "A8W4-INT": _Scenario("4-bit", 2, "int8", "int4", "int4_dynamic", False),
    "A8W8-FP": _Scenario("8-bit float", 4, "float8_e4m3fn", "float8_e4m3fn", "mx_floor_e4m3", True),
    "A16W4-FP": _Scenario("4-bit", 0, None, "float4_e2m1", "mx_floor_e2m1", True),
    "A8W4-FP": _Scenario("4-bit", 4, "float8_e4m3fn", "float4_e2m1", "mx_floor_e2m1", True),
    "A4W4-FP": _Scenario("4-bit", 4, "float4_e2m1", "float4_e2m1", "mx_floor_e2m1", True),
}


class MegamoeSide(Side):
    """Scenarios of the operator; weights are packed once, as the peers prepare theirs."""

    name = "megamoe"
    formats = {name: scenario.width for name, scenario in _SCENARIOS.items()}

    def __init__(self, layer: Layer, fmt: str, threads: int, max_tokens: int) -> None:
        s, scenario = layer.shape, _SCENARIOS[fmt]
        self._buffer = ops.get_symm_buffer_for_mega_moe(
            None, s.experts, max_tokens, s.topk, s.hidden, s.inter, threads=threads,
            dispatch_quant_mode=scenario.mode, dispatch_quant_out_dtype=scenario.tokens,
        )
        fused = [torch.cat((gate, up)) for gate, up in zip(layer.gate, layer.up, strict=True)]
        (w1, s1), (w2, s2) = (self._encode(scenario, rows) for rows in (fused, list(layer.down)))
        self._l1, self._l2 = megamoe.pack_weights(
            w1, w2, l1_sf=s1, l2_sf=s2, weight1_type=scenario.weights, weight2_type=scenario.weights,
            transposed=not scenario.reduction_last, threads=threads,
        )

    @staticmethod
    def _encode(scenario: _Scenario, weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor] | None]:
        """(N, K) matrices as codes and scales."""
        if scenario.rule is None:
            return weights, None
        codes, scales = zip(*(megamoe.quantise(scenario.rule, rows) for rows in weights), strict=True)
        if scenario.reduction_last:  # E8M0 in pairs of groups
            scales = tuple(F.pad(scale, (0, scale.shape[-1] % 2)).unflatten(-1, (-1, 2)) for scale in scales)
        return list(codes), list(scales)

    def run(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return ops.mega_moe(x, ids, weights, self._l1, self._l2, self._buffer)[0]

    def close(self) -> None:
        self._buffer.destroy()
