"""Errors of the Python layer, raised with the same types and codes as those of the library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from ._core import Code, DeadlineError, raise_error

__all__ = ["Code", "DeadlineError", "invalid_type", "invalid_value", "plain", "renamed", "shown"]


_LONGEST = 80  # of a value in a message, whose room between ranks is limited


def shown(value: Any) -> str:
    """A value as a message shows it: on one line, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # of the caller's class, or an integer of more digits than Python prints
        text = f"<{type(value).__name__}>"
    text = plain(" ".join(text.split()) if "\n" in text else text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def plain(message: str) -> str:
    """A text that UTF-8 and C can carry."""
    return message.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def invalid_value(message: str) -> NoReturn:
    raise_error(Code.INVALID_ARGUMENT, plain(message))


def invalid_type(message: str) -> NoReturn:
    raise_error(Code.INVALID_TYPE, plain(message))


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
