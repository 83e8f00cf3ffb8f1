"""Train a small byte-level Qwen3-MoE language model on the King James Bible.

Writes a bfloat16 checkpoint (config.json, model.safetensors) with transformers' save_pretrained.
Notation: B batch, S context length, L layers, E experts, K experts per token.
"""

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from text import CONTEXT, HERE, load_text
from torch import Tensor
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

CHECKPOINT = HERE / "checkpoint"
BATCH = 4
PEAK_LR = 1.5e-3
WARMUP_STEPS = 200
AUX_COEF = 0.01
SEED = 1234


def new_model() -> Qwen3MoeForCausalLM:
    """Return a float32 model with random weights; every layer is a mixture-of-experts layer."""
    config = Qwen3MoeConfig(
        vocab_size=256, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=CONTEXT,
        num_experts=16, num_experts_per_tok=4, moe_intermediate_size=128, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[], intermediate_size=512,
        tie_word_embeddings=True, router_aux_loss_coef=AUX_COEF,
        experts_implementation="grouped_mm",
    )
    return Qwen3MoeForCausalLM(config)


def sample(text: Tensor, generator: torch.Generator) -> Tensor:
    """Return random windows of the text (uint8 [N]) as int64 [B, S + 1]."""
    starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
    return text[starts + torch.arange(CONTEXT + 1)].long()


def next_byte_loss(logits: Tensor, windows: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats a byte, of logits [B, S, 256] for windows [B, S + 1]."""
    return F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def balance_loss(router_logits: tuple[Tensor, ...], config: Qwen3MoeConfig) -> Tensor:
    """Return the load-balancing loss summed over layers; router_logits holds L tensors [B * S, E]."""
    # One call a layer: a single call pools the layers and lets one of them neglect experts.
    return sum(load_balancing_loss_func((layer,), config.num_experts, config.num_experts_per_tok)
               for layer in router_logits)


@torch.no_grad()
def evaluate(model: Qwen3MoeForCausalLM, text: Tensor) -> tuple[float, Tensor]:
    """Return (nats a byte, share of top-k picks float32 [L, E]) over consecutive windows of uint8 [N]."""
    model.eval()
    config = model.config
    windows = text.unfold(0, CONTEXT + 1, CONTEXT).long()
    picks = torch.zeros(config.num_hidden_layers, config.num_experts)
    total = 0.0
    for batch in windows.split(16):
        out = model(input_ids=batch[:, :-1], use_cache=False, output_router_logits=True)
        total += next_byte_loss(out.logits, batch).item() * len(batch)
        for layer, logits in enumerate(out.router_logits):
            ids = logits.topk(config.num_experts_per_tok).indices
            picks[layer] += ids.flatten().bincount(minlength=config.num_experts)
    model.train()
    return total / len(windows), picks / picks.sum(1, keepdim=True)


def learning_rate(step: int, steps: int) -> float:
    """Return the rate for a step: linear warmup, then a cosine down to a twentieth of the peak."""
    if step < WARMUP_STEPS:
        return PEAK_LR * (step + 1) / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return PEAK_LR * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def train(model: Qwen3MoeForCausalLM, text: Tensor, held_out: Tensor, steps: int) -> None:
    """Train in place on windows drawn at random from the text (uint8 [N])."""
    generator = torch.Generator().manual_seed(SEED)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    norms = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
        betas=(0.9, 0.95))
    start, recent = time.monotonic(), []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        windows = sample(text, generator)
        out = model(input_ids=windows[:, :-1], use_cache=False, output_router_logits=True)
        loss = next_byte_loss(out.logits, windows)
        (loss + AUX_COEF * balance_loss(out.router_logits, model.config)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        recent.append(loss.item())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}/{steps}  train {sum(recent) / len(recent):.4f} nats/byte  "
                  f"{time.monotonic() - start:.0f} s", flush=True)
            recent.clear()
        if (step + 1) % 1000 == 0:
            print(f"step {step + 1}/{steps}  held-out {evaluate(model, held_out)[0]:.4f} nats/byte", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=CHECKPOINT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)

    text, held_out = load_text()
    print(f"training bytes {len(text)}, held-out bytes {len(held_out)}")
    model = new_model()
    print(f"parameters {sum(p.numel() for p in model.parameters())}")
    train(model, text, held_out, args.steps)
    print(f"float32 held-out {evaluate(model, held_out)[0]:.4f} nats/byte")
    model.to(torch.bfloat16).save_pretrained(args.out)

    # Measured on what was written, read back.
    saved = Qwen3MoeForCausalLM.from_pretrained(args.out, dtype=torch.bfloat16)
    train_loss, _ = evaluate(saved, text[: len(held_out)])
    held_out_loss, usage = evaluate(saved, held_out)
    print(f"saved checkpoint: train {train_loss:.4f}, held-out {held_out_loss:.4f} nats/byte")
    print("share of top-k picks on held-out text, percent, experts 0 to 15:")
    for layer, row in enumerate(usage):
        print(f"  layer {layer}: " + " ".join(f"{100 * share:.1f}" for share in row.tolist()))


if __name__ == "__main__":
    main()
