"""ggml (the tensor library of llama.cpp) through ctypes: mul_mat_id, swiglu, mul_mat_id, weighted sum.

The graph is the one that llama.cpp builds for a mixture-of-experts layer. The library is found by the package
`libggml` or by MEGAMOE_BENCH_GGML, a folder with libggml*.so built for this CPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from .layer import Layer, Side, Unavailable, all_cpus

_TYPES = {"f32": 0, "q4_0": 2, "q8_0": 8, "i32": 26, "bf16": 30, "mxfp4": 39}


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


_MAX_THREADS = 512


class _PoolParams(ctypes.Structure):
    _fields_ = [("cpumask", c_bool * _MAX_THREADS), ("n_threads", c_int), ("prio", c_int),
                ("poll", ctypes.c_uint32), ("strict_cpu", c_bool), ("paused", c_bool)]


_SIGNATURES = {
    "ggml_init": (c_void_p, [_InitParams]),
    "ggml_free": (None, [c_void_p]),
    "ggml_new_tensor_3d": (c_void_p, [c_void_p, c_int, c_int64, c_int64, c_int64]),
    "ggml_new_tensor_2d": (c_void_p, [c_void_p, c_int, c_int64, c_int64]),
    "ggml_mul_mat_id": (c_void_p, [c_void_p] * 4),
    "ggml_swiglu_split": (c_void_p, [c_void_p] * 3),
    "ggml_mul": (c_void_p, [c_void_p] * 3),
    "ggml_add": (c_void_p, [c_void_p] * 3),
    "ggml_view_2d": (c_void_p, [c_void_p, c_void_p, c_int64, c_int64, c_size_t, c_size_t]),
    "ggml_new_graph": (c_void_p, [c_void_p]),
    "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_get_data": (c_void_p, [c_void_p]),
    "ggml_nbytes": (c_size_t, [c_void_p]),
    "ggml_row_size": (c_size_t, [c_int, c_int64]),
    "ggml_quantize_chunk": (
        c_size_t,
        [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p],
    ),
    "ggml_backend_cpu_init": (c_void_p, []),
    "ggml_backend_free": (None, [c_void_p]),
    "ggml_backend_cpu_set_n_threads": (None, [c_void_p, c_int]),
    "ggml_threadpool_params_default": (_PoolParams, [c_int]),
    "ggml_threadpool_new": (c_void_p, [ctypes.POINTER(_PoolParams)]),
    "ggml_threadpool_pause": (None, [c_void_p]),
    "ggml_threadpool_free": (None, [c_void_p]),
    "ggml_backend_cpu_set_threadpool": (None, [c_void_p, c_void_p]),
    "ggml_backend_get_device": (c_void_p, [c_void_p]),
    "ggml_backend_dev_backend_reg": (c_void_p, [c_void_p]),
    "ggml_backend_dev_supports_op": (c_bool, [c_void_p, c_void_p]),
    "ggml_backend_reg_get_proc_address": (c_void_p, [c_void_p, c_char_p]),
    "ggml_backend_cpu_buffer_type": (c_void_p, []),
    "ggml_backend_buft_name": (c_char_p, [c_void_p]),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, [c_void_p, c_void_p]),
    "ggml_backend_buffer_free": (None, [c_void_p]),
    "ggml_backend_buffer_set_usage": (None, [c_void_p, c_int]),
    "ggml_backend_tensor_set": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_tensor_get": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
}
_WEIGHTS_USAGE = 1


class _Library:
    """The functions used, looked up in all of ggml's shared libraries."""

    def __init__(self) -> None:
        self._libraries = [ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in self._paths()]
        for name, (result, arguments) in _SIGNATURES.items():
            function = self._find(name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    @staticmethod
    def _paths() -> list[Path]:
        folder = os.environ.get("MEGAMOE_BENCH_GGML")
        if folder is None:
            spec = importlib.util.find_spec("libggml")
            if spec is None or not spec.submodule_search_locations:
                raise Unavailable("package libggml is not installed and MEGAMOE_BENCH_GGML is not set")
            roots = [Path(spec.submodule_search_locations[0])]
        else:
            roots = [Path(folder)]
        paths = []
        for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so"):
            found = sorted(path for root in roots for path in root.rglob(name))
            if not found:
                raise Unavailable(f"{name} is not below {roots[0]}")
            paths.append(found[0])
        return paths

    def _find(self, name: str) -> ctypes._CFuncPtr:
        for library in self._libraries:
            if hasattr(library, name):
                return getattr(library, name)
        raise Unavailable(f"ggml has no function {name}")


def _pointer(tensor: Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


class GgmlSide(Side):
    """Formats of ggml; "-repacked" rows are interleaved by its CPU backend as llama.cpp does at load time."""

    name = "ggml"
    formats = {
        "bf16": "bf16",
        "q8_0": "8-bit int",
        "q8_0-repacked": "8-bit int",
        "q4_0": "4-bit",
        "q4_0-repacked": "4-bit",
        "mxfp4": "4-bit",
        "mxfp4-repacked": "4-bit",
    }

    _library: _Library | None = None

    def __init__(self, layer: Layer, fmt: str, threads: int, max_tokens: int) -> None:
        if GgmlSide._library is None:
            GgmlSide._library = _Library()
        self._g = g = GgmlSide._library
        self._shape = layer.shape
        self._graphs: dict[int, tuple] = {}
        self._type = _TYPES[fmt.removesuffix("-repacked")]
        self._backend = g.ggml_backend_cpu_init()
        g.ggml_backend_cpu_set_n_threads(self._backend, threads)
        # Threads that stay, one to a CPU, the calling one among them: the library's barriers spin, and two of
        # its threads on one CPU cost it a tick of the scheduler.
        params = g.ggml_threadpool_params_default(threads)
        for cpu in all_cpus()[:threads]:
            params.cpumask[cpu] = True
        params.strict_cpu = params.paused = True
        self._pool = g.ggml_threadpool_new(ctypes.byref(params))
        g.ggml_backend_cpu_set_threadpool(self._backend, self._pool)
        where = self._repack_type() if fmt.endswith("-repacked") else g.ggml_backend_cpu_buffer_type()
        s = layer.shape
        self._context = g.ggml_init(_InitParams(1 << 20, None, True))
        new = lambda k, n: g.ggml_new_tensor_3d(self._context, self._type, k, n, s.experts)
        self._weights = [new(s.hidden, s.inter), new(s.hidden, s.inter), new(s.inter, s.hidden)]
        self._buffer = g.ggml_backend_alloc_ctx_tensors_from_buft(self._context, where)
        if not self._buffer:
            raise Unavailable(f"ggml cannot hold {fmt} weights of shape {s}")
        g.ggml_backend_buffer_set_usage(self._buffer, _WEIGHTS_USAGE)
        if not g.ggml_backend_dev_supports_op(g.ggml_backend_get_device(self._backend), self._product(1)):
            raise Unavailable(f"this ggml does not multiply {fmt} weights on this CPU")
        for tensor, source in zip(self._weights, (layer.gate, layer.up, layer.down), strict=True):
            encoded = self._encode(source, threads)
            g.ggml_backend_tensor_set(tensor, _pointer(encoded), 0, encoded.numel())
        
    def _product(self, count: int) -> int:
        """A product as in the graph, for the question whether the backend has it."""
        g, s = self._g, self._shape
        x = g.ggml_new_tensor_3d(self._context, _TYPES["f32"], s.hidden, 1, count)
        ids = g.ggml_new_tensor_2d(self._context, _TYPES["i32"], s.topk, count)
        return g.ggml_mul_mat_id(self._context, self._weights[0], x, ids)

    def _repack_type(self) -> int:
        g = self._g
        registry = g.ggml_backend_dev_backend_reg(g.ggml_backend_get_device(self._backend))
        address = g.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        if address:
            get = ctypes.CFUNCTYPE(ctypes.POINTER(c_void_p), c_void_p)(address)
            types = get(g.ggml_backend_get_device(self._backend))
            at = 0
            while types and types[at]:
                if g.ggml_backend_buft_name(types[at]) == b"CPU_REPACK":
                    return types[at]
                at += 1
        raise Unavailable("this ggml has no repacking buffer type")

    def _encode(self, source: Tensor, threads: int) -> Tensor:
        """(E, N, K) bfloat16 as bytes in the order of ggml."""
        experts, rows, columns = source.shape
        if self._type == _TYPES["bf16"]:
            return source.contiguous().view(torch.uint8).reshape(-1)
        row_bytes = self._g.ggml_row_size(self._type, columns)
        encoded = torch.empty(experts, rows * row_bytes, dtype=torch.uint8)

        def one(expert: int) -> None:
            values = source[expert].float().contiguous()
            self._g.ggml_quantize_chunk(
                self._type, _pointer(values), _pointer(encoded[expert]), 0, rows, columns, None
            )

        one(0)  # the first call fills the library's tables
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(one, range(1, experts)))
        return encoded.reshape(-1)

    def _graph(self, count: int) -> tuple:
        if count in self._graphs:
            return self._graphs[count]
        g, s = self._g, self._shape
        context = g.ggml_init(_InitParams(1 << 22, None, True))
        x = g.ggml_new_tensor_3d(context, _TYPES["f32"], s.hidden, 1, count)
        ids = g.ggml_new_tensor_2d(context, _TYPES["i32"], s.topk, count)
        weights = g.ggml_new_tensor_3d(context, _TYPES["f32"], 1, s.topk, count)
        gate, up, down = self._weights
        inner = g.ggml_swiglu_split(
            context, g.ggml_mul_mat_id(context, gate, x, ids), g.ggml_mul_mat_id(context, up, x, ids)
        )
        rows = g.ggml_mul(context, g.ggml_mul_mat_id(context, down, inner, ids), weights)
        row = s.hidden * 4
        view = lambda slot: g.ggml_view_2d(context, rows, s.hidden, count, s.topk * row, slot * row)
        y = view(0)
        graph = g.ggml_new_graph(context)
        for slot in range(1, s.topk):
            y = g.ggml_add(context, y, view(slot))
        g.ggml_build_forward_expand(graph, y)
        buffer = g.ggml_backend_alloc_ctx_tensors_from_buft(context, g.ggml_backend_cpu_buffer_type())
        self._graphs[count] = (context, buffer, x, ids, weights, y, graph)
        return self._graphs[count]

    def run(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """The conversion of x to float32 is part of the call: ggml takes no other input."""
        g = self._g
        _, _, x_t, ids_t, weights_t, y_t, graph = self._graph(x.shape[0])
        for tensor, source in ((x_t, x.float()), (ids_t, ids), (weights_t, weights)):
            g.ggml_backend_tensor_set(tensor, _pointer(source), 0, source.numel() * 4)
        if g.ggml_backend_graph_compute(self._backend, graph) != 0:
            raise RuntimeError("ggml_backend_graph_compute failed")
        y = torch.empty(x.shape, dtype=torch.float32)
        if self._shape.topk == 1:
            raise Unavailable("top-1 leaves no sum to read")
        g.ggml_backend_tensor_get(y_t, _pointer(y), 0, y.numel() * 4)
        return y

    def rest(self) -> None:
        self._g.ggml_threadpool_pause(self._pool)
        self.enter()  # the calling thread was bound too

    def close(self) -> None:
        g = self._g
        for context, buffer, *_ in self._graphs.values():
            g.ggml_backend_buffer_free(buffer)
            g.ggml_free(context)
        g.ggml_backend_buffer_free(self._buffer)
        g.ggml_free(self._context)
        g.ggml_backend_free(self._backend)
        g.ggml_threadpool_free(self._pool)
