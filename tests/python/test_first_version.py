"""mega_moe_v1: the same results as mega_moe, the names and limits of the first document."""

import inspect
import itertools

import ml_dtypes
import numpy as np
import pytest
import torch

import megamoe
from coded_layers import EXPERTS, TOKENS, Layer
from layers import bits

REQUIRED = inspect.Parameter.empty
NAMES = [
    ("context", REQUIRED),
    ("x", REQUIRED),
    ("topk_ids", REQUIRED),
    ("topk_weights", REQUIRED),
    ("weight1", REQUIRED),
    ("weight2", REQUIRED),
    ("weight_scales1", None),
    ("weight_scales2", None),
    ("x_active_mask", None),
    ("scales", None),
    ("moe_expert_num", REQUIRED),
    ("ep_world_size", REQUIRED),
    ("ccl_buffer_size", REQUIRED),
    ("max_recv_token_num", 0),
    ("dispatch_quant_mode", 0),
    ("dispatch_quant_out_type", None),
    ("combine_quant_mode", 0),
    ("comm_alg", ""),
    ("global_bs", 0),
]
LAYER = Layer("float8_e5m2", "float8_e5m2", seed=13)


def test_names_order_defaults():
    parameters = list(inspect.signature(megamoe.ops.mega_moe_v1).parameters.values())
    assert [(p.name, p.default) for p in parameters] == NAMES


def call(layer, buffer, **changes):
    """Arguments of the first version for a layer on one rank."""
    attributes = dict(
        moe_expert_num=buffer.num_experts,
        ep_world_size=buffer.ep_world_size,
        ccl_buffer_size=buffer.ccl_buffer_size,
        dispatch_quant_mode=4,
        dispatch_quant_out_type=23 if layer.token == "float8_e5m2" else 24,
    )
    inputs = dict(
        context=buffer,
        x=layer.x,
        topk_ids=layer.ids,
        topk_weights=layer.router,
        weight1=layer.l1,
        weight2=layer.l2,
        weight_scales1=layer.sf1,
        weight_scales2=layer.sf2,
    )
    return inputs | attributes | changes


@pytest.fixture(scope="module")
def buffer():
    with LAYER.buffer() as made:
        yield made


@pytest.mark.parametrize("kind", ["float8_e5m2", "float8_e4m3fn"])
def test_results_are_those_of_the_operator(kind):
    layer = Layer(kind, kind, seed=14)
    expected = layer.run()
    as_bytes = dict(weight1=layer.l1.view(np.uint8), weight2=layer.l2.view(np.uint8))
    as_torch = {
        name: torch.from_numpy(array).view(getattr(torch, kind)) for name, array in as_bytes.items()
    }
    with layer.buffer() as buffer:
        for changes in ({}, as_bytes, as_torch, dict(global_bs=TOKENS, dispatch_quant_out_type=kind)):
            y, counts = megamoe.ops.mega_moe_v1(**call(layer, buffer, **changes))
            np.testing.assert_array_equal(bits(y), expected)
            np.testing.assert_array_equal(counts, np.bincount(layer.ids.ravel(), minlength=EXPERTS))


@pytest.mark.parametrize(
    "change, kind, text",
    [
        (dict(context=None), TypeError, "context = NoneType: expected a SymmBuffer"),
        (dict(moe_expert_num=8), ValueError, "moe_expert_num = 8: expected 4, that of context"),
        (dict(ep_world_size=2), ValueError, "ep_world_size = 2: expected 1, that of context"),
        (dict(ep_world_size="1"), TypeError, "ep_world_size = '1': expected an integer"),
        (dict(ccl_buffer_size=1), ValueError, "ccl_buffer_size = 1: expected at least "),
        (dict(max_recv_token_num=7), ValueError, "max_recv_token_num = 7: expected 0, that of context"),
        (dict(dispatch_quant_mode=0), ValueError, "dispatch_quant_mode = 0: expected 4, that of context"),
        (dict(dispatch_quant_out_type=None), ValueError, "dispatch_quant_out_type = None: expected float8"),
        (dict(dispatch_quant_out_type=24), ValueError, "dispatch_quant_out_type = float8_e4m3fn: expected"),
        (dict(dispatch_quant_out_type=5), ValueError, "dispatch_quant_out_type = 5: expected 1 (int8)"),
        (dict(combine_quant_mode=3), ValueError, "combine_quant_mode = 3: expected 0, that of context"),
        (dict(comm_alg="ring"), ValueError, 'comm_alg = "ring": expected "", that of context'),
        (dict(comm_alg=None), TypeError, "comm_alg = None: expected a string"),
        (
            dict(global_bs=TOKENS - 1),
            ValueError,
            f"global_bs = {TOKENS - 1}: expected 0, or a multiple of 1 (ep_world_size) from {TOKENS} (tokens of x",
        ),
        (dict(global_bs=-1), ValueError, "global_bs = -1: expected 0, or"),
        (dict(weight1=list(LAYER.l1)[:3]), ValueError, "weight1 has experts 3: expected 4"),
        (
            dict(weight1=[*LAYER.l1[:3], LAYER.l1[3].astype(np.int32)]),
            TypeError,
            "weight1[3] has type int4: expected float8_e5m2 like weight1[0]",
        ),
        (
            dict(weight2=[megamoe.FractalTensor(array, (5, 7)) for array in LAYER.l2]),
            ValueError,
            "weight2[0] has ",
        ),
        (dict(x_active_mask=np.ones(TOKENS, np.int8)), ValueError, "x_active_mask = ndarray: expected None"),
        (dict(scales=LAYER.sf1), ValueError, "scales"),
        (dict(weight1=LAYER.l1[:, :-2]), ValueError, "weight1 has output size 126: expected 128"),
        (dict(weight1=LAYER.l1[:3]), ValueError, "weight1 has experts 3: expected 4"),
        (dict(weight2=LAYER.l2.view(ml_dtypes.float8_e4m3fn)), TypeError, "weight2 has type float8_e4m3fn"),
        (dict(weight1=LAYER.l1.astype(np.float32)), TypeError, "weight1 = float32: expected"),
        (dict(weight_scales1=None), ValueError, "weight_scales1 has no tensors"),
        (dict(weight_scales2=LAYER.sf2[..., :1]), ValueError, "weight_scales2 has shape (4, 128, 1, 1)"),
        (dict(topk_ids=LAYER.ids[:, :1]), ValueError, "topk_ids has shape (9, 1)"),
    ],
    ids=itertools.count(),
)
def test_wrong_values(buffer, change, kind, text):
    with pytest.raises(kind) as caught:
        megamoe.ops.mega_moe_v1(**call(LAYER, buffer, **change))
    assert text in str(caught.value)
    assert isinstance(caught.value.code, megamoe.Code)
    y, _ = megamoe.ops.mega_moe_v1(**call(LAYER, buffer))
    np.testing.assert_array_equal(bits(y), LAYER.run())


def torch_call(layer, buffer):
    """The arguments of `call` as torch tensors, codes and scales as bytes."""
    arrays = {
        name: torch.from_numpy(getattr(layer, attribute).view(np.uint8))
        for name, attribute in dict(weight1="l1", weight2="l2", weight_scales1="sf1", weight_scales2="sf2").items()
    }
    tokens = dict(
        x=torch.from_numpy(layer.x.view(np.int16)).view(torch.bfloat16),
        topk_ids=torch.from_numpy(layer.ids),
        topk_weights=torch.from_numpy(layer.router),
    )
    return call(layer, buffer, **tokens, **arrays)


def test_compile(buffer):
    arguments = torch_call(LAYER, buffer)
    x = arguments.pop("x")

    def work(x):
        y, counts = megamoe.ops.mega_moe_v1(x=x, **arguments)
        return y + 1, counts

    torch._dynamo.reset()
    compiled = torch.compile(work, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(x), work(x)):
        np.testing.assert_array_equal(bits(got), bits(expected))
