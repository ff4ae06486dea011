"""`Attachment`: an optimizer whose steps drive the refreshes, by its step hooks.

Hooks run once per real step whatever surrounds it: gradient accumulation, clipping, schedulers, closures,
Accelerate. A step that a GradScaler skips does not count, not even where a fused optimizer is called for it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from topkast.core.optimizer_state import OptimizerState
from topkast.core.steps import shorten_step_
from topkast.core.weight import SparseWeight
from topkast.text import short

# Under these names wrappers keep what they wrap: Accelerate, Lightning and Lookahead; SAM.
_INNER = ("optimizer", "base_optimizer")
# Under this name a saved parameter group says which sets its states belong to.
_TAG = "topkast"
# What torch wraps every `step` in, to call the hooks.
_HOOKED_STEP = torch.optim.Optimizer.profile_hook_step(lambda *_: None).__code__


def innermost(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer itself, of one that a framework or another optimizer may have wrapped.

    Raises:
        TypeError: It is no optimizer.
    """
    return _chain(optimizer)[-1]


def _chain(optimizer: Any) -> list[Any]:
    """The optimizer within, last, and before it those that wrap it, the outermost first."""
    chain = [optimizer]
    while (inner := _within(chain[-1])) is not None and all(inner is not other for other in chain):
        chain.append(inner)
    if not isinstance(chain[-1], torch.optim.Optimizer):
        # A list would show all the settings of all optimizers in it.
        is_list = isinstance(optimizer, list | tuple)
        got = f"a {type(optimizer).__name__}; attach each by itself" if is_list else short(optimizer)
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer, got {got}")
    return chain


def _within(optimizer: Any) -> Any:
    return next((i for name in _INNER if (i := getattr(optimizer, name, None)) is not None), None)


class Attachment:
    """Ties an optimizer to the weights whose values it trains.

    Args:
        optimizer: Holds the values of some of `model_weights` among its parameters.
        model_weights: Name → weight, all of the model's.
        admit: Called with the weights that it holds, when it is attached and when its parameter groups have
            changed since. Raises if they cannot be trained so.
        before_first: Called before the first step, and before the first after a state was loaded.
        on_step: Called after every real step, with whether each weight explored during it.
        exploration: What the next step of a weight's B∖A is multiplied by.

    Attributes:
        weights: Name → weight, those that the optimizer holds.
        state: What it and its wrappers keep by slot.
    """

    def __init__(
        self,
        optimizer: Any,
        model_weights: Mapping[str, SparseWeight],
        admit: Callable[[Attachment, dict[str, SparseWeight]], None],
        before_first: Callable[[Attachment], None],
        on_step: Callable[[Attachment, dict[str, bool]], None],
        exploration: Callable[[SparseWeight], float],
    ) -> None:
        chain = _chain(optimizer)
        self._model_weights = model_weights
        self._admit = admit
        self._before_first = before_first
        self._on_step = on_step
        self._exploration = exploration
        self.weights: dict[str, SparseWeight] = {}
        self.state = OptimizerState(chain)
        self._before: dict[str, tuple[float, Tensor]] = {}
        self._loaded_tags: dict[str, Any] = {}
        self._is_first = True
        self._has_stepped = False
        self._state_is_checked = False
        self._hold(self._held())
        self._hooks = list(self._register(chain))

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The innermost optimizer."""
        return self.state.innermost

    def _register(self, chain: list[Any]) -> Iterator[Any]:
        """A wrapper's `step` may do more after that of the one within: it is waited for."""
        taken: set[int] = set()
        for optimizer in reversed(chain):
            hooks = getattr(optimizer, "_optimizer_step_post_hooks", None)
            if hooks is not None and id(hooks) not in taken:
                taken.add(id(hooks))
                yield optimizer.register_step_pre_hook(self._before_step)
                yield optimizer.register_step_post_hook(self._after_step)
        yield chain[-1].register_state_dict_post_hook(self._tag)
        yield chain[-1].register_load_state_dict_pre_hook(self._before_load)
        yield chain[-1].register_load_state_dict_post_hook(self._after_load)

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hold({})

    def lr_of(self, weight: SparseWeight) -> float:
        """The learning rate of the step just taken."""
        return float(self.state.group_of(weight.values).get("lr", 0.0))

    # ---- which weights ------------------------------------------------------------------------------

    def update(self) -> None:
        """Looks again which weights the optimizer holds: its parameter groups may have changed."""
        if self._groups != self._shape_of_groups():
            self._hold(self._held())

    def _shape_of_groups(self) -> list[tuple[int, int]]:
        return [(id(group), len(group["params"])) for group in self.optimizer.param_groups]

    def _held(self) -> dict[str, SparseWeight]:
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        return {n: w for n, w in self._model_weights.items() if id(w.values) in held}

    def _hold(self, weights: dict[str, SparseWeight]) -> None:
        """Takes these weights, all or none."""
        for name, weight in weights.items():
            self.state.check(weight.values, name)
        if weights:
            self._admit(self, weights)
        for name, weight in weights.items():
            weight.driver = self
            if name not in self.weights:
                self.state.observe(weight.values)
        for weight in self.weights.values():
            if all(weight is not other for other in weights.values()):
                weight.driver = weight.wants_gradient = weight.tape = None
        self.weights = weights
        self._groups = self._shape_of_groups()
        self._take_tags()

    # ---- steps ------------------------------------------------------------------------------------

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_within_another():
            return
        self._has_stepped = False
        self.update()
        self._check_loaded_tags()
        if self._is_first:
            self._before_first(self)
            self._is_first = False
        self._before = {
            name: (factor, weight.values.detach().clone())
            for name, weight in self.weights.items()
            if (factor := self._exploration(weight)) != 1.0 and weight.counts.backward > weight.counts.forward
        }

    @torch.no_grad()
    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if optimizer is self.optimizer and not _was_skipped(optimizer):
            self._has_stepped = True
        if not self._has_stepped or self._is_within_another():
            return
        self._has_stepped = False
        for name, (factor, values) in self._before.items():
            shorten_step_(self.weights[name], values, factor)
        self._before = {}
        if not self._state_is_checked:  # the state exists since the first step
            for name, weight in self.weights.items():
                self.state.check(weight.values, name)
            self._state_is_checked = True
        explored = {name: weight.explores for name, weight in self.weights.items()}
        for weight in self.weights.values():
            weight.step.add_(1)
        self._on_step(self, explored)

    def _is_within_another(self) -> bool:
        """Whether the step whose hook this is was called by another of the same optimizer, or a wrapper's.

        torch calls hooks for every class whose `step` it has wrapped: a subclass that calls `super().step()`
        would count twice. Only what is on the stack tells, since a step may end with an error.
        """
        chain = self.state.optimizers
        if len(chain) == 1 and _num_hooked(type(chain[0])) <= 1:
            return False
        steps, frame = 0, sys._getframe(2)
        while frame is not None:
            if frame.f_code is _HOOKED_STEP:
                caller = frame.f_locals.get("self")
                steps += any(caller is optimizer for optimizer in chain)
            frame = frame.f_back
        return steps > 1

    # ---- checkpoints --------------------------------------------------------------------------------

    def _tag(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Notes in each group which sets its states belong to: by slot they mean nothing without them."""
        tags = {id(w.values): _digest(w.indices) for w in self.weights.values()}
        for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
            others = saved.get(_TAG, [None] * len(group["params"]))  # of another model in this optimizer
            saved[_TAG] = [tags.get(id(p), other) for p, other in zip(group["params"], others, strict=True)]
        return state_dict

    def _before_load(self, _optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        # Where tags were kept up to version 0.1, by name.
        tags = state_dict.get(_TAG)
        self._loaded_tags = dict(tags) if isinstance(tags, Mapping) else {}

    def _after_load(self, _optimizer: torch.optim.Optimizer) -> None:
        self._is_first = True
        self._state_is_checked = False
        self.update()
        self._take_tags()

    def _take_tags(self) -> None:
        """Takes the tags out of a state that was loaded; also before the optimizer was attached."""
        names = {id(weight.values): name for name, weight in self.weights.items()}
        for group in self.optimizer.param_groups:
            tags = group.get(_TAG)
            if not isinstance(tags, list) or len(tags) != len(group["params"]):
                continue
            for place, parameter in enumerate(group["params"]):
                if id(parameter) in names and tags[place] is not None:
                    self._loaded_tags[names[id(parameter)]], tags[place] = tags[place], None
            if not any(tag is not None for tag in tags):
                del group[_TAG]

    def _check_loaded_tags(self) -> None:
        # At the next step and not while loading: the model's own state may be loaded after this one.
        for name, tag in self._loaded_tags.items():
            weight = self.weights.get(name)
            if weight is not None and tag not in (_digest(weight.indices), _digest_of_0_1(weight.indices)):
                raise RuntimeError(
                    f"the optimizer's state was saved with other sets than layer {name!r} has now; "
                    "load the model's state_dict of the same checkpoint as well"
                )
        self._loaded_tags = {}


def fits_sets(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> bool:
    """Whether a saved state belongs to the sets that the optimizer's weights have now.

    In states of version 0.1 tags are by layer, under a key of their own: of those the next step tells.
    """
    present = optimizer.state_dict()["param_groups"]
    tags = [[group.get(_TAG) for group in groups] for groups in (saved["param_groups"], present)]
    return tags[0] == tags[1] or _TAG in saved


def _num_hooked(cls: type) -> int:
    return sum(hasattr(vars(c).get("step"), "hooked") for c in cls.__mro__)


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler found inf or NaN: fused optimizers are called then, and do nothing."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def _digest(indices: Tensor) -> int:
    """Of 62 bits: an int goes through every form of a checkpoint unchanged."""
    return int(_digest_of_0_1(indices), 16) >> 2


def _digest_of_0_1(indices: Tensor) -> str:
    positions = indices.detach().to("cpu", torch.int64).contiguous()
    return hashlib.blake2b(positions.numpy().tobytes(), digest_size=8).hexdigest()
