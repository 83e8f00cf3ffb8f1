"""mega_moe_v1: the same results as mega_moe, the names and limits of the first document."""

import inspect
import itertools
import re

import ml_dtypes
import numpy as np
import pytest
import torch

import megamoe
from coded_layers import EXPERTS, TOKENS, Layer
from layers import BF16, bits
from ranks import in_threads

E5M2 = ml_dtypes.float8_e5m2
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

    def tensors(self, rank):
        mine = slice(3 * rank, 3 * rank + 3)
        tokens = dict(x=self.x[rank], topk_ids=self.ids[rank], topk_weights=self.router[rank])
        return tokens, self.l1[mine], self.l2[mine], self.sf1[mine], self.sf2[mine]


def test_the_profile_of_the_first_version():
    layer = Smallest()
    groups, others = megamoe.Group.local(2), megamoe.Group.local(2)

    def work(rank):
        tokens, l1, l2, sf1, sf2 = layer.tensors(rank)
        with layer.buffer(groups[rank], "mega_moe_v1") as buffer:
            first = megamoe.ops.mega_moe_v1(
                buffer,
                *tokens.values(),
                *(l1, l2, sf1, sf2),
                moe_expert_num=6,
                ep_world_size=2,
                ccl_buffer_size=buffer.ccl_buffer_size,
                dispatch_quant_mode=4,
                dispatch_quant_out_type=torch.float8_e5m2,
                global_bs=6,
            )
            with pytest.raises(ValueError, match="topk_ids"):
                ids = np.repeat(tokens["topk_ids"][:, :1], 6, axis=1)  # an expert twice in a token
                megamoe.mega_moe(
                    **tokens | dict(topk_ids=ids),
                    l1_weights=l1,
                    l2_weights=l2,
                    sym_buffer=buffer,
                    l1_weights_sf=sf1,
                    l2_weights_sf=sf2,
                )
        with layer.buffer(others[rank], "cpu") as buffer:
            second = megamoe.mega_moe(
                **tokens,
                l1_weights=l1,
                l2_weights=l2,
                sym_buffer=buffer,
                l1_weights_sf=sf1,
                l2_weights_sf=sf2,
            )
        return first, second

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


def operator_call(layer, buffer, **changes):
    """Arguments of `torch.ops.megamoe.mega_moe_v1`."""
    arrays = {
        name: torch.from_numpy(getattr(layer, attribute).view(np.uint8))
        for name, attribute in dict(weight1="l1", weight2="l2", weight_scales1="sf1", weight_scales2="sf2").items()
    }
    tokens = dict(
        x=torch.from_numpy(layer.x.view(np.int16)).view(torch.bfloat16),
        topk_ids=torch.from_numpy(layer.ids),
        topk_weights=torch.from_numpy(layer.router),
    )
    return call(layer, buffer, **tokens, **arrays) | changes


def test_compile(buffer):
    arguments = operator_call(LAYER, buffer)
    x = arguments.pop("x")

    def work(x):
        y, counts = megamoe.ops.mega_moe_v1(x=x, **arguments)
        return y + 1, counts

    torch._dynamo.reset()
    compiled = torch.compile(work, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(x), work(x)):
        np.testing.assert_array_equal(bits(got), bits(expected))


def test_a_wrong_attribute_under_compile_reaches_every_rank():
    """Ranks that only compare attributes while they trace would leave the others waiting."""
    layer, groups = Smallest(), megamoe.Group.local(2)

    def work(rank):
        tokens, l1, l2, sf1, sf2 = layer.tensors(rank)
        with layer.buffer(groups[rank], "cpu", deadline=20) as buffer:
            x = torch.from_numpy(tokens["x"].view(np.int16)).view(torch.bfloat16)
            arrays = [torch.from_numpy(array.view(np.uint8)) for array in (l1, l2, sf1, sf2)]
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


def on_two_ranks(profile, settings=None, attributes=None, **changes):
    """Results of the smallest layer, its buffer and its arguments changed."""
    layer, groups = Smallest(), megamoe.Group.local(2)

    def work(rank):
        tokens, l1, l2, sf1, sf2 = layer.tensors(rank)
        with layer.buffer(groups[rank], profile, **settings or {}) as buffer:
            arguments = dict(context=buffer, **tokens, weight1=l1, weight2=l2, weight_scales1=sf1, weight_scales2=sf2)
            arguments |= dict(moe_expert_num=6, ep_world_size=2, ccl_buffer_size=buffer.ccl_buffer_size)
            arguments |= dict(dispatch_quant_mode=4, dispatch_quant_out_type=23)
            arguments |= attributes or {}
            return megamoe.ops.mega_moe_v1(**arguments | {name: make(arguments) for name, make in changes.items()})

    return in_threads(work, 2)


@pytest.mark.parametrize("profile, rows, good", [("mega_moe_v1", 18, True), ("mega_moe_v1", 19, False), ("cpu", 19, True)])
def test_max_recv_token_num_is_bounded_by_the_tokens_of_the_call(profile, rows, good):
    settings = dict(num_max_tokens_per_rank=8, max_recv_token_num=rows)
    for result in on_two_ranks(profile, settings, dict(max_recv_token_num=rows)):
        if good:
            assert not isinstance(result, Exception), result
            continue
        assert isinstance(result, ValueError)
        assert "max_recv_token_num = 19: expected at most 18, 3 tokens x 2 (ep_world_size) x 3 " in str(result)


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
            dict(
                weight1=lambda a: megamoe.pack_weights(
                    a["weight1"],
                    a["weight2"],
                    l1_sf=a["weight_scales1"],
                    l2_sf=a["weight_scales2"],
                    l1_bias=np.zeros((3, 1024), np.float32),
                    threads=1,
                ).l1,
                weight_scales1=lambda a: None,
            ),
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
    for result in on_two_ranks("cpu", settings, dict(dispatch_quant_mode=2)):
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
        tokens, *weights = layer.tensors(rank)
        with layer.buffer(groups[rank], "mega_moe_v1") as buffer:
            arguments = dict(moe_expert_num=6, ep_world_size=2, ccl_buffer_size=buffer.ccl_buffer_size)
            arguments |= dict(dispatch_quant_mode=4, dispatch_quant_out_type=23)
            for wrong in (5, 4, 7):
                with pytest.raises(ValueError, match=f"global_bs = {wrong}: expected 0, or a multiple of 2"):
                    megamoe.ops.mega_moe_v1(buffer, *tokens.values(), *weights, **arguments, global_bs=wrong)
            return megamoe.ops.mega_moe_v1(buffer, *tokens.values(), *weights, **arguments, global_bs=value)

    for result in in_threads(lambda rank: work(rank, global_bs), 2):
        assert not isinstance(result, Exception), result
    if global_bs:
        for result in in_threads(lambda rank: work(rank, global_bs + 2 * rank), 2):
            expected = f"global_bs = {global_bs} on rank 0; {global_bs + 2} on rank 1: expected the same value on every rank"
            assert isinstance(result, ValueError), result
            assert str(result) == expected
