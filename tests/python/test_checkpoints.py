"""Expert layers of checkpoints: names of model families, ways to store weights, routers; and what is refused."""

import json

import numpy as np
import pytest

pytest.importorskip("safetensors")

import megamoe
from checkpoints import BF16, awq, fp8_blocks, gptq, plain
from families import (
    DEEPSEEK, EXPERTS, HIDDEN, INTER, MODELS, TOKENS, TOPK, build, config, ernie, quantised, qwen2, qwen3,
)  # fmt: skip
from layers import bits, relative_error
from ranks import in_threads


def tokens(seed=1):
    x = np.random.default_rng(seed).standard_normal((TOKENS, HIDDEN))
    return x.astype(np.float32).astype(BF16)


@pytest.mark.parametrize("name", MODELS)
def test_layer_against_float64(name, tmp_path):
    make, bound = MODELS[name]
    model = make()
    layer = megamoe.load_layer(model.save(tmp_path), layer=1)
    x = tokens()
    expected = model.forward(x.astype(np.float64), TOPK)
    weights, ids = layer.route(x)
    own_ids, own_weights = model.route(x.astype(np.float64), TOPK)
    np.testing.assert_array_equal(ids, own_ids)
    np.testing.assert_allclose(weights, own_weights, rtol=1e-4)
    with layer.buffer(TOKENS, threads=1) as buffer:
        y = layer(x, buffer)
    assert y.dtype == BF16
    assert relative_error(y, expected) < bound


def test_ranks_own_parts_of_the_experts(tmp_path):
    model = build(DEEPSEEK, plain, config("glm4_moe", "n_routed_experts", n_shared_experts=1), shared=1, scoring="sigmoid")
    opened = megamoe.Checkpoint(model.save(tmp_path))
    assert opened.layers == [1]
    assert (opened.model_type, opened.num_experts, opened.num_topk) == ("glm4_moe", EXPERTS, TOPK)
    parts = [opened.load_layer(1, rank=rank, ranks=3, threads=1) for rank in range(3)]
    assert [part.weights.l1.experts for part in parts] == [3, 3, 2]
    assert all(part.shared.l1.experts == 1 for part in parts)
    assert parts[0].weights.l1.dtype == "bfloat16"
    more = opened.load_layer(1, rank=8, ranks=9)
    assert more.weights is None
    with pytest.raises(ValueError, match=r"rank = 3: expected a value in \[0, 3\)"):
        opened.load_layer(1, rank=3, ranks=3)
    with pytest.raises(ValueError, match="ranks = 0: expected at least 1"):
        opened.load_layer(1, ranks=0)


def test_gated_experts_follow_the_routed_ones(tmp_path):
    torch = pytest.importorskip("torch")
    opened = megamoe.Checkpoint(qwen2(plain, {}, 2).save(tmp_path))
    assert [opened.load_layer(1, rank=rank, ranks=3, threads=1).weights.l1.experts for rank in range(3)] == [4, 4, 2]
    layer = opened.load_layer(1, threads=1)
    assert (layer.gated, layer.shared, layer.shared_gate.shape) == (2, None, (1, HIDDEN))
    x = tokens()
    with layer.buffer(TOKENS, threads=1) as buffer:
        expected = layer(x, buffer)
        y = layer(torch.from_numpy(x.view(np.int16)).view(torch.bfloat16), buffer)
    assert relative_error(y.float().numpy(), expected) < 1e-3


@pytest.mark.parametrize("store, settings, kind, limit", [
    (gptq(128, False, 1), quantised("gptq", 128), "int4", 0.54),
    (awq(128), quantised("awq", 128), "int4", 0.54),
    (fp8_blocks, {}, "float8_e4m3fn", 1.04),
])  # fmt: skip
def test_width(store, settings, kind, limit, tmp_path):
    layer = megamoe.load_layer(qwen3(store, **settings).save(tmp_path), 1)
    assert (layer.weight_type, layer.weights.l1.dtype) == (kind, kind)
    elements = 3 * EXPERTS * HIDDEN * INTER
    assert sum(weights.nbytes for weights in layer.weights) < limit * elements + (1 << 16)


def test_torch_tokens_of_any_shape(tmp_path):
    torch = pytest.importorskip("torch")
    layer = megamoe.load_layer(str(qwen3().save(tmp_path)), 1)
    x = tokens()[:20]
    with layer.buffer(20, threads=1) as buffer:
        expected = layer(x, buffer)
        batch = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).reshape(4, 5, HIDDEN)
        y = layer(batch, buffer)
        assert tuple(y.shape) == (4, 5, HIDDEN)
        # the frameworks add up the router's logits in different orders
        assert relative_error(y.reshape(20, HIDDEN).float().numpy(), expected) < 1e-3
        with pytest.raises(ValueError, match=r"x has shape \(20, 255\): expected \(..., 256\)"):
            layer(x[:, :-1], buffer)
        with pytest.raises(ValueError, match=r"x has shape \(4, 5, 5\): expected \(..., 256\)") as caught:
            layer(batch[..., :5], buffer)
        assert caught.value.code == megamoe.Code.INVALID_ARGUMENT


def activation_order(k, group):
    return np.random.default_rng(0).permutation(k).astype(np.int32) // group


def changed(model, key, value):
    model.config["quantization_config"][key] = value
    return model


WORDS = lambda: qwen3(gptq(128, False, 1), **quantised("gptq", 128))  # noqa: E731
AWQ = lambda: qwen3(awq(128), **quantised("awq", 128))  # noqa: E731


@pytest.mark.parametrize(
    "make, kind, text",
    [
        (lambda: qwen3(gptq(128, False, 1, activation_order), **quantised("gptq", 128, desc_act=True)), ValueError,
         ", groups of neighbours (quantised without activation order)"),
        (lambda: changed(WORDS(), "bits", 3), ValueError, "quantization_config.bits = 3: expected 4 or 8"),
        (lambda: changed(WORDS(), "bits", 8), RuntimeError, "gate_proj.qweight' has shape (32, 128): expected (64, 128)"),
        (lambda: changed(AWQ(), "bits", 8), ValueError, "quantization_config.bits = 8: expected 4"),
        (lambda: changed(WORDS(), "group_size", 16), ValueError,
         "quantization_config.group_size = 16: expected 32, 64, 128 or -1"),
        (lambda: changed(WORDS(), "group_size", 64), RuntimeError, "scales' has shape (2, 128): expected (4, 128)"),
        (lambda: changed(WORDS(), "quant_method", "hqq"), ValueError,
         "quantization_config.quant_method = hqq: expected gptq or awq"),
        (lambda: changed(WORDS(), "quant_method", "awq"), RuntimeError,
         "gate_proj.qweight' has shape (32, 128): expected (256, 16)"),
        (lambda: changed(AWQ(), "version", "gemv"), ValueError, "quantization_config.version = gemv: expected gemm"),
        (lambda: qwen3(gptq(128, False, 1)), ValueError, "quantization_config.quant_method = absent: expected"),
        (lambda: changed(WORDS(), "desc_act", "no"), RuntimeError,
         'quantization_config.desc_act = "no": expected true or false'),
        (lambda: qwen2(gptq(128, False, 1), quantised("gptq", 128), 1, plain), ValueError,
         "tensors 'model.layers.1.mlp.shared_expert' have type bfloat16: expected int4 like the routed experts"),
        (lambda: qwen2(plain, dict(shared_expert_intermediate_size=192), 1), ValueError,
         "shared_expert_intermediate_size = 192: expected a multiple of 128, the width of a routed expert"),
        (lambda: qwen3(topk_method="random"), ValueError,
         'topk_method = "random": expected greedy, noaux_tc or group_limited_greedy'),
        (lambda: qwen3(shared_intermediate_size=192), ValueError,
         "shared_intermediate_size = 192: expected a multiple of 128, the width of a routed expert, at most 64 of them"),
        (lambda: qwen3(scoring_func="tanh"), ValueError, 'scoring_func = "tanh": expected softmax or sigmoid'),
        (lambda: qwen3(n_group=3), RuntimeError, "n_group = 3: expected a divisor of 8 experts"),
        (lambda: qwen3(n_group=4, topk_group=5), RuntimeError, "topk_group = 5: expected 1 to 4"),
        (lambda: qwen3(n_group=8, topk_group=1), RuntimeError,
         "num_experts_per_tok = 3: expected at most 1, the experts of topk_group of n_group groups"),
        (lambda: ernie(2, moe_num_shared_experts=None), RuntimeError,
         "has tensors 'model.layers.1.mlp.shared_experts.*' of shared experts, but n_shared_experts or "
         "shared_intermediate_size is missing or 0 in config.json: expected their number or width"),
        (lambda: qwen2(plain, dict(shared_expert_intermediate_size=0), 1), RuntimeError,
         "has tensors 'model.layers.1.mlp.shared_expert.*' of shared experts, but shared_expert_intermediate_size is"),
        (lambda: qwen3(norm_topk_prob="yes"), RuntimeError, 'norm_topk_prob = "yes": expected true or false'),
        (lambda: qwen3(hidden_act="relu"), ValueError, 'hidden_act = "relu": expected silu'),
        (lambda: qwen3(quantization_config=4), RuntimeError, "quantization_config = 4: expected an object"),
    ],
)  # fmt: skip
def test_refused(make, kind, text, tmp_path):
    with pytest.raises(kind) as caught:
        megamoe.load_layer(make().save(tmp_path), 1)
    assert text in str(caught.value)


def test_a_wrong_x_of_one_rank_is_the_same_error_on_all(tmp_path):
    """No rank waits for one that raised before the call, and the next call works."""
    opened = megamoe.Checkpoint(qwen3().save(tmp_path))
    groups = megamoe.Group.local(2)

    def work(rank):
        part = opened.load_layer(1, rank=rank, ranks=2, threads=1)
        good = tokens()
        results = []
        with part.buffer(TOKENS, groups[rank], threads=1, deadline=20) as buffer:
            for wrong in (good[:, :-1], good.tolist(), good.view(np.uint16)[None][..., None]):
                try:
                    results.append(part(wrong if rank == 1 else good, buffer))
                except Exception as error:
                    results.append(str(error))
            results.append(part(good, buffer))
        return results

    first, second = in_threads(work, 2)
    for texts in (first, second):
        assert texts[0] == f"rank 1: x has shape ({TOKENS}, {HIDDEN - 1}): expected (..., {HIDDEN})"
        assert texts[1] == "rank 1: x = list: expected a torch tensor or a NumPy array"
        assert texts[2] == f"rank 1: x has shape (1, {TOKENS}, {HIDDEN}, 1): expected (..., {HIDDEN})"
    np.testing.assert_array_equal(bits(first[3]), bits(second[3]))


def test_wrong_arguments(tmp_path):
    folder = qwen3().save(tmp_path)
    with pytest.raises(ValueError, match="layer = 0: expected one of 1"):
        megamoe.load_layer(folder, 0)
    with pytest.raises(ValueError, match="does not exist"):
        megamoe.load_layer(tmp_path / "nowhere", 0)
    with pytest.raises(TypeError, match="path = int"):
        megamoe.load_layer(3, 0)
    with pytest.raises(TypeError, match="layer = '1'"):
        megamoe.load_layer(folder, "1")
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 2}))
    with pytest.raises(RuntimeError, match="hidden_size is missing"):
        megamoe.load_layer(folder, 1)
