"""Forms in which the weights, scales and tokens of the coded scenarios may come.

The reference of each test is the same call in its plainest form, which test_vectors.py holds to the cases.
"""

import numpy as np
import pytest
import torch

import megamoe
from coded_layers import CODES, E8M0, EXPERTS, HIDDEN, INTER, MX, TOKENS, Layer
from layers import BF16, bits


@pytest.fixture(params=MX, ids="-".join)
def layer(request):
    return Layer(*request.param)


def test_torch_types(layer):
    expected = layer.run()
    kind = torch.float4_e2m1fn_x2 if layer.weight == "float4_e2m1" else getattr(torch, layer.weight)
    changes = {}
    for name, dtype in (("weights", kind), ("weights_sf", torch.float8_e8m0fnu)):
        for side in ("l1", "l2"):
            array = layer.call()[f"{side}_{name}"]
            changes[f"{side}_{name}"] = torch.from_numpy(array.view(np.uint8)).view(dtype)
    changes |= dict(weight1_type=None, weight2_type=None)
    np.testing.assert_array_equal(layer.run(**changes), expected)
    changes |= dict(weight1_type=kind, weight2_type=296 if "4_e2" in layer.weight else kind)
    np.testing.assert_array_equal(layer.run(**changes), expected)


def test_lists_strides_and_ml_dtypes_scales(layer):
    expected = layer.run()
    lists = {name: list(value) for name, value in layer.call().items() if name[:2] in ("l1", "l2")}
    lists["l1_weights_sf"] = [scale.view(E8M0) for scale in layer.sf1]
    np.testing.assert_array_equal(layer.run(**lists), expected)
    wide = np.zeros((EXPERTS, 2 * layer.l1.shape[1], layer.l1.shape[2]), layer.l1.dtype)
    wide[:, ::2] = layer.l1
    np.testing.assert_array_equal(layer.run(l1_weights=wide[:, ::2]), expected)


def swapped(codes, kind):
    """The matrices with rows and columns swapped, packed again along the new last dimension."""
    if kind != "float4_e2m1":
        return np.ascontiguousarray(codes.swapaxes(1, 2))
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1).swapaxes(1, 2)
    return np.ascontiguousarray(nibbles[..., ::2] | nibbles[..., 1::2] << 4)


@pytest.mark.parametrize("packed", [False, True])
def test_transposed(layer, packed):
    expected = layer.run()
    turned = [swapped(codes, layer.weight) for codes in (layer.l1, layer.l2)]
    if not packed:
        got = layer.run(
            l1_weights=turned[0], l2_weights=turned[1], transpose_weight1=True, transpose_weight2=True
        )
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(layer.run(l2_weights=turned[1], transpose_weight2=True), expected)
        return
    made = megamoe.pack_weights(
        *turned,
        l1_sf=layer.sf1,
        l2_sf=layer.sf2,
        weight1_type=layer.weight,
        weight2_type=layer.weight,
        transposed=True,
    )
    assert made.l1.dtype == layer.weight
    none = dict(l1_weights_sf=None, l2_weights_sf=None)
    np.testing.assert_array_equal(layer.run(l1_weights=made.l1, l2_weights=made.l2, **none), expected)


@pytest.mark.parametrize("framework", ["bytes", "ml_dtypes", "torch"])
@pytest.mark.parametrize("token", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1"])
def test_tokens_as_codes(token, framework):
    """Codes that the caller makes give what the dispatch makes of the same tokens."""
    layer = Layer(token, token, seed=3)
    expected = layer.run()
    rule = {"float8_e4m3fn": "mx_floor_e4m3", "float8_e5m2": "mx_floor_e5m2", "float4_e2m1": "mx_floor_e2m1"}
    codes, scales = megamoe.quantise(rule[token], layer.x)
    codes, scales = codes.view(np.uint8), scales.view(np.uint8)
    if framework == "ml_dtypes":
        codes, scales = codes.view(CODES[token]), scales.view(E8M0)
    if framework == "torch":
        kind = torch.float4_e2m1fn_x2 if token == "float4_e2m1" else getattr(torch, token)
        codes = torch.from_numpy(codes).view(kind)
        scales = torch.from_numpy(scales).view(torch.float8_e8m0fnu)
    buffer = layer.buffer(dispatch_quant_mode=0)
    with buffer:
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call(x=codes, scales=scales))
        assert tuple(y.shape) == (TOKENS, HIDDEN)
        assert y.dtype == (torch.bfloat16 if framework == "torch" else BF16)
        np.testing.assert_array_equal(bits(y), expected)
        with pytest.raises(TypeError, match="^x "):
            megamoe.mega_moe(sym_buffer=buffer, **layer.call(scales=scales))
        with pytest.raises(ValueError, match="^scales "):
            megamoe.mega_moe(sym_buffer=buffer, **layer.call(x=codes, scales=scales[:-1]))


@pytest.mark.parametrize("form", ["stacked", "list", "packed"])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float4_e2m1"])
def test_shared_experts(kind, form):
    """Two equal shared experts count twice, whatever form they come in and whatever the routed ones are."""
    layer, shared = Layer("float8_e4m3fn", "float4_e2m1"), Layer("float8_e4m3fn", kind, seed=5, experts=2)
    plain = layer.run(**shared.weights("shared_"))
    assert not np.array_equal(plain, layer.run())
    arguments = shared.weights("shared_")
    if form == "list":
        arguments = {key: list(value) if key[-4:] != "type" else value for key, value in arguments.items()}
    if form == "packed":
        made = megamoe.pack_weights(
            shared.l1, shared.l2, l1_sf=shared.sf1, l2_sf=shared.sf2, weight1_type=kind, weight2_type=kind
        )
        arguments = dict(shared_l1_weights=made.l1, shared_l2_weights=made.l2)
    np.testing.assert_array_equal(layer.run(**arguments), plain)
    other = layer.run(shared_expert_quant_out_dtype="float4_e2m1", **arguments) if "4_" in kind else None
    assert other is None or not np.array_equal(other, plain)


def int_layer(seed=0):
    """Arguments of a call of an int4 layer, weights as bytes, and a buffer for it."""
    rng = np.random.default_rng(seed)
    layer = Layer("float8_e4m3fn", "float8_e4m3fn", seed)
    call = dict(
        x=layer.x,
        topk_ids=layer.ids,
        topk_weights=layer.router,
        l1_weights=rng.integers(0, 256, (EXPERTS, HIDDEN, INTER), np.uint8),
        l2_weights=rng.integers(0, 256, (EXPERTS, INTER, HIDDEN // 2), np.uint8),
        l1_weights_sf=rng.random((EXPERTS, 2 * INTER), np.float32) / 64,
        l2_weights_sf=rng.random((EXPERTS, HIDDEN), np.float32) / 64,
        weight1_type="int4",
        weight2_type="int4",
    )
    return call, layer.buffer(dispatch_quant_mode=2, dispatch_quant_out_dtype=None)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_int4_as_words(framework):
    call, buffer = int_layer()
    with buffer:
        expected = bits(megamoe.mega_moe(sym_buffer=buffer, **call)[0])
        assert "A8W4-INT" in buffer.describe()
        words = {name: call[name].view(np.int32) for name in ("l1_weights", "l2_weights")}
        if framework == "torch":
            words = {name: torch.from_numpy(array) for name, array in words.items()}
        for stated in (None, "int4"):
            other = call | words | dict(weight1_type=stated, weight2_type=stated)
            np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **other)[0]), expected)


@pytest.mark.parametrize("form", ["stacked", "list", "packed"])
def test_bias(form):
    """A bias of Linear2 adds itself, times the sum of the router weights."""
    call, buffer = int_layer(1)
    del call["weight1_type"], call["weight2_type"]
    rng = np.random.default_rng(2)
    call["l1_weights"] = rng.integers(-9, 9, (EXPERTS, HIDDEN, 2 * INTER), np.int8)
    call["l2_weights"] = rng.integers(-9, 9, (EXPERTS, INTER, HIDDEN), np.int8)
    bias1 = rng.standard_normal((EXPERTS, 2 * INTER)).astype(np.float32)
    bias2 = np.full((EXPERTS, HIDDEN), 64, np.float32)
    with buffer:

        def run(**changes):
            return megamoe.mega_moe(sym_buffer=buffer, **call | changes)[0].astype(np.float32)

        plain = run()
        expected = plain + 64 * call["topk_weights"].sum(axis=1, keepdims=True)
        changes = dict(l2_bias=bias2)
        if form == "list":
            changes = dict(l2_bias=list(bias2))
        if form == "packed":
            made = megamoe.pack_weights(
                call["l1_weights"],
                call["l2_weights"],
                l1_sf=call["l1_weights_sf"],
                l2_sf=call["l2_weights_sf"],
                l2_bias=bias2,
            )
            none = dict(l1_weights_sf=None, l2_weights_sf=None)
            changes = dict(l1_weights=made.l1, l2_weights=made.l2, **none)
            with pytest.raises(ValueError, match="^l2_bias = ndarray: expected None, l2_weights is packed"):
                run(**changes, l2_bias=bias2)
        np.testing.assert_allclose(run(**changes), expected, rtol=2e-2, atol=0.5)
        assert not np.array_equal(run(l1_bias=bias1), plain)


def test_fractal_tensors():
    """The tiled layouts by their formula, in either framework, stacked and as a list."""
    layer = Layer("float8_e4m3fn", "float8_e4m3fn", seed=7)
    expected = layer.run()

    def tiled(codes):
        experts, rows, columns = codes.shape
        tiles = codes.view(np.uint8).reshape(experts, rows // 16, 16, columns // 32, 32)
        return np.ascontiguousarray(tiles.transpose(0, 3, 1, 2, 4))

    storage = [tiled(codes) for codes in (layer.l1, layer.l2)]
    for make in (lambda array: array, torch.from_numpy):
        fractal = [
            megamoe.FractalTensor(make(array), codes.shape)
            for array, codes in zip(storage, (layer.l1, layer.l2))
        ]
        np.testing.assert_array_equal(layer.run(l1_weights=fractal[0], l2_weights=fractal[1]), expected)
    lists = [megamoe.FractalTensor(array, layer.l1.shape[1:]) for array in storage[0]]
    np.testing.assert_array_equal(layer.run(l1_weights=lists), expected)
    kept = [repr(item) for item in fractal]
    assert kept[0] == "<megamoe.FractalTensor (4, 128, 128) of uint8, FRACTAL_NZ>"


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_float16_tokens(layer, framework):
    """y has the type of x; values that both types have give the same codes."""
    layer.x = (np.round(layer.x.astype(np.float32) * 8) / 8).astype(BF16)
    half = layer.x.astype(np.float16)
    with layer.buffer() as buffer:
        plain, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
        y, _ = megamoe.mega_moe(
            sym_buffer=buffer, **layer.call(x=torch.from_numpy(half) if framework == "torch" else half)
        )
    assert y.dtype == (torch.float16 if framework == "torch" else np.float16)
    y = np.asarray(y).astype(np.float32)
    np.testing.assert_allclose(y, plain.astype(np.float32), rtol=2**-8, atol=1e-6)
    assert not np.array_equal(y, plain.astype(np.float32))


@pytest.mark.parametrize("group", [1, 4])
def test_interleaved_gate_and_up(layer, group):
    expected = layer.run(**layer.weights("shared_"))
    order = np.arange(2 * INTER).reshape(2, INTER // group, group).swapaxes(0, 1).ravel()
    turned = dict(l1_weights=layer.l1[:, order], l1_weights_sf=layer.sf1[:, order])
    shared = layer.weights("shared_") | {f"shared_{name}": value for name, value in turned.items()}
    got = layer.run(**turned, **shared, weight1_interleave=group)
    np.testing.assert_array_equal(got, expected)
    made = megamoe.pack_weights(
        turned["l1_weights"],
        layer.l2,
        l1_sf=turned["l1_weights_sf"],
        l2_sf=layer.sf2,
        weight1_type=layer.weight,
        weight2_type=layer.weight,
        weight1_interleave=group,
    )
    packed = dict(l1_weights=made.l1, l2_weights=made.l2, l1_weights_sf=None, l2_weights_sf=None)
    np.testing.assert_array_equal(layer.run(**packed, **layer.weights("shared_")), expected)
    for wrong in (3, -1):
        with pytest.raises(ValueError, match=f"weight1_interleave = {wrong}"):
            layer.run(**turned, weight1_interleave=wrong)


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
def test_groups_and_blocks_of_packed_weights(kind):
    """Weights whose groups have equal scales give what one bfloat16 weight per code gives."""
    rng = np.random.default_rng(21)
    base = Layer("float8_e4m3fn", "float8_e4m3fn", seed=22)
    tokens = dict(x=base.x, topk_ids=base.ids, topk_weights=base.router)
    codes = [rng.integers(-8, 8, (EXPERTS, *shape)) for shape in ((HIDDEN, 2 * INTER), (INTER, HIDDEN))]
    nibbles = [(c[..., ::2] & 15 | (c[..., 1::2] & 15) << 4).astype(np.uint8) for c in codes]
    zeros = [np.full((EXPERTS, c.shape[2], c.shape[1] // 32), 3, np.int8) for c in codes]
    scales = [np.full(z.shape, 2.0**-5, kind) for z in zeros]
    plain = [((c - 3) * 2.0**-5).astype(np.float32).astype(BF16) for c in codes]
    made = megamoe.pack_weights(
        *nibbles,
        l1_sf=scales[0],
        l2_sf=scales[1],
        weight1_type="int4",
        weight2_type="int4",
        scale_group=32,
        l1_zero=zeros[0],
        l2_zero=zeros[1],
    )
    blocks = megamoe.pack_weights(
        base.l1,
        base.l2,
        l1_sf=np.full((EXPERTS, 1, 1), 0.25, kind),
        l2_sf=np.full((EXPERTS, 1, 1), 0.25, kind),
        scale_group=128,
    )
    eighths = [
        (codes.astype(np.float32) * 0.25).astype(BF16).swapaxes(1, 2) for codes in (base.l1, base.l2)
    ]
    with base.buffer(dispatch_quant_mode=0, dispatch_quant_out_dtype=None) as buffer:
        for packed, weights in ((made, plain), (blocks, eighths)):
            pair = dict(l1_weights=packed.l1, l2_weights=packed.l2)
            y, _ = megamoe.mega_moe(sym_buffer=buffer, **tokens, **pair)
            pair = dict(l1_weights=weights[0], l2_weights=weights[1])
            expected, _ = megamoe.mega_moe(sym_buffer=buffer, **tokens, **pair)
            y, expected = y.astype(np.float32), expected.astype(np.float32)
            assert np.linalg.norm(y - expected) < 5e-3 * np.linalg.norm(expected)
    with pytest.raises(TypeError, match="^l1_zero = float32: expected int8"):
        megamoe.pack_weights(*nibbles, l1_zero=scales[0].astype(np.float32), weight1_type="int4")
    with pytest.raises(TypeError, match="^scale_group = '32'"):
        megamoe.pack_weights(base.l1, base.l2, scale_group="32")
