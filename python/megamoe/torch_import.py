"""Runs something once torch has been imported, whichever of the two a program imports first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .tensors import torch_if_loaded

__all__ = ["when_torch_is_imported"]

_NAME = "torch"


class _Watcher:
    """Finds torch as the other finders do and adds a step to its import. It never imports anything itself."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _NAME:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return self._watched(spec)
        return None

    def _watched(self, spec: ModuleSpec) -> ModuleSpec:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:  # a folder of that name without code
            return spec

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute
            execute(module)
            if self in sys.meta_path:  # an import that fails leaves the watcher for the next one
                sys.meta_path.remove(self)
                self.then()

        loader.exec_module = exec_module
        return spec


def when_torch_is_imported(then: Callable[[], None]) -> None:
    """Calls `then` now if the program has imported torch, else at the end of its first `import torch`."""
    if hasattr(torch_if_loaded(), "library"):
        then()
    else:
        sys.meta_path.insert(0, _Watcher(then))
