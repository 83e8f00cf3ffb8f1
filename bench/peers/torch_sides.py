"""What a reader would write in torch, and the implementations that torch and transformers bring along."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .layer import Layer, Side, Unavailable

_MOST_COPIED_BYTES = 6 << 30


class TorchLoopSide(Side):
    """A loop over experts: gather the rows, two products with the activation between, add the weighted rows."""

    name = "torch loop"
    formats = {"bf16": "bf16", "int8": "8-bit int"}

    def __init__(self, layer: Layer, fmt: str, threads: int, max_tokens: int) -> None:
        self.torch_threads = threads
        self._int8 = fmt == "int8"
        fused = [torch.cat((gate, up)) for gate, up in zip(layer.gate, layer.up, strict=True)]
        if not self._int8:
            self._w1, self._w2 = fused, list(layer.down)
            return
        if not hasattr(torch, "_int_mm"):
            raise Unavailable("this torch has no _int_mm")
        # (K, N) codes and a scale per output channel
        quantise = lambda w: tuple(part.t() for part in self._quantise(w))
        self._w1, self._w2 = [quantise(w) for w in fused], [quantise(w) for w in layer.down]

    @staticmethod
    def _quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
        scale = rows.float().abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / 127
        return torch.round(rows.float() / scale).to(torch.int8), scale

    def _product(self, rows: Tensor, weight: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        if not self._int8:
            return F.linear(rows, weight)
        codes, scale = self._quantise(rows)
        return torch._int_mm(codes, weight[0]).float() * weight[1] * scale

    def run(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        y = torch.zeros(x.shape, dtype=torch.float32)
        for expert in torch.unique(ids).tolist():
            token, slot = torch.where(ids == expert)
            gate, up = self._product(x[token], self._w1[expert]).chunk(2, dim=-1)
            out = self._product(F.silu(gate) * up, self._w2[expert])
            y.index_add_(0, token, out.float() * weights[token, slot, None])
        return y.to(torch.bfloat16)


class TorchGroupedSide(Side):
    """torch's grouped product over rows sorted by expert."""

    name = "torch grouped_mm"
    formats = {"bf16": "bf16"}

    def __init__(self, layer: Layer, fmt: str, threads: int, max_tokens: int) -> None:
        self.torch_threads = threads
        self._grouped = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
        if self._grouped is None:
            raise Unavailable("this torch has no grouped_mm")
        self._experts = layer.shape.experts
        self._w1 = torch.cat((layer.gate, layer.up), 1).transpose(1, 2)
        self._w2 = layer.down.transpose(1, 2)
        try:
            self._grouped(torch.zeros(1, layer.shape.hidden, dtype=torch.bfloat16), self._w1,
                          offs=torch.ones(self._experts, dtype=torch.int32))
        except (RuntimeError, NotImplementedError) as error:
            raise Unavailable(f"grouped_mm does not run on CPUs: {str(error).splitlines()[0]}") from error

    def run(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        flat = ids.flatten()
        order = torch.argsort(flat, stable=True)
        token = order // ids.shape[1]
        ends = torch.bincount(flat, minlength=self._experts).cumsum(0).to(torch.int32)
        gate, up = self._grouped(x[token], self._w1, offs=ends).chunk(2, dim=-1)
        out = self._grouped(F.silu(gate) * up, self._w2, offs=ends)
        y = torch.zeros(x.shape, dtype=torch.float32)
        y.index_add_(0, token, out.float() * weights.flatten()[order, None])
        return y.to(torch.bfloat16)


class TransformersSide(Side):
    """The experts module of a Qwen3-MoE model in transformers, by each of its implementations for CPUs."""

    name = "transformers"
    formats = {"eager": "bf16", "grouped_mm": "bf16", "batched_mm": "bf16"}

    def __init__(self, layer: Layer, fmt: str, threads: int, max_tokens: int) -> None:
        self.torch_threads = threads
        try:
            from transformers import Qwen3MoeConfig
            from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts
        except ImportError as error:
            raise Unavailable(f"transformers cannot be imported, or has no Qwen3MoeExperts: {error}") from error
        s = layer.shape
        copied = max_tokens * s.topk * 3 * s.hidden * s.inter * 2
        if fmt == "batched_mm" and copied > _MOST_COPIED_BYTES:
            raise Unavailable(f"batched_mm copies the weights of each slot, {copied >> 30} GiB at {max_tokens} tokens")
        config = Qwen3MoeConfig(hidden_size=s.hidden, moe_intermediate_size=s.inter, num_experts=s.experts,
                                num_experts_per_tok=s.topk, hidden_act="silu")
        # Without a choice a module made outside of a model has none.
        config._experts_implementation = fmt
        with torch.device("meta"):
            self._experts = Qwen3MoeExperts(config)
        self._experts.gate_up_proj = torch.nn.Parameter(torch.cat((layer.gate, layer.up), 1), requires_grad=False)
        self._experts.down_proj = torch.nn.Parameter(layer.down, requires_grad=False)

    def run(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        with torch.no_grad():
            return self._experts(x, ids.to(torch.int64), weights.to(torch.bfloat16))
