"""Ranks in processes, torch.distributed groups, fork, and the end of the interpreter."""

import os
import signal
import subprocess
import sys
import time
import uuid

import numpy as np
import pytest

import megamoe
from layers import Layer, bits
from ranks import in_processes

FORK_LIMIT_S = 30


def make_layer(int8):
    return Layer(19, 96, 40, 4, 3, int8=int8, seed=60)


def shm_rank(rank, key, int8):
    layer = make_layer(int8)
    group = megamoe.Group.shm(key, rank, 2)
    with layer.buffer(group) as buffer, layer.buffer(group) as other:
        assert buffer.group_name == "shm"
        for _ in range(3):
            y, counts = megamoe.mega_moe(sym_buffer=buffer, **layer.call(rank, 2))
            again, _ = megamoe.mega_moe(sym_buffer=other, **layer.call(rank, 2))
            assert np.array_equal(bits(y), bits(again))
    return bits(y), counts


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
def test_shm(int8):
    y, counts = make_layer(int8).run()
    results = in_processes(shm_rank, 2, f"test-{uuid.uuid4().hex}", int8)
    assert not any(isinstance(result, str) for result in results), results
    np.testing.assert_array_equal(np.concatenate([part for part, _ in results]), bits(y))
    np.testing.assert_array_equal(np.concatenate([part for _, part in results]), counts)


def torch_rank(rank, path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    try:
        layer = make_layer(False)
        parts = []
        for group in (dist.group.WORLD, dist.new_group([0, 1])):
            with layer.buffer(group) as buffer:
                assert buffer.group is group and buffer.group_name == group.group_name
                assert (buffer.rank_id, buffer.ep_world_size) == (rank, 2)
                parts.append(bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call(rank, 2))[0]))
        alone = [dist.new_group([member]) for member in range(2)][rank]
        with layer.buffer(alone) as buffer:
            assert (buffer.rank_id, buffer.ep_world_size) == (0, 1)
        return parts
    finally:
        dist.destroy_process_group()


def test_torch_distributed(tmp_path):
    y, _ = make_layer(False).run()
    results = in_processes(torch_rank, 2, str(tmp_path / "store"))
    assert not any(isinstance(result, str) for result in results), results
    for group in range(2):
        np.testing.assert_array_equal(np.concatenate([parts[group] for parts in results]), bits(y))


def in_forked_child(work):
    """Exit code of work() in a forked child: 0 = it returned, 1 = RuntimeError, 2 = anything else."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            work()
            code = 0
        except RuntimeError:
            code = 1
        finally:
            os._exit(code)
    end = time.monotonic() + FORK_LIMIT_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the forked child hung")


def test_fork():
    """After a call of the parent, the child can make its own buffer, and the parent goes on."""
    layer = Layer(9, 64, 32, 4, 2, int8=False, seed=61)
    with layer.buffer(threads=2) as buffer:
        expected = bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call())[0])

        def child():
            y, _ = layer.run()
            assert np.array_equal(bits(y), expected)
            with layer.buffer(threads=2) as own:
                y, _ = megamoe.mega_moe(sym_buffer=own, **layer.call())
            assert np.array_equal(bits(y), expected)

        assert in_forked_child(child) == 0
        np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call())[0]), expected)


def test_fork_with_the_buffer_of_the_parent():
    """A buffer that came over from the parent works in the child or raises; it never hangs."""
    layer = Layer(9, 64, 32, 4, 2, int8=False, seed=62)
    with layer.buffer(threads=2) as buffer:
        expected = bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call())[0])

        def child():
            y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
            assert np.array_equal(bits(y), expected)
            buffer.destroy()

        assert in_forked_child(child) in (0, 1)
        np.testing.assert_array_equal(bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call())[0]), expected)


EXIT = """
import sys
sys.path.insert(0, sys.argv[1])
import megamoe
from layers import Layer
layer = Layer(4, 64, 32, 4, 2, int8=False)
buffer = layer.buffer(threads=2)
megamoe.mega_moe(sym_buffer=buffer, **layer.call())
cycle = [buffer]
cycle.append(cycle)
print("done", flush=True)
"""


def test_exit_without_destroy():
    done = subprocess.run(
        [sys.executable, "-c", EXIT, os.path.dirname(__file__)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def leaving_rank(rank, key):
    layer = make_layer(False)
    globals()["kept"] = buffer = layer.buffer(megamoe.Group.shm(key, rank, 2), deadline=30)
    return bits(megamoe.mega_moe(sym_buffer=buffer, **layer.call(rank, 2))[0])


def test_ranks_exit_without_destroy():
    results = in_processes(leaving_rank, 2, f"test-{uuid.uuid4().hex}")
    assert not any(isinstance(result, str) for result in results), results
