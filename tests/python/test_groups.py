"""Ranks in threads of one process: the same bits as one rank, errors on every rank, buffers that end."""

import gc
import os
import threading

import numpy as np
import pytest

import megamoe
from layers import Layer, bits
from ranks import in_threads


def run_local(layer, ranks, change=lambda rank, call: call, **settings):
    """One call on `ranks` thread ranks; (y, counts) or the exception of each."""
    groups = megamoe.Group.local(ranks)

    def work(rank):
        with layer.buffer(groups[rank], **settings) as buffer:
            assert (buffer.rank_id, buffer.ep_world_size) == (rank, ranks)
            return megamoe.mega_moe(sym_buffer=buffer, **change(rank, layer.call(rank, ranks)))

    return in_threads(work, ranks)


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_same_bits_as_one_rank(ranks, int8):
    layer = Layer(23, 96, 40, 8, 3, int8=int8, seed=50)
    y, counts = layer.run()
    results = run_local(layer, ranks)
    np.testing.assert_array_equal(np.concatenate([bits(part) for part, _ in results]), bits(y))
    np.testing.assert_array_equal(np.concatenate([part for _, part in results]), counts)


def test_ranks_without_tokens():
    layer = Layer(3, 64, 32, 8, 2, int8=False, seed=51)
    y, counts = layer.run()
    results = run_local(layer, 4)
    np.testing.assert_array_equal(np.concatenate([bits(part) for part, _ in results]), bits(y))
    np.testing.assert_array_equal(np.concatenate([part for _, part in results]), counts)


@pytest.mark.parametrize("ranks, owned", [(3, [2, 2, 1]), (4, [2, 2, 1, 0])])
def test_uneven_experts(ranks, owned):
    layer = Layer(9, 64, 32, 5, 2, int8=False, seed=53)
    y, counts = layer.run()

    def as_lists(rank, call):
        return call | {name: list(call[name]) for name in ("l1_weights", "l2_weights")}

    results = run_local(layer, ranks, as_lists)
    assert [len(part) for _, part in results] == owned
    np.testing.assert_array_equal(np.concatenate([bits(part) for part, _ in results]), bits(y))
    np.testing.assert_array_equal(np.concatenate([part for _, part in results]), counts)


def wrong_ids(call):
    ids = np.array(call["topk_ids"])
    ids[0, 0] = 99
    return call | {"topk_ids": ids}


@pytest.mark.parametrize(
    "change, kind, text",
    [
        (wrong_ids, ValueError, "topk_ids[0][0] = 99"),
        (lambda call: call | {"x": call["x"].view(np.uint16)}, TypeError, "x = uint16"),
        (lambda call: call | {"l1_weights": call["l1_weights"][:, :, :-2]}, ValueError, "l1_weights"),
        (lambda call: call | {"activation": "relu"}, ValueError, "relu"),
        (lambda call: call | {"l2_bias": [1]}, TypeError, "l2_bias"),
    ],
    ids=["ids", "type", "plan", "activation", "bias"],
)
def test_error_of_one_rank_is_that_of_all(change, kind, text):
    """Also one found before the call proper, such as a plan that cannot be made; then the next call works."""
    layer = Layer(8, 64, 32, 4, 2, int8=False, seed=52)
    expected = bits(layer.run()[0])
    groups = megamoe.Group.local(2)

    def work(rank):
        with layer.buffer(groups[rank], deadline=30) as buffer:
            call = layer.call(rank, 2)
            try:
                megamoe.mega_moe(sym_buffer=buffer, **(change(call) if rank == 1 else call))
                first = None
            except Exception as error:
                first = error
            return first, bits(megamoe.mega_moe(sym_buffer=buffer, **call)[0])

    results = in_threads(work, 2)
    for error, _ in results:
        assert isinstance(error, kind) and text in str(error), error
    assert str(results[0][0]) == str(results[1][0])
    np.testing.assert_array_equal(np.concatenate([y for _, y in results]), expected)


def test_settings_that_differ():
    layer = Layer(8, 64, 32, 4, 2, int8=False)
    groups = megamoe.Group.local(2)
    errors = in_threads(
        lambda rank: layer.buffer(groups[rank], num_max_tokens_per_rank=16 + rank, deadline=30), 2
    )
    for error in errors:
        assert isinstance(error, ValueError) and error.code == megamoe.Code.SETTINGS_DIFFER
        assert "num_max_tokens_per_rank" in str(error) and "16" in str(error) and "17" in str(error)
    assert str(errors[0]) == str(errors[1])


@pytest.mark.parametrize(
    "change, kind, text",
    [
        ({"num_topk": "2"}, TypeError, "rank 1: num_topk = '2': expected an integer"),
        ({"isa": "sse9"}, ValueError, "rank 1: isa = sse9: expected one of"),
        ({"deadline": "soon"}, TypeError, "rank 1: deadline = 'soon': expected a number"),
        ({"hidden": 0}, ValueError, "rank 1: hidden = 0: expected a value in [1, 16777216] (profile cpu)"),
    ],
    ids=lambda item: next(iter(item)) if isinstance(item, dict) else "",
)
def test_buffer_that_one_rank_cannot_make(change, kind, text):
    """Every rank gets the error at once, whoever found it: nobody waits for its deadline."""
    layer = Layer(8, 64, 32, 4, 2, int8=False)
    groups = megamoe.Group.local(2)
    settings = dict(deadline=3600)
    errors = in_threads(
        lambda rank: layer.buffer(groups[rank], **(settings | (change if rank == 1 else {}))), 2
    )
    for error in errors:
        assert isinstance(error, kind) and text in str(error), error
    assert str(errors[0]) == str(errors[1]) and errors[0].code == errors[1].code


def test_activations_that_differ():
    layer = Layer(8, 64, 32, 4, 2, int8=False, seed=53)
    groups = megamoe.Group.local(2)

    def work(rank):
        with layer.buffer(groups[rank], deadline=30) as buffer:
            name = "swiglu" if rank == 0 else "swiglustep"
            megamoe.mega_moe(sym_buffer=buffer, **layer.call(rank, 2, activation=name))

    for error in in_threads(work, 2):
        assert isinstance(error, ValueError) and error.code == megamoe.Code.SETTINGS_DIFFER
        assert "activation = swiglu on rank 0; swiglustep on rank 1" in str(error)


def test_profile():
    layer = Layer(4, 64, 32, 4, 2, int8=False)
    text = r"ep_world_size = 1: expected a value in \[2, 1024\] \(profile ascend_950\)"
    with pytest.raises(ValueError, match=text):
        layer.buffer(profile="ascend_950")


def test_rank_that_does_not_come():
    groups = megamoe.Group.local(2)
    layer = Layer(8, 64, 32, 4, 2, int8=False)
    with pytest.raises(megamoe.DeadlineError) as caught:
        layer.buffer(groups[0], deadline=0.3)
    assert "1" in str(caught.value) and caught.value.code == megamoe.Code.TIMED_OUT


def test_rank_that_left():
    layer = Layer(8, 64, 32, 4, 2, int8=False)
    groups = megamoe.Group.local(2)

    def work(rank):
        buffer = layer.buffer(groups[rank], deadline=30)
        if rank == 1:
            buffer.destroy()
            return None
        return megamoe.mega_moe(sym_buffer=buffer, **layer.call(rank, 2))

    error, _ = in_threads(work, 2)
    assert isinstance(error, RuntimeError) and error.code == megamoe.Code.PEER_FAILED


def test_one_call_at_a_time():
    """A second call on a buffer that is in a call is refused at once, and does not disturb the first."""
    layer = Layer(8, 64, 32, 4, 2, int8=False, seed=54)
    groups = megamoe.Group.local(2)
    ready = threading.Barrier(3)
    refused = threading.Event()
    buffers = {}

    def work(rank):
        with layer.buffer(groups[rank], deadline=30) as buffer:
            buffers[rank] = buffer
            ready.wait(10)
            if rank == 1:
                refused.wait(10)
            return bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call(rank, 2))[0])

    def main(_):
        ready.wait(10)
        while not buffers[0]._in_use.locked():
            threading.Event().wait(0.01)
        errors = []
        for attempt in (
            lambda: megamoe.mega_moe(sym_buffer=buffers[0], **layer.call(0, 2)),
            lambda: buffers[0].destroy(),
        ):
            try:
                attempt()
            except Exception as error:
                errors.append(error)
        refused.set()
        return errors

    *parts, errors = in_threads(lambda index: (work if index < 2 else main)(index), 3)
    assert [(type(error), "one call at a time" in str(error)) for error in errors] == [(ValueError, True)] * 2
    np.testing.assert_array_equal(np.concatenate(parts), bits(layer.run()[0]))


def test_several_buffers_on_one_group():
    layers = [Layer(8, 64, 32, 4, 2, int8=int8, seed=55) for int8 in (False, True)]
    expected = [bits(layer.run()[0]) for layer in layers]
    groups = megamoe.Group.local(2)

    def work(rank):
        with layers[0].buffer(groups[rank]) as first, layers[1].buffer(groups[rank]) as second:
            return [
                bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call(rank, 2))[0])
                for _ in range(3)
                for layer, buffer in zip(layers, (first, second))
            ]

    results = in_threads(work, 2)
    for index, parts in enumerate(zip(*results)):
        np.testing.assert_array_equal(np.concatenate(parts), expected[index % 2])


def test_nothing_is_left_behind():
    """Buffers, used or not, destroyed or dropped, leave no file descriptors, threads or mappings."""
    layer = Layer(4, 64, 32, 4, 2, int8=False)

    def resources():
        gc.collect()
        with open("/proc/self/maps", encoding="ascii") as maps:
            shared = sum("memfd" in line for line in maps)
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), shared

    def once():
        groups = megamoe.Group.local(2)
        in_threads(
            lambda rank: megamoe.mega_moe(
                sym_buffer=layer.buffer(groups[rank], threads=2), **layer.call(rank, 2)
            ),
            2,
        )
        layer.buffer(threads=2).destroy()

    once()
    before = resources()
    for _ in range(20):
        once()
    assert resources() == before


def test_destroy_twice_and_use_afterwards():
    layer = Layer(4, 64, 32, 4, 2, int8=False)
    buffer = layer.buffer()
    buffer.destroy()
    buffer.destroy()
    with pytest.raises(RuntimeError) as caught:
        megamoe.mega_moe(sym_buffer=buffer, **layer.call())
    assert caught.value.code == megamoe.Code.CLOSED


def test_attributes():
    layer = Layer(4, 64, 32, 4, 2, int8=True)
    with layer.buffer(max_recv_token_num=6, dispatch_quant_out_dtype=1, trace=True) as buffer:
        for name, value in layer.settings(max_recv_token_num=6, dispatch_quant_out_dtype=1).items():
            assert getattr(buffer, name) == value, name
        assert (buffer.combine_quant_mode, buffer.comm_alg, buffer.topk_weights_type) == (0, "", 0)
        assert (buffer.topo_type, buffer.rank_num_per_server, buffer.combine_comm_mode) == (0, 2, 0)
        assert (buffer.rank_id, buffer.ep_world_size, buffer.group_name) == (0, 1, "self")
        assert buffer.experts_per_rank == 4 and buffer.capacity == 6 and buffer.context is not None
        assert buffer.describe() == "" and buffer.trace_spans() == []
        megamoe.mega_moe(sym_buffer=buffer, **layer.call(topk_ids=np.where(layer.ids > 0, -1, layer.ids)))
        assert "A8W8-INT" in buffer.describe()
        spans = buffer.trace_spans()
        assert spans and all(span.begin_ns <= span.end_ns for span in spans)


def test_calls_release_the_interpreter_lock():
    """While one rank waits in a call, another thread of the process runs Python code and lets it go on."""
    layer = Layer(4, 64, 32, 4, 2, int8=False)
    groups = megamoe.Group.local(2)
    waiting = threading.Event()

    def work(rank):
        with layer.buffer(groups[rank], deadline=30) as buffer:
            if rank == 0:
                waiting.set()
            else:
                waiting.wait(10)
                sum(range(10**6))
            return megamoe.mega_moe(sym_buffer=buffer, **layer.call(rank, 2))

    for result in in_threads(work, 2):
        assert not isinstance(result, Exception), result
