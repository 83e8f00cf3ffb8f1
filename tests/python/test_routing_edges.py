"""Inputs at the edges of the routing operators: experts without tokens, block sizes, types of ids, one slot."""

import numpy as np
import pytest
import torch

from megamoe import ops
from routing_inputs import ids, model, to_torch, tokens


@pytest.mark.parametrize("sizes", [(162, 0, 7, 0), (0, 0, 0, 0), (0, 0, 1, 0)])
def test_gradients_of_experts_without_tokens_are_zero(sizes):
    """Linear experts between permute and unpermute: their gradients against a loop over the tokens."""
    count, hidden, width = sum(sizes), 8, 6
    generator = torch.Generator().manual_seed(0)
    chosen = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    chosen = chosen[torch.randperm(count, generator=generator)].int()
    x = torch.randn(count, hidden, generator=generator, requires_grad=True)
    probs = torch.rand(count, 1, generator=generator, requires_grad=True)
    experts = torch.randn(4, hidden, width, generator=generator, requires_grad=True)
    slope = torch.randn(count, width, generator=generator)

    rows, index, _ = ops.moe_token_permute(x, chosen)
    outputs = torch.cat([part @ expert for part, expert in zip(rows.split(sizes), experts)])
    (ops.moe_token_unpermute(outputs, index, probs) * slope).sum().backward()
    got = [leaf.grad.clone() for leaf in (x, probs, experts)]
    for leaf in (x, probs, experts):
        leaf.grad = None
    per_token = torch.einsum("th,thw->tw", x, experts[chosen.long()]) * probs
    (per_token * slope).sum().backward()
    for mine, leaf in zip(got, (x, probs, experts)):
        torch.testing.assert_close(mine, leaf.grad)
    for expert, size in enumerate(sizes):
        assert size > 0 or not got[2][expert].any()


@pytest.mark.parametrize("probs", [False, True])
def test_gradient_of_rows_that_no_slot_points_to_is_zero(probs):
    rows = np.full((5, 3), np.nan, np.float32)
    index, slope = np.array([4, -1, 1, 9], np.int32), np.ones((4, 3), np.float32)
    rows[[4, 1]] = 1
    weights = np.full((4, 1), 2, np.float32) if probs else None
    grad, weights_grad = ops.moe_token_unpermute_grad(rows, slope, index, weights)
    wanted = np.zeros((5, 3), np.float32)
    wanted[[4, 1]] = 2 if probs else 1
    np.testing.assert_array_equal(grad, wanted)
    if probs:
        np.testing.assert_array_equal(weights_grad, [[3], [0], [3], [0]])


@pytest.mark.parametrize("count", [15, 16, 17, 255, 256, 257, 1023, 1024, 1025, 2049])
@pytest.mark.parametrize("mode", [-1, 1])
def test_rows_past_every_block_size(count, mode):
    x, index = tokens(count, 3), ids(count, 2, 5)
    order, _, expanded, gather = model(x, index, 0, 5)
    got = ops.moe_init_routing_v3(x, index, expert_num=5, quant_mode=mode)
    np.testing.assert_array_equal(got[1], gather)
    assert np.unique(got[1]).size == 2 * count
    if mode == -1:
        np.testing.assert_array_equal(got[0], expanded)
    else:
        np.testing.assert_array_equal(got[3], np.abs(expanded).max(1) / np.float32(127))
    np.testing.assert_array_equal(ops.moe_token_permute(x, index)[0], x[order // 2])


@pytest.mark.parametrize("experts", [1, 2, 64, 65])
@pytest.mark.parametrize("last", [False, True])
def test_all_tokens_to_the_first_or_the_last_expert(experts, last):
    chosen = experts - 1 if last else 0
    x, index = tokens(9, 2), np.full((9, 3), chosen, np.int64)
    wanted = np.zeros(experts, np.int64)
    wanted[chosen] = 27
    for kind, counts in ((0, np.cumsum(wanted)), (1, wanted)):
        got = ops.moe_init_routing_v3(
            x, index, expert_num=experts, expert_tokens_num_flag=True, expert_tokens_num_type=kind
        )
        np.testing.assert_array_equal(got[2], counts)


def calls(index):
    """Every operator that takes ids or indices, with `index` of 6 numbers below 6."""
    x, half = tokens(6, 4), np.ones((3, 2), np.float32)
    square = index.reshape(3, 2)
    yield "expert_idx", lambda: ops.moe_init_routing_v3(x[:3], square, expert_num=6)
    yield "indices", lambda: ops.moe_token_permute(x[:3], square)
    yield "indices", lambda: ops.moe_token_permute(x, index)
    yield "sorted_indices", lambda: ops.moe_token_permute_grad(x, index, 2)
    yield "sorted_indices", lambda: ops.moe_token_unpermute(x, index, half)
    yield "sorted_indices", lambda: ops.moe_token_unpermute_grad(x, x[:3], index, half)


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint16, np.uint32, np.uint64, np.float32, np.bool_])
def test_other_types_of_ids_are_refused(kind):
    index = np.array([5, 0, 3, 1, 4, 2])
    for name, call in calls(index.astype(kind)):
        with pytest.raises(TypeError, match=f"{name} = {np.dtype(kind).name}: expected int32 or int64"):
            call()


def test_both_types_of_ids_everywhere():
    index = np.array([5, 0, 3, 1, 4, 2])
    for (_, narrow), (_, wide), (_, swapped) in zip(
        calls(index.astype(np.int32)),
        calls(index.astype(np.int64)),
        calls(np.stack([index, index], 1).astype(np.int64)[:, 0]),
    ):
        results = [call() for call in (narrow, wide, swapped)]
        for mine, other, strided in zip(*(r if isinstance(r, tuple) else (r,) for r in results)):
            np.testing.assert_array_equal(mine, other)
            np.testing.assert_array_equal(mine, strided)
    torch_index = torch.from_numpy(index)
    for kind in (torch.int32, torch.int64):
        rows, place, _ = ops.moe_token_permute(to_torch(tokens(6, 4)), torch_index.to(kind))
        assert place.dtype == torch.int32
        np.testing.assert_array_equal(place.numpy(), index)


def test_one_slot_per_token():
    logits = np.array([[1, 3, 2], [5, 0, 1]], np.float32)
    weights, chosen = ops.moe_gating_top_k(logits, 1, renormalize=True, routed_scaling_factor=1.5)
    np.testing.assert_array_equal(weights, [[1.5], [1.5]])
    x = tokens(2, 5)
    rows, index, _ = ops.moe_token_permute(x, chosen.reshape(-1))
    np.testing.assert_array_equal(rows, x[::-1])
    np.testing.assert_array_equal(ops.moe_token_unpermute(rows, index, weights), x * np.float32(1.5))


def test_slots_of_other_ranks_are_never_read():
    """The rows after the last active slot are full of NaN; both halves of the experts add up to all."""
    x, index = tokens(20, 6), ids(20, 3, 6)
    probs = np.full((20, 3), 0.25, np.float32)
    sums = []
    for ranges in ([(0, 6)], [(0, 3), (3, 6)]):
        total = np.zeros((20, 6), np.float32)
        for first, last in ranges:
            rows, place, counts, _ = ops.moe_init_routing_v3(
                x,
                index,
                expert_num=6,
                active_expert_range=(first, last),
                expert_tokens_num_flag=True,
                expert_tokens_num_type=1,
            )
            assert not rows[counts.sum() :].any()
            rows[counts.sum() :] = np.nan
            total += ops.moe_token_unpermute(rows, place, probs)
        sums.append(total)
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-5, atol=1e-6)
