"""moe_token_permute, moe_token_unpermute and their gradients."""

import numpy as np
import pytest
import torch

import megamoe
from megamoe import ops
from routing_inputs import TYPES, bits, ids, spread, to_torch, tokens


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


@pytest.mark.parametrize("mode, rule", [(2, "mx_floor_e5m2"), (3, "mx_floor_e4m3")])
def test_older_mx_scale_by_name(mode, rule):
    x, idx = tokens(6, 70, "bfloat16"), ids(6, 2, 4)
    codes, index, scales = ops.moe_token_permute(x, idx, quant_mode=mode, mx_scale="floor")
    wanted_codes, wanted_scales = megamoe.quantise(rule, x[np.argsort(idx.reshape(-1), kind="stable") // 2])
    np.testing.assert_array_equal(bits(codes), bits(wanted_codes))
    np.testing.assert_array_equal(scales[:, :3], wanted_scales)
    by_torch = ops.moe_token_permute(to_torch(x), to_torch(idx), quant_mode=mode, mx_scale="floor")
    np.testing.assert_array_equal(bits(by_torch[0]), bits(codes))
    newer = ops.moe_token_permute(x, idx, quant_mode=mode)
    assert (scales != newer[2]).any()
    for other in (-1, 9):  # modes that have one rule only
        with pytest.raises(ValueError, match="mx_scale = floor"):
            ops.moe_token_permute(x, idx, quant_mode=other, mx_scale="floor")


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
