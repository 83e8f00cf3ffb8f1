"""What packed weights say of themselves, and what is refused when they meet other arguments."""

from __future__ import annotations

import numpy as np
import pytest
from layers import BF16, Layer, bits
from ranks import in_threads

import megamoe

LAYER = Layer(5, 64, 32, 4, 2, int8=False, seed=60)
INT8 = Layer(5, 64, 32, 4, 2, int8=True, seed=61)


def swapped(array):
    return np.ascontiguousarray(array.swapaxes(-1, -2))


def in_turn(array):
    """Gate and up columns one after the other, in turn."""
    inter = array.shape[-1] // 2
    return np.stack([array[..., :inter], array[..., inter:]], axis=-1).reshape(array.shape)


def test_properties():
    l1, l2 = megamoe.pack_weights(LAYER.l1, LAYER.l2)
    assert (l1.shape, l2.shape) == ((4, 64, 64), (4, 32, 64))
    assert (l1.format, l1.scenarios) == ("bfloat16", ("A16W16",))
    assert (l1.layout, l1.interleave, l1.transposed, l1.scale_group) == ("ND", 0, False, 0)
    assert (l1.gated, l2.gated, l1.has_bias, l1.has_added_bias) == (True, False, False, False)
    bias = np.ones((4, 64), np.float32)
    l1, l2 = megamoe.pack_weights(
        swapped(in_turn(LAYER.l1)), swapped(LAYER.l2), transposed=True, weight1_interleave=1, l1_bias=bias
    )
    assert (l1.interleave, l1.transposed, l2.transposed) == (1, True, True)
    assert (l1.has_bias, l2.has_bias) == (True, False)
    codes = np.zeros((2, 256, 128), np.uint8)
    made, _ = megamoe.pack_weights(
        codes,
        np.zeros((2, 128, 128), np.uint8),
        weight1_type="int4",
        weight2_type="int4",
        scale_group=128,
        l1_sf=np.ones((2, 256, 2), np.float32),
        l2_sf=np.ones((2, 256, 1), np.float32),
    )
    assert made.format == "int4 with scale_group 128"
    assert made.scenarios == ("A16W4-GROUP", "A8W4-GROUP")
    assert made.scale_group == 128
    fp4, _ = megamoe.pack_weights(
        np.zeros((2, 128, 32), np.uint8),
        np.zeros((2, 64, 32), np.uint8),
        weight1_type="float4_e2m1",
        weight2_type="float4_e2m1",
        l1_sf=np.full((2, 128, 1, 2), 127, np.uint8),
        l2_sf=np.full((2, 64, 1, 2), 127, np.uint8),
    )
    assert (fp4.scenarios, fp4.transposed) == (("A16W4-FP", "A8W4-FP", "A4W4-FP"), False)


@pytest.mark.parametrize(
    "changes, text",
    [
        (dict(l2=LAYER.l2[:3]), "l2 has experts 3: expected 4"),
        (dict(l2=LAYER.l2[:, :16]), "l2 has reduction size 16: expected 32"),
        (dict(l2=LAYER.l2[:, :, :32]), "l2 has output size 32: expected 64"),
        (dict(gated=False), "l2 has reduction size 32: expected 64"),
        (dict(l2=INT8.l2, l2_sf=INT8.sf2), "l2 has type int8: expected bfloat16 as l1"),
        (dict(l2=INT8.l2), "l2_sf has no tensors: expected uint64 or float32 (4, 64) with int8 weights"),
        (dict(l1=LAYER.l1[0, 0]), "l1 has shape (64,): expected"),
        (dict(l1=None), "l1 = NoneType: expected torch tensors"),
        (dict(scale_group=32), "scale_group = 32: expected 0 with bfloat16 weights"),
        (dict(l1_sf=INT8.sf1), "l1_sf has 1 tensors: expected none with bfloat16 weights"),
        (dict(l1_bias=np.zeros((4, 3), np.float32)), "l1_bias has shape (4, 3): expected (4, 64)"),
    ],
)
def test_layers_that_do_not_belong_together(changes, text):
    with pytest.raises((TypeError, ValueError)) as caught:
        megamoe.pack_weights(**dict(l1=LAYER.l1, l2=LAYER.l2) | changes)
    assert str(caught.value).startswith(text)
    assert isinstance(caught.value.code, megamoe.Code)


@pytest.mark.parametrize(
    "given, text",
    [
        (dict(weight1_interleave=1), "weight1_interleave = 1: expected 0, l1_weights is packed"),
        (dict(weight1_interleave=-3), "weight1_interleave = -3: expected 0, l1_weights is packed"),
        (dict(weight1_interleave=2**40), f"weight1_interleave = {2**40}: expected 0, l1_weights is packed"),
        (dict(weight1_interleave="1"), "weight1_interleave = '1': expected an integer"),
        (dict(transpose_weight1=True), "transpose_weight1 = True: expected False, l1_weights is packed"),
        (dict(transpose_weight2=True), "transpose_weight2 = True: expected False, l2_weights is packed"),
        (dict(transpose_weight2=1), "transpose_weight2 = 1: expected True or False"),
        (dict(scale_group=32), "scale_group = 32: expected 0, l1_weights is packed"),
    ],
)
def test_an_order_that_is_stated_must_be_theirs(given, text):
    l1, l2 = megamoe.pack_weights(LAYER.l1, LAYER.l2)
    with LAYER.buffer() as buffer:
        with pytest.raises((TypeError, ValueError)) as caught:
            megamoe.mega_moe(sym_buffer=buffer, **LAYER.call(l1_weights=l1, l2_weights=l2, **given))
        assert str(caught.value).startswith(text)
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **LAYER.call(l1_weights=l1, l2_weights=l2))
        np.testing.assert_array_equal(bits(y), bits(LAYER.run()[0]))


def test_their_order_may_be_stated_or_left_out():
    l1, l2 = megamoe.pack_weights(
        swapped(in_turn(LAYER.l1)), swapped(LAYER.l2), transposed=True, weight1_interleave=1
    )
    expected = bits(LAYER.run()[0])
    theirs = dict(transpose_weight1=True, transpose_weight2=True, weight1_interleave=1)
    for given in ({}, theirs):
        y, _ = LAYER.run(l1_weights=l1, l2_weights=l2, **given)
        np.testing.assert_array_equal(bits(y), expected)


def test_an_order_may_be_that_of_raw_shared_experts():
    raw = dict(shared_l1_weights=LAYER.l1[:1], shared_l2_weights=LAYER.l2[:1])
    turned = dict(shared_l1_weights=swapped(LAYER.l1[:1]), shared_l2_weights=swapped(LAYER.l2[:1]))
    l1, l2 = megamoe.pack_weights(LAYER.l1, LAYER.l2)
    expected, _ = LAYER.run(**raw)
    flags = dict(transpose_weight1=True, transpose_weight2=True)
    y, _ = LAYER.run(l1_weights=l1, l2_weights=l2, **turned, **flags)
    np.testing.assert_array_equal(bits(y), bits(expected))


def test_a_profile_judges_what_they_were_packed_from():
    hidden, inter = 1024, 512
    l1 = np.zeros((1, hidden, 2 * inter), BF16)
    l2 = np.zeros((1, inter, hidden), BF16)
    bias = np.zeros((1, hidden), np.float32)
    made = {
        "l1_weights is stacked: expected one tensor per expert (profile ascend_a2_a3)": dict(l1=l1, l2=l2),
        "l2_bias is given: expected none with type of l1_weights bfloat16 or int8 (profile ascend_a2_a3)": dict(
            l1=list(l1), l2=list(l2), l2_bias=list(bias)
        ),
        "weight1_interleave = 1: expected 0 (profile ascend_a2_a3)": dict(
            l1=list(l1), l2=list(l2), weight1_interleave=1
        ),
        "": dict(l1=list(l1), l2=list(l2)),
    }
    groups = megamoe.Group.local(2)

    def work(rank):
        texts = []
        sizes = dict(num_experts=2, num_max_tokens_per_rank=4, num_topk=1)
        sizes |= dict(hidden=hidden, intermediate_hidden=inter, profile="ascend_a2_a3", threads=1)
        with megamoe.get_symm_buffer_for_mega_moe(groups[rank], **sizes) as buffer:
            for weights in made.values():
                packed = megamoe.pack_weights(**weights)
                try:
                    megamoe.mega_moe(
                        np.zeros((1, hidden), BF16),
                        np.zeros((1, 1), np.int32),
                        np.ones((1, 1), np.float32),
                        *packed,
                        buffer,
                    )
                    texts.append("")
                except ValueError as error:
                    texts.append(str(error).removeprefix("rank 0: "))
        return texts

    for texts in in_threads(work, 2):
        assert texts == list(made)


def int4_words(layouts, pack=False, profile="ascend_a2_a3"):
    """Results of two ranks whose int4 weights are int32 words in a layout for each linear layer."""
    hidden, inter = 1024, 512
    rng = np.random.default_rng(62)
    words = [rng.integers(-(2**31), 2**31, shape, np.int64).astype(np.int32) for shape in ((hidden, 128), (inter, 128))]
    x = rng.standard_normal((2, hidden), np.float32).astype(BF16)
    beside = dict(
        l1_sf=[np.full(2 * inter, 0x3C000000, np.uint64)],
        l2_sf=[np.full(hidden, 0x3C000000, np.uint64)],
        l1_bias=[np.zeros(2 * inter, np.float32)],
        l2_bias=[np.zeros(hidden, np.float32)],
    )

    def given(matrix, layout):
        if layout == "ND":
            return [matrix]
        shape = (matrix.shape[0], 8 * matrix.shape[1])
        stored = megamoe.convert_layout(megamoe.int4_view(matrix), layout, x_dtype="int4")
        return [megamoe.FractalTensor(megamoe.int32_view(stored), shape, layout)]

    def work(rank):
        sizes = dict(num_experts=2, num_max_tokens_per_rank=4, num_topk=1, hidden=hidden, intermediate_hidden=inter)
        sizes |= dict(dispatch_quant_mode=2, dispatch_quant_out_dtype="int8", profile=profile, threads=1)
        with megamoe.get_symm_buffer_for_mega_moe(groups[rank], **sizes) as buffer:
            weights = [given(matrix, layout) for matrix, layout in zip(words, layouts)]
            more = {name.replace("_sf", "_weights_sf"): value for name, value in beside.items()}
            if pack:
                weights, more = megamoe.pack_weights(*weights, **beside, threads=1), {}
            router = np.ones((2, 1), np.float32)
            return megamoe.mega_moe(x, np.array([[0], [1]], np.int32), router, *weights, buffer, **more)[0]

    groups = megamoe.Group.local(2)
    return in_threads(work, 2)


@pytest.mark.parametrize("layouts", [("ND", "FRACTAL_NZ"), ("FRACTAL_NZ", "ND"), ("FRACTAL_NZ", "FRACTAL_NZ")])
@pytest.mark.parametrize("pack", [False, True])
def test_words_of_int4_are_int32_in_any_layout(layouts, pack):
    """A profile takes int32 words, row-major or in tiles, and both linear layers of one type."""
    for y, expected in zip(int4_words(layouts, pack), int4_words(("ND", "ND"))):
        assert not isinstance(y, Exception), y
        np.testing.assert_array_equal(bits(y), bits(expected))


@pytest.mark.parametrize("pack", [False, True])
def test_words_of_int4_in_narrow_tiles_are_int32_to_a_profile(pack):
    """Profile "cpu" takes them; another one says what its int32 words, not int4 elements, may be."""
    narrow = ("FRACTAL_NZ_C0_32", "FRACTAL_NZ_C0_32")
    for y, expected in zip(int4_words(narrow, pack, "cpu"), int4_words(("ND", "ND"))):
        np.testing.assert_array_equal(bits(y), bits(expected))
    for error in int4_words(narrow, pack):
        assert isinstance(error, ValueError), error
        expected = "has layout FRACTAL_NZ_C0_32: expected ND or FRACTAL_NZ with type of l1_weights int8 or int32"
        assert expected in str(error)
