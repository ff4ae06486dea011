"""Schedules of sparsity: a share of zeros that depends on the step, and the sizes of sets that follow."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from topkast.core.schedule import check_fraction, check_interval, check_share, check_steps
from topkast.core.sets import Counts

# What is left of the way after a share x of it.
_FORMS = {
    "linear": lambda x: 1 - x,
    "cubic": lambda x: (1 - x) ** 3,
    "cosine": lambda x: 0.5 * (1 + math.cos(math.pi * x)),
}
# Two sparsities that differ by less are the same number, computed in two ways.
_ROUNDING = 1e-12


class Schedule(ABC):
    """A sparsity s(t), where t optimizer steps have been taken. It depends on nothing else."""

    kind: ClassVar[str]

    @abstractmethod
    def at(self, step: int) -> float:
        """s(t)."""

    @property
    @abstractmethod
    def final(self) -> float:
        """The sparsity that stays once the schedule has ended."""

    @property
    @abstractmethod
    def knots(self) -> tuple[int, ...]:
        """Steps after which an exchange must come for the schedule to be kept: the last is its end.

        From one to the next s rises, falls or stays, and does not turn.
        """

    def to_data(self) -> dict[str, Any]:
        """Plain data for a file; `schedule_from` is the inverse."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}  # pyright: ignore[reportArgumentType]
        return {"kind": self.kind, **named}


@dataclass(frozen=True)
class Anneal(Schedule):
    """From one sparsity to another between two steps.

        s(t) = end + (start - end)·g(x),   x = (t - from_step)/(to_step - from_step)

    with g = 1 - x (linear), (1 - x)³ (cubic, Zhu and Gupta 2017) or (1 + cos πx)/2 (cosine). s is `start`
    before and `end` after.

    Example:
        >>> Anneal(0.0, 0.9, to_step=1000, form="linear").at(500)
        0.45

    Attributes:
        start: The sparsity at first; 0 is dense.
        end: The final one.
        from_step: Steps taken when it begins to change.
        to_step: Steps taken when it has arrived.
        form: "linear", "cubic" or "cosine".
    """

    kind: ClassVar[str] = "anneal"

    start: float
    end: float
    _: KW_ONLY
    from_step: int = 0
    to_step: int
    form: Literal["linear", "cubic", "cosine"] = "cubic"

    def __post_init__(self) -> None:
        check_fraction("`start` of Anneal", self.start)
        check_fraction("`end` of Anneal", self.end)
        check_interval("`from_step` of Anneal", self.from_step, "`to_step` of Anneal", self.to_step)
        if self.form not in _FORMS:
            raise ValueError(f"`form` of Anneal must be one of {', '.join(_FORMS)}, got {self.form!r}")

    @classmethod
    def over(
        cls,
        steps: int,
        start: float,
        end: float,
        *,
        from_share: float = 0.0,
        to_share: float = 0.75,
        form: Literal["linear", "cubic", "cosine"] = "cubic",
    ) -> Self:
        """The same by shares of a run of so many steps.

        Example:
            >>> Anneal.over(2000, 0.0, 0.9, to_share=0.5).to_step
            1000
        """
        begin, stop = _step_of("`from_share`", from_share, steps), _step_of("`to_share`", to_share, steps)
        return cls(start, end, from_step=begin, to_step=stop, form=form)

    def at(self, step: int) -> float:
        if step <= self.from_step:
            return self.start
        if step >= self.to_step:
            return self.end
        share = (step - self.from_step) / (self.to_step - self.from_step)
        return self.end + (self.start - self.end) * _FORMS[self.form](share)

    @property
    def final(self) -> float:
        return self.end

    @property
    def knots(self) -> tuple[int, ...]:
        return (self.to_step,)


@dataclass(frozen=True)
class Stages(Schedule):
    """One sparsity after the other.

    Example:
        >>> stages = Stages({0: 0.5, 1000: 0.9})
        >>> stages.at(999), stages.at(1000)
        (0.5, 0.9)

    Attributes:
        levels: (steps taken, sparsity from then on), from step 0, by increasing step. Given as a mapping or
            as pairs.
    """

    kind: ClassVar[str] = "stages"

    levels: tuple[tuple[int, float], ...]

    def __init__(self, levels: Mapping[int, float] | Iterable[tuple[int, float]]) -> None:
        given = levels.items() if isinstance(levels, Mapping) else levels
        try:
            pairs = tuple((step, sparsity) for step, sparsity in given)
        except (TypeError, ValueError):
            raise TypeError(
                "`levels` of Stages must be sparsities by step, such as {0: 0.5, 1000: 0.9}, "
                f"got {levels!r}"
            ) from None
        object.__setattr__(self, "levels", pairs)
        self._check()

    def _check(self) -> None:
        for step, sparsity in self.levels:
            check_steps("a step of Stages", step, at_least=0)
            check_fraction(f"the sparsity of Stages from step {step} on", sparsity)
        if not self.levels or self.levels[0][0] != 0:
            first = self.levels[0][0] if self.levels else "none"
            raise ValueError(f"the first step of Stages must be 0, the sparsity at the start, got {first}")
        for (before, _), (step, _) in itertools.pairwise(self.levels):
            if step <= before:
                raise ValueError(f"the steps of Stages must increase, got {step} after {before}: sort them")

    @classmethod
    def over(cls, steps: int, levels: Mapping[float, float]) -> Self:
        """The same by shares of a run of so many steps.

        Example:
            >>> Stages.over(2000, {0: 0.5, 0.25: 0.9}).levels
            ((0, 0.5), (500, 0.9))
        """
        return cls([(_step_of("a share of Stages", share, steps), s) for share, s in levels.items()])

    def at(self, step: int) -> float:
        return next(s for begin, s in reversed(self.levels) if begin <= step)

    @property
    def final(self) -> float:
        return self.levels[-1][1]

    @property
    def knots(self) -> tuple[int, ...]:
        return tuple(step for step, _ in self.levels[1:])


_KINDS: dict[str, type[Schedule]] = {kind.kind: kind for kind in (Anneal, Stages)}


def schedule_from(data: Any) -> Schedule:
    """The schedule that a file describes.

    Raises:
        ValueError: It describes none.
        TypeError: A part is of the wrong type.
    """
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind not in _KINDS:
        raise ValueError(f"a schedule must be of kind {' or '.join(_KINDS)}, got {data!r}")
    return _KINDS[kind](**{name: value for name, value in data.items() if name != "kind"})


def take_schedule(settings: Any, number: str, schedule: str) -> None:
    """Where a schedule was given for a sparsity: the final number takes its place, the schedule has its own.

    Args:
        settings: A frozen dataclass that is being made.
        number: Name of the field with the sparsity.
        schedule: Name of the field for the schedule.

    Raises:
        TypeError: What the second field has is no schedule.
        ValueError: Both were given, and do not end alike.
    """
    given, own = getattr(settings, number), getattr(settings, schedule)
    if isinstance(given, Schedule):
        given, own = given.final, given if own is None else own
        object.__setattr__(settings, number, given)
        object.__setattr__(settings, schedule, own)
    if own is None:
        return
    if not isinstance(own, Schedule):
        raise TypeError(f"`{schedule}` must be a schedule such as topkast.Anneal, got {own!r}")
    if own.final != given:
        raise ValueError(
            f"`{number}` must be that in which `{schedule}` ends ({own.final!r}), got {given!r}: give one of "
            "them alone"
        )


def _step_of(name: str, share: float, steps: int) -> int:
    check_steps("`steps`", steps, at_least=1)
    check_share(name, share)
    return round(share * steps)


# ---- two schedules together ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """How the sizes of A and B go, with an exchange after every so many steps and after every knot.

    The sparsities of the distribution are the final ones. A layer with K of n elements in the end, at the
    overall sparsity s_f, has at s(t)

        n - (n - K)·s/s_f   elements for s ≤ s_f: the same share of the way from dense,
        K·(1 - s)/(1 - s_f) elements for s > s_f,

    rounded, at least 1 of A, and B no smaller than A. Either way all layers together have the sparsity s. A
    layer that has the overall sparsity itself has round((1 - s)·n) elements.

    Attributes:
        forward: That of A; None where it does not change.
        backward: That of B.
        finals: Both final sparsities.
        every: Steps from one exchange to the next.
    """

    forward: Schedule | None
    backward: Schedule | None
    finals: tuple[float, float]
    every: int

    @cached_property
    def knots(self) -> tuple[int, ...]:
        """Of both, increasing."""
        both = (schedule.knots for schedule in (self.forward, self.backward) if schedule is not None)
        return tuple(sorted({knot for knots in both for knot in knots}))

    @property
    def end(self) -> int:
        """Steps taken when all sizes are final."""
        return max(self.knots, default=0)

    def at(self, step: int, final: Counts) -> Counts:
        """|A| and |B| once `step` steps have been taken, of a layer with these in the end."""
        if step >= self.end:
            return final
        last = step - step % self.every
        for knot in self.knots:
            if last < knot <= step:
                last = knot
        known = self._known.get(final)
        if known is None or known[0] != last:
            known = self._known[final] = last, self._after(last, final)
        return known[1]

    @cached_property
    def _known(self) -> dict[Counts, tuple[int, Counts]]:
        """By layer the last answer: accounting asks for every step, and sizes stay for many."""
        return {}

    def _after(self, exchange: int, final: Counts) -> Counts:
        (a, a_final), (b, b_final) = self._sparsities(exchange)
        forward = _size(final.numel, final.forward, a, a_final)
        backward = _size(final.numel, final.backward, b, b_final)
        return Counts(final.numel, forward, max(forward, backward))

    def check(self) -> None:
        """Raises ValueError if B would be smaller than A at any exchange."""
        for step in self._steps_to_check():
            (a, _), (b, _) = self._sparsities(step)
            if b > a + _ROUNDING:
                raise ValueError(
                    f"`backward_sparsity` must not exceed `forward_sparsity` at any step, but after {step} "
                    f"steps they are {b:.6g} and {a:.6g}: the backward set B contains the forward set A. "
                    "Give both schedules the same steps, or the backward one smaller sparsities"
                )

    def _sparsities(self, step: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """Of A and of B: now, and in the end."""
        now = [
            final if schedule is None else schedule.at(step)
            for schedule, final in zip((self.forward, self.backward), self.finals, strict=True)
        ]
        return (now[0], self.finals[0]), (now[1], self.finals[1])

    def _steps_to_check(self) -> Iterable[int]:
        a, b = self.forward, self.backward
        same = isinstance(a, Anneal) and isinstance(b, Anneal)
        if a is None or b is None or (same and _timing(a) == _timing(b)):
            return (0, *self.knots)  # where the difference between them does not turn in between
        return sorted({*range(0, self.end, self.every), *self.knots})


def _timing(anneal: Any) -> tuple[int, int, str]:
    return anneal.from_step, anneal.to_step, anneal.form


def _size(numel: int, final: int, now: float, in_the_end: float) -> int:
    if abs(now - in_the_end) <= _ROUNDING:
        return final
    if final == max(1, round((1 - in_the_end) * numel)):
        density = 1 - now
    elif now < in_the_end:
        density = 1 - (1 - final / numel) * now / in_the_end
    else:
        density = final / numel * (1 - now) / (1 - in_the_end)
    return min(numel, max(1, round(density * numel)))
