"""The routing operators: names, order and defaults of their arguments, and what wrong ones raise."""

import inspect

import ml_dtypes
import numpy as np
import pytest
import torch

import megamoe
from megamoe import ops
from routing_inputs import ids, to_torch, tokens

REQUIRED = inspect.Parameter.empty
ADDED = [("threads", 0), ("isa", None)]


@pytest.mark.parametrize(
    "function, expected, positional",
    [
        (
            ops.moe_init_routing_v3,
            [
                ("x", REQUIRED),
                ("expert_idx", REQUIRED),
                ("scale", None),
                ("offset", None),
                ("active_num", -1),
                ("expert_capacity", -1),
                ("expert_num", -1),
                ("drop_pad_mode", 0),
                ("expert_tokens_num_type", 0),
                ("expert_tokens_num_flag", False),
                ("quant_mode", -1),
                ("active_expert_range", ()),
                ("row_idx_type", 0),
                ("mx_scale", "round_up"),
                ("x_dtype", None),
                ("result_types", "document"),
                *ADDED,
            ],
            2,
        ),
        (
            ops.moe_token_permute,
            [
                ("tokens", REQUIRED),
                ("indices", REQUIRED),
                ("num_out_tokens", None),
                ("padded_mode", False),
                ("quant_mode", -1),
                ("mx_scale", "round_up"),
                ("result_types", "document"),
                *ADDED,
            ],
            5,
        ),
        (
            ops.moe_token_unpermute,
            [
                ("permuted_tokens", REQUIRED),
                ("sorted_indices", REQUIRED),
                ("probs", None),
                ("padded_mode", False),
                ("restore_shape", None),
                *ADDED,
            ],
            5,
        ),
        (
            ops.moe_gating_top_k,
            [
                ("logits", REQUIRED),
                ("k", REQUIRED),
                ("bias", None),
                ("scoring", "softmax"),
                ("n_group", 1),
                ("topk_group", 1),
                ("renormalize", False),
                ("routed_scaling_factor", 1.0),
                ("group_score", "top2_sum"),
                *ADDED,
            ],
            2,
        ),
    ],
)
def test_names_order_defaults(function, expected, positional):
    parameters = list(inspect.signature(function).parameters.values())
    assert [(p.name, p.default) for p in parameters] == expected
    assert [p.kind for p in parameters] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * positional + [
        inspect.Parameter.KEYWORD_ONLY
    ] * (len(expected) - positional)
    # The torch operators take the same, in the same order where the order counts.
    operator = getattr(torch.ops.megamoe, function.__name__).default
    names = [argument.name for argument in operator._schema.arguments]
    assert set(names) == {name for name, _ in expected} - {"restore_shape"}


def init(**changes):
    call = {"x": tokens(3, 8), "expert_idx": ids(3, 2, 4), "expert_num": 4} | changes
    return ops.moe_init_routing_v3(**call)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: init(x=[[1.0]]), TypeError, "x = list: expected"),
        (lambda: init(x=np.zeros((3, 8))), TypeError, "x = float64: expected"),
        (lambda: init(x=np.zeros((3, 8), np.uint8)), TypeError, "x_dtype = None: expected the type"),
        (lambda: init(x_dtype="int8"), TypeError, "x_dtype = int8: expected the type of x, float32"),
        (lambda: init(x=np.zeros((3, 7), ml_dtypes.float4_e2m1fn)), ValueError, "even last dimension"),
        (lambda: init(x=np.zeros(8, np.float32)), ValueError, r"x has shape \(8,\)"),
        (lambda: init(expert_idx=ids(2, 2, 4)), ValueError, "expert_idx has shape"),
        (lambda: init(expert_idx=tokens(3, 2)), TypeError, "expert_idx = float32: expected int32 or int64"),
        (lambda: init(expert_idx=np.full((3, 2), 4)), ValueError, r"expert_idx\[0\]\[0\] = 4"),
        (lambda: init(expert_num=-1), ValueError, "expert_num = -1"),
        (lambda: init(expert_num=True), TypeError, "expert_num = True: expected an integer"),
        (lambda: init(quant_mode=10), ValueError, "quant_mode = 10"),
        (lambda: init(quant_mode=2), TypeError, "x has type float32"),
        (lambda: init(quant_mode=0), ValueError, "scale is missing"),
        (lambda: init(offset=np.zeros(1, np.float32)), ValueError, "expected no offset"),
        (lambda: init(scale=np.zeros(2, np.float32)), ValueError, "scale has shape"),
        (lambda: init(active_expert_range=(1,)), ValueError, "active_expert_range has 1"),
        (lambda: init(active_expert_range=3), TypeError, "active_expert_range = 3"),
        (lambda: init(active_expert_range=(3, 1)), ValueError, "active_expert_range"),
        (lambda: init(expert_tokens_num_flag=1), TypeError, "expert_tokens_num_flag = 1"),
        (lambda: init(drop_pad_mode=1), ValueError, "expert_capacity = -1"),
        (lambda: init(mx_scale="ceil"), ValueError, "mx_scale = ceil"),
        (lambda: init(threads=-1), ValueError, "threads = -1"),
        (lambda: init(isa="sse9"), ValueError, "sse9"),
        (
            lambda: ops.moe_token_permute(tokens(3, 8), ids(3, 1, 4), padded_mode=True),
            ValueError,
            "padded_mode",
        ),
        (lambda: ops.moe_token_permute(tokens(3, 8), ids(3, 1, 4) - 4), ValueError, "indices"),
        (
            lambda: ops.moe_token_permute(tokens(3, 7, "float16"), ids(3, 1, 4), quant_mode=9),
            ValueError,
            "even",
        ),
        (
            lambda: ops.moe_token_unpermute(tokens(3, 8), np.arange(3), None, False, (3,)),
            ValueError,
            "restore",
        ),
        (
            lambda: ops.moe_token_unpermute(tokens(3, 8), np.arange(3), np.ones((2, 2), np.float32)),
            ValueError,
            "sorted_indices|probs",
        ),
        (lambda: ops.moe_gating_top_k(tokens(3, 8), 9), ValueError, "k = 9: expected 1 to 8"),
        (lambda: ops.moe_gating_top_k(tokens(3, 8), 1, scoring="relu"), ValueError, "scoring = relu"),
        (lambda: ops.moe_gating_top_k(tokens(3, 8), 1, n_group=3), ValueError, "n_group = 3"),
        (lambda: ops.moe_gating_top_k(tokens(3, 8), 1, group_score="mean"), ValueError, "group_score = mean"),
        (lambda: ops.moe_gating_top_k(torch.zeros(1, 4).to_sparse(), 1), ValueError, "dense CPU tensor"),
    ],
)
def test_wrong_arguments(call, error, text):
    with pytest.raises(error, match=text) as caught:
        call()
    assert isinstance(caught.value.code, megamoe.Code)


def test_frameworks_may_be_mixed():
    x, idx = tokens(4, 8), ids(4, 2, 3)
    wanted = ops.moe_token_permute(x, idx)
    got = ops.moe_token_permute(to_torch(x), idx)
    assert all(isinstance(array, torch.Tensor) for array in got)
    for mine, other in zip(wanted, got):
        np.testing.assert_array_equal(mine, other.numpy())
