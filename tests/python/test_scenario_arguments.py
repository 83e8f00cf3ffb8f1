"""Wrong weights, scales and types of the coded scenarios, and the sizes of their buffers."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import megamoe
from coded_layers import EXPERTS, HIDDEN, TOKENS, TOPK, Layer
from layers import bits

LAYER = Layer("float8_e4m3fn", "float4_e2m1", seed=9)


@pytest.mark.parametrize(
    "change, kind, text",
    [
        (dict(weight1_type=None), TypeError, "weight1_type = None: expected the type that the bytes of l1_w"),
        (dict(weight1_type="int8"), TypeError, "weight1_type = int8: expected the type that the bytes of"),
        (dict(weight2_type="int4"), ValueError, "l2_weights has reduction size 128: expected 64"),
        (
            dict(weight1_type="float8_e5m2", weight2_type="float8_e5m2"),
            ValueError,
            "l1_weights has reduction size 64: expected 128",
        ),
        (dict(l1_weights_sf=None), ValueError, "l1_weights_sf has no tensors"),
        (dict(l1_weights_sf=LAYER.sf1[:, :-1]), ValueError, "l1_weights_sf has shape (4, 127, 2, 2)"),
        (dict(l2_weights_sf=LAYER.sf2.astype(np.float32)), TypeError, "l2_weights_sf has type float32"),
        (dict(l2_weights_sf=LAYER.sf2.astype(np.int32)), TypeError, "l2_weights_sf = int32"),
        (dict(l1_weights=LAYER.l1.astype(ml_dtypes.float4_e2m1fn)), TypeError, "l1_weights = float4_e2m1fn"),
        (dict(l1_weights=LAYER.l1.astype(np.float16)), TypeError, "l1_weights = float16: expected bfloat16"),
        (
            dict(l1_weights=megamoe.FractalTensor(LAYER.l1, (4, 128, 64))),
            ValueError,
            "l1_weights has 32768 bytes: expected 16384 for shape (4, 128, 64) in layout FRACTAL_NZ",
        ),
        (
            dict(l1_weights=megamoe.FractalTensor(LAYER.l1, (4, 128, 128), "NZ")),
            ValueError,
            "l1_weights has layout NZ: expected FRACTAL_NZ or FRACTAL_NZ_C0_32",
        ),
        (
            dict(l1_weights=megamoe.FractalTensor(LAYER.l1, (4, 4, 32, 128))),
            ValueError,
            "l1_weights has shape (4, 4, 32, 128): expected (E, N, K) or (N, K)",
        ),
        (
            dict(l1_weights=megamoe.FractalTensor(LAYER.l1[::2], (2, 128, 128))),
            ValueError,
            "l1_weights = array with gaps: expected contiguous storage",
        ),
        (
            dict(l1_weights=megamoe.FractalTensor(LAYER.l1, (4, -1, 128))),
            ValueError,
            "l1_weights has shape (4, -1, 128): expected sizes in",
        ),
        (
            dict(l2_weights=[megamoe.FractalTensor(LAYER.l2[0], (128, 64)), *LAYER.l2[1:]]),
            ValueError,
            "l2_weights[1] has layout ND: expected FRACTAL_NZ like l2_weights[0]",
        ),
        (
            LAYER.weights("shared_") | dict(shared_l1_weights_sf=None),
            ValueError,
            "shared_l1_weights_sf has no tensors",
        ),
        (
            LAYER.weights("shared_") | dict(shared_expert_quant_out_dtype="int8"),
            TypeError,
            "shared_l1_weights has type float4_e2m1: expected one of int8, int4",
        ),
        (
            LAYER.weights("shared_") | dict(shared_l2_bias=np.zeros((4, 3), np.float32)),
            ValueError,
            "shared_l2_bias has shape (4, 3): expected (4, 128)",
        ),
    ],
    ids=itertools.count(),
)
def test_wrong_values(change, kind, text):
    expected = LAYER.run()
    with LAYER.buffer() as buffer:
        with pytest.raises(kind) as caught:
            megamoe.mega_moe(sym_buffer=buffer, **LAYER.call(**change))
        assert text in str(caught.value)
        assert isinstance(caught.value.code, megamoe.Code)
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **LAYER.call())
        np.testing.assert_array_equal(bits(y), expected)


def test_packed_weights_of_another_type():
    made = megamoe.pack_weights(
        LAYER.l1, LAYER.l2, l1_sf=LAYER.sf1, l2_sf=LAYER.sf2, weight1_type=296, weight2_type=296
    )
    packed = dict(l1_weights=made.l1, l2_weights=made.l2, l1_weights_sf=None, l2_weights_sf=None)
    np.testing.assert_array_equal(LAYER.run(**packed), LAYER.run())
    with pytest.raises(ValueError, match="weight1_type = int8: expected the type of l1_weights, float4_e2m1"):
        LAYER.run(**packed | dict(weight1_type="int8"))
    with pytest.raises(TypeError, match="^l1 = PackedWeights: expected weights that are not packed"):
        megamoe.pack_weights(*made)


def test_buffer_sizes():
    """The size of the coded scenarios is that of their buffers."""
    for mode, kind, codes in (
        (4, 23, "float8_e5m2"),
        (4, 24, "float8_e4m3fn"),
        (4, 296, "float4_e2m1"),
        (0, 24, "float8_e4m3fn"),
        (2, 1, None),
    ):
        for combine in (0, 3, 4):
            settings = dict(
                dispatch_quant_mode=mode, dispatch_quant_out_dtype=kind, combine_quant_mode=combine
            )
            with LAYER.buffer(**settings) as buffer:
                assert buffer.ccl_buffer_size == megamoe.get_mega_moe_ccl_buffer_size(
                    1, EXPERTS, TOKENS, TOPK, HIDDEN, **settings
                )
                assert buffer.dispatch_quant_out_dtype == kind
                assert buffer.token_codes == codes


def test_size_of_a_profile():
    """A device has each expert at most once in a token, so its buffers are smaller."""
    arguments = (2, 2, 64, 8, 1024)
    settings = dict(dispatch_quant_mode=4, dispatch_quant_out_dtype=24)
    least = megamoe.get_mega_moe_ccl_buffer_size(*arguments, **settings, profile="ascend_950")
    assert 0 < least < megamoe.get_mega_moe_ccl_buffer_size(*arguments, **settings)
    with pytest.raises(ValueError, match='profile = "nowhere": expected one of cpu, '):
        megamoe.get_mega_moe_ccl_buffer_size(*arguments, **settings, profile="nowhere")


def test_profiles():
    with pytest.raises(ValueError, match=r"ep_world_size = 1: expected a value in \[2, 1024\]"):
        LAYER.buffer(profile="ascend_950")
    with LAYER.buffer() as buffer:
        needed = buffer.ccl_buffer_size
    with LAYER.buffer(ccl_buffer_size=needed) as buffer:
        assert buffer.ccl_buffer_size == needed
    with pytest.raises(ValueError, match=f"ccl_buffer_size = {needed - 1}: .*{needed}"):
        LAYER.buffer(ccl_buffer_size=needed - 1)
