"""The plans of the layers that were called on one buffer, kept for their next calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _core, tensors
from .weights import LinearArguments, PackedWeights

__all__ = ["Plans"]

# A plan takes 2 to 4 KB beside its weights. Of more than these the one made first goes.
_MOST = 512
# These keep their weights alive. Each call packs them, beside which planning anew takes no time.
_MOST_RAW = 8
# Types of what a call states that cannot change while it is the same object.
_FIXED = (type(None), bool, int, float, str, PackedWeights)


class _Kept(NamedTuple):
    plan: Any
    weights: list[weakref.ref[PackedWeights]]  # with which it goes


class Plans:
    """Of one buffer, for one call at a time. Packed weights are not kept alive: their plans go with them."""

    def __init__(self) -> None:
        self._packed: dict[Any, _Kept] = {}
        self._raw: dict[Any, _Kept] = {}
        self._known = _core.KnownPlans(_MOST)
        self._last: Any = None
        self._last_text = ""

    def __len__(self) -> int:
        return len(self._packed) + len(self._raw)

    def describe(self) -> str:
        """The plan that was used last; empty before the first."""
        return self._last_text if self._last is None else self._last.describe()

    def plan(self, key: Any, layers: tuple[LinearArguments, ...], make: Callable[[], Any]) -> Any:
        """The plan kept under `key`, which says what the weights of `layers` are, made if missing."""
        packed = [layer.weights for layer in layers if isinstance(layer.weights, PackedWeights)]
        raw = any(layer.is_raw() for layer in layers)
        plans, most = (self._raw, _MOST_RAW) if raw else (self._packed, _MOST)
        kept = plans.get(key)
        if kept is None:
            kept = _Kept(make(), [] if raw else [self._drop_with(value, key) for value in packed])
            plans[key] = kept
            if len(plans) > most:
                self._drop(plans, next(iter(plans)))
        self._last = kept.plan
        return kept.plan

    def remember(self, stated: tuple[Any, ...], plan: Any) -> None:
        """Lets `find` give this plan to calls that state the same again, unless something stated may change."""
        kept = tuple(dict(value) if type(value) is dict else value for value in stated)
        torch = tensors.torch_if_loaded()
        element_types = (type, np.dtype) if torch is None else (type, np.dtype, torch.dtype)
        values = [value for item in kept for value in (item.values() if type(item) is dict else (item,))]
        if all(type(value) in _FIXED or isinstance(value, element_types) for value in values):
            if torch is not None:
                _core.meet_torch(torch)
            self._known.add(tuple(weakref.ref(v) if type(v) is PackedWeights else v for v in kept), plan)

    def find(self, stated: tuple[Any, ...]) -> Any:
        """The plan of an earlier call that stated the same, or None."""
        found = self._known.find(stated)
        if found is not None:
            self._last = found
        return found

    def clear(self) -> None:
        self._packed.clear()
        self._raw.clear()
        self._known.clear()
        self._last, self._last_text = None, ""

    def _drop_with(self, weights: PackedWeights, key: Any) -> weakref.ref[PackedWeights]:
        """A reference whose end, at any time and on any thread, drops the plan of `key`."""
        own = weakref.ref(self)

        def gone(_: Any) -> None:
            plans = own()
            if plans is not None:
                plans._drop(plans._packed, key)

        return weakref.ref(weights, gone)

    def _drop(self, plans: dict[Any, _Kept], key: Any) -> None:
        kept = plans.pop(key, None)
        if kept is None:
            return
        self._known.forget(kept.plan)
        if kept.plan is self._last:
            self._last_text, self._last = kept.plan.describe(), None
