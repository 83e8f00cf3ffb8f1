"""moe_init_routing_v3 and moe_gating_top_k: results against NumPy and torch models, in both frameworks."""

import ml_dtypes
import numpy as np
import pytest
import torch

from megamoe import ops
from routing_inputs import MODES, TYPES, bits, ids, model, spread, to_torch, tokens


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", sorted(TYPES))
@pytest.mark.parametrize("id_type", [np.int32, np.int64])
@pytest.mark.parametrize("active_range", [(), (2, 5), (0, 7), (4, 4)])
def test_init_routing_copies(framework, dtype, id_type, active_range):
    x, idx = tokens(13, 33, dtype), ids(13, 3, 7, id_type)
    idx[4, 1] = idx[9, 0] = -1
    start, end = active_range or (0, 7)
    order, active, expanded, gather = model(x, idx, start, end)
    counts = np.bincount(idx[(idx >= start) & (idx < end)], minlength=7)[start:end]
    pairs = np.zeros((7, 2), np.int64)
    used = np.flatnonzero(counts)
    pairs[: used.size] = np.stack([used + start, counts[used]], axis=1)
    convert = to_torch if framework == "torch" else np.asarray
    for row_idx_type, row_index in enumerate((gather, order)):
        for kind, wanted in enumerate((np.cumsum(counts), counts, pairs)):
            got = ops.moe_init_routing_v3(
                convert(x),
                convert(idx),
                expert_num=7,
                expert_tokens_num_type=kind,
                expert_tokens_num_flag=True,
                active_expert_range=active_range,
                row_idx_type=row_idx_type,
            )
            assert all(isinstance(array, type(convert(x))) for array in got)
            assert got[0].dtype == convert(x).dtype and got[0].shape == expanded.shape
            np.testing.assert_array_equal(bits(got[0]), bits(expanded))
            np.testing.assert_array_equal(np.asarray(got[1]), row_index)
            assert str(got[1].dtype).endswith("int32") and str(got[2].dtype).endswith("int64")
            np.testing.assert_array_equal(np.asarray(got[2]), wanted)
            assert tuple(got[3].shape) == (0,)


@pytest.mark.parametrize("active_num, rows", [(-1, 20), (0, 20), (7, 7), (50, 20)])
def test_active_num(active_num, rows):
    x, idx, scale = tokens(10, 8), ids(10, 2, 4), np.arange(10, dtype=np.float32)
    order, _, expanded, gather = model(x, idx, 0, 4, rows)
    got = ops.moe_init_routing_v3(x, idx, scale=scale, expert_num=4, active_num=active_num)
    np.testing.assert_array_equal(got[0], expanded)
    np.testing.assert_array_equal(got[1], gather)
    assert got[2].shape == (0,) and got[2].dtype == np.int64
    np.testing.assert_array_equal(got[3], scale[order[:rows] // 2])


def test_drop_pad():
    x, idx, capacity = tokens(12, 6), ids(12, 2, 5), 3
    expanded = np.zeros((5, capacity, 6), np.float32)
    row_index = np.full(24, -1, np.int32)
    used = [0] * 5
    for slot, expert in enumerate(idx.reshape(-1)):
        if used[expert] < capacity:
            expanded[expert, used[expert]] = x[slot // 2]
            row_index[slot] = expert * capacity + used[expert]
            used[expert] += 1
    for convert in (np.asarray, to_torch):
        got = ops.moe_init_routing_v3(
            convert(x), convert(idx), expert_num=5, drop_pad_mode=1, expert_capacity=capacity
        )
        np.testing.assert_array_equal(np.asarray(got[0]), expanded)
        np.testing.assert_array_equal(np.asarray(got[1]), row_index)


def test_int8_per_token_rule():
    x, idx = tokens(9, 40), ids(9, 2, 4)
    smooth = 0.5 + np.random.default_rng(3).random((4, 40), np.float32)
    order = model(x, idx, 0, 4)[0]
    rows = x[order // 2] * smooth[idx.reshape(-1)[order]]
    scale = np.abs(rows).max(1) / np.float32(127)
    got = ops.moe_init_routing_v3(x, idx, scale=smooth, expert_num=4, quant_mode=1)
    np.testing.assert_array_equal(got[3], scale)
    np.testing.assert_array_equal(got[0], np.rint(rows / scale[:, None]).astype(np.int8))


def test_fp8_block_rule():
    x, idx = tokens(6, 256, "bfloat16"), ids(6, 1, 3)
    rows = x[model(x, idx, 0, 3)[0]].astype(np.float32).reshape(6, 2, 128)
    scale = np.abs(rows).max(2) / np.float32(448)
    codes = (rows / scale[:, :, None]).astype(ml_dtypes.float8_e4m3fn).reshape(6, 256)
    for convert in (np.asarray, to_torch):
        got = ops.moe_init_routing_v3(convert(x), convert(idx), expert_num=3, quant_mode=12)
        assert str(got[0].dtype).endswith("float8_e4m3fn")
        np.testing.assert_array_equal(np.asarray(got[3]).reshape(6, 2), scale)
        np.testing.assert_array_equal(bits(got[0]), bits(codes))


def mode_arguments(mode, hidden):
    one = np.ones(1, np.float32)
    return {
        0: {"scale": 3 * one, "offset": one},
        1: {"scale": np.full((1, hidden), 2, np.float32)},
        7: {"scale": one},
    }.get(mode, {})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hidden", [2, 96, 130, 300])
def test_every_mode_in_both_frameworks_and_without_memory(mode, hidden):
    x, idx = tokens(7, hidden, "bfloat16"), ids(7, 3, 5)
    extra = mode_arguments(mode, hidden)
    call = {"expert_num": 5, "quant_mode": mode, "active_num": 15}
    by_numpy = ops.moe_init_routing_v3(x, idx, **call, **extra)
    tensors = {name: to_torch(value) for name, value in extra.items()}
    by_torch = ops.moe_init_routing_v3(to_torch(x), to_torch(idx), **call, **tensors)
    wide = ops.moe_init_routing_v3(spread(x), spread(idx), **call, **extra)
    for array, tensor, strided in zip(by_numpy, by_torch, wide):
        assert array.shape == tuple(tensor.shape)
        assert array.dtype.name == str(tensor.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(bits(array), bits(tensor))
        np.testing.assert_array_equal(bits(array), bits(strided))
    meta = {name: value.to("meta") for name, value in tensors.items()}
    shapes = torch.ops.megamoe.moe_init_routing_v3(
        to_torch(x).to("meta"), to_torch(idx).to("meta"), **call, **meta
    )
    for tensor, described in zip(by_torch, shapes):
        assert tensor.shape == described.shape and tensor.dtype == described.dtype


def test_older_mx_scale_is_another_rule():
    x, idx = np.full((1, 32), 450, ml_dtypes.bfloat16), np.zeros((1, 1), np.int32)
    for name, byte in (("round_up", 128), ("floor", 127)):
        scale = ops.moe_init_routing_v3(x, idx, expert_num=1, quant_mode=3, mx_scale=name)[3]
        np.testing.assert_array_equal(scale, [[byte, 0]])


def test_rows_that_are_codes():
    codes = np.random.default_rng(4).integers(0, 256, (8, 64)).astype(np.uint8)
    idx = ids(8, 2, 3)
    order = model(codes, idx, 0, 3)[0] // 2
    e8m0 = np.random.default_rng(5).integers(0, 255, (8, 2, 2)).astype(np.uint8)

    def check(got, scale=None):
        np.testing.assert_array_equal(bits(got[0]), codes[order])
        if scale is not None:
            np.testing.assert_array_equal(bits(got[3]).reshape(-1), scale[order].reshape(-1))

    def call(rows, index=idx, **arguments):
        got = ops.moe_init_routing_v3(rows, index, expert_num=3, **arguments)
        assert got[0].dtype == rows.dtype and got[0].shape[1] == 64
        return got

    check(call(codes, x_dtype="hifloat8"))
    check(call(codes, x_dtype="float4_e2m1", scale=e8m0), e8m0)
    check(call(codes.view(np.int8)))
    check(call(codes.view(ml_dtypes.float8_e5m2), scale=e8m0[:, :1]), e8m0[:, :1])
    check(call(codes, x_dtype=torch.float8_e4m3fn, scale=e8m0[:, :1].view(ml_dtypes.float8_e8m0fnu)))
    rows, index = torch.from_numpy(codes), torch.from_numpy(idx)
    check(call(rows, index, x_dtype="float4_e2m1", scale=torch.from_numpy(e8m0)), e8m0)
    for name in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2"):
        if hasattr(torch, name):
            check(call(rows.view(getattr(torch, name)), index))
    if hasattr(torch, "float8_e8m0fnu"):
        scale = torch.from_numpy(e8m0[:, :1].copy()).view(torch.float8_e8m0fnu)
        check(call(rows.view(torch.float8_e5m2), index, scale=scale), e8m0[:, :1])


@pytest.mark.parametrize("shape", [(0, 8, 2), (3, 8, 0)])
def test_nothing_to_route(shape):
    rows, hidden, topk = shape
    x, idx = np.zeros((rows, hidden), np.float32), np.zeros((rows, topk), np.int64)
    for convert in (np.asarray, to_torch):
        got = ops.moe_init_routing_v3(
            convert(x), convert(idx), expert_num=3, expert_tokens_num_flag=True, expert_tokens_num_type=1
        )
        assert tuple(got[0].shape) == (0, hidden) and tuple(got[1].shape) == (0,)
        np.testing.assert_array_equal(np.asarray(got[2]), [0, 0, 0])
        permuted = ops.moe_token_permute(convert(x), convert(idx))
        assert tuple(permuted[0].shape) == (0, hidden)
        weights, chosen = ops.moe_gating_top_k(convert(x[:0]), 2)
        assert tuple(weights.shape) == tuple(chosen.shape) == (0, 2)
    source = to_torch(x).requires_grad_()
    ops.moe_token_permute(source, to_torch(idx))[0].sum().backward()
    np.testing.assert_array_equal(source.grad.numpy(), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_gating(dtype, scoring, renormalize):
    generator = torch.Generator().manual_seed(5)
    # Distinct logits, so that torch.topk has no ties to break.
    logits = torch.stack([torch.randperm(40, generator=generator) for _ in range(12)]).to(dtype) / 8 - 2
    scores = logits.float().softmax(-1) if scoring == "softmax" else logits.float().sigmoid()
    weights, chosen = scores.topk(5)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    for given in (logits, logits.t().contiguous().t()):
        got, got_ids = ops.moe_gating_top_k(
            given, 5, scoring=scoring, renormalize=renormalize, routed_scaling_factor=2.5
        )
        assert got.dtype == torch.float32 and got_ids.dtype == torch.int32
        assert torch.equal(got_ids, chosen.int())
        torch.testing.assert_close(got, weights * 2.5)
    if dtype == torch.float32:
        array, array_ids = ops.moe_gating_top_k(
            logits.numpy(), 5, scoring=scoring, renormalize=renormalize, routed_scaling_factor=2.5
        )
        np.testing.assert_array_equal(array, got.numpy())
        np.testing.assert_array_equal(array_ids, got_ids.numpy())


def test_gating_by_groups_with_bias():
    generator = torch.Generator().manual_seed(6)
    logits, bias = torch.randn(20, 32, generator=generator), torch.randn(32, generator=generator)
    scores = logits.sigmoid()
    selection = scores + bias
    best = selection.view(20, 4, 8).topk(2).values.sum(-1).topk(2).indices
    kept = torch.zeros(20, 4, dtype=torch.bool).scatter(1, best, True).repeat_interleave(8, 1)
    chosen = selection.masked_fill(~kept, -torch.inf).topk(6).indices
    weights, got = ops.moe_gating_top_k(logits, 6, bias=bias, scoring="sigmoid", n_group=4, topk_group=2)
    assert torch.equal(got, chosen.int())
    torch.testing.assert_close(weights, scores.gather(1, chosen))


def test_gating_by_groups_with_the_best_expert():
    """The rule of DeepSeek-V2's group_limited_greedy, as its model code states it."""
    logits = torch.randn(20, 32, generator=torch.Generator().manual_seed(7))
    scores = logits.softmax(-1)
    groups = scores.view(20, 4, 8).max(-1).values.topk(2).indices
    kept = torch.zeros(20, 4, dtype=torch.bool).scatter(1, groups, True).repeat_interleave(8, 1)
    expected, chosen = scores.masked_fill(~kept, 0.0).topk(6)
    weights, got = ops.moe_gating_top_k(logits, 6, n_group=4, topk_group=2, group_score="max")
    assert torch.equal(got, chosen.int())
    torch.testing.assert_close(weights, expected)
    assert not torch.equal(got, ops.moe_gating_top_k(logits, 6, n_group=4, topk_group=2)[1])


def test_gating_ties_and_nan():
    logits = np.zeros((2, 6), np.float32)
    logits[1] = [np.nan, 1, np.nan, 1, np.nan, np.nan]
    weights, chosen = ops.moe_gating_top_k(logits, 4)
    np.testing.assert_array_equal(chosen, [[0, 1, 2, 3], [1, 3, 0, 2]])
    assert np.isfinite(weights).all()
