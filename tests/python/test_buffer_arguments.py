"""Settings of buffers, sizes and groups with wrong values: the error names the setting, what came and what was
expected."""

import numpy as np
import pytest
import torch

import megamoe
from layers import Layer, bits

BIG = 1 << 70

# argument, wrong value, exception, texts of the message beside the argument's name
BUFFER = [
    ("group", "world", TypeError, "str"),
    ("num_experts", 0, ValueError, "0"),
    ("num_experts", -4, ValueError, "-4"),
    ("num_experts", 4.0, TypeError, "4.0"),
    ("num_experts", "4", TypeError, "'4'"),
    ("num_experts", True, TypeError, "True"),
    ("num_experts", BIG, ValueError, str(BIG)),
    ("num_max_tokens_per_rank", 0, ValueError, "0"),
    ("num_max_tokens_per_rank", -1, ValueError, "-1"),
    ("num_topk", 0, ValueError, "0"),
    ("num_topk", None, TypeError, "None"),
    ("hidden", 0, ValueError, "0"),
    ("hidden", -8, ValueError, "-8"),
    ("intermediate_hidden", 0, ValueError, "0"),
    ("intermediate_hidden", 1.5, TypeError, "1.5"),
    ("max_recv_token_num", -1, ValueError, "-1"),
    ("dispatch_quant_mode", 1, ValueError, "1"),
    ("dispatch_quant_mode", 77, ValueError, "77"),
    ("dispatch_quant_mode", 1 << 40, ValueError, str(1 << 40)),
    ("dispatch_quant_out_dtype", "int9", ValueError, "int9"),
    ("dispatch_quant_out_dtype", 5, ValueError, "5"),
    ("dispatch_quant_out_dtype", torch.float64, ValueError, "float64"),
    ("dispatch_quant_out_dtype", object(), TypeError, "object"),
    ("dispatch_quant_out_dtype", torch.float16, ValueError, "float16"),
    ("combine_quant_mode", 1, ValueError, "1"),
    ("comm_alg", "ring", ValueError, "ring"),
    ("comm_alg", None, TypeError, "None"),
    ("topk_weights_type", 2, ValueError, "2"),
    ("topo_type", 3, ValueError, "3"),
    ("rank_num_per_server", 0, ValueError, "0"),
    ("combine_comm_mode", 3, ValueError, "3"),
    ("profile", "gpu", ValueError, "gpu"),
    ("profile", 1, TypeError, "1"),
    ("threads", -1, ValueError, "-1"),
    ("threads", 2.5, TypeError, "2.5"),
    ("isa", "sse9", ValueError, "sse9"),
    ("isa", 4, TypeError, "4"),
    ("deadline", 0, ValueError, "0"),
    ("deadline", float("nan"), ValueError, "nan"),
    ("deadline", "soon", TypeError, "'soon'"),
    ("trace", 1, TypeError, "1"),
    ("tuning", 1, TypeError, "1"),
    ("profile", "y" * 5000, ValueError, '...": expected one of cpu,'),
    ("comm_alg", "y" * 5000, ValueError, '...": expected ""'),
    ("isa", "y" * 5000, ValueError, "...: expected one of generic"),
    ("profile", "\ud800", ValueError, "expected a string that UTF-8 can encode"),
    ("dispatch_quant_out_dtype", torch.zeros(2), TypeError, "expected a torch or NumPy type"),
]


@pytest.mark.parametrize("name, value, kind, text", BUFFER, ids=lambda item: str(item)[:24])
def test_buffer(name, value, kind, text):
    layer = Layer(4, 64, 32, 4, 2, int8=False)
    with pytest.raises(kind) as caught:
        layer.buffer(**{name: value})
    message = str(caught.value)
    assert name in message and text in message
    assert isinstance(caught.value.code, megamoe.Code)


SIZE_NAMES = {"num_experts": "moe_expert_num"}


@pytest.mark.parametrize(
    "name, value, kind, text",
    [
        case
        for case in BUFFER
        if case[0]
        in (
            "num_experts",
            "num_max_tokens_per_rank",
            "num_topk",
            "hidden",
            "max_recv_token_num",
            "dispatch_quant_mode",
            "dispatch_quant_out_dtype",
            "combine_quant_mode",
            "comm_alg",
            "topk_weights_type",
        )
    ]
    + [
        ("ep_world_size", 0, ValueError, "0"),
        ("ep_world_size", "2", TypeError, "'2'"),
        ("num_max_tokens_per_rank", 1 << 62, ValueError, str(1 << 62)),
    ],
    ids=lambda item: str(item)[:24],
)
def test_buffer_size(name, value, kind, text):
    arguments = dict(ep_world_size=2, moe_expert_num=4, num_max_tokens_per_rank=4, num_topk=2, hidden=64)
    with pytest.raises(kind) as caught:
        megamoe.get_mega_moe_ccl_buffer_size(**arguments | {SIZE_NAMES.get(name, name): value})
    message = str(caught.value)
    assert text in message
    assert message.startswith(f"{SIZE_NAMES.get(name, name)} = ") or name not in message, message
    assert "num_experts" not in message


def test_buffer_size_is_that_of_the_buffer():
    for int8 in (False, True):
        layer = Layer(4, 64, 32, 4, 2, int8=int8)
        with layer.buffer(max_recv_token_num=5) as buffer:
            assert buffer.ccl_buffer_size == megamoe.get_mega_moe_ccl_buffer_size(
                1, 4, 4, 2, 64, max_recv_token_num=5, dispatch_quant_mode=2 if int8 else 0
            )


@pytest.mark.parametrize("value", [None, 28, 1, "int8", torch.int8, np.int8, np.dtype("int8")], ids=str)
def test_quantised_type_has_many_names(value):
    layer = Layer(4, 64, 32, 4, 2, int8=True)
    with layer.buffer(dispatch_quant_out_dtype=value) as buffer:
        y, _ = megamoe.mega_moe(sym_buffer=buffer, **layer.call())
        assert buffer.dispatch_quant_out_dtype is value
    np.testing.assert_array_equal(bits(y), bits(layer.run()[0]))


@pytest.mark.parametrize(
    "make, kind, text",
    [
        (lambda: megamoe.Group.local(0), ValueError, "0"),
        (lambda: megamoe.Group.local(-2), ValueError, "-2"),
        (lambda: megamoe.Group.shm("", 0, 2), ValueError, "key"),
        (lambda: megamoe.Group.shm("k", 2, 2), ValueError, "2"),
        (lambda: megamoe.Group.shm("k", -1, 2), ValueError, "-1"),
        (lambda: megamoe.Group.shm("k", 0, 0), ValueError, "0"),
        (lambda: megamoe.Group.shm(7, 0, 1), TypeError, "key = 7: expected a string"),
        (lambda: megamoe.Group.shm("\ud800", 0, 1), ValueError, "expected a string that UTF-8 can encode"),
        (lambda: megamoe.Group.shm("a\0b", 0, 1), ValueError, "expected a string that UTF-8 can encode, without NUL"),
        (lambda: megamoe.Group.shm("k" * 5000, 0, 1), ValueError, "of 5000 bytes: expected 1 to"),
        (lambda: megamoe.Group.shm("k", 0.0, 1), TypeError, "rank = 0.0: expected an integer"),
        (lambda: megamoe.Group.shm("k", 0, True), TypeError, "size = True: expected an integer"),
        (lambda: megamoe.Group.local("2"), TypeError, "size = '2': expected an integer"),
        (lambda: megamoe.Group.local(None), TypeError, "size = None: expected an integer"),
        (lambda: megamoe.Group.local(1 << 70), ValueError, "expected an integer of 32 bits"),
        (lambda: megamoe.Group.local("y" * 500), TypeError, "...: expected an integer"),
    ],
)
def test_group(make, kind, text):
    with pytest.raises(kind) as caught:
        make()
    assert text in str(caught.value)
    assert isinstance(caught.value.code, megamoe.Code)


def test_numpy_integers_make_groups():
    assert [group.rank for group in megamoe.Group.local(np.int64(2))] == [0, 1]
