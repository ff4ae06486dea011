"""Methods by name: how each is made from what is said of it, and what others need to know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from topkast.core.anneal import Anneal
from topkast.core.distribution import nearest
from topkast.methods import (
    DNW,
    DSR,
    L0,
    SET,
    SNFS,
    STR,
    DeepR,
    Dense,
    Method,
    Pruning,
    RigL,
    Static,
    TopKAST,
    VariationalDropout,
)
from topkast.methods.gated import Gated


@dataclass(frozen=True)
class Choice:
    """What is said of a method; None is its own default.

    Attributes:
        forward_sparsity: 1 - D.
        backward_sparsity: 1 - D - M. By default B has twice the elements of A.
        refresh_every: Steps from one choice of sets to the next; of A within B for Top-KAST.
        exchange_every: Steps from one choice of B to the next, for Top-KAST.
        begin: Step at which pruning begins.
        t_end: Step at which the schedule ends: RigL's and SNFS's updates, pruning, Top-KAST's exploration,
            the noise of L0 and variational dropout.
        exploration: How Top-KAST chooses B∖A: "magnitude" or "random".
        exploration_rate: Factor on the steps of Top-KAST's B∖A.
        exploration_warmup: Steps in which that factor rises from 0.
        hysteresis: How many times as large as a member of Top-KAST's A a challenger must be.
        min_fan_in: How many elements of Top-KAST's A each output of a layer keeps at least.
        min_fan_out: The same for each input.
        penalty_warmup: Steps in which the penalty of L0 and variational dropout rises from 0.
        decay: λ of Top-KAST's penalty, if that is decoupled from the gradient.
        anneal: Form along which Top-KAST's sparsities are annealed; None for not at all.
        anneal_from: The forward sparsity that they start at, 0 by default; B's starts at the same share of
            its own.
        anneal_until: Share of the run in which they arrive, 0.75 by default.
        steps: Of the run, from which `begin` and `t_end` follow where they are not given.
    """

    forward_sparsity: float | None = None
    backward_sparsity: float | None = None
    refresh_every: int | None = None
    exchange_every: int | None = None
    begin: int | None = None
    t_end: int | None = None
    steps: int | None = None
    exploration: str | None = None
    exploration_rate: float | None = None
    exploration_warmup: int | None = None
    hysteresis: float | None = None
    min_fan_in: int | None = None
    min_fan_out: int | None = None
    penalty_warmup: int | None = None
    decay: float | None = None
    anneal: str | None = None
    anneal_from: float | None = None
    anneal_until: float | None = None

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
        """`refresh_every` under the method's name for it, if it is given."""
        return {} if self.refresh_every is None else {name: self.refresh_every}


OPTIONS = tuple(f.name for f in fields(Choice) if f.name not in ("steps", "decay"))
"""What can be said of a method; `steps` is said of the run, `decay` of the penalty."""


# What Top-KAST has under the same name, and no other method has.
TOPKAST = (
    "exchange_every", "exploration", "exploration_rate", "exploration_warmup", "hysteresis", "min_fan_in",
    "min_fan_out",
)  # fmt: skip


ANNEAL = ("anneal", "anneal_from", "anneal_until")


def _topkast(c: Choice) -> Method:
    said = {name: getattr(c, name) for name in ("refresh_every", *TOPKAST, "decay")}
    chosen: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    return TopKAST(*_sparsities(c), explore_until=c.t_end, **chosen)


def annealing(c: Choice) -> dict[str, Any]:
    """The options of annealing with their defaults; nothing where there is none.

    Raises:
        ValueError: Options without a form.
    """
    if c.anneal is not None:
        return {
            "anneal": c.anneal,
            "anneal_from": 0.0 if c.anneal_from is None else c.anneal_from,
            "anneal_until": 0.75 if c.anneal_until is None else c.anneal_until,
        }
    for name in ("anneal_from", "anneal_until"):
        if getattr(c, name) is not None:
            raise ValueError(f"`{name}` needs `anneal`, the form: linear, cubic or cosine")
    return {}


def _sparsities(c: Choice) -> tuple[Any, Any]:
    """Of A and B: numbers, or schedules. Both are always the same share of the way from dense to the end.

    Raises:
        ValueError: The start is sparser than the end, or the steps of the run are not known.
    """
    forward, backward = c.forward(), c.backward()
    options = annealing(c)
    if not options:
        return forward, backward
    start, form = options["anneal_from"], options["anneal"]
    if start > forward:
        raise ValueError(f"`anneal_from` must not exceed `forward_sparsity` ({forward!r}), got {start!r}")
    if c.steps is None:
        raise ValueError("`anneal` goes by shares of the run: give `steps`")
    end = max(1, round(options["anneal_until"] * c.steps))
    ratio = start / forward if forward else 0.0
    schedules = [
        Anneal(round(ratio * final, 12), final, to_step=end, form=form) for final in (forward, backward)
    ]
    return schedules[0], schedules[1]


def _rigl(c: Choice) -> Method:
    """Its updates end after three quarters of the run, as in the paper."""
    return RigL(c.forward(), t_end=c.step_at(c.t_end, 3, "t_end"), **c.every("update_every"))


def _snfs(c: Choice) -> Method:
    return SNFS(c.forward(), t_end=c.step_at(c.t_end, 4, "t_end"), **c.every("update_every"))


def _pruning(c: Choice) -> Method:
    begin, end = c.step_at(c.begin, 1, "begin"), c.step_at(c.t_end, 3, "t_end")
    return Pruning(c.forward(), begin=begin, end=end, **c.every("update_every"))


def _gated(kind: type[Gated]) -> Callable[[Choice], Method]:
    return lambda c: kind(penalty_warmup=c.penalty_warmup or 0, cut_at=c.t_end)


@dataclass(frozen=True)
class Named:
    """What is known of a method by its name.

    Attributes:
        make: Makes it from what is said of it.
        title: For people.
        takes: Those of `OPTIONS` that it has.
        words: Its title in tables of its own, where "static" would not say enough.
        is_occasional: Whether it chooses sets now and then, so that a short run does so more often.
    """

    make: Callable[[Choice], Method]
    title: str
    takes: tuple[str, ...]
    words: str = ""
    is_occasional: bool = False


_ONE = ("forward_sparsity", "refresh_every")
_GATED = ("penalty_warmup", "t_end")
METHODS: Mapping[str, Named] = {
    "topkast": Named(_topkast, "Top-KAST", (*_ONE, "backward_sparsity", "t_end", *TOPKAST, *ANNEAL)),
    "static": Named(lambda c: Static(c.forward()), "static", ("forward_sparsity",), "fixed random mask"),
    "set": Named(lambda c: SET(c.forward(), **c.every("update_every")), "SET", _ONE, is_occasional=True),
    "rigl": Named(_rigl, "RigL", (*_ONE, "t_end"), is_occasional=True),
    "snfs": Named(_snfs, "SNFS", (*_ONE, "t_end"), is_occasional=True),
    "pruning": Named(_pruning, "pruning", (*_ONE, "begin", "t_end"), is_occasional=True),
    "dnw": Named(lambda c: DNW(c.forward(), **c.every("refresh_every")), "DNW", _ONE),
    "str": Named(lambda c: STR(**c.every("refresh_every")), "STR", ("refresh_every",)),
    "dsr": Named(lambda c: DSR(c.forward(), **c.every("update_every")), "DSR", _ONE),
    "deepr": Named(lambda c: DeepR(c.forward(), **c.every("update_every")), "DEEP R", _ONE),
    "l0": Named(_gated(L0), "L0", _GATED, "L0 regularisation"),
    "variational-dropout": Named(_gated(VariationalDropout), "variational dropout", _GATED),
    "dense": Named(lambda c: Dense(), "dense", ()),
}


def settings_of(name: str, choice: Choice, method: Method) -> dict[str, Any]:
    """All that can be said of a method, by the names of `OPTIONS`, with its own defaults filled in."""
    ends = {"pruning": "end", "l0": "cut_at", "variational-dropout": "cut_at"}
    other_names = {"refresh_every": "update_every", "t_end": ends.get(name, "explore_until")}
    said: dict[str, Any] = annealing(choice)
    for option in METHODS[name].takes:
        if option in ("forward_sparsity", "backward_sparsity"):
            said[option] = choice.forward() if option == "forward_sparsity" else choice.backward()
        elif option not in ANNEAL:
            said[option] = getattr(method, option, getattr(method, other_names.get(option, option), None))
    return {option: value for option, value in said.items() if value is not None}


def named_method(name: str, choice: Choice) -> Method:
    """The method of that name.

    Raises:
        ValueError: There is none, it does not take what was chosen, or it needs to know of the run.
    """
    if name not in METHODS:
        raise ValueError(f"`method` must be one of {nearest(name, METHODS)}, got {name!r}")
    entry = METHODS[name]
    for option in OPTIONS:
        value = getattr(choice, option)
        if value is not None and option not in entry.takes:
            takes = ", ".join(f"`{o}`" for o in entry.takes) or "no settings"
            raise ValueError(f"{name} has no `{option}` (got {value!r}): it takes {takes}")
    return entry.make(choice)


def title_of(name: str, method: Method) -> str:
    """A method at its sparsities, such as "Top-KAST 90/80 %"."""
    entry = METHODS[name]
    pair = [method.forward_sparsity, method.backward_sparsity]
    if "backward_sparsity" not in entry.takes:  # B = A, or sparsities that are learned
        pair = sorted({*pair} - {0.0}, reverse=True)
    words = [entry.words or entry.title, *(["/".join(f"{100 * s:g}" for s in pair) + " %"] if pair else [])]
    if getattr(method, "exploration", None) == "random":
        words.append("(random)")
    if getattr(method, "has_schedule", False):
        words.append("(annealed)")
    return " ".join(words)
