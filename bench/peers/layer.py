"""One random layer, its tokens and routings, and the double-precision result that every side is held to."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

ROUTINGS = ("uniform", "zipf", "one")


@dataclass(frozen=True)
class Shape:
    """hidden H, intermediate I, experts E, top-k K."""

    hidden: int
    inter: int
    experts: int
    topk: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """From "HxIxExK"."""
        return cls(*(int(n) for n in text.split("x")))

    def __str__(self) -> str:
        return f"{self.hidden}x{self.inter}x{self.experts}x{self.topk}"

    @property
    def flops_per_token(self) -> int:
        """Operations of the three matrix products of one token: 2 K (3 H I)."""
        return 6 * self.topk * self.hidden * self.inter


@dataclass
class Layer:
    """Random weights of one layer.

    gate, up (E, I, H) and down (E, H, I) are bfloat16, normal with variance 1 / columns, so that activations
    keep the size of a real model's.
    """

    shape: Shape
    gate: Tensor = field(init=False)
    up: Tensor = field(init=False)
    down: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        s = self.shape

        def draw(rows: int, columns: int) -> Tensor:
            weights = torch.empty(s.experts, rows, columns, dtype=torch.bfloat16)
            for expert in weights:
                expert.copy_(torch.randn(rows, columns, generator=generator).mul_(columns**-0.5))
            return weights

        self.gate, self.up, self.down = draw(s.inter, s.hidden), draw(s.inter, s.hidden), draw(s.hidden, s.inter)

    def reference(self, tokens: Tokens, ids: Tensor, count: int) -> np.ndarray:
        """y of the first `count` tokens in double precision without any rounding, (count, H)."""
        y = np.zeros((count, self.shape.hidden))
        for token in range(count):
            x = tokens.x[token].double()
            for slot, expert in enumerate(ids[token].tolist()):
                gate, up = self.gate[expert].double() @ x, self.up[expert].double() @ x
                inner = gate * torch.sigmoid(gate) * up
                y[token] += (self.down[expert].double() @ inner * tokens.weights[token, slot].double()).numpy()
        return y


@dataclass
class Tokens:
    """x (T, H) bfloat16, router weights (T, K) float32, and routings (T, K) int32 for successive calls."""

    x: Tensor
    weights: Tensor
    routings: list[Tensor]

    @classmethod
    def draw(cls, shape: Shape, count: int, routing: str, routings: int) -> Tokens:
        """Random tokens. `routing`: uniform experts, Zipf(1.0) over experts, or one set for all tokens."""
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(count, shape.hidden, generator=generator).to(torch.bfloat16)
        weights = torch.rand(count, shape.topk, generator=generator)
        odds = torch.ones(shape.experts)
        if routing == "zipf":
            odds /= torch.arange(1, shape.experts + 1)
        rows = 1 if routing == "one" else count

        def ids() -> Tensor:
            # Distinct experts per token, drawn by their odds: the K largest of log(odds) + Gumbel noise.
            noise = -torch.log(-torch.log(torch.rand(rows, shape.experts, generator=generator).clamp_min(1e-20)))
            picked = (odds.log() + noise).topk(shape.topk).indices.to(torch.int32)
            return picked.expand(count, -1).contiguous()

        return cls(x, weights, [ids() for _ in range(routings)])


_CPUS = sorted(os.sched_getaffinity(0))


def all_cpus() -> list[int]:
    """The CPUs that this process had at its start."""
    return _CPUS


def run_on(cpus: list[int]) -> None:
    """Binds the calling thread."""
    os.sched_setaffinity(0, cpus)


#: One call of a side: (x, ids, weights) -> y (T, H), any float dtype.
Run = Callable[[Tensor, Tensor, Tensor], Tensor]


class Unavailable(Exception):
    """A side or a format that cannot run here; the text says why."""


class Side:
    """One library in one weight format. `formats` maps the library's format names to the width class."""

    name = ""
    #: format name -> width class: "bf16", "8-bit int", "8-bit float" or "4-bit"
    formats: dict[str, str] = {}
    #: Of torch itself during this side's turn. Its threads spin on after their work, so only sides that live on them have many.
    torch_threads = 1

    def __init__(self, layer: Layer, fmt: str, threads: int, max_tokens: int) -> None:
        raise NotImplementedError

    def run(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """One layer: x (T, H) bfloat16, ids (T, K) int32, weights (T, K) float32; y (T, H)."""
        raise NotImplementedError

    def enter(self) -> None:
        """Before this side's turn: lets the calling thread run where the library wants it."""
        run_on(all_cpus())

    def rest(self) -> None:
        """Puts spinning threads to sleep, before another side is timed."""

    def close(self) -> None:
        """Frees weights and threads."""
