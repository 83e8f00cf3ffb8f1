"""Every argument of a call and of `pack_weights` with wrong values: the error names the argument, what came and what was expected.

After each wrong call the same buffer still gives the right result, and the caller's arrays are as they were.
"""

import numpy as np
import pytest
import torch

import megamoe
from layers import BF16, Layer, bits

LAYER = Layer(4, 64, 32, 4, 2, int8=False, seed=40)
QUANTISED = Layer(4, 64, 32, 4, 2, int8=True, seed=41)


def with_id(value):
    ids = LAYER.ids.copy()
    ids[3, 1] = value
    return ids


# argument, wrong value, exception, texts of the message beside the argument's name
CALL = [
    ("x", None, TypeError, "NoneType"),
    ("x", LAYER.x.tolist(), TypeError, "list"),
    ("x", LAYER.x.view(np.uint16), TypeError, "uint16"),
    ("x", LAYER.x.astype(np.float32), TypeError, "float32"),
    ("x", LAYER.x[:, :-1], ValueError, "63"),
    ("x", LAYER.x[0], ValueError, "64"),
    ("x", LAYER.x[None], ValueError, "1, 4, 64"),
    ("x", np.zeros((1,) * 7, BF16), ValueError, "7"),
    ("x", torch.zeros(4, 64, dtype=torch.bfloat16, device="meta"), ValueError, "meta"),
    ("x", torch.zeros(4, 64, dtype=torch.bfloat16).to_sparse(), ValueError, "sparse"),
    ("topk_ids", LAYER.ids.astype(np.int16), TypeError, "int16"),
    ("topk_ids", LAYER.ids.astype(np.uint32), TypeError, "uint32"),
    ("topk_ids", LAYER.ids.astype(np.float32), TypeError, "float32"),
    ("topk_ids", LAYER.ids.astype(">i4"), TypeError, ">i4"),
    ("topk_ids", LAYER.ids[:3], ValueError, "3"),
    ("topk_ids", LAYER.ids[:, :1], ValueError, "1"),
    ("topk_ids[3][1]", with_id(4), ValueError, "= 4"),
    ("topk_ids[3][1]", with_id(-2), ValueError, "= -2"),
    ("topk_ids[3][1]", with_id(2**31 - 1), ValueError, f"= {2**31 - 1}"),
    ("topk_ids[3][1]", with_id(-(2**31)), ValueError, f"= {-(2**31)}"),
    ("topk_weights", LAYER.router.astype(np.float64), TypeError, "float64"),
    ("topk_weights", LAYER.router[:, :1], ValueError, "1"),
    ("l1_weights", None, TypeError, "NoneType"),
    ("l1_weights", [], ValueError, "no tensors"),
    ("l1_weights", LAYER.l1.astype(np.float32), TypeError, "float32"),
    ("l1_weights", LAYER.l1[:3], ValueError, "3"),
    ("l1_weights", LAYER.l1[:, :-1], ValueError, "63"),
    ("l1_weights", LAYER.l1[:, :, :-1], ValueError, "63"),
    ("l1_weights", LAYER.l1[:, :, :-2], ValueError, "62"),
    ("l1_weights", list(LAYER.l1)[:3], ValueError, "3"),
    ("l1_weights[2]", [*LAYER.l1[:2], LAYER.l1[2, :, :-2], LAYER.l1[3]], ValueError, "62"),
    ("l1_weights[1]", [LAYER.l1[0], "w", *LAYER.l1[2:]], TypeError, "str"),
    ("l2_weights", 3, TypeError, "int"),
    ("l2_weights", LAYER.l2[:, :-1], ValueError, "31"),
    ("l2_weights", LAYER.l2[:, :, :-1], ValueError, "63"),
    ("l2_weights", QUANTISED.l2, ValueError, "l2_weights_sf"),
    ("sym_buffer", None, TypeError, "NoneType"),
    ("sym_buffer", 7, TypeError, "int"),
    ("l1_weights_sf", QUANTISED.sf1, ValueError, "bfloat16"),
    ("l2_weights_sf", QUANTISED.sf2, ValueError, "bfloat16"),
    ("x_active_mask", np.ones(4, np.uint8), TypeError, "uint8"),
    ("x_active_mask", np.ones(4, np.float32), TypeError, "float32"),
    ("x_active_mask", np.ones(3, np.int8), ValueError, "3"),
    ("x_active_mask", np.ones((4, 1), np.int8), ValueError, "4, 1"),
    ("x_active_mask", [1, 1, 1, 1], TypeError, "list"),
    ("activation", "relu", ValueError, "relu"),
    ("activation", None, TypeError, "None"),
    ("activation_clamp", -1.0, ValueError, "-1"),
    ("activation_clamp", float("nan"), ValueError, "nan"),
    ("activation_clamp", "7", TypeError, "'7'"),
    ("activation_params", {"gamma": 1.0}, ValueError, "gamma"),
    ("activation_params", [1.0], TypeError, "[1.0]"),
    ("activation_params", {"alpha": "x"}, TypeError, "alpha"),
    ("weight1_type", "float4_e2m1", ValueError, "float4_e2m1"),
    ("weight1_type", "int8", ValueError, "int8"),
    ("weight2_type", 296, ValueError, "float4_e2m1"),
    ("weight2_type", "int9", ValueError, "int9"),
    ("weight1_type", [8], TypeError, "[8]"),
    ("l1_bias", np.zeros((4, 63), np.float32), ValueError, "63"),
    ("l1_bias", np.zeros((4, 64), BF16), TypeError, "bfloat16"),
    ("l2_bias[0]", [1.5], TypeError, "float"),
    ("l2_bias", np.zeros((3, 64), np.float32), ValueError, "3, 64"),
    ("shared_l1_weights", LAYER.l1[:1], ValueError, "shared_l2_weights is missing"),
    ("shared_l2_weights", [LAYER.l2[0]], ValueError, "shared_l1_weights is missing"),
    ("shared_l1_weights", "w", TypeError, "str"),
    ("shared_l1_weights_sf", QUANTISED.sf1, ValueError, "no shared_l1_weights"),
    ("shared_l2_bias", [np.zeros(64, np.float32)], ValueError, "no shared_l2_weights"),
    ("shared_expert_quant_out_dtype", "int8", ValueError, "expected undefined"),
    ("shared_expert_quant_out_dtype", object(), TypeError, "object"),
    ("shared_weight1_type", "int9", ValueError, "int9"),
    ("scales", np.zeros((4, 2), np.uint8), ValueError, "bfloat16"),
    ("scales", np.zeros((4, 2), np.float32), TypeError, "float32"),
    ("transpose_weight1", 1, TypeError, "1"),
    ("transpose_weight2", None, TypeError, "None"),
    ("combine_comm_mode", 1, ValueError, "0"),
    ("combine_comm_mode", np.zeros(2), TypeError, "expected an integer"),
    ("combine_comm_mode", torch.zeros(2), TypeError, "expected an integer"),
    ("combine_comm_mode", "0", TypeError, "expected an integer"),
    ("combine_comm_mode", False, TypeError, "expected an integer"),
    ("shared_scale_group", 7, ValueError, "= 7: expected 0, there are no shared_l1_weights"),
    ("shared_scale_group", -5, ValueError, "= -5: expected 0, there are no shared_l1_weights"),
    ("shared_weight1_type", "int8", ValueError, "= int8: expected None, there are no shared_l1_weights"),
    ("shared_weight2_type", 24, ValueError, "expected None, there are no shared_l2_weights"),
    ("weight1_type", torch.zeros(2, 2), TypeError, "expected a torch or NumPy type"),
    ("weight1_type", torch.empty(2, device="meta"), TypeError, "expected a torch or NumPy type"),
    ("activation", "a\ud800", ValueError, r"'a\ud800': expected a string that UTF-8 can encode"),
    ("activation", "a\0b", ValueError, r"'a\x00b': expected a string that UTF-8 can encode, without NUL"),
    ("activation", "y" * 5000, ValueError, '...": expected one of swiglu,'),
    ("activation", "\u00e9" * 5000, ValueError, '...": expected one of swiglu,'),
    ("activation", np.zeros((5, 64)), TypeError, "...: expected a string"),
    ("activation_params", np.zeros((5, 64)), TypeError, "...: expected a dict with keys"),
    ("activation_params", {"y" * 5000: 1.0}, ValueError, "...]: expected one of the keys alpha"),
    ("activation_clamp", "y" * 5000, TypeError, "...: expected a number"),
    ("activation_clamp", torch.empty(1, device="meta"), TypeError, "expected a number"),
    ("weight2_type", "y" * 5000, ValueError, "...: expected an element type"),
    ("weight1_interleave", 10**5000, ValueError, "<int>: expected an integer of 64 bits"),
]
QUANTISED_CALL = [
    ("l1_weights_sf", None, ValueError, ""),
    ("l2_weights_sf", None, ValueError, ""),
    ("l1_weights_sf", QUANTISED.sf1.astype(np.float64), TypeError, "float64"),
    ("l1_weights_sf", QUANTISED.sf1[:, :-1], ValueError, "63"),
    ("l1_weights_sf", list(QUANTISED.sf1)[:3], ValueError, "3"),
    ("l2_weights_sf", QUANTISED.sf2[:3], ValueError, "3"),
    ("l2_weights_sf[1]", [QUANTISED.sf2[0], QUANTISED.sf2[1, :-1], *QUANTISED.sf2[2:]], ValueError, "63"),
    ("l1_weights", LAYER.l1, ValueError, "bfloat16"),
]


@pytest.fixture(scope="module")
def good():
    """A buffer per scenario, with the right result."""
    buffers = {id(layer): layer.buffer() for layer in (LAYER, QUANTISED)}
    yield {
        id(layer): (buffers[id(layer)], megamoe.mega_moe(sym_buffer=buffers[id(layer)], **layer.call())[0])
        for layer in (LAYER, QUANTISED)
    }
    for buffer in buffers.values():
        buffer.destroy()


@pytest.mark.parametrize(
    "layer, name, value, kind, text",
    [(LAYER, *case) for case in CALL] + [(QUANTISED, *case) for case in QUANTISED_CALL],
    ids=lambda item: str(item)[:20].split("\n")[0] if isinstance(item, str) else "",
)
def test_call(good, layer, name, value, kind, text):
    buffer, expected = good[id(layer)]
    argument = name.split("[")[0]
    call = dict(sym_buffer=buffer, **layer.call()) | {argument: value}
    before = [
        np.array(call[key], copy=True) for key in ("x", "topk_ids") if isinstance(call[key], np.ndarray)
    ]
    with pytest.raises(kind) as caught:
        megamoe.mega_moe(**call)
    message = str(caught.value)
    assert name in message and text in message
    assert isinstance(caught.value.code, megamoe.Code)
    after = [call[key] for key in ("x", "topk_ids") if isinstance(call[key], np.ndarray)]
    for old, new in zip(before, after):
        np.testing.assert_array_equal(bits(old), bits(new))
    y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    np.testing.assert_array_equal(bits(y), bits(expected))


@pytest.mark.parametrize(
    "params, text",
    [
        ({"beta": 0.0}, "beta"),
        ({"beta": -1.0}, "beta"),
        ({"beta": float("inf")}, "beta"),
        ({"beta": 1.0, "linear_beta": 0.0}, "linear_beta"),
        ({"beta": 1.0, "alpha": 1.0}, "alpha"),
    ],
)
def test_situglu_parameters(good, params, text):
    buffer, _ = good[id(LAYER)]
    with pytest.raises(ValueError, match=text):
        megamoe.mega_moe(sym_buffer=buffer, **LAYER.call(activation="situglu", activation_params=params))


def test_too_many_tokens(good):
    buffer, expected = good[id(LAYER)]
    more = Layer(5, 64, 32, 4, 2, int8=False)
    with pytest.raises(ValueError, match="5"):
        megamoe.mega_moe(sym_buffer=buffer, **more.call())
    y, _ = megamoe.mega_moe(sym_buffer=buffer, **LAYER.call())
    np.testing.assert_array_equal(bits(y), bits(expected))


def test_capacity():
    layer = Layer(8, 64, 32, 4, 2, int8=False)
    with layer.buffer(max_recv_token_num=15) as buffer:
        with pytest.raises(ValueError, match="16") as caught:
            megamoe.mega_moe(sym_buffer=buffer, **layer.call())
        assert caught.value.code == megamoe.Code.CAPACITY
        layer.ids[0, 0] = -1
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    np.testing.assert_array_equal(bits(y), bits(layer.run()[0]))


def test_packed_weights_take_no_scales(good):
    buffer, _ = good[id(QUANTISED)]
    packed = megamoe.pack_weights(
        QUANTISED.l1, QUANTISED.l2, l1_sf=QUANTISED.sf1, l2_sf=QUANTISED.sf2, threads=1
    )
    with pytest.raises(ValueError, match="l1_weights_sf"):
        megamoe.mega_moe(sym_buffer=buffer, **QUANTISED.call(l1_weights=packed.l1, l2_weights=packed.l2))


def test_swapped_packed_weights(good):
    buffer, _ = good[id(LAYER)]
    packed = megamoe.pack_weights(LAYER.l1, LAYER.l2, threads=1)
    with pytest.raises(ValueError):
        megamoe.mega_moe(sym_buffer=buffer, **LAYER.call(l1_weights=packed.l2, l2_weights=packed.l1))
    wide = np.concatenate([LAYER.l2, LAYER.l2], axis=1)
    plain = megamoe.pack_weights(LAYER.l1, wide, gated=False, threads=1)
    with pytest.raises(ValueError) as caught:
        megamoe.mega_moe(sym_buffer=buffer, **LAYER.call(l1_weights=plain.l1))
    assert "l1_weights was packed with gated = false: expected true, the activation has a gate" in str(caught.value)
    with pytest.raises(ValueError) as caught:
        megamoe.mega_moe(sym_buffer=buffer, **LAYER.call(l1_weights=packed.l1, activation="gelu"))
    assert "l1_weights was packed with gated = true: expected false, the activation has no gate" in str(caught.value)
    # Sizes are looked at before, as of weights that are not packed.
    few = megamoe.pack_weights(LAYER.l1[:3], wide[:3], gated=False, threads=1)
    for weights in (LAYER.l1[:3], few.l1):
        with pytest.raises(ValueError, match="l1_weights has experts 3: expected 4"):
            megamoe.mega_moe(sym_buffer=buffer, **LAYER.call(l1_weights=weights))


@pytest.mark.parametrize(
    "name, value, kind, text",
    [
        ("l1", None, TypeError, "NoneType"),
        ("l1", LAYER.l1[0, 0], ValueError, "64"),
        ("l1", LAYER.l1[:, :, :-1], ValueError, "63"),
        ("l1", LAYER.l1.astype(np.float32), TypeError, "float32"),
        ("l2", [], ValueError, "no tensors"),
        ("l1_sf", QUANTISED.sf1, ValueError, "bfloat16"),
        ("l2_sf", "s", TypeError, "str"),
        ("gated", 1, TypeError, "1"),
        ("transposed", None, TypeError, "None"),
        ("threads", -1, ValueError, "-1"),
        ("threads", "2", TypeError, "'2'"),
    ],
)
def test_pack_weights(name, value, kind, text):
    with pytest.raises(kind) as caught:
        megamoe.pack_weights(**dict(l1=LAYER.l1, l2=LAYER.l2) | {name: value})
    assert text in str(caught.value)
    assert name.split("_")[0] in str(caught.value)
