"""Reminders: said once, where training goes on but something that belongs to it was forgotten."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from topkast.core.weight import SparseWeight
from topkast.methods.base import Method


class NotAttachedWarning(UserWarning):
    """A model is trained, but no optimizer drives its refreshes."""


class NoPenaltyWarning(UserWarning):
    """A model explores, but the exploration penalty was never asked for."""


# Backward passes that reach a weight before the reminder: an inspection or two is no training.
_PASSES = 20


class Reminders:
    """Watches for an optimizer that is not attached and for a penalty that is not added.

    Args:
        method: A method that never refreshes needs neither.
        weights: Name → sparse weight.

    Attributes:
        expects_penalty: Whether to remind of the penalty. It is off once the penalty was asked for.
    """

    def __init__(self, method: Method, weights: Mapping[str, SparseWeight]) -> None:
        self._method = method
        self._weights = weights
        explores = method.backward_sparsity < method.forward_sparsity
        self.expects_penalty = method.has_penalty and explores and not method.applies_penalty
        self._passes = dict.fromkeys(weights, 0)
        self._has_warned = not method.refreshes
        self._hooks: dict[str, Any] = {}
        if method.refreshes:
            for name, weight in weights.items():
                if weight.values.requires_grad:
                    self._hooks[name] = weight.values.register_post_accumulate_grad_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def count(_values: Tensor) -> None:
            if self._weights[name].driver is not None:
                self._hooks.pop(name).remove()  # attached: nothing to count any more
                return
            self._passes[name] += 1
            if self._passes[name] == _PASSES and not self._has_warned:
                self._remind_of_attach(name)

        return count

    def has_trained(self, name: str) -> bool:
        """Whether backward passes have reached a weight that no attached optimizer holds."""
        return self._weights[name].driver is None and self._passes[name] > 0

    def _remind_of_attach(self, name: str) -> None:
        self._has_warned = True
        warnings.warn(
            f"layer {name!r} has had {_PASSES} backward passes, but no optimizer that holds its values is "
            f"attached: its sets never change, and {type(self._method).__name__} is a fixed mask. Create the "
            "optimizer after sparsify and call `sparse.attach(optimizer)`. To silence this: "
            "warnings.simplefilter('ignore', topkast.NotAttachedWarning)",
            NotAttachedWarning,
            stacklevel=2,
        )

    def after_refresh(self, optimizer: Any) -> None:
        """Called after refreshes that this optimizer has driven."""
        if self.expects_penalty:
            self.expects_penalty = False
            name = type(optimizer).__name__
            better = (
                f" With {name}, `topkast.TopKAST.under_adam(…)` learns better and applies the penalty itself."
                if "adam" in name.lower()
                else ""
            )
            warnings.warn(
                "the first refresh is done, and the exploration penalty was never asked for: add "
                "`1e-4 * sparse.penalty()` to the loss, as the paper does, so that a weight stays in A only "
                f"while it is large enough.{better} To train without it: `sparse.expects_penalty = False`, "
                "or warnings.simplefilter('ignore', topkast.NoPenaltyWarning)",
                NoPenaltyWarning,
                stacklevel=2,
            )
