"""Layouts of matrices and the two views of int4, for every element type of both frameworks."""

import ml_dtypes
import numpy as np
import pytest
import torch

import megamoe
from routing_inputs import bits

# Name -> (C0 of FRACTAL_NZ, NumPy type that carries it, elements per item of it).
TYPES = {
    "float32": (8, np.float32, 1),
    "int32": (8, np.int32, 1),
    "float16": (16, np.float16, 1),
    "bfloat16": (16, ml_dtypes.bfloat16, 1),
    "int8": (32, np.int8, 1),
    "uint8": (32, np.uint8, 1),
    "float8_e4m3fn": (32, ml_dtypes.float8_e4m3fn, 1),
    "float8_e5m2": (32, ml_dtypes.float8_e5m2, 1),
    "float8_e8m0": (32, ml_dtypes.float8_e8m0fnu, 1),
    "hifloat8": (32, np.uint8, 1),
    "float4_e2m1": (64, np.uint8, 2),
    "int4": (64, np.uint8, 2),
}
CASES = [(name, "FRACTAL_NZ") for name in TYPES] + [
    (name, "FRACTAL_NZ_C0_32") for name in ("float4_e2m1", "int4")
]


def to_torch(array, name):
    own = {"float8_e8m0": "float8_e8m0fnu", "float4_e2m1": "float4_e2m1fn_x2"}.get(name, name)
    if array.dtype.num < 256 and own not in ("float4_e2m1fn_x2",):
        return torch.from_numpy(np.ascontiguousarray(array))
    carrier = np.ascontiguousarray(array).view(np.int16 if array.itemsize == 2 else np.uint8)
    return torch.from_numpy(carrier).view(getattr(torch, own))


def tiles(matrix, c0):
    """The formula of the documents on one matrix, padded to whole tiles."""
    rows, columns = matrix.shape
    padded = np.zeros((-(-rows // 16) * 16, -(-columns // c0) * c0), matrix.dtype)
    padded[:rows, :columns] = matrix
    return padded.reshape(padded.shape[0] // 16, 16, padded.shape[1] // c0, c0).transpose(2, 0, 1, 3)


@pytest.mark.parametrize("name, layout", CASES)
@pytest.mark.parametrize("rows, columns", [(16, 128), (19, 70), (1, 2)])
def test_there_and_back(name, layout, rows, columns):
    c0, kind, per_item = TYPES[name]
    c0 = 32 if layout.endswith("C0_32") else c0
    stack = (2, 3)
    shape = (*stack, rows, columns // per_item)
    x = np.random.default_rng(0).integers(0, 256, (*shape[:-1], shape[-1] * np.dtype(kind).itemsize))
    x = x.astype(np.uint8).view(kind)
    wanted = np.stack(
        [tiles(matrix, c0 // per_item) for matrix in x.view(f"u{x.itemsize}").reshape(-1, *shape[2:])]
    )
    carried = {"x_dtype": name} if kind is np.uint8 and name != "uint8" else {}
    wide = np.zeros((2, 3, 2 * rows, shape[-1]), kind)
    wide[:, :, ::2] = x
    for given in (x, wide[:, :, ::2], to_torch(x, name)):
        own = carried if str(given.dtype).endswith("uint8") else {}
        stored = megamoe.convert_layout(given, layout, **own)
        assert type(stored) is type(given) and stored.dtype == given.dtype
        assert tuple(stored.shape) == (*stack, *wanted.shape[1:])
        np.testing.assert_array_equal(bits(stored).reshape(-1), wanted.view(np.uint8).reshape(-1))
        back = megamoe.convert_layout(stored, "ND", source=layout, shape=(rows, columns), **own)
        assert back.dtype == given.dtype and tuple(back.shape) == shape
        np.testing.assert_array_equal(bits(back).reshape(-1), bits(x).reshape(-1))
        # Without a shape come all rows and columns of the tiles, zeros where there was nothing.
        whole = megamoe.convert_layout(stored, "ND", source=layout, **own)
        assert whole.shape[-2] % 16 == 0 and whole.shape[-1] % (c0 // per_item) == 0
        np.testing.assert_array_equal(
            bits(whole).reshape(*stack, whole.shape[-2], -1)[:, :, rows:],
            0,
        )


def test_between_fractal_layouts_and_elements_of_a_byte_each():
    x = np.random.default_rng(1).integers(0, 16, (33, 70)).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    wide = megamoe.convert_layout(x, "FRACTAL_NZ")
    assert wide.dtype == x.dtype and wide.shape == (2, 3, 16, 64)
    narrow = megamoe.convert_layout(wide, "FRACTAL_NZ_C0_32", source="FRACTAL_NZ", shape=(33, 70))
    np.testing.assert_array_equal(bits(narrow), bits(megamoe.convert_layout(x, "FRACTAL_NZ_C0_32")))
    back = megamoe.convert_layout(narrow, "ND", source="FRACTAL_NZ_C0_32", shape=(33, 70))
    np.testing.assert_array_equal(bits(back), bits(x))


def test_storage_is_what_the_layer_takes():
    rng = np.random.default_rng(2)
    layer = dict(
        x=rng.standard_normal((5, 32), np.float32).astype(ml_dtypes.bfloat16),
        topk_ids=rng.integers(0, 3, (5, 2)).astype(np.int32),
        topk_weights=rng.random((5, 2), np.float32),
    )
    l1 = rng.standard_normal((3, 32, 48), np.float32).astype(ml_dtypes.bfloat16)
    l2 = rng.standard_normal((3, 24, 32), np.float32).astype(ml_dtypes.bfloat16)
    tiled = [
        megamoe.FractalTensor(megamoe.convert_layout(array, "FRACTAL_NZ"), array.shape) for array in (l1, l2)
    ]
    with megamoe.get_symm_buffer_for_mega_moe(None, 3, 8, 2, 32, 24, threads=1) as buffer:
        plain, _ = megamoe.mega_moe(l1_weights=l1, l2_weights=l2, sym_buffer=buffer, **layer)
        other, _ = megamoe.mega_moe(l1_weights=tiled[0], l2_weights=tiled[1], sym_buffer=buffer, **layer)
    np.testing.assert_array_equal(bits(plain), bits(other))


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_views_of_int4(convert):
    words = np.random.default_rng(3).integers(-(2**31), 2**31, (4, 6, 8), np.int64).astype(np.int32)
    nibbles = megamoe.int4_view(convert(words))
    assert tuple(nibbles.shape) == (4, 6, 32) and str(nibbles.dtype).endswith("uint8")
    values = megamoe.cast(nibbles, "int8", x_dtype="int4")
    shifts = np.arange(0, 32, 4)
    wanted = ((words[..., None].astype(np.int64) >> shifts & 15 ^ 8) - 8).reshape(4, 6, 64)
    np.testing.assert_array_equal(np.asarray(values), wanted)
    # The same memory both ways, also rows of a larger array.
    again = megamoe.int32_view(nibbles)
    assert str(again.dtype).endswith("int32")
    again[2, 3, 4] = 0
    assert words[2, 3, 4] == 0 and not np.asarray(nibbles)[2, 3, 16:20].any()
    part = convert(words)[1:3, ::2]
    np.testing.assert_array_equal(np.asarray(megamoe.int32_view(megamoe.int4_view(part))), words[1:3, ::2])
    # Fractal storage of words is that of their elements.
    stored = megamoe.convert_layout(convert(words[0].copy()), "FRACTAL_NZ")
    elements = megamoe.convert_layout(
        megamoe.int4_view(convert(words[0].copy())), "FRACTAL_NZ", x_dtype="int4"
    )
    np.testing.assert_array_equal(np.asarray(megamoe.int4_view(stored)), np.asarray(elements))


HALF = np.zeros((20, 40), np.float16)
STORED = np.zeros((3, 2, 16, 16), np.float16)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: megamoe.convert_layout([[1.0]], "ND"), TypeError, "x = list"),
        (lambda: megamoe.convert_layout(HALF, "NZ"), ValueError, "layout NZ"),
        (lambda: megamoe.convert_layout(HALF, "FRACTAL_NZ_C0_32"), ValueError, "defined for float16"),
        (lambda: megamoe.convert_layout(HALF[0], "FRACTAL_NZ"), ValueError, r"x has shape \(40,\)"),
        (lambda: megamoe.convert_layout(HALF, "ND", shape=(20, 40)), ValueError, r"shape = \(20, 40\)"),
        (lambda: megamoe.convert_layout(HALF, "ND", source="FRACTAL_NZ"), ValueError, "x has shape"),
        (
            lambda: megamoe.convert_layout(STORED, "ND", source="FRACTAL_NZ", shape=(33, 40)),
            ValueError,
            "x has 3072 bytes: expected 4608",
        ),
        (
            lambda: megamoe.convert_layout(STORED, "ND", source="FRACTAL_NZ", shape=(20,)),
            ValueError,
            "expected rows and columns",
        ),
        (
            lambda: megamoe.convert_layout(STORED[:, ::2].repeat(2, 1)[:, ::2], "ND", source="FRACTAL_NZ"),
            ValueError,
            "x = array with gaps",
        ),
        (
            lambda: megamoe.convert_layout(np.zeros((4, 4), np.float64), "FRACTAL_NZ"),
            TypeError,
            "x = float64",
        ),
        (
            lambda: megamoe.convert_layout(HALF, "FRACTAL_NZ", x_dtype="int4"),
            TypeError,
            "x_dtype = int4: expected float16",
        ),
        (lambda: megamoe.int4_view(HALF), TypeError, "words = float16: expected int32"),
        (lambda: megamoe.int4_view(np.zeros((2, 4), np.int32)[:, ::2]), ValueError, "without gaps"),
        (lambda: megamoe.int32_view(np.zeros((2, 6), np.uint8)), ValueError, "whole words"),
        (lambda: megamoe.int32_view(torch.zeros(2, 6, dtype=torch.uint8)), ValueError, "whole words"),
        (lambda: megamoe.int32_view([1]), TypeError, "nibbles = list"),
    ],
)
def test_wrong_arguments(call, error, text):
    with pytest.raises(error, match=text) as caught:
        call()
    assert isinstance(caught.value.code, megamoe.Code)
