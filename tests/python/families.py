"""Small models of the families that `load_layer` reads: their names of tensors, settings and ways to store weights."""

import numpy as np

from checkpoints import (
    awq, fp8_blocks, gptq, gptq8, gptq8_groups, gpt_oss, half, int8_channels, packed, packed8, packed8_groups, per_expert, plain,
)  # fmt: skip

TOKENS, HIDDEN, INTER, EXPERTS, TOPK = 23, 256, 128, 8, 3
QWEN = (
    "model.layers.1.mlp.",
    "experts.{}.gate_proj",
    "experts.{}.up_proj",
    "experts.{}.down_proj",
    "gate",
    "",
    "",
)
DEEPSEEK = (*QWEN[:5], "gate.e_score_correction_bias", "shared_experts")
MIXTRAL = (
    "model.layers.1.block_sparse_moe.",
    "experts.{}.w1",
    "experts.{}.w3",
    "experts.{}.w2",
    "gate",
    "",
    "",
)
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": HIDDEN,
    "intermediate_size": 999,
    "moe_intermediate_size": INTER,
    "hidden_act": "silu",
}


def config(model_type, experts_key="num_experts", topk_key="num_experts_per_tok", **more):
    return SIZES | {"model_type": model_type, experts_key: EXPERTS, topk_key: TOPK} | more


def build(names, store, settings, *, shared=0, **routing):
    model = per_expert(names, store, EXPERTS, HIDDEN, INTER, settings, shared=shared, shared_store=routing.pop("shared_store", plain))
    for name, value in routing.items():
        setattr(model, name, value)
    return model


def quantised(method, group, **more):
    return {"quantization_config": {"quant_method": method, "bits": 4, "group_size": group} | more}


def qwen3(store=plain, **more):
    return build(QWEN, store, config("qwen3_moe", **dict(norm_topk_prob=True) | more))


def mixtral(store=plain, **more):
    settings = config("mixtral", "num_local_experts", **more)
    settings["intermediate_size"] = settings.pop("moe_intermediate_size")
    return build(MIXTRAL, store, settings)


def compressed(group, symmetric=True, bits=4, **more):
    """quantization_config as compressed-tensors writes it, group -1 as its strategy "channel"."""
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "actorder": None}
    weights |= {"strategy": "channel", "group_size": None} if group == -1 else {"strategy": "group", "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights | more, "input_activations": None}}
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}


GROUPED = dict(n_group=4, topk_group=2, routed_scaling_factor=2.5)
SIGMOID = dict(scoring="sigmoid", groups=(4, 2), scale=2.5)
OAI = dict(num_local_experts=EXPERTS, num_experts_per_tok=TOPK, swiglu_limit=7.0)


def oss(stored):
    settings = SIZES | {"model_type": "gpt_oss"} | OAI
    settings["intermediate_size"] = settings.pop("moe_intermediate_size")
    return gpt_oss(EXPERTS, HIDDEN, INTER, settings, stored=stored)


def kimi_linear():
    names = (*MIXTRAL[:5], "gate.e_score_correction_bias", "shared_experts")
    settings = config(
        "kimi_linear",
        topk_key="num_experts_per_token",
        num_shared_experts=1,
        moe_renormalize=True,
        moe_router_activation_func="sigmoid",
        num_expert_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
    )
    return build(names, plain, settings, shared=1, **SIGMOID)


def deepseek_v2(store, more, shared=2, **routing):
    settings = config("deepseek_v2", "n_routed_experts", n_shared_experts=shared, topk_method="greedy", n_group=4)
    names = (*QWEN[:6], "shared_experts")
    return build(names, store, settings | more, shared=shared, shared_store=store, renormalize=False, **routing)


def qwen2(store, settings, shared, shared_store=None, **routing):
    """A model whose shared expert has a gate."""
    names = (*QWEN[:6], "shared_expert")
    settings = config("qwen2_moe", shared_expert_intermediate_size=shared * INTER) | settings
    routing = {"renormalize": False} | routing
    model = build(names, store, settings, shared=shared, shared_store=shared_store or store, **routing)
    tensors, model.shared_gate = plain(np.random.default_rng(5), f"{QWEN[0]}shared_expert_gate", 1, HIDDEN)
    model.shared_gate = 3 * model.shared_gate  # far from a half
    model.tensors[f"{QWEN[0]}shared_expert_gate.weight"] = model.shared_gate.astype(np.float32)
    return model


def ernie(shared, **more):
    """The correction bias stands beside the router, (1, E), and scores are softmax."""
    names = (*QWEN[:5], "moe_statics.e_score_correction_bias", "shared_experts")
    settings = config("ernie4_5_moe", "moe_num_experts", "moe_k", moe_num_shared_experts=shared, use_bias=False) | more
    model = build(names, plain, settings, shared=shared)
    model.correction = model.correction / 4  # probabilities of experts are small
    model.tensors[names[0] + names[5]] = model.correction[None]
    return model


def granite(shared):
    """Gate and up of all experts in one tensor; shared experts in an MLP beside the expert layer."""
    prefix = "model.layers.1."
    names = (f"{prefix}block_sparse_moe.", *QWEN[1:4], "router.layer", "", "shared_mlp")
    settings = config("granitemoeshared", "num_local_experts", shared_intermediate_size=shared * INTER)
    settings["intermediate_size"] = settings.pop("moe_intermediate_size")
    model = build(names, plain, settings, shared=shared)
    take = lambda *parts: np.concatenate([model.tensors.pop(f"{names[0]}{part}.weight") for part in parts])  # noqa: E731
    for name, parts in (("input_linear", ("gate_proj", "up_proj")), ("output_linear", ("down_proj",))):
        model.tensors[f"{names[0]}{name}.weight"] = np.stack(
            [take(*(f"experts.{e}.{part}" for part in parts)) for e in range(EXPERTS)]
        )
        if shared:
            model.tensors[f"{prefix}shared_mlp.{name}.weight"] = take(*(f"shared_mlp.{part}" for part in parts))
    return model


def fused(model, swapped=False):
    """The experts as transformers keeps them in memory, or both matrices transposed as Qwen3-VL-MoE stores them."""
    for name, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        stacks = [
            np.concatenate([model.tensors.pop(f"{QWEN[0]}experts.{e}.{part}.weight") for part in parts])
            for e in range(EXPERTS)
        ]
        both = np.stack(stacks)
        model.tensors[f"{QWEN[0]}experts.{name}"] = both.swapaxes(1, 2) if swapped else both
    return model


def nested(model):
    """Names and configuration of a model that sees: the language model is a part."""
    model.tensors = {name.replace("model.", "model.language_model.", 1): t for name, t in model.tensors.items()}
    model.config = {"model_type": "qwen3_vl_moe", "text_config": model.config | {"model_type": "qwen3_vl_moe_text"}}
    return model


# model, largest relative error; activated rows and Linear1 are rounded to bfloat16
MODELS = {
    "qwen3_moe": (lambda: qwen3(), 6e-3),
    "qwen3_moe without norm_topk_prob": (
        lambda: build(QWEN, plain, config("qwen3_moe"), renormalize=False),
        6e-3,
    ),
    "mixtral": (lambda: mixtral(), 6e-3),
    "deepseek_v2": (lambda: deepseek_v2(plain, dict(routed_scaling_factor=16.0), scale=16.0), 6e-3),
    "deepseek_v2 without topk_method": (
        lambda: deepseek_v2(plain, dict(topk_method=None, **GROUPED), shared=1, scale=2.5),
        6e-3,
    ),
    "deepseek_v2, groups by their best expert": (
        lambda: deepseek_v2(
            plain,
            dict(topk_method="group_limited_greedy", **GROUPED),
            shared=1,
            groups=(4, 2),
            groups_by=1,
            scale=2.5,
        ),
        6e-3,
    ),
    "ernie4_5_moe": (lambda: ernie(2), 6e-3),
    "ernie4_5_moe without shared experts": (lambda: ernie(0), 6e-3),
    "granitemoe": (lambda: granite(0), 6e-3),
    "granitemoeshared": (lambda: granite(2), 6e-3),
    "deepseek_v3": (
        lambda: build(
            DEEPSEEK,
            fp8_blocks,
            config("deepseek_v3", "n_routed_experts", n_shared_experts=1, scoring_func="sigmoid", **GROUPED)
            | dict(topk_method="noaux_tc", norm_topk_prob=True),
            shared=1,
            shared_store=fp8_blocks,
            **SIGMOID,
        ),
        6e-3,
    ),
    "glm4_moe": (
        lambda: build(
            DEEPSEEK,
            plain,
            config("glm4_moe", "n_routed_experts", n_shared_experts=1, norm_topk_prob=True),
            shared=1,
            scoring="sigmoid",
        ),
        6e-3,
    ),
    "kimi_k2": (
        lambda: build(
            ("language_model." + DEEPSEEK[0], *DEEPSEEK[1:]),
            fp8_blocks,
            {
                "model_type": "kimi_k25",
                "text_config": config(
                    "kimi_k2", "n_routed_experts", n_shared_experts=1, scoring_func="sigmoid"
                ),
            },
            shared=1,
            shared_store=fp8_blocks,
            scoring="sigmoid",
        ),
        6e-3,
    ),
    "kimi_linear": (kimi_linear, 6e-3),
    "minimax_m2": (
        lambda: build(
            (*MIXTRAL[:5], "e_score_correction_bias", ""),
            fp8_blocks,
            config("minimax_m2", "num_local_experts", scoring_func="sigmoid"),
            scoring="sigmoid",
        ),
        6e-3,
    ),
    "gpt_oss": (lambda: oss(True), 6e-3),
    "gpt_oss in bfloat16": (lambda: oss(False), 6e-3),
    "float16": (lambda: qwen3(half), 6e-3),
    "gptq": (lambda: qwen3(gptq(128, False, 1), **quantised("gptq", 128)), 6e-3),
    "gptq, symmetric": (
        lambda: mixtral(gptq(64, True, 1), **quantised("gptq", 64, sym=True, desc_act=False)),
        6e-3,
    ),
    "gptq_v2": (
        lambda: qwen3(gptq(32, False, 2), **quantised("gptq", 32, checkpoint_format="gptq_v2")),
        6e-3,
    ),
    "awq": (lambda: qwen3(awq(128), **quantised("awq", 128, version="gemm", zero_point=True)), 6e-3),
    "awq of mixtral": (lambda: mixtral(awq(64), **quantised("awq", 64)), 6e-3),
    "gptq, a scale per output": (lambda: qwen3(gptq(-1, False, 1), **quantised("gptq", -1)), 6e-3),
    "gptq of 8 bits": (
        lambda: qwen3(gptq8, quantization_config={"quant_method": "gptq", "bits": 8, "group_size": -1}),
        2e-2,
    ),
    "gptq of 8 bits in groups": (
        lambda: qwen3(gptq8_groups(32, True), **quantised("gptq", 32, bits=8)),
        6e-3,
    ),
    "gptq of 8 bits in groups with zero points": (
        lambda: mixtral(gptq8_groups(128, False), **quantised("gptq", 128, bits=8)),
        6e-3,
    ),
    "compressed-tensors of 8 bits in groups": (lambda: qwen3(packed8_groups(64), **compressed(64, bits=8)), 6e-3),
    "compressed-tensors": (lambda: qwen3(packed(128), **compressed(128)), 6e-3),
    "compressed-tensors with zero points": (lambda: mixtral(packed(64, False), **compressed(64, False)), 6e-3),
    "compressed-tensors, a scale per output": (lambda: qwen3(packed(-1), **compressed(-1)), 6e-3),
    "compressed-tensors of 8 bits": (lambda: qwen3(packed8, **compressed(-1, bits=8)), 2e-2),
    "compressed-tensors, int8": (lambda: qwen3(int8_channels, **compressed(-1, bits=8)), 2e-2),
    "kimi_k2 thinking": (
        lambda: build(
            DEEPSEEK,
            packed(32, size_type=np.int32),
            config("kimi_k2", "n_routed_experts", n_shared_experts=1, scoring_func="sigmoid")
            | dict(topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=2.827, n_group=1, topk_group=1)
            | compressed(32),
            shared=1,
            scoring="sigmoid",
            scale=2.827,
        ),
        6e-3,
    ),
    "int8 with shared experts in bfloat16": (
        lambda: build(
            DEEPSEEK,
            int8_channels,
            config("glm4_moe", "n_routed_experts", n_shared_experts=1) | compressed(-1, bits=8),
            shared=1,
            scoring="sigmoid",
        ),
        2e-2,
    ),
    "qwen3_moe, fused": (lambda: fused(qwen3()), 6e-3),
    "qwen3_vl_moe": (lambda: nested(fused(qwen3(), swapped=True)), 6e-3),
    "qwen2_moe": (lambda: qwen2(plain, {}, 4), 6e-3),
    "qwen2_moe of int4": (lambda: qwen2(gptq(128, False, 1), quantised("gptq", 128), 2), 6e-3),
    "qwen2_moe with zero points on one side": (
        lambda: qwen2(packed(32), compressed(32), 1, packed(32, False)), 6e-3,
    ),
    "qwen3_next of fp8": (lambda: qwen2(fp8_blocks, dict(model_type="qwen3_next", norm_topk_prob=True), 1, renormalize=True), 6e-3),
    "qwen3_5_moe": (lambda: fused(qwen2(plain, dict(model_type="qwen3_5_moe"), 1, renormalize=True)), 6e-3),
    "qwen3_5_moe, matrices transposed": (
        lambda: fused(qwen2(plain, dict(model_type="qwen3_5_moe"), 2, renormalize=True), swapped=True), 6e-3,
    ),
    "two shared experts of int4": (lambda: deepseek_v2(awq(32), quantised("awq", 32)), 6e-3),
    "two shared experts of int4, words along k": (lambda: deepseek_v2(packed(64, False), compressed(64, False)), 6e-3),
    "two shared experts of int8 in groups": (
        lambda: deepseek_v2(gptq8_groups(32, False), quantised("gptq", 32, bits=8)), 6e-3,
    ),
    "three shared experts of fp8": (lambda: deepseek_v2(fp8_blocks, {}, shared=3), 6e-3),
    "awq with shared experts in float16": (
        lambda: build(
            DEEPSEEK,
            awq(32),
            config("deepseek_v3", "n_routed_experts", n_shared_experts=1, **GROUPED) | quantised("awq", 32),
            shared=1,
            shared_store=half,
            **SIGMOID,
        ),
        6e-3,
    ),
}  # fmt: skip
