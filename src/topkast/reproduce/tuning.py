"""`topkast tune`: the best learning rate of each way of training, found for all by the same search.

Each contender begins with three rates, a factor apart, and goes on past the end that is best until the best
one has a worse one on both sides. Validation data decide: the last held-out quality of a run, not its test.
Other seeds are run at the best rate only. Runs are kept by what they are told (`topkast.reproduce.farm`), so
that a search that was stopped goes on, and one with more contenders takes what is there.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topkast.report import read_run
from topkast.report.drawings import legend, looks, new_figure, styled
from topkast.reproduce.contest import check, contender, run_config
from topkast.reproduce.experiment import Row
from topkast.reproduce.farm import Harvest, Measured, place, run_all
from topkast.store.files import replace
from topkast.text import measured
from topkast.train.config import Config

RESULT = "tune.json"
FIGURE = "tune.svg"


@dataclass(frozen=True)
class Search:
    """How rates are looked for.

    Attributes:
        base: All options but those of the contenders.
        first: The rate in the middle of the first three.
        factor: From one rate to the next, above 1.
        most: Rates of a contender, at most; 3 or more.
        seeds: The first one searches, the others are run at the best rate.
        out: Where runs are kept.
    """

    base: Config
    first: float
    factor: float
    most: int
    seeds: Sequence[int]
    out: Path

    def __post_init__(self) -> None:
        if not self.first > 0:
            raise ValueError(f"--lr must be above 0, got {self.first:g}")
        if not (math.isfinite(self.factor) and self.factor > 1):
            raise ValueError(f"--factor must be above 1, got {self.factor:g}")
        if self.most < 3:
            raise ValueError(f"--most must be at least 3, got {self.most}")

    def config(self, row: Row, power: int, seed: int) -> Config:
        """What the run of a contender at the rate first·factor^power is told."""
        rate = float(f"{self.first * self.factor**power:.6g}")  # so that a power has one spelling
        return run_config(self.base, row.recipe, seed).with_values({"train": {"lr": rate}})


@dataclass
class Tuned:
    """A contender and how good it is by rate.

    Attributes:
        row: The contender.
        found: Power of the factor → seed → held-out quality; NaN for a run that could not be finished.
        higher_is_better: Of the quality.
        quality_name: What it is.
    """

    row: Row
    found: dict[int, dict[int, float]] = field(default_factory=dict)
    higher_is_better: bool = False
    quality_name: str = "quality"

    def note(self, power: int, seed: int, here: Measured) -> None:
        """Takes in what came of a run, if it could be finished."""
        quality = math.nan
        if here.result() is not None:
            run = read_run(here.run)
            quality, self.higher_is_better = run.last.quality, run.higher_is_better
            self.quality_name = run.quality_name
        self.found.setdefault(power, {})[seed] = quality

    def loss(self, power: int, seed: int) -> float:
        """Less is better; infinite for a run that could not be finished."""
        quality = self.found[power][seed]
        return math.inf if math.isnan(quality) else -quality if self.higher_is_better else quality

    def best(self, seed: int) -> int:
        """The power whose run with this seed is best; of equals the smaller rate."""
        return min(sorted(self.found), key=lambda power: self.loss(power, seed))

    def next(self, seed: int, most: int) -> int | None:
        """The power to try next: beyond the best, where that is at an end. None if the search is over."""
        best, powers = self.best(seed), sorted(self.found)
        if len(powers) >= most or math.isinf(self.loss(best, seed)):
            return None
        return powers[0] - 1 if best == powers[0] else powers[-1] + 1 if best == powers[-1] else None

    def is_inside(self, seed: int) -> bool:
        """Whether the best rate has a worse one on both sides."""
        return min(self.found) < self.best(seed) < max(self.found)


def tune(
    search: Search, contenders: Sequence[str], *, jobs: int = 1, say: Callable[[str], None] = lambda _: None
) -> tuple[list[Tuned], Harvest]:
    """Searches for all contenders side by side.

    Raises:
        ValueError: A contender is given twice, or has settings that its method does not have.
    """
    rows = [contender(text) for text in contenders]
    if len({row.label for row in rows}) < len(rows):
        raise ValueError("each contender can be given once only")
    for row in rows:
        if any(name == "lr" for name, _ in row.recipe.options):
            raise ValueError(f"{row.label}: the rate is what is looked for; --lr says where to begin")
    check(search.base, {row.label: search.config(row, 0, search.seeds[0]) for row in rows})
    tuned = [Tuned(row) for row in rows]
    harvest, wanted = Harvest(), [(one, power, search.seeds[0]) for one in tuned for power in (-1, 0, 1)]
    while wanted:
        harvest = _run(search, wanted, jobs, say)
        if harvest.exit_code != 0:
            return tuned, harvest
        first = search.seeds[0]
        following = [(one, one.next(first, search.most), first) for one in tuned]
        wanted = [(one, power, seed) for one, power, seed in following if power is not None]
    others = [(one, one.best(search.seeds[0]), seed) for one in tuned for seed in search.seeds[1:]]
    return tuned, _run(search, others, jobs, say) if others else harvest


def _run(
    search: Search, wanted: Sequence[tuple[Tuned, int, int]], jobs: int, say: Callable[[str], None]
) -> Harvest:
    """Finishes runs and notes what came of them."""
    places: dict[Path, Measured] = {}
    for one, power, seed in wanted:
        config = search.config(one.row, power, seed)
        here = place(search.out, config, f"{one.row.label}, lr {config.train.lr:g}, seed {seed}")
        here.prepare(config)
        places.setdefault(here.folder, here)
    harvest = run_all(list(places.values()), jobs=jobs, say=say)
    for one, power, seed in wanted:
        one.note(power, seed, place(search.out, search.config(one.row, power, seed)))
    return harvest


# ---- what is written ----------------------------------------------------------------------------------


def table(search: Search, tuned: Sequence[Tuned]) -> list[tuple[str, ...]]:
    """A line for each contender: the best rate, the quality there, and what was tried."""
    rows = [("", "best rate", tuned[0].quality_name, "rates tried", "")]
    for one in tuned:
        best = one.best(search.seeds[0])
        qualities = [q for q in one.found[best].values() if math.isfinite(q)]
        spread = statistics.stdev(qualities) if len(qualities) > 1 else math.nan
        mean = "none finished"
        if qualities:
            mean = measured(statistics.fmean(qualities), one.quality_name, spread)
        low, high = (_rate(search, power) for power in (min(one.found), max(one.found)))
        note = "" if one.is_inside(search.seeds[0]) else "at an end: try a larger --most"
        rows.append((one.row.label, f"{_rate(search, best):g}", mean, f"{low:g} to {high:g}", note))
    return rows


def _rate(search: Search, power: int) -> float:
    return float(f"{search.first * search.factor**power:.3g}")


def write(search: Search, tuned: Sequence[Tuned]) -> Path:
    """Writes all figures as JSON and draws quality against rate.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is missing.
    """
    found: list[dict[str, Any]] = [
        {
            "contender": one.row.label,
            "quality": one.quality_name,
            "best": _rate(search, one.best(search.seeds[0])),
            "is_inside": one.is_inside(search.seeds[0]),
            "rates": {
                f"{_rate(search, power):g}": {
                    str(seed): _number(quality) for seed, quality in by_seed.items()
                }
                for power, by_seed in sorted(one.found.items())
            },
        }
        for one in tuned
    ]
    replace(search.out / RESULT, (json.dumps(found, indent=1) + "\n").encode())
    _draw(search, tuned).savefig(search.out / FIGURE)
    return search.out / FIGURE


def _number(quality: float) -> float | None:
    return quality if math.isfinite(quality) else None


@styled
def _draw(search: Search, tuned: Sequence[Tuned]) -> Any:
    """A line for each contender through the runs of the search; other seeds as small dots."""
    figure, axes = new_figure(height=3.8)
    first = search.seeds[0]
    look_of = looks(one.row.label for one in tuned)
    for one in tuned:
        color, dashes = look_of[one.row.label]
        powers = [power for power in sorted(one.found) if math.isfinite(one.found[power][first])]
        rates, qualities = [_rate(search, p) for p in powers], [one.found[p][first] for p in powers]
        axes.plot(rates, qualities, color=color, ls=dashes, marker="o", ms=4, label=one.row.label)
        for power in powers:
            others = [q for seed, q in one.found[power].items() if seed != first]
            axes.plot([_rate(search, power)] * len(others), others, "o", ms=3, mfc="white", mec=color)
    axes.set_xscale("log")
    tried = sorted({_rate(search, power) for one in tuned for power in one.found})
    axes.set_xticks(tried, [f"{rate:g}" for rate in tried])
    axes.minorticks_off()
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"held-out {tuned[0].quality_name} {'↑' if tuned[0].higher_is_better else '↓'}")
    legend(figure, axes)
    return figure
