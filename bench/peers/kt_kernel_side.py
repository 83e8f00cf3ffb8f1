"""kt-kernel (the CPU experts of KTransformers): its compiled layer, called below its Python wrapper for GPUs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from . import encode
from .layer import Layer, Side, Unavailable, all_cpus, run_on


def _bf16(rows: Tensor) -> tuple[Tensor, Tensor | None]:
    return rows.contiguous(), None


def _mxfp4(rows: Tensor) -> tuple[Tensor, Tensor]:
    codes, exponents = encode.mxfp4(rows)
    return codes, torch.exp2(exponents).to(torch.bfloat16).contiguous()


def _mxfp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    codes, exponents = encode.mxfp8(rows)
    return codes, (exponents + 127).to(torch.uint8).contiguous()


#: format -> (width class, class of the extension, encoder of one expert's matrix or None, bits, group)
_FORMATS: dict[str, tuple[str, str, Callable | None, int, int]] = {
    "bf16": ("bf16", "AMXBF16_MOE", _bf16, 16, 0),
    "int8": ("8-bit int", "AMXInt8_MOE", None, 8, 0),
    "int4": ("4-bit", "AMXInt4_MOE", None, 4, 0),
    "rawint4": ("4-bit", "AMXInt4_KGroup_MOE", encode.int4_groups, 4, 32),
    "mxfp4": ("4-bit", "AMXFP4_KGroup_MOE", _mxfp4, 4, 32),
    "fp8": ("8-bit float", "AMXFP8_MOE", encode.fp8_blocks, 8, 128),
    "mxfp8": ("8-bit float", "AVX2MXFP8_MOE", _mxfp8, 8, 32),
}


class KtKernelSide(Side):
    """Formats of kt-kernel; int8 and int4 are quantised by the library itself, one scale per output channel.

    The library binds its workers to the first CPUs. Its queue is passed by, and the thread of the queue, which spins also
    while there is nothing to do, runs only where nothing else does. The calling thread spins during the call: it is on the
    last CPU, which with fewer workers than CPUs is free for it.
    """

    name = "kt-kernel"
    formats = {fmt: entry[0] for fmt, entry in _FORMATS.items()}

    _pool = None

    def __init__(self, layer: Layer, fmt: str, threads: int, max_tokens: int) -> None:
        try:
            from kt_kernel import kt_kernel_ext as extension
        except Exception as error:  # the package raises many kinds where the CPU lacks something
            raise Unavailable(f"kt_kernel cannot be imported: {error}") from error
        _, class_name, encoder, bits, group = _FORMATS[fmt]
        make = getattr(extension.moe, class_name, None)
        if make is None:
            raise Unavailable(f"kt_kernel has no {class_name} on this CPU")
        if KtKernelSide._pool is None:
            config = extension.WorkerPoolConfig()
            config.subpool_count = 1
            config.subpool_numa_map = [0]
            config.subpool_thread_count = [threads]
            before = set(os.listdir("/proc/self/task"))
            KtKernelSide._pool = extension.CPUInfer(config)
            for thread in set(os.listdir("/proc/self/task")) - before:
                name = Path(f"/proc/self/task/{thread}/comm").read_text(encoding="ascii")
                if not name.startswith("numa_"):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
        s = layer.shape
        self._keep: list[Tensor] = [torch.zeros(s.experts, dtype=torch.bool)]
        config = extension.moe.MOEConfig(s.experts, s.topk, s.hidden, s.inter, self._keep[0].data_ptr())
        config.pool = self._pool.backend_
        config.max_len = max_tokens
        config.quant_config.bits = bits
        config.quant_config.group_size = group
        config.quant_config.zero_point = False
        for name, weights in (("gate", layer.gate), ("up", layer.up), ("down", layer.down)):
            if encoder is None:
                setattr(config, f"{name}_proj", weights.data_ptr())
                continue
            pairs = [encoder(expert) for expert in weights]
            self._keep += [tensor for pair in pairs for tensor in pair if tensor is not None]
            setattr(config, f"{name}_projs", [[codes.data_ptr() for codes, _ in pairs]])
            setattr(config, f"{name}_scales",
                    [[0 if scales is None else scales.data_ptr() for _, scales in pairs]])
        if encoder is None:
            config.save, config.load = False, False
            self._folder = tempfile.TemporaryDirectory()
            config.path = self._folder.name
        self._moe = make(config)
        order = torch.arange(s.experts, dtype=torch.int64)
        self._pool.submit(self._moe.load_weights_task(order.data_ptr()))
        self._pool.sync()
        if encoder is not None:
            self._keep = self._keep[:1]  # the library has its own copies

    def run(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        ids = ids.to(torch.int64)
        y = torch.empty_like(x)
        count = torch.tensor([x.shape[0]], dtype=torch.int32)
        self._moe.forward(
            count.data_ptr(), ids.shape[1], ids.data_ptr(), weights.data_ptr(), x.data_ptr(), y.data_ptr(), False)
        return y

    def enter(self) -> None:
        run_on(all_cpus()[-1:])

    def rest(self) -> None:
        super().enter()
