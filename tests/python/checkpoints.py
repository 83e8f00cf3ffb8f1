"""Small checkpoints in the layouts of public models, written bit by bit, and their layers in float64.

Each way to store a matrix returns the tensors of a file and the matrix that they stand for, computed here from the
definition of the format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # column of each position of a word, lowest bits first


def plain(rng, name, n, k, kind=BF16):
    matrix = (rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32).astype(kind)
    return {f"{name}.weight": matrix}, matrix.astype(np.float64)


def half(rng, name, n, k):
    """float16, which is rounded to bfloat16."""
    tensors, matrix = plain(rng, name, n, k, np.float16)
    return tensors, matrix.astype(np.float32).astype(BF16).astype(np.float64)


def fp8_blocks(rng, name, n, k):
    codes = rng.standard_normal((n, k)).astype(np.float32).astype(E4M3)
    scales = (rng.uniform(0.5, 1.5, (-(-n // 128), -(-k // 128))) / np.sqrt(k)).astype(np.float32)
    full = np.repeat(np.repeat(scales, 128, 0), 128, 1)[:n, :k]
    tensors = {f"{name}.weight": codes, f"{name}.weight_scale_inv": scales}
    return tensors, codes.astype(np.float64) * full


def words(nibbles):
    """(..., 8 m) codes of 4 bits -> (..., m) int32, the first code in the lowest bits."""
    eight = nibbles.astype(np.uint32).reshape(*nibbles.shape[:-1], -1, 8)
    return (eight << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32).view(np.int32)


def int4(rng, n, k, group, symmetric, kind=np.float16):
    """(N, K) codes, (N, groups) zero points and scales, the matrix; group -1 is all of K."""
    group = k if group == -1 else group
    codes = rng.integers(0, 16, (n, k))
    zeros = np.full((n, k // group), 8) if symmetric else rng.integers(1, 16, (n, k // group))
    scales = (rng.uniform(0.5, 1.5, zeros.shape) / (6 * np.sqrt(k))).astype(np.float32).astype(kind)
    full = [np.repeat(a.astype(np.float64), group, 1) for a in (zeros, scales)]
    return codes, zeros, scales, (codes - full[0]) * full[1]


def bytes_in_words(codes):
    """(..., 4 m) codes of 8 bits -> (..., m) int32, the first in the lowest bits."""
    return np.ascontiguousarray(codes.astype(np.uint8)).view(np.int32)


def int8(rng, n, k, kind):
    """(N, K) codes of -128 to 127, a scale for each row, the matrix."""
    codes = rng.integers(-128, 128, (n, k))
    scales = (rng.uniform(0.5, 1.5, (n, 1)) / (74 * np.sqrt(k))).astype(np.float32).astype(kind)
    return codes, scales, codes * scales.astype(np.float64)


def gptq(group, symmetric, version, order=None):
    """qweight words along K, qzeros words along N and less 1 in version 1, g_idx the group of every k."""

    def store(rng, name, n, k):
        codes, zeros, scales, matrix = int4(rng, n, k, group, symmetric)
        index = np.arange(k, dtype=np.int32) // (k if group == -1 else group) if order is None else order(k, group)
        return {
            f"{name}.qweight": np.ascontiguousarray(words(codes).T),
            f"{name}.qzeros": words(zeros.T - (version == 1)),
            f"{name}.scales": np.ascontiguousarray(scales.T),
            f"{name}.g_idx": index,
        }, matrix

    return store


def gptq8(rng, name, n, k):
    """8 bits, one scale for each output, all zero points 128, stored less 1."""
    codes, scales, matrix = int8(rng, n, k, np.float16)
    return {
        f"{name}.qweight": bytes_in_words((codes + 128)).T,
        f"{name}.qzeros": bytes_in_words(np.full((1, n), 127)),
        f"{name}.scales": scales.T,
    }, matrix  # fmt: skip


def gptq8_groups(group, symmetric):
    """8 bits, scales and zero points of groups, stored less 1."""

    def store(rng, name, n, k):
        codes = rng.integers(0, 256, (n, k))
        zeros = np.full((n, k // group), 128) if symmetric else rng.integers(90, 160, (n, k // group))
        scales = (rng.uniform(0.5, 1.5, zeros.shape) / (74 * np.sqrt(k))).astype(np.float16)
        full = [np.repeat(a.astype(np.float64), group, 1) for a in (zeros, scales)]
        return {
            f"{name}.qweight": np.ascontiguousarray(bytes_in_words(codes).T),
            f"{name}.qzeros": bytes_in_words(zeros.T - 1),
            f"{name}.scales": np.ascontiguousarray(scales.T),
        }, (codes - full[0]) * full[1]

    return store


def int8_channels(rng, name, n, k):
    """compressed-tensors int-quantized: int8 (N, K), bfloat16 (N, 1)."""
    codes, scales, matrix = int8(rng, n, k, BF16)
    return {f"{name}.weight": codes.astype(np.int8), f"{name}.weight_scale": scales}, matrix


def packed(group, symmetric=True, size_type=np.int64):
    """compressed-tensors pack-quantized: words along K, zero points of neighbouring outputs in a word."""

    def store(rng, name, n, k):
        codes, zeros, scales, matrix = int4(rng, n, k, group, symmetric, BF16)
        tensors = {
            f"{name}.weight_packed": words(codes),
            f"{name}.weight_scale": scales,
            f"{name}.weight_shape": np.array([n, k], size_type),
        }
        return tensors | ({} if symmetric else {f"{name}.weight_zero_point": np.ascontiguousarray(words(zeros.T).T)}), matrix

    return store


def packed8_groups(group):
    """compressed-tensors pack-quantized of 8 bits with bfloat16 scales of groups."""

    def store(rng, name, n, k):
        codes = rng.integers(-128, 128, (n, k))
        scales = (rng.uniform(0.5, 1.5, (n, k // group)) / (74 * np.sqrt(k))).astype(np.float32).astype(BF16)
        matrix = codes * np.repeat(scales.astype(np.float64), group, 1)
        return {f"{name}.weight_packed": bytes_in_words(codes + 128), f"{name}.weight_scale": scales}, matrix

    return store


def packed8(rng, name, n, k):
    codes, scales, matrix = int8(rng, n, k, BF16)
    return {f"{name}.weight_packed": bytes_in_words(codes + 128), f"{name}.weight_scale": scales}, matrix


def awq(group):
    """qweight and qzeros words along N, in the order of AWQ_COLUMNS."""

    def interleaved(codes):
        return words(codes.reshape(*codes.shape[:-1], -1, 8)[..., AWQ_COLUMNS].reshape(codes.shape))

    def store(rng, name, n, k):
        codes, zeros, scales, matrix = int4(rng, n, k, group, False)
        return {
            f"{name}.qweight": interleaved(codes.T),
            f"{name}.qzeros": interleaved(zeros.T),
            f"{name}.scales": np.ascontiguousarray(scales.T),
        }, matrix

    return store


def mxfp4(rng, experts, n, k):
    """Blocks of 32 codes in 16 bytes, the even one in the low half, a scale 2^(s - 127) each."""
    codes = rng.integers(0, 16, (experts, n, k))
    scales = rng.integers(119, 123, (experts, n, k // 32), dtype=np.uint8)
    pairs = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8).reshape(experts, n, k // 32, 16)
    matrices = E2M1[codes] * np.repeat(2.0 ** (scales.astype(int) - 127), 32, -1)
    return {"_blocks": pairs, "_scales": scales}, matrices


@dataclass
class Model:
    """A checkpoint of one expert layer (number 1 of 2) and its parts in float64."""

    config: dict
    tensors: dict = field(default_factory=dict)
    gate: list = field(default_factory=list)  # (I, H) of each expert, up and down likewise
    up: list = field(default_factory=list)
    down: list = field(default_factory=list)
    bias1: np.ndarray | None = None  # (E, I, 2) gate and up
    bias2: np.ndarray | None = None
    shared: tuple | None = None
    shared_gate: np.ndarray | None = None
    router: np.ndarray | None = None
    router_bias: np.ndarray | float = 0.0
    correction: np.ndarray | None = None
    scoring: str = "softmax"
    groups: tuple = (1, 1)
    groups_by: int = 2  # best scores of a group that are added up
    renormalize: bool = True
    scale: float = 1.0
    oai: bool = False

    def save(self, folder):
        from safetensors.numpy import save_file

        known = {np.dtype(E4M3), np.dtype(BF16)}
        if any(array.dtype in known for array in self.tensors.values()):
            import torch
            from safetensors.torch import save_file as save_torch

            names = {np.dtype(E4M3): torch.float8_e4m3fn, np.dtype(BF16): torch.bfloat16}
            out = {}
            for name, array in self.tensors.items():
                array = np.ascontiguousarray(array)
                kind = names.get(array.dtype)
                carried = array.view(np.uint8 if array.itemsize == 1 else np.int16) if kind else array
                out[name] = torch.from_numpy(carried).view(kind) if kind else torch.from_numpy(carried)
            save_torch(out, str(folder / "model.safetensors"))
        else:
            save_file({k: np.ascontiguousarray(v) for k, v in self.tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder

    def expert(self, x, gate, up, down, bias1=0.0, bias2=0.0):
        g, u = x @ gate.T, x @ up.T
        if self.oai:
            g, u = g + bias1[:, 0], u + bias1[:, 1]
            g, u = np.minimum(g, 7.0), np.clip(u, -7.0, 7.0)
            act = (u + 1) * g / (1 + np.exp(-1.702 * g))
        else:
            act = g / (1 + np.exp(-g)) * u
        return act @ down.T + bias2

    def route(self, x, topk):
        """(ids, weights) of every token, by sorting."""
        logits = x @ self.router.T.astype(np.float64) + self.router_bias
        if self.scoring == "sigmoid":
            scores = 1 / (1 + np.exp(-logits))
        else:
            scores = np.exp(logits - logits.max(1, keepdims=True))
            scores /= scores.sum(1, keepdims=True)
        choice = scores + (0 if self.correction is None else self.correction)
        count, kept = self.groups
        by_group = np.sort(choice.reshape(len(x), count, -1), -1)[..., -self.groups_by:].sum(-1)
        for t, best in enumerate(np.argsort(-by_group, 1)[:, :kept]):
            out = np.setdiff1d(np.arange(count), best)
            choice.reshape(len(x), count, -1)[t, out] = -np.inf
        ids = np.argsort(-choice, 1)[:, :topk]
        weights = np.take_along_axis(scores, ids, 1)
        if self.renormalize:
            weights = weights / weights.sum(1, keepdims=True)
        return ids, weights * self.scale

    def forward(self, x, topk):
        ids, weights = self.route(x, topk)
        y = np.zeros_like(x)
        for t in range(len(x)):
            for e, w in zip(ids[t], weights[t]):
                bias = () if self.bias1 is None else (self.bias1[e], self.bias2[e])
                y[t] += w * self.expert(x[t], self.gate[e], self.up[e], self.down[e], *bias)
        if self.shared is not None:
            gate = 1.0 if self.shared_gate is None else 1 / (1 + np.exp(-(x @ self.shared_gate.T)))
            y += gate * self.expert(x, *self.shared)
        return y


def per_expert(names, store, experts, hidden, inter, config, *, shared=0, shared_store=plain, seed=0):
    """A model with a tensor, or a few, per matrix. `names`: prefix, gate, up, down, router, correction, shared."""
    rng = np.random.default_rng(seed)
    prefix, gate, up, down, router, correction, of_shared = names
    model = Model(config)
    for e in range(experts):
        for part, rows, columns, out in (
            (gate, inter, hidden, model.gate),
            (up, inter, hidden, model.up),
            (down, hidden, inter, model.down),
        ):
            tensors, matrix = store(rng, f"{prefix}{part.format(e)}", rows, columns)
            model.tensors |= tensors
            out.append(matrix)
    tensors, model.router = plain(rng, prefix + router, experts, hidden)
    model.tensors |= tensors
    if correction:
        model.correction = rng.uniform(-0.3, 0.3, experts).astype(np.float32)
        model.tensors[prefix + correction] = model.correction
    if shared:
        parts = []
        for part, rows, columns in (
            ("gate_proj", shared * inter, hidden),
            ("up_proj", shared * inter, hidden),
            ("down_proj", hidden, shared * inter),
        ):
            tensors, matrix = shared_store(rng, f"{prefix}{of_shared}.{part}", rows, columns)
            model.tensors |= tensors
            parts.append(matrix)
        model.shared = tuple(parts)
    return model


def gpt_oss(experts, hidden, inter, config, *, stored=True, seed=0):
    """gate_up rows in turn with biases; MXFP4, or bfloat16 (E, H, 2I) as transformers writes after dequantising."""
    rng = np.random.default_rng(seed)
    prefix = "model.layers.1.mlp."
    model = Model(config, oai=True)
    for name, n, k in (("gate_up_proj", 2 * inter, hidden), ("down_proj", hidden, inter)):
        if stored:
            tensors, matrices = mxfp4(rng, experts, n, k)
        else:
            matrices = (rng.standard_normal((experts, n, k)) / np.sqrt(k)).astype(np.float32).astype(BF16)
            tensors = {"": matrices.swapaxes(1, 2)}
            matrices = matrices.astype(np.float64)
        model.tensors |= {f"{prefix}experts.{name}{suffix}": value for suffix, value in tensors.items()}
        bias = rng.standard_normal((experts, n)).astype(np.float32).astype(BF16)
        model.tensors[f"{prefix}experts.{name}_bias"] = bias
        if n == 2 * inter and name == "gate_up_proj":
            model.gate, model.up = list(matrices[:, ::2]), list(matrices[:, 1::2])
            model.bias1 = bias.astype(np.float64).reshape(experts, inter, 2)
        else:
            model.down, model.bias2 = list(matrices), bias.astype(np.float64)
    tensors, model.router = plain(rng, prefix + "router", experts, hidden)
    model.router_bias = rng.standard_normal(experts).astype(np.float32).astype(BF16)
    model.tensors |= tensors | {prefix + "router.bias": model.router_bias}
    model.router_bias = model.router_bias.astype(np.float64)
    return model
