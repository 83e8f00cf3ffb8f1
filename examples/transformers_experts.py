"""A Hugging Face transformers model whose experts run on megamoe.

transformers (from 5.0 on) keeps the experts of a layer in one module with `gate_up_proj` and `down_proj`, called with the
tokens, the ids and the weights of the router: what `mega_moe` takes. `replace_experts` puts a `MegaMoeExperts` in its
place; router and shared experts stay those of the model. As a program, this compares logits on small random models of
several families, without a download:

    python examples/transformers_experts.py [FAMILY ...]

It prints how far the logits are from those of the same model in float32, with the experts of transformers and with
those of megamoe in bfloat16, and fails where megamoe is further away.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch import nn

import megamoe

Tensor = torch.Tensor


class MegaMoeExperts(nn.Module):
    """Takes the place of the experts module of one layer; the weights are packed once."""

    def __init__(self, experts: nn.Module, buffer: megamoe.SymmBuffer, threads: int = 0) -> None:
        super().__init__()
        self.buffer = buffer
        self.activation: dict[str, Any] = {"activation": "swiglu"}
        order: dict[str, Any] = {"transposed": True}  # (E, 2I, H) and (E, H, I), as nn.Linear has them
        if hasattr(experts, "gate_up_proj_bias"):  # gpt-oss: (E, H, 2I) and (E, I, H), gate and up columns in turn
            params = {"alpha": float(experts.alpha)}
            self.activation = {"activation": "swigluoai", "activation_params": params}
            self.activation["activation_clamp"] = float(experts.limit)
            biases = {"l1_bias": experts.gate_up_proj_bias, "l2_bias": experts.down_proj_bias}
            order = {"weight1_interleave": 1} | {name: bias.detach().float() for name, bias in biases.items()}
        elif type(experts.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
            raise ValueError(f"act_fn = {experts.act_fn}: expected silu")
        l1, l2 = experts.gate_up_proj.detach(), experts.down_proj.detach()
        self.packed = megamoe.pack_weights(l1, l2, threads=threads, **order)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        ids, weights = top_k_index.to(torch.int32), top_k_weights.to(torch.float32)
        y, _ = megamoe.mega_moe(rows, ids, weights, *self.packed, self.buffer, **self.activation)
        return y.reshape(hidden_states.shape)


def replace_experts(model: nn.Module, max_tokens: int, threads: int = 0) -> megamoe.SymmBuffer:
    """Runs the experts of all layers of a bfloat16 `model` on megamoe, in batches of at most `max_tokens` tokens.

    Returns the buffer that all layers share; destroy it when the model is no longer called.
    """
    places = [
        (module, module.experts)
        for module in model.modules()
        if isinstance(getattr(module, "experts", None), nn.Module) and hasattr(module.experts, "gate_up_proj")
    ]
    if not places:
        raise ValueError("model has no experts: expected modules `experts` with gate_up_proj and down_proj")
    config, down = model.config.get_text_config(), places[0][1].down_proj
    experts, hidden = down.shape[0], config.hidden_size
    inter = down.numel() // (experts * hidden)
    topk = config.num_experts_per_tok
    buffer = megamoe.get_symm_buffer_for_mega_moe(None, experts, max_tokens, topk, hidden, inter, threads=threads)
    for module, original in places:
        module.experts = MegaMoeExperts(original, buffer, threads)  # the original weights are freed
    return buffer


SIZES = dict(
    vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    num_experts_per_tok=2, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
_DEEPSEEK = dict(
    intermediate_size=96, moe_intermediate_size=64, n_routed_experts=8, n_shared_experts=1, n_group=2, topk_group=1,
    first_k_dense_replace=1, routed_scaling_factor=2.5,
)  # fmt: skip
# family -> (class of the configuration, sizes beside SIZES)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("Qwen3MoeConfig", dict(intermediate_size=96, moe_intermediate_size=64, num_experts=8, norm_topk_prob=True)),
    "mixtral": ("MixtralConfig", dict(intermediate_size=64, num_local_experts=8)),
    "gpt_oss": ("GptOssConfig", dict(intermediate_size=64, num_local_experts=8)),
    "deepseek_v3": (
        "DeepseekV3Config",
        _DEEPSEEK | dict(num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=32, head_dim=16, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=32),
    ),
    "glm4_moe": ("Glm4MoeConfig", _DEEPSEEK),
}


def random_model(family: str, seed: int = 0) -> nn.Module:
    """A small model of a family with random weights, bfloat16."""
    import transformers

    name, sizes = FAMILIES[family]
    torch.manual_seed(seed)
    config = getattr(transformers, name)(**SIZES | sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():  # what transformers leaves at zero, such as the biases of gpt-oss
        if not parameter.detach().any():
            nn.init.normal_(parameter, std=SIZES["initializer_range"])
    return model.to(torch.bfloat16)


def typical_error(got: Tensor, expected: Tensor) -> float:
    """Median over the tokens of the relative error: where scores tie, rounding gives a token another expert."""
    distance = (got.double() - expected.double()).norm(dim=-1)
    return float((distance / expected.double().norm(dim=-1)).median())


@torch.no_grad()
def compare(family: str, tokens: int = 48, threads: int = 0) -> tuple[float, float]:
    """Typical errors of the logits against the model in float32: (experts of transformers, of megamoe)."""
    model = random_model(family)
    ids = torch.randint(3, SIZES["vocab_size"], (2, tokens // 2))
    exact = copy.deepcopy(model).float()(ids, use_cache=False).logits
    own = model(ids, use_cache=False).logits
    buffer = replace_experts(model, tokens, threads)
    ours = model(ids, use_cache=False).logits
    buffer.destroy()
    return typical_error(own, exact), typical_error(ours, exact)


def main(families: list[str]) -> int:
    failed = False
    for family in families or FAMILIES:
        own, ours = compare(family)
        failed |= not ours < 1.25 * own
        print(f"{family:12} logits off float32: transformers {own:.2%}, megamoe {ours:.2%}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
