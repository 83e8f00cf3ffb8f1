"""Layers with random weights and tokens, and a float64 model of the operator with the roundings written out.

The model is the judge of the numeric tests: plain loops over tokens and experts, products summed in double,
rounded only where docs/numerics.md says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

import megamoe

BF16 = ml_dtypes.bfloat16
F32 = np.float32


@dataclass
class Layer:
    """One layer on one rank: all experts, tokens and routing."""

    tokens: int
    hidden: int
    inter: int
    experts: int
    topk: int
    int8: bool
    seed: int = 0
    x: np.ndarray = field(init=False)
    ids: np.ndarray = field(init=False)
    router: np.ndarray = field(init=False)
    l1: np.ndarray = field(init=False)
    l2: np.ndarray = field(init=False)
    sf1: np.ndarray | None = field(init=False, default=None)
    sf2: np.ndarray | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.x = rng.standard_normal((self.tokens, self.hidden), F32).astype(BF16)
        self.ids = np.stack(
            [rng.permutation(self.experts)[: self.topk] for _ in range(self.tokens)]
            or [np.zeros(self.topk, int)]
        )[: self.tokens].astype(np.int32)
        self.router = rng.random((self.tokens, self.topk), F32)
        shapes = ((self.experts, self.hidden, 2 * self.inter), (self.experts, self.inter, self.hidden))
        if not self.int8:
            self.l1, self.l2 = (
                (rng.standard_normal(s, F32) / np.sqrt(F32(s[1]))).astype(BF16) for s in shapes
            )
            return
        self.l1, self.l2 = (rng.integers(-128, 128, s, np.int8) for s in shapes)
        self.sf1, self.sf2 = (
            ((0.5 + rng.random((s[0], s[2]), F32)) / F32(74 * np.sqrt(s[1]))).astype(F32) for s in shapes
        )

    def settings(self, group: object = None, **changes: object) -> dict[str, object]:
        """Arguments of a buffer for this layer."""
        values: dict[str, object] = dict(
            group=group,
            num_experts=self.experts,
            num_max_tokens_per_rank=max(self.tokens, 1),
            num_topk=self.topk,
            hidden=self.hidden,
            intermediate_hidden=self.inter,
            dispatch_quant_mode=2 if self.int8 else 0,
            threads=1,
        )
        return values | changes

    def buffer(self, group: object = None, **changes: object) -> megamoe.SymmBuffer:
        return megamoe.get_symm_buffer_for_mega_moe(**self.settings(group, **changes))

    def call(self, rank: int = 0, ranks: int = 1, **changes: object) -> dict[str, object]:
        """Arguments of a call, without the buffer: this rank's slice of tokens and experts."""
        local = -(-self.experts // ranks)
        mine = slice(rank * local, (rank + 1) * local)
        part = slice(rank * self.tokens // ranks, (rank + 1) * self.tokens // ranks)
        values: dict[str, object] = dict(
            x=self.x[part],
            topk_ids=self.ids[part],
            topk_weights=self.router[part],
            l1_weights=self.l1[mine],
            l2_weights=self.l2[mine],
        )
        if self.int8:
            values |= dict(l1_weights_sf=self.sf1[mine], l2_weights_sf=self.sf2[mine])
        return values | changes

    def run(self, **changes: object) -> tuple[np.ndarray, np.ndarray]:
        """One call on one rank."""
        with self.buffer() as buffer:
            return megamoe.mega_moe(sym_buffer=buffer, **self.call(**changes))


def bits(array: object) -> np.ndarray:
    """The bits of a result of either framework, to compare without rounding and with NaN equal to itself."""
    if isinstance(array, np.ndarray):
        return array.view(np.uint16) if array.dtype == BF16 else array
    import torch

    return array.view(torch.int16).numpy().view(np.uint16) if array.dtype == torch.bfloat16 else array.numpy()


def to_torch(array: np.ndarray | None) -> object:
    """The same memory as a torch tensor."""
    import torch

    if array is None:
        return None
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def round_bf16(values: np.ndarray) -> np.ndarray:
    return values.astype(F32).astype(BF16).astype(F32)


def int8_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """s = fl32(max|x| / 127), q = RNE(fl32(x / s)); a zero row has s = 0 and q = 0."""
    scale = np.abs(rows).max(axis=1).astype(F32) / F32(127)
    divisor = np.where(scale == 0, F32(1), scale)
    return np.rint(rows.astype(F32) / divisor[:, None]).astype(np.int64), scale


def swiglu(gate: np.ndarray, up: np.ndarray, clamp: float | None) -> np.ndarray:
    if clamp:
        gate = np.minimum(gate, F32(clamp))
        up = np.clip(up, F32(-clamp), F32(clamp))
    return gate / (np.exp(-gate) + F32(1)) * up


def expert_rows(layer: Layer, rows: np.ndarray, expert: int, clamp: float | None) -> np.ndarray:
    """Rows of one expert, (rows, H) bfloat16 values as float32."""
    inter = layer.inter
    if not layer.int8:
        mid = round_bf16(rows.astype(np.float64) @ layer.l1[expert].astype(np.float64))
        act = round_bf16(swiglu(mid[:, :inter], mid[:, inter:], clamp))
        return round_bf16(act.astype(np.float64) @ layer.l2[expert].astype(np.float64))
    codes, scale = int8_rows(rows)
    mid = (codes @ layer.l1[expert].astype(np.int64)).astype(F32) * layer.sf1[expert] * scale[:, None]
    codes, scale = int8_rows(swiglu(mid[:, :inter], mid[:, inter:], clamp))
    out = (codes @ layer.l2[expert].astype(np.int64)).astype(F32) * layer.sf2[expert] * scale[:, None]
    return round_bf16(out)


def model(layer: Layer, clamp: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(y as float32, expert_token_nums) of one rank."""
    x = layer.x.astype(F32)
    slots = np.zeros((layer.tokens, layer.topk, layer.hidden), F32)
    counts = np.zeros(layer.experts, np.int32)
    for expert in range(layer.experts):
        token, slot = np.nonzero(layer.ids == expert)
        counts[expert] = len(token)
        if len(token):
            slots[token, slot] = expert_rows(layer, x[token], expert, clamp)
    total = np.zeros((layer.tokens, layer.hidden), F32)
    for k in range(layer.topk):
        used = (layer.ids[:, k] >= 0)[:, None]
        term = slots[:, k] * layer.router[:, k].astype(F32)[:, None]
        total = np.where(used, total + term, total)
    return round_bf16(total), counts


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    difference = np.linalg.norm(got.astype(np.float64) - expected.astype(np.float64))
    return float(difference / max(np.linalg.norm(expected.astype(np.float64)), 1e-300))
