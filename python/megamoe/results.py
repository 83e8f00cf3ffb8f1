"""Arrays that an operator returns: made in the framework of its first array, with elements of the types that
the caller asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import packed, tensors

__all__ = ["Results"]


class Results:
    """The results of one call in the framework of `like`. Elements of type `kept` are given as `like` has
    them. A result that the call does not have is an empty array.
    """

    def __init__(self, like: Any, result_types: str = "document", kept: str | None = None) -> None:
        self._torch = tensors.framework_of(like)
        self._like = like
        self._kept = kept
        self._result_types = result_types
        self._arrays: list[Any] = []
        self._kinds: list[Any] = []
        tensors.result_type(
            self._torch, "float32", result_types
        )  # a wrong name is an error even where none counts

    def array(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """Memory for a result of `shape` elements."""
        kind = self._like.dtype
        if dtype != self._kept:
            kind = tensors.result_type(self._torch, dtype, self._result_types)
        carrier = np.dtype(np.uint8) if tensors.one_per_byte(kind) else kind
        array = tensors.new_array(self._torch, tensors.result_shape(dtype, shape), carrier)
        self._arrays.append(array)
        self._kinds.append(kind)
        return array

    def make(self, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        """The next result for the library to write; None if `dtype` is "undefined"."""
        if dtype == "undefined":
            self.array("int64" if name == "expert_tokens_count_or_cumsum" else "float32", (0,))
            return None
        return tensors.write(name, self.array(dtype, shape), dtype)

    def finish(self) -> tuple[Any, ...]:
        return tuple(
            packed.unpack(array, kind) if tensors.one_per_byte(kind) else array
            for array, kind in zip(self._arrays, self._kinds)
        )
