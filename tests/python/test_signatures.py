"""Names, order and defaults of the operators are those of the MegaMoE operator document."""

import inspect

import pytest

import megamoe
from megamoe import ops

REQUIRED = inspect.Parameter.empty
BUFFER = [
    ("group", REQUIRED),
    ("num_experts", REQUIRED),
    ("num_max_tokens_per_rank", REQUIRED),
    ("num_topk", REQUIRED),
    ("hidden", REQUIRED),
    ("intermediate_hidden", REQUIRED),
    ("max_recv_token_num", 0),
    ("dispatch_quant_mode", 0),
    ("dispatch_quant_out_dtype", None),
    ("combine_quant_mode", 0),
    ("comm_alg", ""),
    ("topk_weights_type", 0),
]
ADDED = [
    ("topo_type", 0),
    ("rank_num_per_server", 2),
    ("combine_comm_mode", 0),
    ("profile", "cpu"),
    ("ccl_buffer_size", 0),
    ("threads", 0),
    ("isa", None),
    ("deadline", 60.0),
    ("trace", False),
    ("tuning", None),
]
CALL = [
    ("x", REQUIRED),
    ("topk_ids", REQUIRED),
    ("topk_weights", REQUIRED),
    ("l1_weights", REQUIRED),
    ("l2_weights", REQUIRED),
    ("sym_buffer", REQUIRED),
    ("l1_weights_sf", None),
    ("l2_weights_sf", None),
    ("l1_bias", None),
    ("l2_bias", None),
    ("x_active_mask", None),
    ("activation", "swiglu"),
    ("activation_clamp", None),
    ("activation_params", None),
    ("weight1_type", None),
    ("weight2_type", None),
    ("shared_l1_weights", None),
    ("shared_l2_weights", None),
    ("shared_l1_weights_sf", None),
    ("shared_l2_weights_sf", None),
    ("shared_l1_bias", None),
    ("shared_l2_bias", None),
    ("scales", None),
    ("shared_expert_quant_out_dtype", None),
    ("shared_weight1_type", None),
    ("shared_weight2_type", None),
    ("transpose_weight1", False),
    ("transpose_weight2", False),
    ("weight1_interleave", 0),
    ("combine_comm_mode", None),
    ("scale_group", 0),
    ("l1_zero", None),
    ("l2_zero", None),
    ("l1_added_bias", None),
    ("l2_added_bias", None),
    ("l1_up", None),
    ("shared_scale_group", 0),
    ("shared_l1_zero", None),
    ("shared_l2_zero", None),
    ("shared_l1_added_bias", None),
    ("shared_l2_added_bias", None),
    ("shared_l1_up", None),
]
SIZE = [
    ("ep_world_size", REQUIRED),
    ("moe_expert_num", REQUIRED),
    ("num_max_tokens_per_rank", REQUIRED),
    ("num_topk", REQUIRED),
    ("hidden", REQUIRED),
    ("max_recv_token_num", 0),
    ("dispatch_quant_mode", 0),
    ("dispatch_quant_out_dtype", None),
    ("combine_quant_mode", 0),
    ("comm_alg", ""),
    ("topk_weights_type", 0),
    ("profile", "cpu"),
]


@pytest.mark.parametrize(
    "function, expected, positional",
    [
        (ops.get_symm_buffer_for_mega_moe, BUFFER + ADDED, 6),
        (megamoe.SymmBuffer, BUFFER + ADDED, 6),
        (ops.mega_moe, CALL, 6),
        (ops.get_mega_moe_ccl_buffer_size, SIZE, len(SIZE) - 1),
    ],
)
def test_names_order_defaults(function, expected, positional):
    parameters = list(inspect.signature(function).parameters.values())
    assert [(p.name, p.default) for p in parameters] == expected
    kinds = [p.kind for p in parameters]
    assert kinds[:positional] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * positional
    assert kinds[positional:] == [inspect.Parameter.KEYWORD_ONLY] * (len(expected) - positional)


def test_every_public_name_is_documented():
    for name in megamoe.__all__:
        if name not in ("__version__",):
            assert getattr(megamoe, name).__doc__, name
    for name in ops.__all__:
        assert getattr(ops, name).__doc__, name
