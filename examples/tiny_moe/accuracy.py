"""What each scenario of megamoe costs the tiny model: the error of every MoE layer, and the perplexity with all replaced.

Prints the tables of docs/accuracy.md. The model around the MoE layers is written out here in float32: token embedding,
attention, norms, router. Notation: B windows, S context length, T = B * S tokens, H hidden size, I expert width, E experts,
K experts per token.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import megamoe
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

HERE = Path(__file__).resolve().parent

# The expert layer of layer n: (n, x [T, H] float32, ids [T, K] int32, weights [T, K] float32) -> [T, H].
Experts = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Scenario:
    """How tokens travel, and how weights are quantised: by a rule of the library, or by blocks; None keeps them bfloat16."""

    name: str
    dispatch_quant_mode: int
    dispatch_quant_out_dtype: str | None
    rule: str | None
    weight_type: str | None
    scale_group: int = 0  # weights that share a scale; 0 = as the rule has it


# Round-up scales, where the rules have them, so that no weight saturates.
SCENARIOS = (
    Scenario("A16W16", 0, None, None, None),
    Scenario("A8W8-INT", 2, "int8", "int8_per_token", "int8"),
    Scenario("A8W4-INT", 2, "int8", "int4_dynamic", "int4"),
    Scenario("A8W8-FP", 4, "float8_e4m3fn", "mx_round_up_e4m3", "float8_e4m3fn"),
    Scenario("A8W8-FP-E5M2", 4, "float8_e5m2", "mx_round_up_e5m2", "float8_e5m2"),
    Scenario("A16W4-FP", 0, None, "mx_floor_e2m1", "float4_e2m1"),
    Scenario("A8W4-FP", 4, "float8_e4m3fn", "mx_floor_e2m1", "float4_e2m1"),
    Scenario("A4W4-FP", 4, "float4_e2m1", "mx_floor_e2m1", "float4_e2m1"),
    Scenario("A16W4-GROUP", 0, None, "int4_dynamic", "int4", 128),
    Scenario("A8W4-GROUP", 2, "int8", "int4_dynamic", "int4", 128),
    Scenario("A16W8-BLOCK", 0, None, "blocks", "float8_e4m3fn", 128),
    Scenario("A8W8-BLOCK", 3, None, "blocks", "float8_e4m3fn", 128),
)
BASE = SCENARIOS[0].name


class Model:
    """The checkpoint: sizes from config.json and the stored tensors by name."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.stored = load_file(folder / "model.safetensors")
        self.layers: int = self.config["num_hidden_layers"]
        self.experts: int = self.config["num_local_experts"]
        self.topk: int = self.config["num_experts_per_tok"]
        self.hidden: int = self.config["hidden_size"]
        self.inter: int = self.config["moe_intermediate_size"]

    def weight(self, name: str) -> Tensor:
        return self.stored[f"{name}.weight"].float()

    def expert_weights(self, layer: int) -> tuple[Tensor, Tensor]:
        """Bfloat16 weights of a layer: gate rows, then up, [E, 2I, H], and [E, H, I]."""
        def stack(name: str) -> Tensor:
            return torch.stack([self.stored[f"model.layers.{layer}.mlp.experts.{e}.{name}_proj.weight"]
                                for e in range(self.experts)])

        return torch.cat([stack("gate"), stack("up")], dim=1), stack("down")

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight(name), self.config["rms_norm_eps"])

    def attention(self, x: Tensor, prefix: str) -> Tensor:
        """Causal attention with normed heads and rotary positions over x [B, S, H]."""
        heads, width = self.config["num_attention_heads"], self.config["head_dim"]
        if heads != self.config["num_key_value_heads"]:
            raise ValueError(f"num_key_value_heads = {self.config['num_key_value_heads']}: expected {heads}")
        theta = self.config["rope_parameters"]["rope_theta"]
        angles = torch.outer(torch.arange(x.shape[1]), theta ** (-torch.arange(0, width, 2) / width))
        cos, sin = (torch.cat([part, part], dim=-1) for part in (angles.cos(), angles.sin()))

        def project(name: str) -> Tensor:
            rows = F.linear(x, self.weight(f"{prefix}.{name}_proj")).unflatten(-1, (heads, width))
            if name != "v":
                rows = self.norm(rows, f"{prefix}.{name}_norm")
            return rows.transpose(1, 2)

        def rotate(rows: Tensor) -> Tensor:
            first, second = rows.chunk(2, dim=-1)
            return rows * cos + torch.cat([-second, first], dim=-1) * sin

        out = F.scaled_dot_product_attention(rotate(project("q")), rotate(project("k")), project("v"), is_causal=True)
        return F.linear(out.transpose(1, 2).flatten(2), self.weight(f"{prefix}.o_proj"))

    def route(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Experts int32 [T, K] of x [T, H] and their weights float32 [T, K], which sum to 1."""
        logits = F.linear(x, self.weight(f"model.layers.{layer}.mlp.gate"))
        weights, ids = logits.softmax(-1).topk(self.topk)
        return ids.to(torch.int32), weights / weights.sum(-1, keepdim=True)

    def loss(self, windows: Tensor, experts: Experts) -> float:
        """Mean cross-entropy of the next byte, in nats, over windows uint8 [B, S + 1]."""
        embedding = self.weight("model.embed_tokens")
        x = embedding[windows[:, :-1].long()]
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            x = x + self.attention(self.norm(x, f"{prefix}.input_layernorm"), f"{prefix}.self_attn")
            tokens = self.norm(x, f"{prefix}.post_attention_layernorm").flatten(0, 1)
            x = x + experts(layer, tokens, *self.route(tokens, layer)).view_as(x)
        logits = F.linear(self.norm(x, "model.norm"), embedding)
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten().long()).item()


def plain_experts(model: Model) -> Experts:
    """Every expert layer in float32 by torch: what the scenarios are measured from."""

    def run(layer: int, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        first, second = (w.float() for w in model.expert_weights(layer))
        y = torch.zeros_like(x)
        for expert in range(model.experts):
            token, slot = (ids == expert).nonzero(as_tuple=True)
            gate, up = F.linear(x[token], first[expert]).chunk(2, dim=-1)
            rows = F.linear(F.silu(gate) * up, second[expert])
            y.index_add_(0, token, rows * weights[token, slot, None])
        return y

    return run


def quantised(weights: Tensor, rule: str, group: int) -> dict[str, Tensor]:
    """Weights bfloat16 [E, N, K] as codes, scales and, for int4, the compensation bias, by their argument name."""
    experts, outputs, reduction = weights.shape
    if rule == "blocks":  # the largest weight of group x group becomes the largest E4M3
        blocks = weights.float().view(experts, outputs // group, group, reduction // group, group)
        scales = blocks.abs().amax((2, 4), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        codes = (blocks / scales).to(torch.float8_e4m3fn)
        return {"": codes.view_as(weights), "_sf": scales[:, :, 0, :, 0]}
    if group:
        codes, scales = megamoe.quantise(rule, weights.reshape(-1, group))
        return {"": codes.view(experts, outputs, -1), "_sf": scales.view(experts, outputs, -1)}
    codes, scales = megamoe.quantise(rule, weights.flatten(0, 1))
    result = {"": codes.view(experts, outputs, -1)}
    if scales.dtype != torch.float32:  # one per 32 weights, in pairs
        return result | {"_sf": scales.view(experts, outputs, -1, 2)}
    result["_sf"] = scales.view(experts, outputs)
    if rule == "int4_dynamic":
        nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).int()
        sums = ((nibbles ^ 8) - 8).sum((1, 2)).float()  # two's complement
        result["_bias"] = (8 * (sums * scales.flatten())).view(experts, outputs)
    return result


class FusedExperts:
    """Every expert layer by mega_moe in one scenario, weights packed once."""

    def __init__(self, model: Model, scenario: Scenario, tokens: int) -> None:
        self.buffer = megamoe.get_symm_buffer_for_mega_moe(
            None, model.experts, tokens, model.topk, model.hidden, model.inter,
            dispatch_quant_mode=scenario.dispatch_quant_mode,
            dispatch_quant_out_dtype=scenario.dispatch_quant_out_dtype)
        self.packed = [self.pack(model, scenario, layer) for layer in range(model.layers)]

    @staticmethod
    def pack(model: Model, scenario: Scenario, layer: int) -> tuple[megamoe.PackedWeights, megamoe.PackedWeights]:
        weights = model.expert_weights(layer)
        if scenario.rule is None:
            return megamoe.pack_weights(*weights, transposed=True)
        parts = [quantised(w, scenario.rule, scenario.scale_group) for w in weights]
        arguments = {f"l{i}{name}": part for i, each in enumerate(parts, 1) for name, part in each.items()}
        # The documents have the reduction last in floating-point codes, and in the middle in integers.
        return megamoe.pack_weights(**arguments, weight1_type=scenario.weight_type, weight2_type=scenario.weight_type,
                                    scale_group=scenario.scale_group, transposed=scenario.weight_type in ("int8", "int4"))

    def __call__(self, layer: int, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        y, _ = megamoe.mega_moe(x.to(torch.bfloat16), ids, weights, *self.packed[layer], self.buffer)
        return y.float()


@dataclass(frozen=True)
class Row:
    """Result of one scenario: relative error of each layer against A16W16, and nats per byte of the model."""

    name: str
    errors: tuple[float, ...]
    loss: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)


def relative_error(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def measure(model: Model, captured: dict[str, Tensor], windows: Tensor) -> tuple[float, list[Row]]:
    """Loss of the model in float32, and one row for each scenario."""
    tokens = max(windows.shape[0] * (windows.shape[1] - 1), len(captured["layers.0.hidden_states"]))
    rows: list[Row] = []
    base: list[Tensor] = []
    for scenario in SCENARIOS:
        experts = FusedExperts(model, scenario, tokens)
        outputs = [experts(n, *(captured[f"layers.{n}.{name}"] for name in ("hidden_states", "topk_ids", "topk_weights")))
                   for n in range(model.layers)]
        base = base or outputs
        errors = tuple(relative_error(got, want) for got, want in zip(outputs, base, strict=True))
        rows.append(Row(scenario.name, errors, model.loss(windows, experts)))
        experts.buffer.destroy()
    return model.loss(windows, plain_experts(model)), rows


def table(plain_loss: float, rows: list[Row]) -> Iterator[str]:
    """The lines of the Markdown table."""
    layers = range(len(rows[0].errors))
    base = next(row for row in rows if row.name == BASE)
    yield "| scenario | " + " | ".join(f"layer {n}" for n in layers) + " | perplexity | more than A16W16 |"
    yield "| --- |" + " ---: |" * (len(layers) + 2)
    yield f"| float32 | {' | '.join('' for _ in layers)} | {math.exp(plain_loss):.4f} | |"
    for row in rows:
        errors = " | ".join("0" if error == 0 else f"{error:.2%}" for error in row.errors)
        more = "" if row is base else f"{row.perplexity / base.perplexity - 1:.2%}"
        yield f"| {row.name} | {errors} | {row.perplexity:.4f} | {more} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=HERE / "checkpoint")
    parser.add_argument("--captured", type=Path, default=HERE / "captured.safetensors")
    parser.add_argument("--windows", type=Path, default=HERE / "held_out.safetensors")
    args = parser.parse_args()
    windows = load_file(args.windows)["windows"]
    print("\n".join(table(*measure(Model(args.checkpoint), load_file(args.captured), windows))))


if __name__ == "__main__":
    with torch.no_grad():
        main()
