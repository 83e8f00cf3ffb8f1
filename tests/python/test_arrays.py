"""What kinds of arrays are taken: frameworks, strides, element types, packed and raw weights, updates."""

import gc
import weakref

import numpy as np
import pytest
import torch

import megamoe
from layers import BF16, Layer, bits, to_torch


@pytest.fixture(params=[False, True], ids=["bf16", "int8"])
def layer(request):
    return Layer(11, 96, 40, 4, 3, int8=request.param, seed=20)


@pytest.fixture
def buffer(layer):
    with layer.buffer() as made:
        yield made


def spread(array, axis):
    """The same values with every second element along `axis` of a larger array."""
    shape = list(array.shape)
    shape[axis] *= 2
    wide = np.zeros(shape, array.dtype)
    index = [slice(None)] * array.ndim
    index[axis] = slice(None, None, 2)
    wide[tuple(index)] = array
    return wide[tuple(index)]


def test_torch_and_numpy_give_the_same_bits(layer, buffer):
    y, counts = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    torch_y, torch_counts = megamoe.mega_moe(
        sym_buffer=buffer, **{name: to_torch(value) for name, value in layer.call().items()}
    )
    assert torch_y.dtype == torch.bfloat16 and torch_counts.dtype == torch.int32
    assert tuple(torch_y.shape) == y.shape and torch_y.is_contiguous()
    np.testing.assert_array_equal(bits(torch_y), bits(y))
    np.testing.assert_array_equal(bits(torch_counts), counts)


def test_frameworks_may_be_mixed(layer, buffer):
    y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    mixed, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call(x=to_torch(layer.x)))
    assert isinstance(mixed, torch.Tensor)
    np.testing.assert_array_equal(bits(mixed), bits(y))


@pytest.mark.parametrize(
    "name, axis",
    [
        ("x", 0),
        ("x", 1),
        ("topk_ids", 1),
        ("topk_weights", 0),
        ("topk_weights", 1),
        ("l1_weights", 0),
        ("l1_weights", 1),
        ("l1_weights", 2),
        ("l2_weights", 1),
        ("l2_weights", 2),
    ],
)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_strided(layer, buffer, name, axis, framework):
    y, counts = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    arguments = layer.call()
    arguments[name] = spread(arguments[name], axis)
    if framework == "torch":
        arguments = {key: to_torch(value) for key, value in arguments.items()}
        assert not arguments[name].is_contiguous()
    strided, strided_counts = megamoe.mega_moe(sym_buffer=buffer, **arguments)
    np.testing.assert_array_equal(bits(strided), bits(y))
    np.testing.assert_array_equal(bits(strided_counts), counts)


def test_transposed_weights(layer, buffer):
    y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    stored = {
        name: np.ascontiguousarray(getattr(layer, name[:2]).transpose(0, 2, 1))
        for name in ("l1_weights", "l2_weights")
    }
    views = {name: array.transpose(0, 2, 1) for name, array in stored.items()}
    np.testing.assert_array_equal(
        bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call(**views))[0]), bits(y)
    )
    packed = megamoe.pack_weights(
        stored["l1_weights"],
        stored["l2_weights"],
        l1_sf=layer.sf1,
        l2_sf=layer.sf2,
        transposed=True,
        threads=1,
    )
    call = layer.call(l1_weights=packed.l1, l2_weights=packed.l2)
    call.pop("l1_weights_sf", None), call.pop("l2_weights_sf", None)
    np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **call)[0]), bits(y))


def test_negative_strides_and_read_only(layer, buffer):
    y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    back = {
        name: np.ascontiguousarray(layer.call()[name][::-1])[::-1]
        for name in ("x", "topk_ids", "topk_weights")
    }
    for array in back.values():
        assert array.strides[0] < 0
        array.flags.writeable = False
    np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call(**back))[0]), bits(y))


def test_list_of_weights(layer, buffer):
    y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    call = layer.call()
    lists = {name: list(value) for name, value in call.items() if name.startswith(("l1", "l2"))}
    np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **call | lists)[0]), bits(y))


def test_packed_weights(layer, buffer):
    y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    packed = megamoe.pack_weights(layer.l1, layer.l2, l1_sf=layer.sf1, l2_sf=layer.sf2, threads=1)
    assert (packed.l1.experts, packed.l1.k, packed.l1.n) == layer.l1.shape
    assert (packed.l2.experts, packed.l2.k, packed.l2.n) == layer.l2.shape
    assert packed.l1.dtype == ("int8" if layer.int8 else "bfloat16")
    assert packed.l1.nbytes >= layer.l1.nbytes
    none = dict(l1_weights_sf=None, l2_weights_sf=None)
    call = layer.call(l1_weights=packed.l1, l2_weights=packed.l2, **none)
    np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **call)[0]), bits(y))


def test_ids_and_router_weights_of_other_types(layer, buffer):
    layer.router = layer.router.astype(BF16).astype(np.float32)
    y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    other = layer.call(topk_ids=layer.ids.astype(np.int64), topk_weights=layer.router.astype(BF16))
    np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **other)[0]), bits(y))


@pytest.mark.parametrize("kind", [np.uint64, np.int64])
def test_scales_as_bits(kind):
    layer = Layer(5, 64, 32, 2, 2, int8=True, seed=21)
    y, _ = layer.run()
    wide = {
        "l1_weights_sf": layer.sf1.view(np.uint32).astype(kind),
        "l2_weights_sf": layer.sf2.view(np.uint32).astype(kind),
    }
    np.testing.assert_array_equal(bits(layer.run(**wide)[0]), bits(y))
    as_torch = {name: to_torch(value) for name, value in layer.call(**wide).items()}
    np.testing.assert_array_equal(bits(layer.run(**as_torch)[0]), bits(y))


def test_raw_weights_may_change_in_place(layer, buffer):
    megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    for array in (layer.l1, layer.l2, layer.sf1, layer.sf2):
        if array is not None:
            array[:] = np.roll(array, 1, axis=0)
    changed, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    np.testing.assert_array_equal(bits(changed), bits(layer.run()[0]))


def test_plans_keep_their_weights_and_are_bounded(layer, buffer):
    """Weights at a recycled address must not meet the plan of weights that are gone."""
    held = []
    for seed in range(60):
        fresh = Layer(3, 96, 40, 4, 3, int8=layer.int8, seed=seed)
        held.append(weakref.ref(fresh.l1))
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **fresh.call(l1_weights=fresh.l1))
        if seed % 20 == 0:
            np.testing.assert_array_equal(bits(y), bits(fresh.run()[0]))
        del fresh
    gc.collect()
    assert 0 < len(buffer.plans) <= 8
    buffer.destroy()
    gc.collect()
    assert not any(ref() is not None for ref in held)


def test_packed_weights_that_are_gone(layer, buffer):
    """The same for packed weights, whose objects Python makes at recycled addresses."""
    for seed in range(12):
        fresh = Layer(3, 96, 40, 4, 3, int8=layer.int8, seed=seed)
        packed = megamoe.pack_weights(fresh.l1, fresh.l2, l1_sf=fresh.sf1, l2_sf=fresh.sf2, threads=1)
        call = fresh.call(l1_weights=packed.l1, l2_weights=packed.l2, l1_weights_sf=None, l2_weights_sf=None)
        del packed
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **call)
        np.testing.assert_array_equal(bits(y), bits(fresh.run()[0]))
        del call


def test_no_tokens_in_torch(layer, buffer):
    call = layer.call(x=layer.x[:0], topk_ids=layer.ids[:0], topk_weights=layer.router[:0])
    y, counts = megamoe.mega_moe(sym_buffer=buffer, **{name: to_torch(value) for name, value in call.items()})
    assert tuple(y.shape) == (0, 96) and y.dtype == torch.bfloat16 and counts.tolist() == [0] * 4


def test_mask_in_torch(layer, buffer):
    mask = np.arange(11) % 3 > 0
    y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call(x_active_mask=mask))
    same, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call(x_active_mask=torch.from_numpy(mask)))
    np.testing.assert_array_equal(bits(y), bits(same))


def test_layers_share_a_buffer(layer, buffer):
    layers = [Layer(11, 96, 40, 4, 3, int8=layer.int8, seed=seed) for seed in (30, 31, 32)]
    alone = [bits(item.run()[0]) for item in layers]
    for _ in range(3):
        for item, expected in zip(layers, alone):
            np.testing.assert_array_equal(
                bits(megamoe.mega_moe(sym_buffer=buffer, **item.call())[0]), expected
            )


def test_gradients_do_not_flow(layer, buffer):
    x = to_torch(layer.x).requires_grad_()
    y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call(x=x))
    assert not y.requires_grad
    np.testing.assert_array_equal(bits(y), bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call())[0]))


def test_inference_tensors(layer, buffer):
    with torch.inference_mode():
        x = to_torch(layer.x).clone()
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call(x=x))
    np.testing.assert_array_equal(bits(y), bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call())[0]))
