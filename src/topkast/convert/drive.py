"""`Driver`: refreshes the weights of one model as its optimizers step."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from topkast.convert.attach import Attachment, innermost
from topkast.convert.followers import Followers
from topkast.convert.reminders import Reminders
from topkast.core import agreement
from topkast.core.averaging import Averaging
from topkast.core.local import refuse_join, why_sharded
from topkast.core.moment import Moment
from topkast.core.ranks import Group, Ranks, check_alone, together
from topkast.core.refresh import check_finite, move
from topkast.core.select import generator_for
from topkast.core.sets import Counts, Sets
from topkast.core.weight import SparseWeight
from topkast.methods.base import Method, grows_by_gradient


class Driver:
    """What stands between a method and the optimizers that train its weights.

    Args:
        model: Holds the weights.
        method: Which sets, and when.
        weights: Name → sparse weight.

    Attributes:
        attachments: The optimizers that drive it.
        followers: Averages and copies that move along.
        reminders: Says what the user seems to have forgotten.
    """

    def __init__(self, model: torch.nn.Module, method: Method, weights: Mapping[str, SparseWeight]) -> None:
        self.model = model
        self.method = method
        self.weights = weights
        self.attachments: list[Attachment] = []
        self.followers = Followers(weights)
        self.reminders = Reminders(method, weights)
        self._group: Group = None
        self._join_hook: Any = None
        self._averaging: Averaging | None = None

    # ---- optimizers -----------------------------------------------------------------------------------

    def attach(self, optimizer: Any, process_group: Group) -> None:
        """See `Handle.attach`."""
        for attachment in self.attachments:
            if attachment.optimizer is innermost(optimizer):
                attachment.update()
                return
        for name, weight in self.weights.items():
            _check_whole(name, weight)
        if self.attachments and process_group is not self._group:
            raise ValueError("all optimizers of a model have the same ranks: give the same `process_group`")
        before, self._group = self._group, process_group
        try:
            attachment = Attachment(
                optimizer,
                self.weights,
                self._admit,
                self._before_first,
                self._after_step,
                self._exploration,
            )
        except BaseException:
            self._group = before
            raise
        if not attachment.weights:
            attachment.detach()
            self._group = before
            raise ValueError(
                f"the optimizer ({type(innermost(optimizer)).__name__}) holds the values of no sparse layer; "
                "create it from `model.parameters()` or `handle.param_groups()` after sparsify, "
                "which makes new Parameters"
            )
        self.attachments.append(attachment)
        self._refuse_join()
        if self.method.resizes and self._averaging is None and together(self._group) is not None:
            self._averaging = Averaging(self.model, self.weights, self._group)

    def attach_copies(self, other: Driver, memo: Mapping[int, Any]) -> None:
        """Attaches the copies of this one's optimizers, by `copy.deepcopy`'s memo, to the copied model."""
        for attachment in self.attachments:
            twin = memo.get(id(attachment.optimizer))
            if twin is not None:
                other.attach(twin, self._group)

    def _refuse_join(self) -> None:
        if self._join_hook is None and self.method.refreshes and together(self._group) is not None:
            self._join_hook = refuse_join(self.model)

    def detach(self, optimizer: Any) -> None:
        """See `Handle.detach`. Also for one that another handle of the same model has attached."""
        wanted = innermost(optimizer)
        found = {id(w.driver): w.driver for w in self.weights.values() if w.driver is not None}
        for attachment in found.values():
            if attachment.optimizer is wanted:
                attachment.detach()
                self.attachments = [a for a in self.attachments if a is not attachment]
                if not self.attachments and self._averaging is not None:
                    self._averaging.remove()
                    self._averaging = None
                return
        raise ValueError("the optimizer is not attached")

    def optimizer_of(self, name: str) -> torch.optim.Optimizer | None:
        attachment = self.weights[name].driver
        return None if attachment is None else attachment.optimizer

    def _admit(self, attachment: Attachment, weights: dict[str, SparseWeight]) -> None:
        """Raises if an optimizer cannot drive these weights; nothing is changed then."""
        for name, weight in weights.items():
            if weight.driver is not attachment and _is_driven(weight):
                raise ValueError(
                    f"the values of layer {name!r} belong to an optimizer that is attached already, perhaps "
                    "by another handle of this model; `handle.detach(optimizer)` lets go of it"
                )
        self._check_method(weights, together(self._group))
        for weight in weights.values():
            weight.copies.settle()
            weight.wants_gradient = self.method.wants_gradient if grows_by_gradient(self.method) else None

    def _check_method(self, weights: Mapping[str, SparseWeight], ranks: Ranks | None) -> None:
        """Raises if the method cannot be driven by an optimizer of these weights, or by these ranks."""
        name = type(self.method).__name__
        if self.method.is_global and len(weights) < len(self.weights):
            missing = next(n for n in self.weights if n not in weights)
            raise ValueError(
                f"{name} moves budgets between layers, so that one optimizer must hold the values of all "
                f"of them; those of layer {missing!r} are not among its parameters"
            )
        if not self.method.plans_sizes:
            check_alone(f"{name} changes the sizes of the sets", ranks)

    # ---- steps ----------------------------------------------------------------------------------------

    def _before_first(self, attachment: Attachment) -> None:
        """Before the first step, and the first after a state was loaded: all is in its place by then."""
        for name, weight in attachment.weights.items():
            _check_whole(name, weight)
        ranks = together(self._group)
        if ranks is not None:
            self._check_method(attachment.weights, ranks)  # they may have come together since
            if self.method.resizes and self._averaging is None:
                raise RuntimeError(
                    f"{type(self.method).__name__} changes the sizes of the sets, so that their gradients "
                    "are averaged here and not by DistributedDataParallel: call `attach` after "
                    "`init_process_group`, and before the first backward pass"
                )
            agreement.compare_all(attachment.weights, ranks)
            agreement.share_choices(attachment.weights, ranks)
            self._refuse_join()

    def _exploration(self, weight: SparseWeight) -> float:
        """What the next step on B∖A is multiplied by: nothing moves there once exploration has ended."""
        return self.method.exploration_factor(weight.steps + 1) if weight.explores else 0.0

    def _after_step(self, attachment: Attachment, explored: dict[str, bool]) -> None:
        ranks = together(self._group)
        if ranks is not None and grows_by_gradient(self.method):
            asked = {n: w for n, w in attachment.weights.items() if self.method.wants_gradient(w.steps)}
            if asked:
                agreement.join_tapes(asked, ranks)
        if self.method.acts_after_steps:
            for weight in attachment.weights.values():
                if weight.values.requires_grad:
                    self.method.after_step(weight, attachment.lr_of(weight))
        steps = {name: weight.steps for name, weight in attachment.weights.items()}
        due = [name for name, step in steps.items() if self.method.is_due(step)]
        others = [name for name in steps if name not in due and self.method.refreshes_after(steps[name])]
        early = self._refresh(others, explored) if others else []
        if due or early:
            self.exchange([*due, *early], explored, compared=due)
            for name in early:
                self.weights[name].early.add_(1)
            self.reminders.after_refresh(attachment.optimizer)
        for weight in attachment.weights.values():
            weight.tape = None

    @torch.no_grad()
    def _refresh(self, names: list[str], explored: Mapping[str, bool]) -> list[str]:
        """Chooses A within B. An error leaves all as they are.

        Returns:
            Those for which B has to be chosen anew instead, since C may have an element that belongs in A.
        """
        early: list[str] = []
        chosen: dict[str, Tensor] = {}
        for name in self._unfrozen(names):
            weight = self.weights[name]
            bound = weight.bound() if self.method.keeps_top else -math.inf
            choice = weight.choose_active(self.method.advantage, self.method.floor(weight.grid), bound)
            if choice is None:
                check_finite(weight)  # which raises
                continue
            slots, least = choice
            if least <= bound:
                early.append(name)
            else:
                chosen[name] = slots
                if not (explored[name] and weight.explores) and weight.driver is not None:
                    weight.driver.state.prepare(weight.values, name)
        for name, slots in chosen.items():
            weight = self.weights[name]
            if explored[name] and weight.explores:
                weight.flip(slots)
                self.followers.flip(name, slots)
            elif slots.numel() or weight.explores != explored[name]:
                # What enters the backward set with A starts anew there.
                active = weight.active.index_copy(0, slots, ~weight.active[slots])
                self._move(name, Sets(weight.indices.long(), active), explored[name])
            else:
                weight.changed.fill_(0)
        return early

    @torch.no_grad()
    def exchange(self, names: Iterable[str], explored: Mapping[str, bool], compared: Iterable[str]) -> None:
        """Chooses the sets of these weights anew, from all of θ. An error leaves all of them as they are.

        A frozen weight (``requires_grad=False``) is left alone.

        Args:
            names: Of the weights.
            explored: Whether each explored in the step before.
            compared: Those that other ranks exchange now too, whatever their numbers are. An exchange that
                came early must not wait for others: hashes are compared at the next one by the clock.
        """
        names = self._unfrozen(list(names))
        for name in names:
            check_finite(self.weights[name])
            self.followers.check(name)
            attachment = self.weights[name].driver
            if attachment is not None:
                attachment.state.prepare(self.weights[name].values, name)
        self.followers.look_for_strays()
        for name, sets in self._choose(names):
            self.weights[name].exchanged.fill_(0)
            self._move(name, sets, explored[name])
        ranks = together(self._group)
        compared = [name for name in compared if name in names]
        if ranks is not None and compared:
            moved = {name: self.weights[name] for name in compared}
            agreement.compare_sets(moved, ranks)
            agreement.share_choices(moved, ranks)

    def _move(self, name: str, sets: Sets, explored: bool) -> None:
        weight = self.weights[name]
        before = weight.counts
        slots = move(weight, sets, explored=explored)
        if self.method.plans_sizes and _magnitude(before) != _magnitude(weight.counts):
            weight.choices.zero_()  # another engine may be the fastest now
        if weight.driver is not None:
            weight.driver.state.carry(weight.values, slots)
        if sets.settles and weight.companion is not None:
            for parameter in weight.companion.learned():  # which gets no gradient any more
                for attachment in self.attachments:
                    attachment.optimizer.state.pop(parameter, None)
        self.followers.carry(name, sets, slots)

    def _unfrozen(self, names: list[str]) -> list[str]:
        frozen = [name for name in names if not self.weights[name].values.requires_grad]
        if frozen and self.method.is_global:
            raise RuntimeError(
                f"layer {frozen[0]!r} is frozen (requires_grad=False), but {type(self.method).__name__} "
                "moves budgets between layers; nothing was changed. Freeze none of them, or use a method "
                "with budgets by layer"
            )
        return [name for name in names if name not in frozen]

    def _choose(self, names: list[str]) -> Iterable[tuple[str, Sets]]:
        if self.method.is_global:
            return self.method.choose_together({name: self._moment(name) for name in names}).items()
        # One by one: with a stored reservoir a moment has θ as large as the dense weight. What can fail is
        # done for all before anything changes.
        chosen = ((name, self._choose_one(self._moment(name))) for name in names)
        return list(chosen) if grows_by_gradient(self.method) else chosen

    def _choose_one(self, moment: Moment) -> Sets:
        try:
            return self.method.choose(moment)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"layer {moment.name!r}: {error} at step {moment.step}; the sets were not changed. "
                "Go back to a checkpoint with a smaller learning rate"
            ) from None

    def _moment(self, name: str) -> Moment:
        w = self.weights[name]
        return Moment(
            w.full_theta(self.method.advantage),
            w.target,
            generator_for(int(w.key), w.steps),
            w.steps,
            lambda: Sets(w.indices.long(), w.active.clone()),
            w.tape,
            w.companion,
            name,
            w.grid,
        )


def _magnitude(counts: Counts) -> tuple[int, int]:
    """How sparse a weight is, by powers of two."""
    return (counts.numel // counts.forward).bit_length(), (counts.numel // counts.backward).bit_length()


def _is_driven(weight: SparseWeight) -> bool:
    """Whether an optimizer drives it that somebody still holds, or a handle it was attached to.

    An optimizer and its attachment hold each other: once both are given up they must be collected.
    """
    if weight.driver is not None:
        gc.collect()
    return weight.driver is not None


def _check_whole(name: str, weight: SparseWeight) -> None:
    """Raises TypeError if the values of a weight are not all here: slots would mean nothing."""
    reason = why_sharded(weight)
    if reason is not None:
        raise TypeError(
            f"the values of layer {name!r} were split between ranks: it {reason}. A refresh moves elements "
            "anywhere in it, so that every rank needs all of it: use DistributedDataParallel, or shard only "
            "modules without sparse layers"
        )
