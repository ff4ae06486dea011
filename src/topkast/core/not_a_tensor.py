"""What a sparse weight answers where a program takes it for a tensor: that it is none, and the ways out.

Programs write ``layer.weight.squeeze(1)``, ``layer.weight.data`` or ``x @ layer.weight.t()``. Doing that with
a dense copy would hide dense work, and would give no gradient. So each is one error, all with one text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor, nn

_WAYS_OUT = (
    "F.linear and F.embedding accept it, `theta()` and `alpha()` give dense copies (of all elements, and of "
    "those in A), and `skip` in sparsify leaves the layer dense"
)
# `==` is not among them: weights are keys of dictionaries.
_BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_UNARY = ("neg", "pos", "abs", "invert", "float", "int", "array", "len", "iter")
_OTHERS = ("lt", "le", "gt", "ge", "getitem", "setitem", "contains")
# Bound once: parameters and buffers are read through it, and `super()` would add a quarter to that.
_module_attribute = nn.Module.__getattr__


class NotATensor(nn.Module):
    """A module in the place of a tensor. Its `name` is that of its layer."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _module_attribute(self, name)
        except AttributeError:
            if name.startswith("__") or not hasattr(Tensor, name):
                raise
        raise AttributeError(f"{_described(self)} is not a tensor and has no {name!r}; {_WAYS_OUT}")

    def __bool__(self) -> bool:
        return True  # like any module; Python would ask `__len__`


def not_a_tensor(operation: str, weight: NotATensor | None) -> TypeError:
    """The error for an operation that takes tensors.

    Args:
        operation: Its name, with or without underscores: "matmul", "__rmatmul__".
        weight: What it was given, if that is known.
    """
    operation = operation.removeprefix("__").removesuffix("__")
    return TypeError(f"{operation} got {_described(weight)}, which is not a tensor; {_WAYS_OUT}")


def _described(weight: NotATensor | None) -> str:
    # Not `weight.name`: a tensor has a `name` too, and this may be asked before the weight has one.
    name = None if weight is None else weight.__dict__.get("name")
    return "a sparse weight" if name is None else f"the sparse weight of layer {name!r}"


def _refusing(operation: str) -> Callable[..., NoReturn]:
    def refuse(self: NotATensor, *_: Any) -> NoReturn:
        raise not_a_tensor(operation, self)

    return refuse


for _name in (*_BINARY, *_UNARY, *_OTHERS):
    setattr(NotATensor, f"__{_name}__", _refusing(_name))
for _name in _BINARY:
    setattr(NotATensor, f"__r{_name}__", _refusing(_name))
