"""Errors of the Python layer, raised with the same types and codes as those of the library."""

from __future__ import annotations

from typing import NoReturn

from ._core import Code, DeadlineError, raise_error

__all__ = ["Code", "DeadlineError", "invalid_type", "invalid_value"]


def invalid_value(message: str) -> NoReturn:
    raise_error(Code.INVALID_ARGUMENT, message)


def invalid_type(message: str) -> NoReturn:
    raise_error(Code.INVALID_TYPE, message)
