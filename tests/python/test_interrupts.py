"""Ctrl-C while a rank waits for another one: the exception comes at once, and the buffer is in a stated condition."""

import os
import signal
import threading

import pytest

import megamoe
from layers import Layer

LONG_S = 100  # far longer than a signal takes; a lost one must not hold the tests for ever


class Stop(Exception):
    pass


@pytest.fixture(autouse=True)
def raising_ctrl_c():
    """Python's own handler: programs that shells start in the background come up without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def soon():
    """Sends signals to this process a moment later."""
    timers = []

    def send(number, delay=0.3):
        timer = threading.Timer(delay, os.kill, (os.getpid(), number))
        timers.append(timer)
        timer.start()

    yield send
    for timer in timers:
        timer.join()


def layer():
    return Layer(8, 64, 32, 4, 2, int8=False, seed=3)


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_creation(soon, transport):
    group = megamoe.Group.local(2)[0] if transport == "local" else megamoe.Group.shm(f"interrupt-{os.getpid()}", 0, 2)
    soon(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        layer().buffer(group, deadline=LONG_S)


def test_call(soon):
    made, groups = layer(), megamoe.Group.local(2)
    buffers = [None, None]

    def create(rank):
        buffers[rank] = made.buffer(groups[rank], deadline=LONG_S)

    other = threading.Thread(target=create, args=(1,))
    other.start()
    create(0)
    other.join()
    soon(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        megamoe.mega_moe(sym_buffer=buffers[0], **made.call(0, 2))
    for rank in (0, 1):  # broken for good, on every rank
        with pytest.raises(RuntimeError, match="rank 0 was interrupted in the exchange of records of call 1") as caught:
            megamoe.mega_moe(sym_buffer=buffers[rank], **made.call(rank, 2))
        assert caught.value.code == megamoe.Code.PEER_FAILED
        buffers[rank].destroy()


def test_handlers_run_while_a_call_waits(soon):
    """A handler that returns does not end the wait; one that raises does, with its own exception."""
    made, groups = layer(), megamoe.Group.local(2)
    seen = []

    def handler(number, _):
        seen.append(number)
        if number == signal.SIGUSR2:
            raise Stop

    before = [signal.signal(number, handler) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    try:
        soon(signal.SIGUSR1, 0.2)
        soon(signal.SIGUSR2, 0.6)
        with pytest.raises(Stop):
            made.buffer(groups[0], deadline=LONG_S)
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])
    assert seen == [signal.SIGUSR1, signal.SIGUSR2]
