"""Operators on arrays of torch and NumPy, each written as one Python function.

The signature of that function is all there is to know about an operator: how arguments are checked, what torch
sees as its schema, and which defaults hold follow from it. Torch tensors go through `torch.ops.megamoe`, so
that gradients flow and torch.compile sees one operator; other arrays go to the function itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from . import settings, tensors
from .errors import invalid_value, shown

__all__ = ["OPERATORS", "Array", "DType", "Operator", "Sequence", "operator", "register_torch_ops"]

Array: TypeAlias = Any
DType: TypeAlias = Any
_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Kind(NamedTuple):
    """What an annotation stands for."""

    schema: str | None  # type in the schema of the torch operator; None = not part of it
    convert: Callable[[str, Any], Any] | None = None  # (name, value) -> value of that type; None = arrays


def _or_none(convert: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else convert(name, value)


def _required_dtype(name: str, value: Any) -> str:
    known = settings.dtype_name(name, value)
    if known is None:
        invalid_value(f"{name} = {shown(value)}: expected an element type")
    return known


def _only_none(name: str, value: Any) -> None:
    if value is not None:
        invalid_value(f"{name} = {shown(value)}: expected None")


_KINDS = {
    "Array": _Kind("Tensor"),
    "Array | None": _Kind("Tensor?"),
    "int": _Kind("SymInt", settings.integer),
    "int | None": _Kind("SymInt?", _or_none(settings.integer)),
    "Sequence[int]": _Kind("int[]", settings.integers),
    "float": _Kind("float", settings.number),
    "float | None": _Kind("float?", _or_none(settings.number)),
    "bool": _Kind("bool", settings.flag),
    "str": _Kind("str", settings.text),
    "str | None": _Kind("str?", _or_none(settings.text)),
    "DType": _Kind("str", _required_dtype),
    "DType | None": _Kind("str?", settings.dtype_name),
    "None": _Kind(None, _only_none),
}


class Operator:
    """What the signature of a function says about the operator."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run
        self.name = run.__name__
        self.signature = inspect.signature(run)
        parameters = self.signature.parameters.values()
        self.names = tuple(p.name for p in parameters)
        self.positional = tuple(p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY)
        self.defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
        self.kinds = {p.name: _KINDS[p.annotation] for p in parameters}
        self.torch_names = tuple(name for name in self.names if self.kinds[name].schema is not None)
        self.arrays = tuple(name for name in self.names if self.kinds[name].convert is None)

    def schema(self) -> str:
        """The schema of the torch operator; all arguments may be given by position."""
        arguments = []
        for name in self.torch_names:
            text = f"{self.kinds[name].schema} {name}"
            if name in self.defaults:
                default = self.defaults[name]
                text += f"={[] if default == () else default!r}"
            arguments.append(text)
        results = ["Tensor"] * self.signature.return_annotation.count("Array")
        returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
        return f"({', '.join(arguments)}) -> {returned}"

    def given(self, values: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
        """All arguments of a call of the torch operator by name."""
        return self.defaults | dict(zip(self.torch_names, values)) | named

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments of a call of the function by name, converted."""
        values = dict(zip(self.positional, args))
        values.update(kwargs)
        clash = len(args) > len(self.positional) or len(values) != len(args) + len(kwargs)
        values = {**self.defaults, **values}
        if clash or len(values) != len(self.names) or any(name not in values for name in self.names):
            self.signature.bind(*args, **kwargs)  # raises what Python raises
        for name, kind in self.kinds.items():
            if kind.convert is not None:
                values[name] = kind.convert(name, values[name])
        return values

    def call(self, values: dict[str, Any]) -> Any:
        torch = tensors.torch_if_loaded()
        if torch is None:
            return self.run(**values)
        arrays = [
            values[name] for name in self.arrays if values[name] is not None or name not in self.defaults
        ]
        if all(isinstance(array, torch.Tensor) for array in arrays):
            register_torch_ops()
            return getattr(torch.ops.megamoe, self.name)(*[values[name] for name in self.torch_names])
        for name in self.arrays:
            array = values[name]
            if isinstance(array, torch.Tensor) and array.requires_grad and torch.is_grad_enabled():
                invalid_value(f"{name}.requires_grad = True: expected False, or torch tensors for all arrays")
        return self.run(**values)


# All operators by name, in the order of their definition.
OPERATORS: dict[str, Operator] = {}


def operator(run: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes an operator of a function. `run` gets converted arguments and arrays of any framework."""
    described = Operator(run)
    OPERATORS[described.name] = described

    @functools.wraps(run)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        result: _R = described.call(described.bind(args, kwargs))
        return result

    return call


def register_torch_ops() -> None:
    """Registers the operators as `torch.ops.megamoe.*`. Importing megamoe and torch, in either order, does it
    already; may be repeated.

    Raises:
        RuntimeError: the program has not imported torch.
    """
    if tensors.torch_if_loaded() is None:
        raise RuntimeError("torch is not imported: expected `import torch` before register_torch_ops()")
    from . import torch_first_version, torch_layer, torch_ops

    torch_ops.register()
    torch_layer.register()
    torch_first_version.register()
