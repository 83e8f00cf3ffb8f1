"""Numbers that stand for objects of this process where only numbers can be passed, as to torch operators."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, TypeVar

from .errors import invalid_value

_Kind = TypeVar("_Kind")
_numbers = itertools.count(1)
_objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(value: Any) -> int:
    """The number of a new object; never given twice. It does not keep the object alive."""
    number = next(_numbers)
    _objects[number] = value
    return number


def find(name: str, number: int, kind: type[_Kind]) -> _Kind:
    """The object of a number, given as argument `name`."""
    found = _objects.get(number)
    if not isinstance(found, kind):
        invalid_value(f"{name} = {number}: expected the handle of a {kind.__name__} that is still in use")
    return found
