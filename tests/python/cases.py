"""The committed test cases of tests/data/vectors as arrays, and the comparison that each asks for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DIRECTORY = Path(__file__).parent.parent / "data" / "vectors"
PACKED = ("float4_e2m1", "int4")
# Types that NumPy has only by ml_dtypes; packed types are bytes.
TYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e8m0": ml_dtypes.float8_e8m0fnu,
    "hifloat8": np.uint8,
    "float4_e2m1": np.uint8,
    "int4": np.uint8,
}


@dataclass
class Tensor:
    """A tensor of a case; `array` has the shape of the storage, two elements in each byte of packed types."""

    dtype: str
    shape: tuple[int, ...]  # logical, in elements
    layout: str
    array: np.ndarray
    compare: Any

    def bytes(self) -> np.ndarray:
        """The array as bytes, for functions that take a type beside them."""
        return self.array.view(np.uint8)


@dataclass
class Case:
    op: str
    attrs: dict[str, Any]
    ranks: int
    error_arg: str | None
    inputs: dict[tuple[str, int], Tensor]
    expect: dict[tuple[str, int], Tensor]

    def input(self, arg: str, rank: int = 0) -> Tensor | None:
        return self.inputs.get((arg, rank))


def names(*prefixes: str) -> list[str]:
    return sorted(path.name for path in DIRECTORY.iterdir() if path.name.startswith(prefixes))


def _tensor(directory: Path, entry: dict[str, Any]) -> Tensor:
    dtype = entry["dtype"]
    storage = list(entry.get("storage_shape", entry["shape"]))
    if dtype in PACKED:
        storage[-1] //= 2
    kind = np.dtype(TYPES.get(dtype, dtype))
    array = np.frombuffer((directory / entry["file"]).read_bytes(), kind).reshape(storage)
    return Tensor(dtype, tuple(entry["shape"]), entry.get("format", "ND"), array, entry.get("compare"))


def load(name: str) -> Case:
    directory = DIRECTORY / name
    case = json.loads((directory / "case.json").read_text())

    def tensors(entries: dict[str, Any]) -> dict[tuple[str, int], Tensor]:
        return {
            (entry.get("arg", key), entry.get("rank", 0)): _tensor(directory, entry)
            for key, entry in entries.items()
        }

    return Case(
        case["op"],
        case["attrs"],
        case.get("ranks", 1),
        case.get("error_arg"),
        tensors(case["inputs"]),
        tensors(case.get("expect", {})),
    )


def to_torch(array: np.ndarray) -> Any:
    """The same memory as a torch tensor, of torch's type of the same name."""
    import torch

    name = array.dtype.name
    if name == "bfloat16" or name.startswith("float8"):
        carrier = array.view(np.int16 if array.itemsize == 2 else np.uint8)
        return torch.from_numpy(carrier.copy()).view(getattr(torch, name))
    return torch.from_numpy(array.copy())


def _bits(array: Any) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        import torch

        array = array.contiguous().view(torch.uint8).numpy() if array.numel() else np.empty(0, np.uint8)
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1)


def check(expected: Tensor, got: Any) -> None:
    """Asserts that `got`, of either framework, is what the case expects."""
    assert tuple(got.shape) == expected.array.shape
    want = expected.array
    found = _bits(got).view(want.dtype).reshape(want.shape)
    if expected.compare == "exact":
        if want.dtype.kind == "f" or want.dtype.num >= 256:
            same_nan = np.isnan(want.astype(np.float64)) & np.isnan(found.astype(np.float64))
            unsigned = f"u{want.itemsize}"
            assert ((want.view(unsigned) == found.view(unsigned)) | same_nan).all()
        else:
            np.testing.assert_array_equal(found, want)
        return
    a, b = found.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    np.testing.assert_array_equal(np.isfinite(a), finite)
    np.testing.assert_array_equal(a[~finite], b[~finite])
    difference = a[finite] - b[finite]
    norm = np.linalg.norm(b[finite])
    assert np.linalg.norm(difference) <= expected.compare["rel_fro"] * norm
    assert np.abs(difference).max(initial=0) <= expected.compare["max_abs"]
