"""The routing operators: names, results against NumPy models, gradients, torch.ops.megamoe, wrong values."""

import inspect
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

import megamoe
from megamoe import ops

REQUIRED = inspect.Parameter.empty
ADDED = [("threads", 0), ("isa", None)]
MODES = [mode for mode in range(-1, 18) if mode != 10]
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def bits(array):
    """The bytes of an array of either framework."""
    if isinstance(array, torch.Tensor):
        array = array.detach().contiguous()
        return array.view(torch.uint8).numpy() if array.numel() else np.empty(0, np.uint8)
    return np.ascontiguousarray(array).view(np.uint8) if array.size else np.empty(0, np.uint8)


def to_torch(array):
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tokens(rows, hidden, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal((rows, hidden), np.float32).astype(TYPES[dtype])


def ids(rows, topk, experts, dtype=np.int32, seed=1):
    return np.random.default_rng(seed).integers(0, experts, (rows, topk)).astype(dtype)


def spread(array):
    """The same values in every second row and column of a larger array."""
    wide = np.zeros([2 * extent for extent in array.shape], array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def model(x, expert_idx, start, end, rows=None):
    """Order of the slots, number of active ones, expanded rows and gather index of mode -1."""
    flat = expert_idx.reshape(-1).astype(np.int64)
    order = np.argsort(np.where((flat < start) | (flat < 0), np.iinfo(np.int64).max, flat), kind="stable")
    active = int(((flat >= start) & (flat < end)).sum())
    rows = flat.size if rows is None else rows
    expanded = np.zeros((rows, x.shape[1]), x.dtype)
    kept = min(active, rows)
    expanded[:kept] = x[order[:kept] // expert_idx.shape[1]]
    gather = np.full(flat.size, -1, np.int32)
    gather[order[:active]] = np.arange(active)
    return order, active, expanded, gather


# Signatures


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


# moe_init_routing_v3


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


# moe_token_permute and moe_token_unpermute


@pytest.mark.parametrize("dtype", sorted(TYPES))
@pytest.mark.parametrize("id_type", [np.int32, np.int64])
@pytest.mark.parametrize("wide", [False, True])
def test_permute_and_back(dtype, id_type, wide):
    x, idx = tokens(11, 17, dtype), ids(11, 4, 6, id_type)
    probs = np.random.default_rng(2).random((11, 4), np.float32)
    order = np.argsort(idx.reshape(-1), kind="stable")
    back = np.empty(44, np.int32)
    back[order] = np.arange(44)
    total = np.zeros((11, 17), np.float32)
    for k in range(4):
        total = total + x.astype(np.float32) * probs[:, k : k + 1]
    place = spread if wide else np.asarray
    for convert in (lambda array: place(array), lambda array: to_torch(place(array))):
        permuted, index, scale = ops.moe_token_permute(convert(x), convert(idx))
        np.testing.assert_array_equal(bits(permuted), bits(x[order // 4]))
        np.testing.assert_array_equal(np.asarray(index), back)
        assert tuple(scale.shape) == (0,) and str(scale.dtype).endswith("float32")
        out = ops.moe_token_unpermute(permuted, index, convert(probs))
        np.testing.assert_array_equal(bits(out), bits(total.astype(x.dtype)))


@pytest.mark.parametrize("given, rows", [(None, 12), (0, 12), (5, 5), (40, 12), (-3, 9), (-40, 0)])
def test_num_out_tokens(given, rows):
    x, idx = tokens(12, 4), ids(12, 1, 3).reshape(-1)
    order = np.argsort(idx, kind="stable")
    permuted, index, _ = ops.moe_token_permute(x, idx, given)
    np.testing.assert_array_equal(permuted, x[order[:rows]])
    kept = (index < rows)[:, None]
    np.testing.assert_array_equal(ops.moe_token_unpermute(permuted, index), np.where(kept, x, 0))
    meta = torch.ops.megamoe.moe_token_permute(torch.empty(12, 4, device="meta"), to_torch(idx), given)
    assert tuple(meta[0].shape) == (rows, 4)


@pytest.mark.parametrize("mode", [2, 3, 9])
def test_quantised_permute_is_that_of_init_routing(mode):
    x, idx = tokens(6, 70, "float16"), ids(6, 2, 4)
    for convert in (np.asarray, to_torch):
        got = ops.moe_token_permute(convert(x), convert(idx), quant_mode=mode)
        wanted = ops.moe_init_routing_v3(convert(x), convert(idx), expert_num=4, quant_mode=mode)
        assert got[0].dtype == wanted[0].dtype
        for mine, other in zip(got, (wanted[0], wanted[1], wanted[3])):
            np.testing.assert_array_equal(bits(mine), bits(other))
    meta = torch.ops.megamoe.moe_token_permute(to_torch(x).to("meta"), to_torch(idx), quant_mode=mode)
    assert [(t.shape, t.dtype) for t in meta] == [(t.shape, t.dtype) for t in got]


# Gradients


@pytest.mark.parametrize("rows", [None, 19])
@pytest.mark.parametrize("operator", ["function", "torch.ops"])
def test_gradients_are_those_of_the_same_in_torch(rows, operator):
    space = ops if operator == "function" else torch.ops.megamoe
    x = to_torch(tokens(9, 8)).requires_grad_()
    probs = torch.rand(9, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    idx = to_torch(ids(9, 3, 4))
    slope = to_torch(tokens(9, 8, seed=7))

    permuted, index, _ = space.moe_token_permute(x, idx, rows)
    out = space.moe_token_unpermute(permuted * 2, index, probs)
    (out * slope).sum().backward()
    mine = (x.grad, probs.grad)
    x.grad = probs.grad = None

    order = torch.argsort(idx.reshape(-1), stable=True)[:rows]
    expanded = x[order // 3] * 2
    plain = torch.zeros(27, 8).index_copy(0, order, expanded * probs.reshape(-1)[order, None])
    plain = plain.reshape(9, 3, 8).sum(1)
    (plain * slope).sum().backward()
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(mine[0], x.grad)
    torch.testing.assert_close(mine[1], probs.grad)


def test_gradient_without_probs_and_by_slopes_of_any_strides():
    x = to_torch(tokens(6, 5)).requires_grad_()
    permuted, index, _ = ops.moe_token_permute(x, to_torch(ids(6, 1, 3).reshape(-1)))
    out = ops.moe_token_unpermute(permuted, index)
    (grad,) = torch.autograd.grad(out, x, torch.ones(()).expand(6, 5), retain_graph=True)
    np.testing.assert_array_equal(grad.numpy(), np.ones((6, 5), np.float32))
    slope = to_torch(tokens(5, 6))
    (grad,) = torch.autograd.grad(out, x, slope.t())
    np.testing.assert_array_equal(grad.numpy(), slope.t().numpy())


def test_gradients_of_differences():
    """The slope of a finite difference, in steps that float32 has exactly."""
    x, probs, idx = to_torch(tokens(3, 4)), torch.rand(3, 2), to_torch(ids(3, 2, 2))

    def value(x, probs):
        permuted, index, _ = ops.moe_token_permute(x, idx)
        return (ops.moe_token_unpermute(permuted, index, probs) ** 2).double().sum()

    leaves = (x.clone().requires_grad_(), probs.clone().requires_grad_())
    grads = torch.autograd.grad(value(*leaves), leaves)
    step = 2.0**-6
    for which, base in enumerate((x, probs)):
        for i in range(base.numel()):
            moved = []
            for sign in (1, -1):
                inputs = [x.clone(), probs.clone()]
                inputs[which].view(-1)[i] += sign * step
                moved.append(value(*inputs))
            slope = (moved[0] - moved[1]) / (2 * step)
            assert abs(slope - grads[which].reshape(-1)[i]) < 1e-3 * (1 + abs(slope))


def test_no_second_gradient():
    x = torch.ones(3, 4, requires_grad=True)
    rows = ops.moe_token_permute(x, torch.zeros(3, 1, dtype=torch.int32))[0]
    (grad,) = torch.autograd.grad((rows**2).sum(), x, create_graph=True)
    np.testing.assert_array_equal(grad.detach().numpy(), np.full((3, 4), 2, np.float32))
    with pytest.raises(RuntimeError, match="moe_token_permute_grad"):
        grad.sum().backward()


def test_gradients_in_numpy():
    x, idx = tokens(5, 6), ids(5, 2, 3)
    permuted, index, _ = ops.moe_token_permute(x, idx)
    probs, slope = np.random.default_rng(1).random((5, 2), np.float32), tokens(5, 6, seed=3)
    rows, weights = ops.moe_token_unpermute_grad(permuted, slope, index, probs)
    wanted = np.empty_like(permuted)
    wanted[index] = (slope[:, None] * probs[:, :, None]).reshape(10, 6)
    np.testing.assert_array_equal(rows, wanted)
    np.testing.assert_allclose(weights, (x * slope).sum(1, keepdims=True) @ np.ones((1, 2)), rtol=1e-5)
    back = ops.moe_token_permute_grad(rows, index, 2)
    np.testing.assert_array_equal(back, rows[index[0::2]] + rows[index[1::2]])


def test_no_silent_loss_of_gradients():
    x, idx = (
        torch.randn(4, 32, dtype=torch.bfloat16, requires_grad=True),
        torch.zeros(4, 1, dtype=torch.int32),
    )
    for space in (ops, torch.ops.megamoe):
        with pytest.raises(ValueError, match="quant_mode = 2: expected -1"):
            space.moe_token_permute(x, idx, quant_mode=2)
        with pytest.raises(ValueError, match="x.requires_grad"):
            space.moe_init_routing_v3(x, idx, expert_num=1)
        with pytest.raises(ValueError, match="logits.requires_grad"):
            space.moe_gating_top_k(x, 1)
        with pytest.raises(ValueError, match="bias.requires_grad"):
            space.moe_gating_top_k(x.detach(), 1, bias=torch.zeros(32, requires_grad=True))
    with pytest.raises(ValueError, match="tokens.requires_grad = True: expected False, or torch tensors"):
        ops.moe_token_permute(x, idx.numpy())
    with torch.no_grad():
        ops.moe_token_permute(x, idx, quant_mode=2)
        ops.moe_token_permute(x, idx.numpy())
        ops.moe_init_routing_v3(x, idx, expert_num=1, quant_mode=6)


# moe_gating_top_k


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


def test_gating_ties_and_nan():
    logits = np.zeros((2, 6), np.float32)
    logits[1] = [np.nan, 1, np.nan, 1, np.nan, np.nan]
    weights, chosen = ops.moe_gating_top_k(logits, 4)
    np.testing.assert_array_equal(chosen, [[0, 1, 2, 3], [1, 3, 0, 2]])
    assert np.isfinite(weights).all()


# torch.ops.megamoe

X = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
IDX = to_torch(ids(6, 2, 4))
INDEX = torch.argsort(torch.argsort(IDX.reshape(-1), stable=True)).int()


@pytest.mark.parametrize(
    "name, arguments, keywords",
    [
        ("moe_init_routing_v3", (X, IDX), {"expert_num": 4, "expert_tokens_num_flag": True}),
        ("moe_init_routing_v3", (X.bfloat16(), IDX), {"expert_num": 4, "quant_mode": 2, "active_num": 5}),
        ("moe_token_permute", (X.clone().requires_grad_(), IDX), {}),
        ("moe_token_permute", (X.half(), IDX, -2), {"quant_mode": 9}),
        ("moe_token_permute_grad", (torch.randn(12, 8), INDEX, 2), {}),
        (
            "moe_token_unpermute",
            (torch.randn(12, 8, requires_grad=True), INDEX, torch.rand(6, 2, requires_grad=True)),
            {},
        ),
        ("moe_token_unpermute", (torch.randn(12, 8, requires_grad=True), INDEX), {}),
        ("moe_token_unpermute_grad", (torch.randn(12, 8), torch.randn(6, 8), INDEX, torch.rand(6, 2)), {}),
        ("moe_gating_top_k", (X, 3), {"bias": torch.zeros(64), "scoring": "sigmoid"}),
    ],
)
def test_opcheck(name, arguments, keywords):
    torch.library.opcheck(getattr(torch.ops.megamoe, name).default, arguments, keywords)


@pytest.mark.parametrize("space", [ops, torch.ops.megamoe], ids=["function", "torch.ops"])
def test_compile(space):
    def layer(x, idx, probs):
        permuted, index, _ = space.moe_token_permute(x * 2, idx)
        return space.moe_token_unpermute(permuted + 1, index, probs).square().sum()

    x, probs = torch.randn(5, 8, requires_grad=True), torch.rand(5, 2, requires_grad=True)
    idx = to_torch(ids(5, 2, 4))
    wanted = torch.autograd.grad(layer(x, idx, probs), (x, probs))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for mine, other in zip(torch.autograd.grad(compiled(x, idx, probs), (x, probs)), wanted):
        torch.testing.assert_close(mine, other)


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.returncode == 0, done.stderr


def test_numpy_alone_needs_no_torch():
    run_python(
        "import sys, numpy as np, megamoe\n"
        "x, i = np.ones((2, 4), np.float32), np.zeros((2, 1), np.int32)\n"
        "megamoe.moe_init_routing_v3(x, i, expert_num=1); megamoe.moe_token_permute(x, i)\n"
        "megamoe.moe_gating_top_k(x, 2)\n"
        "assert 'torch' not in sys.modules\n"
        "try: megamoe.register_torch_ops()\n"
        "except RuntimeError as error: assert 'import torch' in str(error)\n"
        "else: raise AssertionError\n"
    )


def test_registration_when_torch_comes_later():
    run_python(
        "import megamoe, torch\n"
        "assert not hasattr(torch.ops.megamoe, 'moe_gating_top_k')\n"
        "megamoe.register_torch_ops(); megamoe.register_torch_ops()\n"
        "print(torch.ops.megamoe.moe_gating_top_k(torch.zeros(1, 2), 1))\n"
    )


# Wrong values


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
        (lambda: init(x=np.zeros((3, 8), ml_dtypes.float4_e2m1fn)), TypeError, "expected uint8 with two"),
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
