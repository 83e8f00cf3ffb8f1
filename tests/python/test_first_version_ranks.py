"""mega_moe_v1 on two ranks: the limits of the first document, and errors that reach every rank."""

import itertools
import re

import ml_dtypes
import numpy as np
import pytest
import torch

import megamoe
from layers import BF16, bits
from ranks import in_threads

E5M2 = ml_dtypes.float8_e5m2


class Smallest:
    """The smallest layer that the first document allows, on two ranks."""

    ranks, tokens, hidden, inter, experts, topk = 2, 3, 4096, 512, 6, 6

    def __init__(self):
        rng = np.random.default_rng(15)
        self.x = rng.standard_normal((2, self.tokens, self.hidden)).astype(np.float32).astype(BF16)
        self.ids = np.tile(rng.permutation(self.experts), (2, self.tokens, 1)).astype(np.int32)
        self.router = rng.random((2, self.tokens, self.topk), np.float32)
        small = rng.integers(0x30, 0x3D, 1 << 16, np.uint8) | rng.choice([0, 128], 1 << 16).astype(np.uint8)
        self.l1 = np.resize(small, (self.experts, 2 * self.inter, self.hidden)).view(E5M2)
        self.l2 = np.resize(small[::-1], (self.experts, self.hidden, self.inter)).view(E5M2)
        self.sf1 = np.full((self.experts, 2 * self.inter, self.hidden // 64, 2), 121, np.uint8)
        self.sf2 = np.full((self.experts, self.hidden, self.inter // 64, 2), 121, np.uint8)

    def buffer(self, group, profile, **changes):
        sizes = dict(num_experts=self.experts, num_max_tokens_per_rank=self.tokens, num_topk=self.topk)
        sizes |= dict(hidden=self.hidden, intermediate_hidden=self.inter, dispatch_quant_mode=4)
        settings = sizes | dict(dispatch_quant_out_dtype=23, profile=profile, threads=1) | changes
        return megamoe.get_symm_buffer_for_mega_moe(group, **settings)

    def tokens_of(self, rank):
        return dict(x=self.x[rank], topk_ids=self.ids[rank], topk_weights=self.router[rank])

    def weights_of(self, rank):
        mine = slice(3 * rank, 3 * rank + 3)
        return dict(
            weight1=self.l1[mine], weight2=self.l2[mine], weight_scales1=self.sf1[mine], weight_scales2=self.sf2[mine]
        )

    def call(self, rank, buffer, **changes):
        """Arguments of mega_moe_v1."""
        attributes = dict(moe_expert_num=6, ep_world_size=2, ccl_buffer_size=buffer.ccl_buffer_size)
        attributes |= dict(dispatch_quant_mode=4, dispatch_quant_out_type=23)
        return dict(context=buffer) | self.tokens_of(rank) | self.weights_of(rank) | attributes | changes

    def operator_call(self, rank, buffer, **changes):
        """Arguments of mega_moe."""
        weight1, weight2, scales1, scales2 = self.weights_of(rank).values()
        weights = dict(l1_weights=weight1, l2_weights=weight2, l1_weights_sf=scales1, l2_weights_sf=scales2)
        return dict(sym_buffer=buffer) | self.tokens_of(rank) | weights | changes


def on_two_ranks(profile, settings=None, **changes):
    """Results of the smallest layer. `changes` are arguments, or functions of all arguments that make one."""
    layer, groups = Smallest(), megamoe.Group.local(2)

    def work(rank):
        with layer.buffer(groups[rank], profile, **settings or {}) as buffer:
            arguments = layer.call(rank, buffer)
            made = {name: change(arguments) if callable(change) else change for name, change in changes.items()}
            return megamoe.ops.mega_moe_v1(**arguments | made)

    return in_threads(work, 2)


def test_the_profile_of_the_first_version():
    layer = Smallest()
    groups, others = megamoe.Group.local(2), megamoe.Group.local(2)

    def work(rank):
        with layer.buffer(groups[rank], "mega_moe_v1") as buffer:
            changes = dict(dispatch_quant_out_type=torch.float8_e5m2, global_bs=6)
            first = megamoe.ops.mega_moe_v1(**layer.call(rank, buffer, **changes))
            with pytest.raises(ValueError, match="topk_ids"):
                ids = np.repeat(layer.ids[rank][:, :1], 6, axis=1)  # an expert twice in a token
                megamoe.mega_moe(**layer.operator_call(rank, buffer, topk_ids=ids))
        with layer.buffer(others[rank], "cpu") as buffer:
            return first, megamoe.mega_moe(**layer.operator_call(rank, buffer))

    for result in in_threads(work, 2):
        assert not isinstance(result, Exception), result
        (y, counts), (expected, expected_counts) = result
        assert np.isfinite(y.astype(np.float32)).all() and np.abs(y.astype(np.float32)).max() > 0
        np.testing.assert_array_equal(bits(y), bits(expected))
        np.testing.assert_array_equal(counts, expected_counts)
        assert counts.tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(hidden=6144), "hidden = 6144: expected 4096"),
        (dict(num_topk=4), "num_topk = 4: expected 6 or 8"),
        (dict(intermediate_hidden=768), "intermediate_hidden = 768: expected 512"),
        (dict(num_experts=34), "= 17: expected a value in [1, 16]"),
        (dict(num_experts=7), "num_experts = 7: expected a multiple of 2"),
        (dict(dispatch_quant_out_dtype=296), "dispatch_quant_out_dtype = float4_e2m1: expected"),
        (dict(combine_quant_mode=4), "combine_quant_mode = 4: expected 0"),
        (dict(combine_comm_mode=1), "combine_comm_mode = 1: expected 0"),
        (dict(topk_weights_type=1), "topk_weights_type = 1: expected 0"),
        (dict(max_recv_token_num=19), "max_recv_token_num = 19: expected a value in [0, 18"),
    ],
    ids=itertools.count(),
)
def test_limits_of_the_first_version(change, text):
    layer, groups = Smallest(), megamoe.Group.local(2)

    def work(rank):
        layer.buffer(groups[rank], "mega_moe_v1", **change).destroy()

    for result in in_threads(work, 2):
        assert isinstance(result, ValueError) and text in str(result), result


def test_a_wrong_attribute_under_compile_reaches_every_rank():
    """Ranks that only compare attributes while they trace would leave the others waiting."""
    layer, groups = Smallest(), megamoe.Group.local(2)

    def work(rank):
        tokens = layer.tokens_of(rank)
        with layer.buffer(groups[rank], "cpu", deadline=20) as buffer:
            x = torch.from_numpy(tokens["x"].view(np.int16)).view(torch.bfloat16)
            arrays = [torch.from_numpy(array.view(np.uint8)) for array in layer.weights_of(rank).values()]
            return torch.ops.megamoe.mega_moe_v1(
                x,
                torch.from_numpy(tokens["topk_ids"]),
                torch.from_numpy(tokens["topk_weights"]),
                buffer.handle,
                *([arrays[0]], 0, [arrays[1]], 0, [arrays[2]], [arrays[3]], None, None),
                *(6 + rank, 2, buffer.ccl_buffer_size, 0, 4, "float8_e5m2", 0, "", 0),
            )

    for result in in_threads(work, 2):
        assert isinstance(result, ValueError), result
        assert "moe_expert_num = 7: expected 6, that of context" in str(result)


@pytest.mark.parametrize("profile, rows, good", [("mega_moe_v1", 18, True), ("mega_moe_v1", 19, False), ("cpu", 19, True)])
def test_max_recv_token_num_is_bounded_by_the_tokens_of_the_call(profile, rows, good):
    settings = dict(num_max_tokens_per_rank=8, max_recv_token_num=rows)
    for result in on_two_ranks(profile, settings, max_recv_token_num=rows):
        if good:
            assert not isinstance(result, Exception), result
            continue
        assert isinstance(result, ValueError)
        assert "max_recv_token_num = 19: expected at most 18, 3 tokens x 2 (ep_world_size) x 3 " in str(result)


def with_bias(arguments):
    return megamoe.pack_weights(
        arguments["weight1"],
        arguments["weight2"],
        l1_sf=arguments["weight_scales1"],
        l2_sf=arguments["weight_scales2"],
        l1_bias=np.zeros((3, 1024), np.float32),
        threads=1,
    ).l1


@pytest.mark.parametrize(
    "profile, changes, kind, text",
    [
        (
            "mega_moe_v1",
            dict(weight_scales1=lambda a: a["weight_scales1"].reshape(3, 1024, 128)),
            ValueError,
            "weight_scales1 has shape (3, 1024, 128): expected (3, 1024, 64, 2), or 3 tensors of shape (1024, 64, 2)",
        ),
        ("mega_moe_v1", dict(x=lambda a: a["x"].astype(np.float32)), TypeError, "x = float32: expected bfloat16"),
        ("cpu", dict(x=lambda a: a["x"].astype(np.float32)), TypeError, "x = float32: expected bfloat16 or float16"),
        (
            "mega_moe_v1",
            dict(weight1=with_bias, weight_scales1=None),
            ValueError,
            ": bias of weight1 is given: expected none (profile mega_moe_v1)",
        ),
    ],
    ids=itertools.count(),
)
def test_texts_of_the_first_version(profile, changes, kind, text):
    for result in on_two_ranks(profile, **changes):
        assert isinstance(result, kind), result
        assert text in str(result)
        assert not str(result).endswith(("uint8", "e5m2"))


@pytest.mark.parametrize("profile", ["mega_moe_v1", "cpu"])
def test_a_ccl_buffer_size_that_differs_between_ranks_is_the_same_error_on_each(profile):
    sizes = itertools.count(1)
    results = on_two_ranks(profile, ccl_buffer_size=lambda a: a["ccl_buffer_size"] + next(sizes))
    for result in results:
        assert isinstance(result, ValueError), result
        assert str(result).endswith(": expected the same value on every rank")
        assert re.match(r"ccl_buffer_size = \d+ on rank 0; \d+ on rank 1: ", str(result))


def test_a_buffer_of_other_tokens_is_named_by_them():
    settings = dict(dispatch_quant_mode=2, dispatch_quant_out_dtype="int8")
    for result in on_two_ranks("cpu", settings, dispatch_quant_mode=2):
        assert "dispatch_quant_out_type = float8_e5m2: expected int8, that of context" in str(result)


def test_profile_cpu_runs_what_the_buffer_was_made_for():
    """A thin layer over mega_moe: early router weights have no argument here."""
    late, early = on_two_ranks("cpu"), on_two_ranks("cpu", dict(topk_weights_type=1))
    for (y, _), (other, _) in zip(late, early):
        assert np.isfinite(other.astype(np.float32)).all() and not np.array_equal(bits(y), bits(other))


@pytest.mark.parametrize("global_bs", [0, 6, 8, 1024])
def test_global_bs_has_room_for_the_tokens_of_all_ranks(global_bs):
    layer, groups = Smallest(), megamoe.Group.local(2)

    def work(rank, value):
        with layer.buffer(groups[rank], "mega_moe_v1") as buffer:
            for wrong in (5, 4, 7):
                with pytest.raises(ValueError, match=f"global_bs = {wrong}: expected 0, or a multiple of 2"):
                    megamoe.ops.mega_moe_v1(**layer.call(rank, buffer, global_bs=wrong))
            return megamoe.ops.mega_moe_v1(**layer.call(rank, buffer, global_bs=value))

    for result in in_threads(lambda rank: work(rank, global_bs), 2):
        assert not isinstance(result, Exception), result
    if global_bs:
        for result in in_threads(lambda rank: work(rank, global_bs + 2 * rank), 2):
            expected = f"global_bs = {global_bs} on rank 0; {global_bs + 2} on rank 1: expected the same value on every rank"
            assert isinstance(result, ValueError), result
            assert str(result) == expected
