"""Layers of one rank in the scenarios with MX codes."""

import ml_dtypes
import numpy as np

import megamoe
from layers import BF16, bits

TOKENS, HIDDEN, INTER, EXPERTS, TOPK = 9, 128, 64, 4, 2
E8M0 = ml_dtypes.float8_e8m0fnu
CODES = {
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float4_e2m1": np.uint8,
}
# token type, weight type
MX = [
    ("float8_e4m3fn", "float8_e4m3fn"),
    ("float8_e5m2", "float8_e5m2"),
    ("float8_e4m3fn", "float4_e2m1"),
    ("float4_e2m1", "float4_e2m1"),
]


def codes_of(rng, kind, shape):
    """Random codes without NaN and infinities, packed types with half the columns."""
    if kind == "float4_e2m1":
        return rng.integers(0, 256, (*shape[:-1], shape[-1] // 2), np.uint8)
    values = rng.standard_normal(shape).astype(np.float32).clip(-3, 3)
    return values.astype(CODES[kind])


def mx_scales(rng, *shape):
    return rng.integers(118, 124, shape, np.uint8)


class Layer:
    """A layer of one rank in an MX scenario; all arrays as bytes or ml_dtypes types."""

    def __init__(self, token, weight, seed=0, experts=EXPERTS):
        rng = np.random.default_rng(seed)
        self.token, self.weight = token, weight
        self.x = rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32).astype(BF16)
        self.ids = np.stack([rng.permutation(EXPERTS)[:TOPK] for _ in range(TOKENS)]).astype(np.int32)
        self.router = rng.random((TOKENS, TOPK), np.float32)
        self.l1 = codes_of(rng, weight, (experts, 2 * INTER, HIDDEN))
        self.l2 = codes_of(rng, weight, (experts, HIDDEN, INTER))
        self.sf1 = mx_scales(rng, experts, 2 * INTER, HIDDEN // 64, 2)
        self.sf2 = mx_scales(rng, experts, HIDDEN, INTER // 64, 2)

    def buffer(self, **changes):
        settings = dict(dispatch_quant_mode=4, dispatch_quant_out_dtype=self.token, threads=1) | changes
        return megamoe.get_symm_buffer_for_mega_moe(None, EXPERTS, TOKENS, TOPK, HIDDEN, INTER, **settings)

    def weights(self, prefix=""):
        """Arguments of the weights, for the routed or the shared experts."""
        return {
            f"{prefix}l1_weights": self.l1,
            f"{prefix}l2_weights": self.l2,
            f"{prefix}l1_weights_sf": self.sf1,
            f"{prefix}l2_weights_sf": self.sf2,
            f"{prefix}weight1_type": self.weight,
            f"{prefix}weight2_type": self.weight,
        }

    def call(self, **changes):
        tokens = dict(x=self.x, topk_ids=self.ids, topk_weights=self.router)
        return tokens | self.weights() | changes

    def run(self, buffer=None, **changes):
        with self.buffer() if buffer is None else buffer as made:
            return bits(megamoe.mega_moe(sym_buffer=made, **self.call(**changes))[0])
