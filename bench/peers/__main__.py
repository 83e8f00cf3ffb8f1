"""Time the fused layer beside other libraries, pair by pair, in one process.

For every cell (format pair, tokens, routing) the two sides alternate: each rests until the other's threads sleep, makes
untimed calls until it has its pace, then timed ones, every call on another routing, so that weights come from memory. A
row prints the medians, the median of the ratios of neighbouring turns, and the relative error of both against double
precision on the unrounded weights. Sides that cannot run are listed with the reason.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import TextIO

import numpy as np
import torch

import megamoe

from .ggml_side import GgmlSide
from .kt_kernel_side import KtKernelSide
from .layer import ROUTINGS, Layer, Shape, Side, Tokens, Unavailable
from .megamoe_side import MegamoeSide
from .torch_sides import TorchGroupedSide, TorchLoopSide, TransformersSide
from .vllm_side import VllmSide

PEERS: list[type[Side]] = [GgmlSide, KtKernelSide, VllmSide, TorchLoopSide, TorchGroupedSide, TransformersSide]
REST_SECONDS = 0.12
TURN_SECONDS = 0.03  # of the untimed calls of a turn and of the timed ones, each
ROUTINGS_OF_A_CELL = 16
ACCURACY_TOKENS = 2


def timed(side: Side, tokens: Tokens, round_: int) -> float:
    """Milliseconds of a call: the median of a turn, whose untimed part goes first."""
    routings = itertools.cycle(tokens.routings[round_:] + tokens.routings[:round_])

    def call() -> float:
        begin = time.perf_counter()
        side.run(tokens.x, next(routings), tokens.weights)
        return time.perf_counter() - begin

    def calls() -> list[float]:
        seconds = [call()]
        while sum(seconds) < TURN_SECONDS:
            seconds.append(call())
        return seconds

    calls()
    return statistics.median(calls()) * 1e3


def error_of(side: Side, layer: Layer, tokens: Tokens) -> float:
    """Relative error of y of the first tokens."""
    count = min(ACCURACY_TOKENS, tokens.x.shape[0])
    want = layer.reference(tokens, tokens.routings[0], count)
    got = side.run(tokens.x, tokens.routings[0], tokens.weights)[:count].double().numpy()
    side.rest()
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def compare(ours: Side, theirs: Side, layer: Layer, tokens: Tokens, rounds: int) -> dict[str, float]:
    """Medians in ms, median ratio theirs / ours, and both errors."""
    times: list[tuple[float, float]] = []
    for round_ in range(rounds):
        pair = []
        for side in (ours, theirs) if round_ % 2 == 0 else (theirs, ours):
            side.enter()
            torch.set_num_threads(side.torch_threads)
            time.sleep(REST_SECONDS)
            pair.append(timed(side, tokens, round_))
            side.rest()
        times.append((pair[0], pair[1]) if round_ % 2 == 0 else (pair[1], pair[0]))
    return {
        "ours_ms": statistics.median(a for a, _ in times),
        "peer_ms": statistics.median(b for _, b in times),
        "ratio": statistics.median(b / a for a, b in times),
        "ours_error": error_of(ours, layer, tokens),
        "peer_error": error_of(theirs, layer, tokens),
    }


def attempt(make: Callable[[], Side]) -> Side | str:
    """The side, or why it cannot run."""
    try:
        return make()
    except Unavailable as error:
        return str(error)
    except Exception as error:  # a peer's own failure must not end the run of the others
        return f"{type(error).__name__}: {error}"


def keep_stdout() -> TextIO:
    """Standard output for our rows alone; what the libraries print there goes to standard error."""
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return ours


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="2048x768x128x8", help="hidden x intermediate x experts x top-k")
    parser.add_argument("--tokens", default="1,4,16,64,256,1024")
    parser.add_argument("--routing", default="uniform", choices=ROUTINGS)
    parser.add_argument("--ours", default="", help="only these scenarios, comma-separated")
    parser.add_argument("--peers", default="", help="only these peers, comma-separated: 'ggml mxfp4,kt-kernel'")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the rows to this file")
    args = parser.parse_args()
    say = functools.partial(print, file=keep_stdout(), flush=True)
    counts = [int(n) for n in args.tokens.split(",")]
    chosen = [name for name in args.peers.split(",") if name]
    scenarios = [name for name in args.ours.split(",") if name] or list(MegamoeSide.formats)
    layer = Layer(Shape.parse(args.shape))
    tokens = {count: Tokens.draw(layer.shape, count, args.routing, ROUTINGS_OF_A_CELL) for count in counts}

    say(f"megamoe {megamoe.__version__}, torch {torch.__version__}, {args.threads} threads, {layer.shape}, "
          f"{args.routing} routing, {args.rounds} rounds")
    say(f"{'tokens':>6} {'scenario':>14} {'peer':>22} {'ours ms':>9} {'peer ms':>9} {'ratio':>6} "
          f"{'ours error':>10} {'peer error':>10}")
    rows, missing = [], []
    for scenario in scenarios:
        ours = MegamoeSide(layer, scenario, args.threads, max(counts))
        for peer in PEERS:
            for fmt, width in peer.formats.items():
                label = f"{peer.name} {fmt}"
                if width != MegamoeSide.formats[scenario]:
                    continue
                if chosen and not any(label == name or peer.name == name for name in chosen):
                    continue
                theirs = attempt(lambda p=peer, f=fmt: p(layer, f, args.threads, max(counts)))
                if isinstance(theirs, str):
                    missing.append(f"{label}: {theirs}")
                    continue
                for count in counts:
                    row = compare(ours, theirs, layer, tokens[count], args.rounds)
                    rows.append({"shape": str(layer.shape), "tokens": count, "routing": args.routing,
                                 "scenario": scenario, "peer": label, **row})
                    say(f"{count:>6} {scenario:>14} {label:>22} {row['ours_ms']:>9.2f} {row['peer_ms']:>9.2f} "
                          f"{row['ratio']:>6.2f} {row['ours_error']:>10.1e} {row['peer_error']:>10.1e}")
                theirs.close()
                del theirs
        ours.close()
    for line in dict.fromkeys(missing):
        say(f"not run: {line}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"threads": args.threads, "rows": rows, "not_run": missing}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
