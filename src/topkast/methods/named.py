"""Methods by name, with what they need in place of a run that does not exist yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from topkast.core.distribution import nearest
from topkast.methods import DNW, DSR, SET, SNFS, STR, DeepR, Dense, Method, Pruning, RigL, Static, TopKAST


@dataclass(frozen=True)
class Choice:
    """What is said of a method; None is its own default.

    Attributes:
        forward_sparsity: 1 - D.
        backward_sparsity: 1 - D - M. By default B has twice the elements of A.
        update_every: Steps from one choice of sets to the next.
        begin: Step at which pruning begins.
        t_end: Step at which the schedule ends: RigL's and SNFS's updates, pruning, Top-KAST's exploration.
        exploration: How Top-KAST chooses B∖A: "magnitude" or "random".
        steps: Of the run, from which `begin` and `t_end` follow where they are not given.
    """

    forward_sparsity: float | None = None
    backward_sparsity: float | None = None
    update_every: int | None = None
    begin: int | None = None
    t_end: int | None = None
    steps: int | None = None
    exploration: str | None = None

    def forward(self) -> float:
        return 0.9 if self.forward_sparsity is None else self.forward_sparsity

    def backward(self) -> float:
        if self.backward_sparsity is not None:
            return self.backward_sparsity
        return max(0.0, round(2 * self.forward() - 1, 12))

    def step_at(self, given: int | None, quarters: int, option: str) -> int:
        """A step of the schedule: as given, or so many quarters into the run."""
        if given is not None:
            return given
        if self.steps is None:
            raise ValueError(
                f"the method has a schedule: give `steps`, or the step `{option}` at which it "
                f"{'begins' if option == 'begin' else 'ends'}"
            )
        return self.steps * quarters // 4

    def every(self, name: str) -> dict[str, Any]:
        """`update_every` under the method's name for it, if it is given."""
        return {} if self.update_every is None else {name: self.update_every}


def _topkast(c: Choice) -> Method:
    chosen: dict[str, Any] = {} if c.exploration is None else {"exploration": c.exploration}
    return TopKAST(c.forward(), c.backward(), explore_until=c.t_end, **chosen, **c.every("refresh_every"))


def _pruning(c: Choice) -> Method:
    begin, end = c.step_at(c.begin, 1, "begin"), c.step_at(c.t_end, 3, "t_end")
    return Pruning(c.forward(), begin=begin, end=end, **c.every("update_every"))


@dataclass(frozen=True)
class _Entry:
    make: Callable[[Choice], Method]
    takes: tuple[str, ...]


_ONE = ("forward_sparsity", "update_every")
METHODS: Mapping[str, _Entry] = {
    "topkast": _Entry(_topkast, (*_ONE, "backward_sparsity", "t_end", "exploration")),
    "static": _Entry(lambda c: Static(c.forward()), ("forward_sparsity",)),
    "set": _Entry(lambda c: SET(c.forward(), **c.every("update_every")), _ONE),
    # Three quarters of the run, as in the paper.
    "rigl": _Entry(
        lambda c: RigL(c.forward(), t_end=c.step_at(c.t_end, 3, "t_end"), **c.every("update_every")),
        (*_ONE, "t_end"),
    ),
    "snfs": _Entry(
        lambda c: SNFS(c.forward(), t_end=c.step_at(c.t_end, 4, "t_end"), **c.every("update_every")),
        (*_ONE, "t_end"),
    ),
    "pruning": _Entry(_pruning, (*_ONE, "begin", "t_end")),
    "dnw": _Entry(lambda c: DNW(c.forward(), **c.every("refresh_every")), _ONE),
    "str": _Entry(lambda c: STR(**c.every("refresh_every")), ("update_every",)),
    "dsr": _Entry(lambda c: DSR(c.forward(), **c.every("update_every")), _ONE),
    "deepr": _Entry(lambda c: DeepR(c.forward(), **c.every("update_every")), _ONE),
    "dense": _Entry(lambda c: Dense(), ()),
}


def named_method(name: str, choice: Choice) -> Method:
    """The method of that name.

    Raises:
        ValueError: There is none, it does not take what was chosen, or it needs to know of the run.
    """
    if name not in METHODS:
        raise ValueError(f"`method` must be one of {nearest(name, METHODS)}, got {name!r}")
    entry = METHODS[name]
    for option in ("forward_sparsity", "backward_sparsity", "update_every", "begin", "t_end", "exploration"):
        value = getattr(choice, option)
        if value is not None and option not in entry.takes:
            takes = ", ".join(f"`{o}`" for o in entry.takes) or "no settings"
            raise ValueError(f"{name} has no `{option}` (got {value!r}): it takes {takes}")
    return entry.make(choice)
