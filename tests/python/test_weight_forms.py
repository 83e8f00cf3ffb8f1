"""Scales of groups and blocks, zero points, added biases and separate up arrays, raw and packed.

The judge is the layer with float64 weights, each dequantised by its formula in NumPy.
"""

import ml_dtypes
import numpy as np
import pytest
import torch

import megamoe
from layers import BF16, F32, bits, relative_error, round_bf16, swiglu, to_torch

TOKENS, HIDDEN, INTER, EXPERTS, TOPK = 12, 192, 160, 4, 2
E4M3 = ml_dtypes.float8_e4m3fn
# float32 sums and bfloat16 rounding of what int8 or E4M3 tokens already lost
BOUNDS = {0: 4e-3, 2: 2e-2, 3: 8e-2}


def nibbles(codes):
    """int4 codes, two per byte along the last dimension."""
    return (codes[..., ::2] & 15 | (codes[..., 1::2] & 15) << 4).astype(np.uint8)


def spread(scales, axis, group, length):
    return np.repeat(scales, group, axis=axis).take(np.arange(length), axis=axis)


class Case:
    """A layer of one rank: `call` as mega_moe takes it, `dense` its weights (E, K, N) in float64."""

    def __init__(self, group, zeros=True, kind=F32, seed=0):
        rng = np.random.default_rng(seed)
        self.group = group
        ids = np.stack([rng.permutation(EXPERTS)[:TOPK] for _ in range(TOKENS)]).astype(np.int32)
        self.tokens = dict(
            x=rng.standard_normal((TOKENS, HIDDEN)).astype(F32).astype(BF16),
            topk_ids=ids,
            topk_weights=rng.random((TOKENS, TOPK), F32),
        )
        self.bias = [rng.standard_normal((EXPERTS, n)).astype(F32) for n in (2 * INTER, HIDDEN)]
        self.call, self.dense = {}, []
        for side, k, n in (("1", HIDDEN, 2 * INTER), ("2", INTER, HIDDEN)):
            if group is None:
                self._blocks(rng, side, k, n, kind)
            else:
                self._int4(rng, side, k, n, zeros, kind)

    def _int4(self, rng, side, k, n, zeros, kind):
        codes = rng.integers(-8, 8, (EXPERTS, k, n))
        self.call |= {f"l{side}_weights": nibbles(codes), f"weight{side}_type": "int4"}
        if self.group == 0:
            scales = (rng.random((EXPERTS, n)) / (4 * np.sqrt(k))).astype(F32)
            self.dense.append(codes * scales[:, None].astype(np.float64))
        else:
            groups = -(-k // self.group)
            scales = (rng.random((EXPERTS, n, groups)) / (4 * np.sqrt(k))).astype(kind)
            zero = rng.integers(-8, 8, scales.shape, np.int8) if zeros else np.zeros(scales.shape, np.int8)
            if zeros:
                self.call[f"l{side}_zero"] = zero
            of_k = [spread(a.astype(np.float64), 2, self.group, k).swapaxes(1, 2) for a in (scales, zero)]
            self.dense.append((codes - of_k[1]) * of_k[0])
            self.call["scale_group"] = self.group
        self.call[f"l{side}_weights_sf"] = scales

    def _blocks(self, rng, side, k, n, kind):
        codes = rng.standard_normal((EXPERTS, n, k)).astype(F32).astype(E4M3)
        parts = 2 if side == "1" else 1  # blocks of the up outputs begin anew
        scales = (rng.random((EXPERTS, parts, -(-n // parts // 128), -(-k // 128))) / np.sqrt(k)).astype(kind)
        full = spread(spread(scales.astype(np.float64), 2, 128, n // parts), 3, 128, k).reshape(EXPERTS, n, k)
        self.dense.append((codes.astype(np.float64) * full).swapaxes(1, 2))
        self.call |= {f"l{side}_weights": codes, "scale_group": 128}
        self.call[f"l{side}_weights_sf"] = scales.reshape(EXPERTS, -1, scales.shape[-1])
        if parts == 2:
            self.call |= {"l1_weights": codes[:, :INTER], "l1_up": codes[:, INTER:]}

    def apart(self):
        """The call with the up outputs in arrays of their own."""
        if self.group is None:
            return dict(self.call)
        halves = np.split(self.call["l1_weights"], 2, axis=2)
        return self.call | dict(l1_weights=halves[0], l1_up=halves[1])

    def model(self, bias=(0, 0)):
        y = np.zeros((TOKENS, HIDDEN))
        x, ids = self.tokens["x"].astype(np.float64), self.tokens["topk_ids"]
        for t in range(TOKENS):
            for k in range(TOPK):
                e = ids[t, k]
                mid = round_bf16(x[t] @ self.dense[0][e] + (bias[0][e] if len(np.shape(bias[0])) else 0))
                act = round_bf16(swiglu(mid[:INTER], mid[INTER:], None)).astype(np.float64)
                out = round_bf16(act @ self.dense[1][e] + (bias[1][e] if len(np.shape(bias[1])) else 0))
                y[t] += out * float(self.tokens["topk_weights"][t, k])
        return y

    def buffer(self, mode):
        settings = dict(dispatch_quant_mode=mode, threads=1)
        return megamoe.get_symm_buffer_for_mega_moe(None, EXPERTS, TOKENS, TOPK, HIDDEN, INTER, **settings)

    def run(self, buffer, **call):
        return megamoe.mega_moe(sym_buffer=buffer, **self.tokens, **call)[0]


def packed(call):
    """`call` with packed weights in place of raw ones."""
    renamed = {name.replace("_weights", ""): value for name, value in call.items()}
    made = megamoe.pack_weights(renamed.pop("l1"), renamed.pop("l2"), **renamed)
    return dict(l1_weights=made.l1, l2_weights=made.l2)


CASES = [(0, 32), (0, 64), (0, 128), (2, 32), (2, 128), (0, None), (3, None)]


@pytest.mark.parametrize("mode, group", CASES)
@pytest.mark.parametrize("kind", [F32, np.float16, BF16])
def test_groups_and_blocks(mode, group, kind):
    case = Case(group, zeros=group != 64, kind=kind, seed=3)
    with case.buffer(mode) as buffer:
        y = case.run(buffer, **case.call)
        assert ("BLOCK" if group is None else "GROUP") in buffer.describe()
        assert relative_error(y, case.model()) < BOUNDS[mode]
        for form in (packed(case.call), case.apart(), packed(case.apart())):
            np.testing.assert_array_equal(bits(case.run(buffer, **form)), bits(y))
        lists = {name: list(v) if isinstance(v, np.ndarray) else v for name, v in case.apart().items()}
        np.testing.assert_array_equal(bits(case.run(buffer, **lists)), bits(y))


@pytest.mark.parametrize("mode, group", CASES)
def test_biases(mode, group):
    case = Case(group, seed=4)
    bias = [b * F32(0.5) for b in case.bias]
    with case.buffer(mode) as buffer:
        y = case.run(buffer, **case.call, l1_bias=bias[0], l2_bias=bias[1])
    assert relative_error(y, case.model(bias)) < BOUNDS[mode]


def test_added_biases():
    """With int4 and a scale per output they are the ones that stand outside the scale of the token."""
    case = Case(0, seed=5)
    added = dict(l1_added_bias=case.bias[0], l2_added_bias=case.bias[1])
    with case.buffer(2) as buffer:
        y = case.run(buffer, **case.call, **added)
        assert relative_error(y, case.model(case.bias)) < BOUNDS[2]
        assert relative_error(case.run(buffer, **case.call), case.model(case.bias)) > 0.1
        inside = case.run(buffer, **case.call, l1_bias=case.bias[0], l2_bias=case.bias[1])
        assert relative_error(inside, case.model(case.bias)) > 0.1
        for form in (packed(case.call | added), case.apart() | added):
            np.testing.assert_array_equal(bits(case.run(buffer, **form)), bits(y))


@pytest.mark.parametrize("group", [64, None])
def test_shared_experts(group):
    """A shared expert with the weights of a routed one adds what that one gives with weight 1."""
    case = Case(group, seed=6)
    one = {
        f"shared_{name}": value[:1] if isinstance(value, np.ndarray) else value
        for name, value in case.apart().items()
    }
    with case.buffer(0) as buffer:
        expected = case.run(buffer, **case.call).astype(F32)
        case_of_one = case.tokens | dict(
            topk_ids=np.tile(np.int32([0, -1]), (TOKENS, 1)), topk_weights=np.ones((TOKENS, TOPK), F32)
        )
        first, _ = megamoe.mega_moe(sym_buffer=buffer, **case_of_one, **case.call)
        y = case.run(buffer, **case.call, **one)
    assert relative_error(y, expected + first.astype(F32)) < 6e-3


@pytest.mark.parametrize("packed_too", [False, True])
def test_interleave_and_up_of_bfloat16(packed_too):
    """Gate and up apart give what one array gives."""
    case = Case(32, seed=7)
    l1, l2 = (dense.astype(F32).astype(BF16) for dense in case.dense)
    gate, up = l1[..., :INTER], l1[..., INTER:]
    with case.buffer(0) as buffer:
        expected = bits(case.run(buffer, l1_weights=l1, l2_weights=l2))
        call = dict(l1_weights=gate, l1_up=up, l2_weights=l2)
        np.testing.assert_array_equal(
            bits(case.run(buffer, **(packed(call) if packed_too else call))), expected
        )
        turned = dict(l1_weights=gate.swapaxes(1, 2), l1_up=up.swapaxes(1, 2), transpose_weight1=True)
        np.testing.assert_array_equal(bits(case.run(buffer, l2_weights=l2, **turned)), expected)


@pytest.mark.parametrize("mode, group", [(0, 32), (0, None), (2, 0)])
def test_compiled(mode, group):
    case = Case(group, seed=8)

    def tensor(value):
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype == E4M3:
            return torch.from_numpy(np.ascontiguousarray(value).view(np.uint8)).view(torch.float8_e4m3fn)
        return to_torch(np.ascontiguousarray(value))

    fixed = {name: tensor(value) for name, value in case.apart().items()}
    if group == 0:
        fixed |= dict(l1_added_bias=tensor(case.bias[0]), l2_added_bias=tensor(case.bias[1]))
    tokens = [tensor(value) for value in case.tokens.values()]
    with case.buffer(mode) as buffer:

        def work(x, ids, weights):
            return megamoe.mega_moe(2 * x, ids, weights, sym_buffer=buffer, **fixed)[0] + 1

        torch._dynamo.reset()
        compiled = torch.compile(work, fullgraph=True, backend="aot_eager")
        np.testing.assert_array_equal(bits(compiled(*tokens)), bits(work(*tokens)))


INT4, FP8 = Case(32, seed=9), Case(None, seed=9)


@pytest.mark.parametrize(
    "case, mode, change, kind, text",
    [
        (INT4, 0, dict(scale_group=48), ValueError, "scale_group = 48: expected 0 or one of 32, 64, 128"),
        (INT4, 0, dict(scale_group="32"), TypeError, "scale_group = '32'"),
        (INT4, 0, dict(shared_scale_group=1.5), TypeError, "shared_scale_group = 1.5"),
        (INT4, 0, dict(scale_group=64), ValueError, "l1_weights_sf has shape"),
        (FP8, 0, dict(scale_group=64), ValueError, "scale_group = 64: expected 0 or 128"),
        (INT4, 0, dict(l1_zero=INT4.call["l1_zero"][:, :-1]), ValueError, "l1_zero has shape"),
        (INT4, 0, dict(l2_zero=INT4.call["l2_zero"].astype(F32)), TypeError, "l2_zero = float32: expected"),
        (INT4, 0, dict(l2_zero=np.full_like(INT4.call["l2_zero"], 120)), ValueError, "l2_zero of expert 0"),
        (INT4, 0, dict(l1_added_bias=INT4.bias[0]), ValueError, "l1_added_bias has 1 tensors: expected none"),
        (INT4, 0, dict(l2_added_bias=3), TypeError, "l2_added_bias = int"),
        (INT4, 0, dict(l1_up=INT4.call["l1_weights"][:, :-1]), ValueError, "l1_up has "),
        (INT4, 0, dict(l1_up=INT4.call["l1_weights"].astype(F32)), TypeError, "l1_up = float32"),
        (INT4, 0, dict(shared_l1_up=INT4.call["l1_weights"]), ValueError, "shared_l1_up = ndarray: expected None"),
        (INT4, 0, dict(weight1_interleave=1, **INT4.apart()), ValueError, "weight1_interleave = 1: expected 0"),
        (FP8, 0, dict(l1_zero=np.zeros((EXPERTS, 2), np.int8)), ValueError, "l1_zero has 1 tensors"),
    ],
)  # fmt: skip
def test_wrong_values(case, mode, change, kind, text):
    with case.buffer(mode) as buffer:
        expected = bits(case.run(buffer, **case.call))
        with pytest.raises(kind) as caught:
            case.run(buffer, **case.call | change)
        assert str(caught.value).startswith(text)
        assert isinstance(caught.value.code, megamoe.Code)
        np.testing.assert_array_equal(bits(case.run(buffer, **case.call)), expected)


@pytest.mark.parametrize("name", ["l1_zero", "l1_added_bias", "l1_up"])
def test_nothing_beside_packed_weights(name):
    with INT4.buffer(0) as buffer:
        with pytest.raises(ValueError, match=f"^{name} = ndarray: expected None, l1_weights is packed"):
            INT4.run(buffer, **packed(INT4.call), **{name: INT4.call["l1_zero"]})
