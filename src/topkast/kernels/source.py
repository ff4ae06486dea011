"""Who has a Plan, by number: for operators, which take tensors and numbers and nothing else.

A compiled graph outlives the Plans that it computes with: sets change at every refresh. So it does not hold a
Plan but the number of who has one, and asks for the Plan when it runs. The number is a tensor, since a
compiler takes the content of a tensor as it comes and would compile anew for every other int.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Protocol

import torch
from torch import Tensor

from topkast.kernels.auto import Auto
from topkast.kernels.engine import Engine
from topkast.kernels.plan import Plan


class Source(Protocol):
    """What operators ask of a sparse weight."""

    @property
    def plan(self) -> Plan: ...

    def engine_impl(self) -> Engine | Auto: ...

    def prepare_tape(self) -> None:
        """Called in a forward pass whose dense gradient may be wanted."""

    def record(self, kind: str, rules: list[int], x: Tensor, grad: Tensor) -> None:
        """Called in its backward pass with the layer's input and the gradient of its output."""


_numbers = itertools.count()
_living: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(source: Source) -> Tensor:
    """The number of a new source. Nobody is kept alive by it."""
    number = next(_numbers)
    _living[number] = source
    return torch.tensor(number, dtype=torch.int64, device="cpu")


def source_of(number: Tensor) -> Source:
    """The living source with this number.

    Raises:
        ValueError: There is none, or no longer.
    """
    source = _living.get(int(number))
    if source is None:
        raise ValueError(
            f"no sparse weight has the number {int(number)}: it is gone, or of another process. A graph of a "
            "sparse model lives in the process that made it; export `topkast.densify(model)`"
        )
    return source
