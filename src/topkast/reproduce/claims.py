"""A claim in words, what it says of the runs, and whether it holds.

A claim is a list of differences, each oriented so that a positive one speaks for it, with one value per seed:
the seeds of two rows share initialisation and data, so they are compared pair by pair. With mean d and
standard error s over n seeds, and t the one-sided 95 % point of Student's distribution with n - 1 degrees of
freedom, a difference

    holds              if d - t·s > -margin,
    does not hold      if d + t·s ≤ -margin,
    is within noise    otherwise.

One seed says nothing of the noise: the difference holds *for one seed* if d > -margin, or else does not. The
margin is 0 for "better than" and the size of what counts as equal for "comparable". A claim holds if all of
its differences do, and does not if one does not. Claims on networks that have not learned are not counted,
whatever their differences are: the dense network misses the bar of its kind (`Bar`), or a row is much worse
than what was found when its rate was looked for.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from topkast.report.groups import Group
from topkast.text import measured

HOLDS, FAILS, NOISE, OPEN = "holds", "does not hold", "within noise", "not run"
HOLDS_ONCE, FAILS_ONCE = f"{HOLDS} for one seed", f"{FAILS} for one seed"
NOT_LEARNED = "not learned"
# Of a claim with several comparisons, the first of these that one of them has.
_WORST_FIRST = (OPEN, FAILS, FAILS_ONCE, NOISE, HOLDS_ONCE, HOLDS)

# One-sided 95 % points of Student's t, by degrees of freedom; beyond the last it is nearly the normal's.
_T = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
_T_NORMAL = 1.645


@dataclass(frozen=True)
class Difference:
    """One comparison.

    Attributes:
        words: Such as "Top-KAST 98/95 over RigL 98".
        values: By seed, positive in favour.
        margin: How far below zero still counts as equal.
        unit: Of the values.
    """

    words: str
    values: tuple[float, ...]
    margin: float = 0.0
    unit: str = ""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def reach(self) -> float:
        """t·s: how far the mean may be off; infinite for one seed."""
        n = len(self.values)
        if n < 2:
            return math.inf
        t = _T[n - 2] if n - 2 < len(_T) else _T_NORMAL
        return t * statistics.stdev(self.values) / math.sqrt(n)

    @property
    def verdict(self) -> str:
        if not self.values or not all(map(math.isfinite, self.values)):
            return FAILS if self.values else OPEN
        if len(self.values) == 1:
            return HOLDS_ONCE if self.mean > -self.margin else FAILS_ONCE
        if self.mean - self.reach > -self.margin:
            return HOLDS
        return FAILS if self.mean + self.reach <= -self.margin else NOISE

    def __str__(self) -> str:
        spread = f" ± {_short(self.reach)}" if math.isfinite(self.reach) else " (one seed)"
        allowed = f", {self.margin:.3g} allowed" if self.margin else ""
        return f"{self.words}: {self.mean:+.3g}{spread}{' ' + self.unit if self.unit else ''}{allowed}"


@dataclass(frozen=True)
class Bar:
    """What a dense network must reach before a comparison with it says anything.

    Attributes:
        unit: Of the quality. The rule does not apply to runs that are measured in another one.
        quality: What is just good enough.
        why: Where that comes from.
    """

    unit: str
    quality: float
    why: str


Groups = Mapping[str, Group]
Test = Callable[[Groups], Sequence[Difference]]


@dataclass(frozen=True)
class Claim:
    """What the paper says.

    Attributes:
        words: In our words.
        place: Where it says so; "ours" for what it does not.
        test: From the groups of runs by row to the differences that it is about. A missing row is a KeyError.
    """

    words: str
    place: str
    test: Test


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it.

    Attributes:
        claim: The claim.
        verdict: `HOLDS`, `FAILS`, `NOISE`, `HOLDS_ONCE`, `FAILS_ONCE`, `NOT_LEARNED` or `OPEN`.
        differences: The numbers behind it.
        reason: Why it is not counted, if it is not.
    """

    claim: Claim
    verdict: str
    differences: tuple[Difference, ...]
    reason: str = ""

    @property
    def numbers(self) -> str:
        numbers = "; ".join(map(str, self.differences)) or "runs are missing"
        return f"{self.reason}; {numbers}" if self.reason else numbers


# How much worse than what the search for its rate has found a row may be, as a share of its loss: the error,
# the bits, or the perplexity.
_WORSE = {"points": 1.2, "bits per byte": 1.2, "perplexity": 1.3}


def bar_missed(name: str, found: Group, bar: Bar | None) -> str:
    """What a network has and should have; nothing if it is good enough, or measured in other units."""
    if bar is None or found.unit != bar.unit or found.sign * found.mean >= found.sign * bar.quality:
        return ""
    side = "least" if found.sign > 0 else "most"
    return f"{name} has {_shown(found)} and should have at {side} {bar.quality:,g} ({bar.why})"


def fell_short(name: str, found: Group, expected: float | None) -> str:
    """The same for a row that validation data have been kinder to: it has not learned what it can."""
    if expected is None or found.unit not in _WORSE or math.isnan(found.mean):
        return "" if not math.isnan(found.mean) else f"{name} has no quality"
    loss, best = (100 - found.mean, 100 - expected) if found.sign > 0 else (found.mean, expected)
    if loss <= _WORSE[found.unit] * best:
        return ""
    return f"{name} has {_shown(found)}, and validation data gave {expected:.4g} when its rate was looked for"


def _shown(found: Group) -> str:
    return f"{measured(found.mean, found.first.quality_name)} {found.unit}"


def judge(claim: Claim, groups: Groups, missed: Mapping[str, str] | None = None) -> Verdict:
    """Whether a claim holds for these groups, if all that it looks at have learned.

    Args:
        claim: The claim.
        groups: Of runs, by row.
        missed: Row → why it has not learned; "" for all rows.
    """
    seen = _Seen(groups)
    try:
        differences = tuple(claim.test(seen))
    except KeyError:
        return Verdict(claim, OPEN, ())
    reasons = missed or {}
    reason = next((reasons[name] for name in ("", *seen.names) if reasons.get(name)), "")
    if reason:
        return Verdict(claim, NOT_LEARNED, differences, reason)
    found = {difference.verdict for difference in differences}
    worst = next((verdict for verdict in _WORST_FIRST if verdict in found), OPEN)
    return Verdict(claim, worst, differences)


class _Seen(dict[str, Group]):
    """Groups, and which of them were looked at."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups)
        self.names: dict[str, None] = {}

    def __getitem__(self, name: str) -> Group:
        self.names[name] = None
        return super().__getitem__(name)


# ---- what claims are made of --------------------------------------------------------------------------


def beats(*pairs: tuple[str, str], margin: float = 0.0) -> Test:
    """The first of each pair is better than the second, or with a margin as good."""

    def test(groups: Groups) -> list[Difference]:
        return [_over(groups[a], groups[b], margin) for a, b in pairs]

    return test


def at_equal_flops(frontier: Sequence[str], rival: str, margin: float) -> Test:
    """The best of several rows at the training FLOPs of a rival, between them along a line, is as good."""

    def test(groups: Groups) -> list[Difference]:
        other = groups[rival]
        rows = [groups[name] for name in frontier]
        values = []
        for seed in shared_seeds(other, *rows):
            points = [(row.flops, row.sign * row.qualities[seed]) for row in rows]
            values.append(envelope(points, other.flops) - other.sign * other.qualities[seed])
        words = f"Top-KAST at the FLOPs of {rival} ({other.flops:.2f} of dense)"
        return [Difference(words, tuple(values), _margin(other, margin), other.unit)]

    return test


def envelope(points: list[tuple[float, float]], spent: float) -> float:
    """The best that so much buys: the upper envelope, between two points along a line.

    Less than the cheapest point costs buys what that one gives.
    """
    points = sorted(points)
    best = [y for x, y in points if x <= spent]
    for (x0, y0), (x1, y1) in [(p, q) for i, p in enumerate(points) for q in points[i + 1 :]]:
        if x0 <= spent <= x1 and x0 < x1:
            best.append(y0 + (y1 - y0) * (spent - x0) / (x1 - x0))
    return max(best, default=points[0][1])


def _over(a: Group, b: Group, margin: float) -> Difference:
    values = tuple(a.sign * (a.qualities[seed] - b.qualities[seed]) for seed in shared_seeds(a, b))
    return Difference(f"{a.name} over {b.name}", values, _margin(a, margin), a.unit)


def shared_seeds(*groups: Group) -> list[int]:
    """Seeds that all of them have a quality for."""
    seeds = set(groups[0].qualities).intersection(*(o.qualities for o in groups[1:]))
    return sorted(seeds)


def _margin(group: Group, margin: float) -> float:
    """Margins are given in points of accuracy; a hundredth of the value stands for them elsewhere."""
    return margin if group.unit == "points" else margin / 100 * abs(group.mean)


def _short(size: float) -> str:
    """Two digits that count, without a power of ten."""
    return f"{size:.0f}" if size >= 10 else f"{size:.2g}"
