"""What a sparse weight answers where a program takes it for a tensor: its shape and type, or that it is none.

`F.linear` and `F.embedding` take it, as tied models write them. Programs also write
``layer.weight.squeeze(1)``, ``layer.weight.data`` or ``x @ layer.weight.t()``. Doing that with a dense copy
would hide dense work, and would give no gradient. So each is one error, all with one text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.core.sets import Counts
from topkast.kernels.ops import multiply
from topkast.kernels.product import Linear, Lookup

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
    """A module in the place of a tensor. Its `name` is that of its layer, its `shape` the dense one."""

    name: str
    shape: torch.Size
    counts: Counts
    values: nn.Parameter

    def __getattr__(self, name: str) -> Any:
        try:
            return _module_attribute(self, name)
        except AttributeError:
            if name.startswith("__") or not hasattr(Tensor, name):
                raise
        raise AttributeError(f"{_described(self)} is not a tensor and has no {name!r}; {_WAYS_OUT}")

    def __bool__(self) -> bool:
        return True  # like any module; Python would ask `__len__`

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return self.counts.numel

    @property
    def requires_grad(self) -> bool:
        return self.values.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.values.requires_grad = value

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses what code for dense weights assigns: an optimizer holds `values`, a Plan describes sets."""
        is_foreign = type(value) is nn.Parameter and name in self._buffers | self._parameters
        if name in ("data", "grad") or (is_foreign and value is not getattr(self, name)):
            raise TypeError(
                f"layer {self.name!r} is sparse, `weight.{name}` cannot be replaced: write into "
                "`weight.values`, one number per element of B, or `topkast.densify` the model first"
            )
        super().__setattr__(name, value)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """`F.linear(x, weight)` and `F.embedding(ids, weight)` work, as tied models write them."""
        kwargs = dict(kwargs or {})
        if func is F.linear:
            return _functional_linear(*args, **kwargs)
        if func is F.embedding:
            return _functional_embedding(*args, **kwargs)
        weight = next((a for a in (*args, *kwargs.values()) if isinstance(a, cls)), None)
        raise not_a_tensor(getattr(func, "__name__", str(func)), weight)


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


# ---- as torch's functions take a weight -------------------------------------------------------------------


def _functional_linear(input: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
    """`F.linear` with a sparse weight."""
    return multiply(weight, Linear(), input, bias)


def _functional_embedding(
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`F.embedding` with a sparse weight."""
    if max_norm is not None or sparse:
        raise TypeError(f"the sparse embedding {weight.name!r} has neither max_norm nor sparse gradients")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    return multiply(weight, Lookup(-1 if padding_idx is None else padding_idx, scale_grad_by_freq), input)
