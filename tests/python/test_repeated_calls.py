"""Calls that state what an earlier one stated: read in place, with the same results, checks and errors."""

import copy
import gc
import sys

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import megamoe
from layers import BF16, Layer, bits, to_torch
from megamoe import plans as plans_module
from megamoe import tensors

READS_TENSORS = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


@pytest.fixture(params=[False, True], ids=["bf16", "int8"])
def layer(request):
    return Layer(11, 96, 40, 4, 3, int8=request.param, seed=30)


def packed_call(layer, convert=lambda array: array, **changes):
    packed = megamoe.pack_weights(layer.l1, layer.l2, l1_sf=layer.sf1, l2_sf=layer.sf2, threads=1)
    arrays = {
        "x": convert(layer.x),
        "topk_ids": convert(layer.ids),
        "topk_weights": convert(layer.router),
    }
    return arrays | {"l1_weights": packed.l1, "l2_weights": packed.l2} | changes


@pytest.fixture
def only_repeats(monkeypatch):
    """From its call on a call that is not a repetition fails."""

    def start():
        def read(name, *_):
            raise AssertionError(f"{name} was read anew")

        monkeypatch.setattr(tensors, "read", read)

    return start


@pytest.mark.parametrize("convert", [lambda array: array, to_torch], ids=["numpy", "torch"])
def test_a_repetition_is_read_in_place_and_gives_the_same(layer, convert, only_repeats):
    if convert is to_torch and not READS_TENSORS:
        pytest.skip("this torch has no exchange table")
    mask = np.array([1, 0] * 5 + [1], np.int8)
    with layer.buffer() as buffer:
        call = packed_call(layer, convert)
        y, counts = megamoe.mega_moe(sym_buffer=buffer, **call)
        masked, _ = megamoe.mega_moe(sym_buffer=buffer, **call, x_active_mask=convert(mask))
        with layer.buffer() as other:
            wide = megamoe.mega_moe(sym_buffer=other, **call | {"topk_ids": convert(layer.ids.astype(np.int64))})
        only_repeats()
        again, counts_again = megamoe.mega_moe(sym_buffer=buffer, **call)
        for result, repeated in ((y, again), (counts, counts_again)):
            assert type(repeated) is type(result) and repeated.dtype == result.dtype
            np.testing.assert_array_equal(bits(repeated), bits(result))
        kept = bits(again).copy()
        for of_mask in (mask, mask.astype(bool)):
            repeated, _ = megamoe.mega_moe(sym_buffer=buffer, **call, x_active_mask=convert(of_mask))
            np.testing.assert_array_equal(bits(repeated), bits(masked))
        np.testing.assert_array_equal(bits(again), kept)  # every call has memory of its own
        changed = call | {"topk_ids": convert(layer.ids.astype(np.int64)), "activation": str("swi" + "glu")}
        np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **changed)[0]), bits(wide[0]))
        assert buffer.describe()


def test_other_tokens_through_a_repetition(layer):
    """What only the tokens decide: their number, type, strides and framework."""
    wide = np.zeros((11, 192), BF16)
    wide[:, ::2] = layer.x
    halves = layer.x.astype(np.float16)
    given = [
        dict(x=layer.x[:4], topk_ids=layer.ids[:4], topk_weights=layer.router[:4]),
        dict(x=layer.x[:0], topk_ids=layer.ids[:0], topk_weights=layer.router[:0]),
        dict(x=wide[:, ::2]),
        dict(x=to_torch(wide)[:, ::2]),
        dict(x=to_torch(layer.x).t().contiguous().t()),
        dict(x=halves),
        dict(x=torch.from_numpy(halves), topk_weights=layer.router.astype(BF16)),
        dict(x=to_torch(layer.x).requires_grad_()),
        dict(x=torch.nn.Parameter(to_torch(layer.x))),
        dict(x=torch._neg_view(to_torch(layer.x))),
        dict(topk_ids=np.asfortranarray(layer.ids), topk_weights=layer.router.astype(BF16)),
        dict(x=layer.x.byteswap().view(layer.x.dtype)),
    ]
    with layer.buffer() as buffer:
        call = packed_call(layer)
        megamoe.mega_moe(sym_buffer=buffer, **call)
        for changes in given:
            with layer.buffer() as fresh:
                expected = megamoe.mega_moe(sym_buffer=fresh, **call | changes)
            results = megamoe.mega_moe(sym_buffer=buffer, **call | changes)
            for result, judge in zip(results, expected):
                assert type(result) is type(judge) and result.dtype == judge.dtype
                assert tuple(result.shape) == tuple(judge.shape)
                if isinstance(result, torch.Tensor):
                    assert result.is_contiguous() and not result.requires_grad
                np.testing.assert_array_equal(bits(result), bits(judge))


def text_of(buffer, call):
    with pytest.raises((TypeError, ValueError)) as caught:
        megamoe.mega_moe(sym_buffer=buffer, **call)
    return type(caught.value), str(caught.value), caught.value.code


def test_errors_are_those_of_a_first_call(layer):
    ids = layer.ids.copy()
    ids[3, 1] = 9
    swapped = layer.x.view(np.uint16).byteswap().view(np.uint16)
    wrong = [
        dict(x=layer.x[:, :8]),
        dict(x=layer.x[0]),
        dict(x=layer.x.astype(np.float32)),
        dict(x=torch.from_numpy(layer.x.astype(np.float32))),
        dict(x=swapped),
        dict(x=None),
        dict(x=to_torch(layer.x).to("meta")),
        dict(x=to_torch(layer.x).to_sparse()),
        dict(topk_ids=ids),
        dict(topk_ids=layer.ids.astype(np.uint32)),
        dict(topk_ids=layer.ids.astype(">i4")),
        dict(topk_ids=layer.ids[:5]),
        dict(topk_weights=layer.router.astype(np.float64)),
        dict(x_active_mask=np.ones(11, np.uint8)),
        dict(x_active_mask=torch.ones(11, dtype=torch.uint8)),
        dict(x_active_mask=np.ones(7, bool)),
        dict(x=np.repeat(layer.x, 2, 0)),
        dict(transpose_weight1=0),
        dict(weight1_interleave=False),
        dict(activation_clamp="1"),
        dict(l1_bias=layer.router),
    ]
    with layer.buffer() as buffer:
        call = packed_call(layer)
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **call)
        for changes in wrong:
            with layer.buffer() as fresh:
                expected = text_of(fresh, call | changes)
            assert text_of(buffer, call | changes) == expected
            np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **call)[0]), bits(y))


def test_other_settings_are_another_plan(layer, only_repeats):
    settings = [
        {},
        {"activation_clamp": 0.5},
        {"activation_clamp": 0.25},
        {"activation": "swigluoai", "activation_params": {"alpha": 1.5, "beta": 1.0}},
        {"activation": "swigluoai", "activation_params": {"alpha": 2.5, "beta": 1.0}},
        {"activation": "swigluoai", "activation_params": {"alpha": 2.5}},
    ]
    with layer.buffer() as buffer:
        call = packed_call(layer)
        first = [bits(megamoe.mega_moe(sym_buffer=buffer, **call, **each)[0]) for each in settings]
        assert not np.array_equal(first[1], first[2]) and not np.array_equal(first[3], first[4])
        only_repeats()
        for each, judge in reversed(list(zip(settings, first))):
            np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **call, **each)[0]), judge)


def test_a_dictionary_may_change(layer):
    params = {"alpha": 1.5}
    with layer.buffer() as buffer:
        call = packed_call(layer, activation="swigluoai", activation_params=params)
        first = bits(megamoe.mega_moe(sym_buffer=buffer, **call)[0])
        params["alpha"] = 2.5
        assert not np.array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **call)[0]), first)
        params["alpha"] = 1.5
        np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **call)[0]), first)
        params["alpha"] = True
        assert "activation_params" in text_of(buffer, call)[1]


def test_the_plan_made_first_goes(layer, monkeypatch, only_repeats):
    monkeypatch.setattr(plans_module, "_MOST", 2)
    with layer.buffer() as buffer:
        calls = [packed_call(layer) for _ in range(3)]
        for call in calls:
            y, _ = megamoe.mega_moe(sym_buffer=buffer, **call)
        assert len(buffer.plans) == 2
        only_repeats()
        for i in (1, 2):
            np.testing.assert_array_equal(bits(y), bits(megamoe.mega_moe(sym_buffer=buffer, **calls[i])[0]))
        with pytest.raises(RuntimeError, match="read anew"):
            megamoe.mega_moe(sym_buffer=buffer, **calls[0])


def test_more_layers_in_turn_than_a_model_has(layer, only_repeats):
    with layer.buffer() as buffer:
        call = packed_call(layer)
        clamps = [1 + i / 64 for i in range(300)]
        for clamp in clamps:
            megamoe.mega_moe(sym_buffer=buffer, **call, activation_clamp=clamp)
        only_repeats()
        for clamp in clamps:
            megamoe.mega_moe(sym_buffer=buffer, **call, activation_clamp=clamp)


def test_plans_of_packed_weights_go_with_them(layer):
    with layer.buffer() as buffer:
        call = packed_call(layer)
        gone = packed_call(layer)
        memory = gone["l2_weights"].native
        for clamp in (1.0, 2.0):
            megamoe.mega_moe(sym_buffer=buffer, **call, activation_clamp=clamp)
            y, _ = megamoe.mega_moe(sym_buffer=buffer, **gone, activation_clamp=clamp)
        described = buffer.describe()
        assert len(buffer.plans) == 4 and described
        del gone["l2_weights"]
        gc.collect()
        assert len(buffer.plans) == 2 and buffer.describe() == described
        assert sys.getrefcount(memory) == 2  # this name and the argument
        np.testing.assert_array_equal(
            bits(y), bits(megamoe.mega_moe(sym_buffer=buffer, **call, activation_clamp=2.0)[0])
        )


def test_weights_that_are_gone_are_not_none(layer):
    """A copy is the same weights to a plan, but another object."""
    with layer.buffer() as buffer:
        call, own = packed_call(layer), packed_call(layer)
        with layer.buffer() as other:
            y, _ = megamoe.mega_moe(sym_buffer=other, **call)
        shared = {f"shared_{name}": own[name] for name in ("l1_weights", "l2_weights")}
        copies = {name: copy.copy(value) for name, value in shared.items()}
        for extra in (shared, copies):
            both, _ = megamoe.mega_moe(sym_buffer=buffer, **call, **extra)
        assert (bits(y) != bits(both)).any()
        del extra, copies
        gc.collect()
        np.testing.assert_array_equal(bits(y), bits(megamoe.mega_moe(sym_buffer=buffer, **call)[0]))


def test_what_is_stated_again_stays_known(layer):
    """Not the call that was first goes when there are too many, but the one that was not made for longest."""
    with layer.buffer() as buffer:
        call = packed_call(layer)
        megamoe.mega_moe(sym_buffer=buffer, **call)
        planned = buffer.plans._last
        known = plans_module._core.KnownPlans(2)
        known.add(("first",), planned)
        known.add(("second",), planned)
        assert known.find(("first",)) is planned
        known.add(("third",), planned)
        assert known.find(("first",)) is planned and known.find(("third",)) is planned
        assert known.find(("second",)) is None


def test_a_destroyed_buffer_repeats_nothing(layer):
    buffer = layer.buffer()
    call = packed_call(layer)
    megamoe.mega_moe(sym_buffer=buffer, **call)
    buffer.destroy()
    with pytest.raises(RuntimeError, match="destroyed"):
        megamoe.mega_moe(sym_buffer=buffer, **call)


def test_calls_with_other_arrays_displace_no_plan(layer, monkeypatch, only_repeats):
    monkeypatch.setattr(plans_module, "_MOST", 2)
    with layer.buffer() as buffer:
        plain, other = packed_call(layer), packed_call(layer)
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **plain)
        for _ in range(3):
            megamoe.mega_moe(sym_buffer=buffer, **other | {"x": torch.nn.Parameter(to_torch(layer.x))})
        only_repeats()
        np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **plain)[0]), bits(y))


def test_the_default_device_of_torch_is_not_that_of_results(layer):
    with layer.buffer() as buffer, torch.device("meta"):
        call = packed_call(layer, to_torch)
        for _ in range(2):
            for result in megamoe.mega_moe(sym_buffer=buffer, **call):
                assert result.device.type == "cpu"


@pytest.mark.skipif(not READS_TENSORS, reason="this torch has no exchange table")
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_mode_of_torch_ends_with_its_calls(only_repeats):
    """Counts of a number of experts that no call before had, made first where torch makes tensors of another type."""
    layer = Layer(3, 96, 40, 13, 2, int8=False)
    with layer.buffer() as buffer:
        call = packed_call(layer, to_torch)
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **call | {"x": layer.x})
        with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises((RuntimeError, ValueError)):
            megamoe.mega_moe(sym_buffer=buffer, **call)
        only_repeats()
        np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **call)[0]), bits(y))
