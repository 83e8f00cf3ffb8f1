"""Tokens and ids for the tests of the routing operators, and what a plain reading of them gives."""

import ml_dtypes
import numpy as np
import torch

MODES = [mode for mode in range(-1, 18) if mode != 10]
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def bits(array):
    """The bytes of an array of either framework."""
    if isinstance(array, torch.Tensor):
        array = array.detach().contiguous()
        return array.view(torch.uint8).numpy() if array.numel() else np.empty(0, np.uint8)
    return np.ascontiguousarray(array).view(np.uint8) if array.size else np.empty(0, np.uint8)


def to_torch(array):
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tokens(rows, hidden, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal((rows, hidden), np.float32).astype(TYPES[dtype])


def ids(rows, topk, experts, dtype=np.int32, seed=1):
    return np.random.default_rng(seed).integers(0, experts, (rows, topk)).astype(dtype)


def spread(array):
    """The same values in every second row and column of a larger array."""
    wide = np.zeros([2 * extent for extent in array.shape], array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def model(x, expert_idx, start, end, rows=None):
    """Order of the slots, number of active ones, expanded rows and gather index of mode -1."""
    flat = expert_idx.reshape(-1).astype(np.int64)
    order = np.argsort(np.where((flat < start) | (flat < 0), np.iinfo(np.int64).max, flat), kind="stable")
    active = int(((flat >= start) & (flat < end)).sum())
    rows = flat.size if rows is None else rows
    expanded = np.zeros((rows, x.shape[1]), x.dtype)
    kept = min(active, rows)
    expanded[:kept] = x[order[:kept] // expert_idx.shape[1]]
    gather = np.full(flat.size, -1, np.int32)
    gather[order[:active]] = np.arange(active)
    return order, active, expanded, gather
