"""Time the fused layer beside the plain torch loop over experts, on the same data, in one process.

The loop is what a reader would write: for every expert with tokens, gather its rows, two matrix products with the
gated activation between them, and add the weighted rows. Calls alternate, so that both sides see the same machine.
For A8W8-INT the loop runs on the dequantised bf16 weights, and on int8 with torch._int_mm where that works; the
faster of the two counts.

Prints one row per token count: milliseconds of each side (medians), their ratio, and the relative difference of y.
Exits with 1 if the fused layer is slower in a row (--check).
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import megamoe
from megamoe import ops


def expert_rows(ids: Tensor, expert: int) -> tuple[Tensor, Tensor]:
    """Token and slot of every pick of `expert` in ids (T, K)."""
    return torch.where(ids == expert)


def bf16_loop(x: Tensor, ids: Tensor, weights: Tensor, w1: list[Tensor], w2: list[Tensor]) -> Tensor:
    """x (T, H) bf16; w1[e] (2I, H), w2[e] (H, I) bf16; returns (T, H) bf16."""
    y = torch.zeros(x.shape, dtype=torch.float32)
    for expert in torch.unique(ids).tolist():
        token, slot = expert_rows(ids, expert)
        gate, up = F.linear(x[token], w1[expert]).chunk(2, dim=-1)
        out = F.linear(F.silu(gate) * up, w2[expert])
        y.index_add_(0, token, out.float() * weights[token, slot, None])
    return y.to(torch.bfloat16)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Per-row int8 codes and scales of x (T, N)."""
    scale = x.float().abs().amax(dim=-1, keepdim=True) / 127
    return torch.round(x.float() / scale.clamp_min(1e-30)).to(torch.int8), scale


def int8_loop(x: Tensor, ids: Tensor, weights: Tensor, w1: list[Tensor], s1: Tensor, w2: list[Tensor],
              s2: Tensor) -> Tensor:
    """As bf16_loop, with w1[e] (H, 2I), w2[e] (I, H) int8 and scales per output channel."""
    y = torch.zeros(x.shape, dtype=torch.float32)
    codes, scale = quantise_rows(x)
    for expert in torch.unique(ids).tolist():
        token, slot = expert_rows(ids, expert)
        hidden = torch._int_mm(codes[token], w1[expert]).float() * s1[expert] * scale[token]
        gate, up = hidden.chunk(2, dim=-1)
        inner, inner_scale = quantise_rows(F.silu(gate) * up)
        out = torch._int_mm(inner, w2[expert]).float() * s2[expert] * inner_scale
        y.index_add_(0, token, out * weights[token, slot, None])
    return y.to(torch.bfloat16)


def milliseconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def make_weights(scenario: str, hidden: int, inter: int, experts: int) -> dict[str, Tensor]:
    """Random expert weights as the operator takes them, (E, K, N), and scales for A8W8-INT."""
    generator = torch.Generator().manual_seed(1)
    if scenario == "A16W16":
        draw = lambda *shape: torch.randn(*shape, generator=generator).mul_(shape[1] ** -0.5).to(torch.bfloat16)
        one = lambda k, n: torch.cat([draw(1, k, n) for _ in range(experts)])
        return {"w1": one(hidden, 2 * inter), "w2": one(inter, hidden)}
    draw = lambda k, n: torch.randint(-127, 128, (experts, k, n), generator=generator, dtype=torch.int8)
    scales = lambda k, n: torch.full((experts, n), 1 / (74 * k**0.5))
    return {"w1": draw(hidden, 2 * inter), "w2": draw(inter, hidden),
            "s1": scales(hidden, 2 * inter), "s2": scales(inter, hidden)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="2048x768x128x8", help="hidden x intermediate x experts x top-k")
    parser.add_argument("--tokens", default="1,4,16,64,256,1024")
    parser.add_argument("--scenario", default="A16W16", choices=["A16W16", "A8W8-INT"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a row is slower than the loop")
    args = parser.parse_args()
    hidden, inter, experts, topk = (int(n) for n in args.shape.split("x"))
    tokens = [int(n) for n in args.tokens.split(",")]
    torch.set_num_threads(args.threads)

    data = make_weights(args.scenario, hidden, inter, experts)
    quantised = args.scenario == "A8W8-INT"
    mode = {"dispatch_quant_mode": 2, "dispatch_quant_out_dtype": torch.int8} if quantised else {}
    buffer = ops.get_symm_buffer_for_mega_moe(None, experts, max(tokens), topk, hidden, inter,
                                              threads=args.threads, **mode)
    scales = {"l1_sf": data["s1"], "l2_sf": data["s2"]} if quantised else {}
    packed1, packed2 = megamoe.pack_weights(data["w1"], data["w2"], **scales)
    # The loop gets its own best layout: one (N, K) matrix per expert.
    dequantise = lambda w, s: (w.float() * s[:, None, :]).to(torch.bfloat16) if quantised else w
    wide1 = [dequantise(data["w1"][e:e + 1], data.get("s1", data["w1"])[e:e + 1])[0].t().contiguous() for e in range(experts)]
    wide2 = [dequantise(data["w2"][e:e + 1], data.get("s2", data["w2"])[e:e + 1])[0].t().contiguous() for e in range(experts)]

    print(f"megamoe {megamoe.__version__} ({buffer.isa}), torch {torch.__version__}, {args.threads} threads, "
          f"{args.scenario}, {args.shape}")
    print(f"{'tokens':>7} {'megamoe ms':>11} {'torch ms':>9} {'ratio':>6} {'difference':>11}")
    slower = False
    generator = torch.Generator().manual_seed(2)
    for count in tokens:
        x = torch.randn(count, hidden, generator=generator).to(torch.bfloat16)
        weights = torch.rand(count, topk, generator=generator)
        # A new routing in every round: weights come from memory, not from the cache of the round before.
        routings = [torch.rand(count, experts, generator=generator).topk(topk).indices.to(torch.int32)
                    for _ in range(args.repeat + 1)]
        fused, loop, loop8 = [], [], []
        for round_, ids in enumerate(routings):
            run = lambda: ops.mega_moe(x, ids, weights, packed1, packed2, buffer)
            baseline = lambda: bf16_loop(x, ids, weights, wide1, wide2)
            times = [milliseconds(run), milliseconds(baseline)]
            if quantised:
                times.append(milliseconds(lambda: int8_loop(x, ids, weights, list(data["w1"]), data["s1"],
                                                            list(data["w2"]), data["s2"])))
            if round_ == 0:
                continue  # warm-up
            fused.append(times[0])
            loop.append(times[1])
            loop8.append(times[-1])
        got, want = run()[0].float(), baseline().float()
        ours, theirs = statistics.median(fused), min(statistics.median(loop), statistics.median(loop8))
        slower |= ours > theirs
        print(f"{count:>7} {ours:>11.2f} {theirs:>9.2f} {theirs / ours:>6.2f} "
              f"{((got - want).norm() / want.norm()).item():>11.1e}")
    buffer.destroy()
    return 1 if slower and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
