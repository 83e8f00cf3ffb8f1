"""Expert layers of Hugging Face checkpoints, ready to run: router, weights and shared experts of one layer."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from . import _core, settings, tensors
from .buffer import SymmBuffer
from .errors import invalid_type, invalid_value
from .layer import mega_moe
from .ops import get_symm_buffer_for_mega_moe
from .routing import moe_gating_top_k
from .weights import PackedLayer, PackedWeights

__all__ = ["Checkpoint", "CheckpointLayer", "load_layer"]


# How tokens travel to weights of a type where nothing else is asked for; to all others as bfloat16.
_TOKENS = {"int8": {"dispatch_quant_mode": 2, "dispatch_quant_out_dtype": "int8"}}


class Checkpoint:
    """The expert layers of a checkpoint, its files mapped and not read.

    Args:
        path: directory with config.json and safetensors files, or one of the files.

    Attributes:
        layers: numbers of the layers that have experts, ascending.
        model_type, num_experts, num_topk, hidden, intermediate_hidden: as config.json says.

    Raises:
        ValueError: the path does not exist, or the model has no expert layers this package knows.
        RuntimeError: a file is malformed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            invalid_type(f"path = {type(path).__name__}: expected a path")
        self.native = _core.Checkpoint.open(os.fspath(path))
        self.config: dict[str, Any] = self.native.config
        self.layers: list[int] = self.native.layers
        self.model_type: str = self.config["model_type"]
        self.num_experts: int = self.config["num_experts"]
        self.num_topk: int = self.config["num_topk"]
        self.hidden: int = self.config["hidden"]
        self.intermediate_hidden: int = self.config["intermediate_hidden"]

    def load_layer(self, layer: int, *, rank: int = 0, ranks: int = 1, threads: int = 0) -> CheckpointLayer:
        """`megamoe.load_layer` of this checkpoint."""
        return CheckpointLayer(self, layer, rank, ranks, threads)


class CheckpointLayer:
    """One expert layer, made by `load_layer`. Calling it routes the tokens and runs `mega_moe`.

    Attributes:
        index: number of the layer.
        weights, shared: `PackedLayer` of this rank's experts, and of the experts that every token passes; None for
            a rank without experts, or a layer without shared ones.
        gated: experts behind the num_experts routed ones that every token passes with the weight
            sigmoid(x @ shared_gate.T): the shared expert of Qwen2-MoE and Qwen3-Next, cut to the width of a routed one.
        shared_gate: float32 NumPy array (1, H), or None.
        weight_type: type of the stored weights, "bfloat16", "float8_e4m3fn", "int8", "int4" or "float4_e2m1".
        router, router_bias, correction_bias: float32 NumPy arrays (E, H), (E,), (E,); the biases None where the
            model has none. `router_bias` adds to the logits, `correction_bias` to the scores for the choice only.
        gating: arguments of `moe_gating_top_k` beside logits, k and bias.
        activation, activation_clamp, activation_params: of `mega_moe`.
    """

    def __init__(self, checkpoint: Checkpoint, index: int, rank: int, ranks: int, threads: int) -> None:
        rank, ranks = settings.integer("rank", rank), settings.integer("ranks", ranks)
        if ranks < 1:
            invalid_value(f"ranks = {ranks}: expected at least 1")
        if not 0 <= rank < ranks:
            invalid_value(f"rank = {rank}: expected a value in [0, {ranks}), of so many ranks")
        config, count = checkpoint.config, settings.integer("threads", threads)
        native = checkpoint.native.layer(settings.integer("layer", index), gated=True)
        self.index = index
        self.num_experts, self.num_topk = checkpoint.num_experts, checkpoint.num_topk
        self.hidden, self.intermediate_hidden = checkpoint.hidden, checkpoint.intermediate_hidden
        self.weight_type: str = native.weight_type
        self.router, self.router_bias, self.correction_bias, self.shared_gate = (
            None if values is None else np.array(values)
            for values in (native.router, native.router_bias, native.correction_bias, native.shared_gate)
        )
        self.gated: int = native.gated
        names = ("n_group", "topk_group", "group_score", "renormalize", "routed_scaling_factor")
        self.gating = {"scoring": native.scoring} | {name: config[name] for name in names}
        self.activation: str = config["activation"]
        self.activation_clamp: float | None = config["activation_clamp"]
        self.activation_params = None if config["alpha"] is None else {"alpha": config["alpha"]}
        experts = self.num_experts + self.gated
        own = -(-experts // ranks)
        begin = min(rank * own, experts)
        own = min(own, experts - begin)
        self.weights = self._packed(native.pack(begin, own, count)) if own > 0 else None
        self.shared = self._packed(native.pack_shared(count)) if native.has_shared else None
        self._of_torch: dict[str, Any] = {}

    @staticmethod
    def _packed(pair: Any) -> PackedLayer:
        return PackedLayer(*map(PackedWeights, pair))

    def __repr__(self) -> str:
        shape = f"{self.num_experts} experts, {self.hidden} x {self.intermediate_hidden}"
        return f"<megamoe.CheckpointLayer {self.index}: {shape}, {self.weight_type}>"

    def buffer(self, num_max_tokens_per_rank: int, group: Any = None, **changes: Any) -> SymmBuffer:
        """A buffer for this layer and all others of the checkpoint with weights of the same type.

        Args:
            num_max_tokens_per_rank, group: as in `get_symm_buffer_for_mega_moe`.
            changes: further arguments of it. Without dispatch_quant_mode tokens travel as bfloat16, to int8
                weights as int8.
        """
        if "dispatch_quant_mode" not in changes:
            changes = _TOKENS.get(self.weight_type, {}) | changes
        sizes = (self.num_experts + self.gated, num_max_tokens_per_rank, self.num_topk + self.gated)
        return get_symm_buffer_for_mega_moe(group, *sizes, self.hidden, self.intermediate_hidden, **changes)

    def _parameter(self, name: str, torch: Any) -> Any:
        """One of the router's arrays in the framework of the tokens."""
        values = getattr(self, name)
        if torch is None or values is None:
            return values
        if name not in self._of_torch:
            self._of_torch[name] = torch.from_numpy(values)
        return self._of_torch[name]

    def route(self, x: Any) -> tuple[Any, Any]:
        """(topk_weights, topk_ids) of tokens `x` (T, H): float32 logits, then `moe_gating_top_k`."""
        if not tensors.is_array(x):
            invalid_type(f"x = {type(x).__name__}: expected a torch tensor or a NumPy array")
        if x.ndim != 2 or x.shape[1] != self.hidden:
            invalid_value(f"x has shape {tuple(x.shape)}: expected (T, {self.hidden})")
        torch = tensors.framework_of(x)
        values = x.astype(np.float32) if torch is None else x.detach().to(torch.float32)
        logits = values @ self._parameter("router", torch).T
        bias = self._parameter("router_bias", torch)
        if bias is not None:
            logits = logits + bias
        return moe_gating_top_k(
            logits, self.num_topk, bias=self._parameter("correction_bias", torch), **self.gating
        )

    def _with_gated(self, x: Any, weights: Any, ids: Any) -> tuple[Any, Any]:
        """(topk_weights, topk_ids) with the gated experts behind the routed ones of every token."""
        torch = tensors.framework_of(x)
        last = np.arange(self.num_experts, self.num_experts + self.gated, dtype=np.int32)[None].repeat(len(x), 0)
        if torch is None:
            gate = 1 / (1 + np.exp(-(x.astype(np.float32) @ self.shared_gate.T)))
            return np.concatenate([weights, gate.repeat(self.gated, 1)], 1), np.concatenate([ids, last], 1)
        gate = torch.sigmoid(x.detach().to(torch.float32) @ self._parameter("shared_gate", torch).T)
        added = torch.from_numpy(last).to(ids.dtype)
        return torch.cat([weights, gate.expand(-1, self.gated)], 1), torch.cat([ids, added], 1)

    def _routed(self, x: Any) -> tuple[Any, Any, Any]:
        """Rows of `x` (..., H) with (topk_weights, topk_ids) of all their experts."""
        if tensors.is_array(x) and x.shape[-1:] != (self.hidden,):
            invalid_value(f"x has shape {tuple(x.shape)}: expected (..., {self.hidden})")
        rows = x.reshape(-1, self.hidden) if tensors.is_array(x) and x.ndim != 2 else x
        topk_weights, topk_ids = self.route(rows)
        if self.gated:
            topk_weights, topk_ids = self._with_gated(rows, topk_weights, topk_ids)
        return rows, topk_weights, topk_ids

    def __call__(self, x: Any, sym_buffer: SymmBuffer) -> Any:
        """The expert layer of the model: router, experts and shared experts. Collective over the ranks.

        Args:
            x: (..., H) bfloat16 or float16, of either framework.
            sym_buffer: from `buffer`.

        Returns:
            y: the shape and type of `x`.

        Raises:
            As `mega_moe`, on every rank.
        """
        if not isinstance(sym_buffer, SymmBuffer):
            invalid_type(f"sym_buffer = {type(sym_buffer).__name__}: expected a SymmBuffer")
        rows, topk_weights, topk_ids = sym_buffer.before_call(lambda: self._routed(x))
        shared = self.shared or (None, None)
        plain = self.shared is not None and self.shared.l1.dtype == "bfloat16"
        y, _ = mega_moe(
            rows,
            topk_ids,
            topk_weights,
            *(self.weights or ([], [])),
            sym_buffer,
            activation=self.activation,
            activation_clamp=self.activation_clamp,
            activation_params=self.activation_params,
            shared_l1_weights=shared[0],
            shared_l2_weights=shared[1],
            shared_expert_quant_out_dtype="bfloat16" if plain else None,
        )
        return y if rows is x else y.reshape(x.shape)


def load_layer(
    checkpoint: str | os.PathLike[str] | Checkpoint,
    layer: int,
    *,
    rank: int = 0,
    ranks: int = 1,
    threads: int = 0,
) -> CheckpointLayer:
    """One expert layer of a Hugging Face checkpoint, its weights packed in the width they are stored in.

    docs/checkpoints.md lists the models and number formats. For many layers open a `Checkpoint` once.

    Args:
        checkpoint: directory with config.json and safetensors files, or a `Checkpoint`.
        layer: number of the layer, one of `Checkpoint.layers`.
        rank, ranks: only the experts that this rank of so many owns.
        threads: threads to pack with; 0 = all cores.

    Raises:
        ValueError: no such layer, or weights stored in a way that is not supported; the text names the tensor or
            the key of config.json.
        RuntimeError: a file is malformed, or its tensors contradict config.json.
    """
    opened = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    return opened.load_layer(layer, rank=rank, ranks=ranks, threads=threads)
