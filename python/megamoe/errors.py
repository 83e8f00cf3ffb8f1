"""Errors of the Python layer, raised with the same types and codes as those of the library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from ._core import Code, DeadlineError, raise_error

__all__ = ["Code", "DeadlineError", "invalid_type", "invalid_value", "renamed"]


def invalid_value(message: str) -> NoReturn:
    raise_error(Code.INVALID_ARGUMENT, message)


def invalid_type(message: str) -> NoReturn:
    raise_error(Code.INVALID_TYPE, message)


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Errors raised inside speak of the arguments of `mega_moe` and its buffer by these other names."""
    try:
        yield
    except (TypeError, ValueError) as error:
        words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        text = re.sub(rf"\b(?:{words})\b", lambda word: names[word.group()], str(error))
        if text == str(error) or not hasattr(error, "code"):
            raise
        other = type(error)(text)
        other.code = error.code  # type: ignore[attr-defined]
        raise other from None
