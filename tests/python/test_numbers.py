"""Results against the float64 model of layers.py."""

import numpy as np
import pytest

import megamoe
from layers import BF16, Layer, bits, model, relative_error

# tokens, hidden, intermediate, experts, top-k
SHAPES = [
    (1, 64, 32, 4, 2),
    (7, 613, 33, 5, 3),
    (33, 128, 96, 8, 8),
    (5, 16, 16, 1, 1),
    (17, 704, 176, 8, 2),
    (130, 96, 65, 3, 2),
]
BOUND = {False: 4e-3, True: 1e-3}


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_layer(shape, int8):
    layer = Layer(*shape, int8=int8, seed=1)
    y, counts = layer.run()
    expected, expected_counts = model(layer)
    assert y.dtype == BF16 and y.shape == layer.x.shape
    assert counts.dtype == np.int32
    np.testing.assert_array_equal(counts, expected_counts)
    assert relative_error(y, expected) < BOUND[int8]


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
def test_clamp(int8):
    layer = Layer(9, 64, 48, 4, 2, int8=int8, seed=2)
    y, _ = layer.run(activation_clamp=0.5)
    assert relative_error(y, model(layer, clamp=0.5)[0]) < BOUND[int8]
    plain, _ = layer.run()
    assert not np.array_equal(bits(y), bits(plain))
    for no_clamp in (None, 0, 0.0):
        np.testing.assert_array_equal(bits(layer.run(activation_clamp=no_clamp)[0]), bits(plain))


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
def test_unused_slots(int8):
    layer = Layer(12, 64, 32, 4, 3, int8=int8, seed=3)
    layer.ids[::2, 1] = -1
    layer.ids[5] = -1
    y, counts = layer.run()
    expected, expected_counts = model(layer)
    np.testing.assert_array_equal(counts, expected_counts)
    assert relative_error(y, expected) < BOUND[int8]
    assert not bits(y)[5].any()


def test_same_expert_twice_counts_twice():
    layer = Layer(3, 64, 32, 4, 2, int8=False, seed=4)
    layer.ids[:] = 1
    y, counts = layer.run()
    expected, _ = model(layer)
    assert counts.tolist() == [0, 6, 0, 0]
    assert relative_error(y, expected) < BOUND[False]


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
def test_no_tokens(int8):
    layer = Layer(0, 64, 32, 4, 2, int8=int8)
    y, counts = layer.run()
    assert y.shape == (0, 64) and counts.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("kind", [np.int8, np.bool_])
def test_active_mask(kind):
    layer = Layer(8, 64, 32, 4, 2, int8=False, seed=5)
    before = bits(layer.x).copy(), layer.ids.copy()
    mask = np.array([1, 0, 1, 1, 0, 0, 1, 1], kind)
    y, counts = layer.run(x_active_mask=mask)
    full, _ = layer.run()
    active = mask.astype(bool)
    np.testing.assert_array_equal(bits(y)[active], bits(full)[active])
    assert not bits(y)[~active].any()
    np.testing.assert_array_equal(counts, np.bincount(layer.ids[active].ravel(), minlength=4))
    np.testing.assert_array_equal(bits(layer.x), before[0])
    np.testing.assert_array_equal(layer.ids, before[1])


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
def test_masked_tokens_may_hold_anything(int8):
    layer = Layer(8, 64, 32, 4, 2, int8=int8, seed=5)
    mask = np.array([1, 0, 1, 1, 0, 0, 1, 1], np.int8)
    y, counts = layer.run(x_active_mask=mask)
    x, ids, router = layer.x.copy(), layer.ids.copy(), layer.router.copy()
    x[mask == 0] = router[mask == 0] = np.nan
    ids[mask == 0] = [[99, -7], [0, 0], [-(2**31), 4]]
    padded, padded_counts = layer.run(x=x, topk_ids=ids, topk_weights=router, x_active_mask=mask)
    np.testing.assert_array_equal(bits(padded), bits(y))
    np.testing.assert_array_equal(padded_counts, counts)


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
def test_token_alone_and_in_a_batch(int8):
    layer = Layer(65, 96, 40, 4, 2, int8=int8, seed=6)
    with layer.buffer() as buffer:
        together, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
        for token in (0, 31, 64):
            one = slice(token, token + 1)
            alone, _ = megamoe.mega_moe(
                sym_buffer=buffer,
                **layer.call(x=layer.x[one], topk_ids=layer.ids[one], topk_weights=layer.router[one]),
            )
            np.testing.assert_array_equal(bits(alone)[0], bits(together)[token])


@pytest.mark.parametrize("level", [level["name"] for level in megamoe.info()["levels"] if level["runnable"]])
def test_every_level(level):
    layer = Layer(9, 100, 36, 4, 2, int8=True, seed=7)
    with layer.buffer(isa=level) as buffer:
        assert buffer.isa == level
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    assert relative_error(y, model(layer)[0]) < BOUND[True]


@pytest.mark.parametrize(
    "activation, params",
    [
        ("swiglu", None),
        ("swiglustep", None),
        ("swigluoai", {"alpha": 1.5, "beta": 0.5}),
        ("situglu", {"beta": 2.0}),
        ("situglu", {"beta": 2.0, "linear_beta": 3.0}),
    ],
)
def test_activation_formulas(activation, params):
    """One expert with identity-like weights turns the layer into its activation."""
    width = 32
    layer = Layer(6, 2 * width, width, 1, 1, int8=False, seed=8)
    layer.router[:] = 1
    layer.l1[:] = np.eye(2 * width).astype(BF16)
    layer.l2[:] = np.eye(width, 2 * width).astype(BF16)
    y, _ = layer.run(activation=activation, activation_params=params, activation_clamp=None)
    gate, up = (layer.x.astype(np.float64)[:, part] for part in (slice(0, width), slice(width, None)))
    sigmoid = 1 / (1 + np.exp(-gate))
    given = params or {}
    if activation == "swigluoai":
        expected = (up + given["beta"]) * gate / (1 + np.exp(-given["alpha"] * gate))
    elif activation == "situglu":
        beta, linear = given["beta"], given.get("linear_beta")
        bounded = up if linear is None else linear * np.tanh(up / linear)
        expected = beta * np.tanh(gate / beta) * sigmoid * bounded
    else:
        expected = gate * sigmoid * up
    assert relative_error(y[:, :width], expected) < 4e-3


def test_gelu_passes_all_columns():
    width = 32
    layer = Layer(6, width, width // 2, 1, 1, int8=False, seed=9)
    layer.router[:] = 1
    identity = np.eye(width).astype(BF16)[None]
    y, _ = layer.run(activation="gelu", l1_weights=identity, l2_weights=identity)
    z = layer.x.astype(np.float64)
    expected = z / (1 + np.exp(-np.sqrt(8 / np.pi) * (z + 0.044715 * z**3)))
    assert relative_error(y, expected) < 4e-3
