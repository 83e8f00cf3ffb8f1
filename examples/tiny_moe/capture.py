"""Record what each MoE layer of the tiny checkpoint receives, routes and returns on held-out text.

Writes captured.safetensors; for every layer n, with T = 512 tokens, H = 256, K = 4:
  layers.{n}.hidden_states  bfloat16 [T, H]  input of the MoE block, after the norm before it
  layers.{n}.topk_ids       int32    [T, K]  experts picked, largest router probability first
  layers.{n}.topk_weights   float32  [T, K]  weights the block applied, after renormalisation
  layers.{n}.moe_output     bfloat16 [T, H]  output of the MoE block, before the residual add
The model runs in bfloat16, so the weights are bfloat16 values and a row sums to 1 only within rounding.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from text import CONTEXT, HERE, load_text
from torch import Tensor
from train import CHECKPOINT
from transformers import Qwen3MoeForCausalLM

CONTEXTS = 2


def capture(model: Qwen3MoeForCausalLM, input_ids: Tensor) -> dict[str, Tensor]:
    """Run the model on input_ids (int64 [B, S]) and return the tensors named above, T = B * S."""
    captured: dict[str, Tensor] = {}
    handles = []

    def hook_layer(name: str, block: torch.nn.Module) -> None:
        def on_router(module: torch.nn.Module, args: tuple, output: tuple) -> None:
            _, weights, ids = output
            captured[f"{name}.topk_weights"] = weights.float().contiguous()
            captured[f"{name}.topk_ids"] = ids.to(torch.int32).contiguous()

        def on_block(module: torch.nn.Module, args: tuple, output: Tensor) -> None:
            # Clones, because the residual stream may reuse the storage.
            captured[f"{name}.hidden_states"] = args[0].flatten(0, 1).clone()
            captured[f"{name}.moe_output"] = output.flatten(0, 1).clone()

        handles.append(block.gate.register_forward_hook(on_router))
        handles.append(block.register_forward_hook(on_block))

    for n, layer in enumerate(model.model.layers):
        hook_layer(f"layers.{n}", layer.mlp)
    with torch.no_grad():
        model(input_ids=input_ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return captured


def plain_moe(x: Tensor, ids: Tensor, weights: Tensor, stored: dict[str, Tensor], prefix: str) -> Tensor:
    """Return the MoE output float32 [T, H] by a loop over tokens and picks, all in float32.

    x is [T, H], ids and weights are [T, K]; stored holds the checkpoint's tensors by name.
    """
    out = torch.zeros(x.shape, dtype=torch.float32)
    for t in range(len(x)):
        token = x[t].float()
        for expert, weight in zip(ids[t].tolist(), weights[t]):
            gate, up, down = (stored[f"{prefix}.experts.{expert}.{name}_proj.weight"].float()
                              for name in ("gate", "up", "down"))
            out[t] += weight * (down @ (F.silu(gate @ token) * (up @ token)))
    return out


def check(captured: dict[str, Tensor], stored: dict[str, Tensor], layers: int) -> None:
    """Compare captured routing and outputs with a recomputation from the checkpoint file; raise if they differ."""
    for n in range(layers):
        x, ids, weights, output = (captured[f"layers.{n}.{name}"]
                                   for name in ("hidden_states", "topk_ids", "topk_weights", "moe_output"))
        prefix = f"model.layers.{n}.mlp"
        # The model forms the logits in bfloat16 and the softmax in float32.
        probabilities = F.linear(x, stored[f"{prefix}.gate.weight"]).float().softmax(-1)
        ranked = probabilities.sort(-1, descending=True).values
        picked = probabilities.gather(1, ids.long())
        # By probability, not by id: bfloat16 logits tie, and a tie may be broken either way.
        if not torch.equal(picked, ranked[:, : ids.shape[1]]):
            raise AssertionError(f"layer {n}: the picks are not the most probable experts")
        expected = (picked / picked.sum(-1, keepdim=True)).to(torch.bfloat16).float()
        if not torch.equal(weights, expected):
            raise AssertionError(f"layer {n}: the weights are not the renormalised probabilities")

        plain = plain_moe(x, ids, weights, stored, prefix)
        error = output.float() - plain
        relative = (error.norm() / plain.norm()).item()
        ties = (ranked[:, ids.shape[1] - 1] == ranked[:, ids.shape[1]]).sum().item()
        print(f"layer {n}: output against float32 loop: relative error {relative:.5f}, "
              f"largest error {error.abs().max():.5f} of largest value {plain.abs().max():.3f}; "
              f"tokens with a tie at the last pick: {ties}")
        # bfloat16 rounds to one part in 256, here several times over.
        if relative > 0.01:
            raise AssertionError(f"layer {n}: the output does not follow from the captured routing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--out", type=Path, default=HERE / "captured.safetensors")
    args = parser.parse_args()
    torch.set_num_threads(2)

    _, held_out = load_text()
    # Contexts start at equal distances, so that they fall in different books.
    starts = torch.arange(CONTEXTS) * (len(held_out) // CONTEXTS)
    input_ids = held_out[starts[:, None] + torch.arange(CONTEXT)].long()
    # "eager" is the model's own reference loop over experts.
    model = Qwen3MoeForCausalLM.from_pretrained(args.checkpoint, dtype=torch.bfloat16,
                                                experts_implementation="eager").eval()
    captured = capture(model, input_ids)
    check(captured, load_file(args.checkpoint / "model.safetensors"), model.config.num_hidden_layers)
    save_file(captured, args.out)
    print(f"wrote {len(captured)} tensors, {input_ids.numel()} tokens, to {args.out.name}")


if __name__ == "__main__":
    main()
