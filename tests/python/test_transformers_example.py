"""The example that runs the experts of transformers models on megamoe."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import transformers_experts as example


@pytest.mark.parametrize("family", example.FAMILIES)
def test_logits_are_as_near_to_float32_as_those_of_transformers(family):
    own, ours = example.compare(family, threads=1)
    assert 0 < ours < 1.25 * own, (own, ours)


@torch.no_grad()
def test_experts_of_another_layer_are_told_apart():
    model = example.random_model("qwen3_moe")
    ids = torch.randint(3, 512, (1, 24))
    own = model(ids, use_cache=False).logits
    buffer = example.replace_experts(model, 24, threads=1)
    first, second = (layer.mlp.experts for layer in model.model.layers)
    assert isinstance(first, example.MegaMoeExperts)
    first.packed, second.packed = second.packed, first.packed
    assert example.typical_error(model(ids, use_cache=False).logits, own) > 0.2
    buffer.destroy()


def test_models_without_experts_are_refused():
    with pytest.raises(ValueError, match="model has no experts"):
        example.replace_experts(torch.nn.Linear(2, 2), 4)


def test_other_activations_are_refused():
    model = example.random_model("mixtral")
    experts = model.model.layers[0].mlp.experts
    experts.act_fn = torch.nn.ReLU()
    with pytest.raises(ValueError, match=r"act_fn = ReLU\(\): expected silu"):
        example.MegaMoeExperts(experts, None)
