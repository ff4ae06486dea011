"""`Attachment`: an optimizer whose steps drive the refreshes, by its step hooks.

Hooks run once per real step whatever surrounds it: gradient accumulation, clipping, schedulers, closures,
Accelerate. A step that a GradScaler skips does not count, not even where a fused optimizer is called for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from topkast.core import optimizer_state
from topkast.core.weight import SparseWeight

_TAG = "topkast"


def innermost(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer itself, of one that a framework may have wrapped.

    Accelerate and Lightning keep what they wrap as `.optimizer` and step that one, so hooks belong there.

    Raises:
        TypeError: It is no optimizer.
    """
    given = optimizer
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer, got {given!r}")
    return optimizer


class Attachment:
    """Ties an optimizer to the weights whose values it trains.

    Args:
        optimizer: Holds the values of `weights` among its parameters.
        weights: Name → weight.
        before_first: Called before the first step, and before the first after a state was loaded.
        on_step: Called after every real step, with whether each weight explored during it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        weights: dict[str, SparseWeight],
        before_first: Callable[[Attachment], None],
        on_step: Callable[[Attachment, dict[str, bool]], None],
    ) -> None:
        self.optimizer = optimizer
        self.weights = weights
        self._before_first = before_first
        self._on_step = on_step
        self._frozen: dict[str, tuple[Tensor, Tensor]] = {}
        self._loaded_tags: dict[str, str] | None = None
        self._is_first = True
        self._state_is_checked = False
        for name, weight in weights.items():
            optimizer_state.check_state(optimizer, weight.values, name)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_post_hook(self._tag),
            optimizer.register_load_state_dict_pre_hook(self._note_tags),
        ]

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def lr_of(self, weight: SparseWeight) -> float:
        """The learning rate of the step just taken."""
        groups = self.optimizer.param_groups
        group = next(g for g in groups if any(p is weight.values for p in g["params"]))
        return float(group.get("lr", 0.0))

    # ---- steps ------------------------------------------------------------------------------------

    def _before_step(self, *_: Any) -> None:
        self._check_loaded_tags()
        if self._is_first:
            self._before_first(self)
            self._is_first = False
        # From `explore_until` on nothing outside A may move, whatever momentum or decay the optimizer has.
        self._frozen = {
            name: (~w.active, w.values.detach()[~w.active])
            for name, w in self.weights.items()
            if not w.explores
        }

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        if _was_skipped(self.optimizer):
            return
        for name, (slots, values) in self._frozen.items():
            self.weights[name].values[slots] = values
        self._frozen = {}
        if not self._state_is_checked:  # the state exists since the first step
            for name, weight in self.weights.items():
                optimizer_state.check_state(self.optimizer, weight.values, name)
            self._state_is_checked = True
        explored = {name: weight.explores for name, weight in self.weights.items()}
        for weight in self.weights.values():
            weight.step.add_(1)
        self._on_step(self, explored)

    # ---- checkpoints --------------------------------------------------------------------------------

    def _tag(self, _optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Notes which sets the state belongs to: by slot it means nothing without them."""
        state_dict[_TAG] = {name: _digest(w.indices) for name, w in self.weights.items()}
        return state_dict

    def _note_tags(self, _optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        tags = state_dict.get(_TAG)
        self._loaded_tags = dict(tags) if tags else None
        self._is_first = True
        self._state_is_checked = False

    def _check_loaded_tags(self) -> None:
        # At the next step and not while loading: the model's own state may be loaded after this one.
        tags, self._loaded_tags = self._loaded_tags, None
        for name, tag in (tags or {}).items():
            weight = self.weights.get(name)
            if weight is not None and _digest(weight.indices) != tag:
                self._loaded_tags = tags
                raise RuntimeError(
                    f"the optimizer's state was saved with other sets than layer {name!r} has now; "
                    "load the model's state_dict of the same checkpoint as well"
                )


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler found inf or NaN: fused optimizers are called then, and do nothing."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def _digest(indices: Tensor) -> str:
    positions = indices.detach().to("cpu", torch.int64).contiguous()
    return hashlib.blake2b(positions.numpy().tobytes(), digest_size=8).hexdigest()
