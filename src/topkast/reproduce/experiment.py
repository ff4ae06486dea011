"""`Experiment`: one table or figure, as rows to be run and claims to be judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from topkast.report import read_run
from topkast.report.groups import Group
from topkast.reproduce.claims import Claim, Groups, Learned, Verdict, judge
from topkast.reproduce.farm import Measured, place
from topkast.reproduce.published import Published, published
from topkast.reproduce.scales import Recipe, Scale
from topkast.train.config import Config


@dataclass(frozen=True)
class Row:
    """One row of a table, or one point of a figure.

    Attributes:
        label: Its name, as in `published.toml`.
        recipe: What is run for it.
    """

    label: str
    recipe: Recipe


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure.

    Attributes:
        name: On the command line.
        place: In the paper; empty for a comparison that is in none.
        title: What it shows.
        about: What differs from the paper at our scales, and what to look at.
        at_scale: Scale → what is true of that one alone.
        rows: In the paper's order.
        claims: What the paper says of it.
        figure: How it is drawn: a name in `topkast.reproduce.figures`; empty for a table alone.
        learned: What must be reached before its claims count; None if they always do.
    """

    name: str
    place: str = ""
    title: str = ""
    about: str = ""
    at_scale: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    figure: str = ""
    learned: Learned | None = None

    @property
    def published(self) -> Published:
        return published(self.name)

    def without_exploration(self) -> Experiment:
        """The control: the same rows with B = A."""
        rows = tuple(Row(row.label, row.recipe.without_exploration()) for row in self.rows)
        return dataclasses.replace(self, rows=rows)

    def judged(self, groups: Groups) -> tuple[Verdict, ...]:
        """Its claims, in order, by groups of runs of its rows."""
        return tuple(judge(claim, groups, self.learned) for claim in self.claims)

    def runs(self, seeds: Iterable[int]) -> list[tuple[Row, int]]:
        """All rows of a seed before the next seed, so that an early stop leaves whole comparisons."""
        return [(row, seed) for seed in seeds for row in self.rows]


@dataclass(frozen=True)
class Findings:
    """An experiment and what came of it at one scale.

    Attributes:
        experiment: What was asked.
        scale: At which size.
        seeds: That were wanted.
        groups: Of runs, by row, those that are finished.
        verdicts: On its claims, in order.
    """

    experiment: Experiment
    scale: Scale
    seeds: range
    groups: dict[str, Group]
    verdicts: tuple[Verdict, ...]

    @property
    def about(self) -> str:
        """What a reader must know of the experiment, and of this scale of it."""
        more = self.experiment.at_scale.get(self.scale.name, "")
        return f"{self.experiment.about} {more}".strip()

    @property
    def is_whole(self) -> bool:
        """Whether every row has every seed."""
        rows = self.experiment.rows
        return all(r.label in self.groups and len(self.groups[r.label].runs) == len(self.seeds) for r in rows)

    def pairs(self) -> list[tuple[Recipe, Group]]:
        """What was trained and what came of it, by row, as far as it is finished."""
        return [(r.recipe, self.groups[r.label]) for r in self.experiment.rows if r.label in self.groups]


def prepare(experiments: Sequence[Experiment], scale: Scale, seeds: range, out: Path) -> list[Measured]:
    """Where the runs of experiments are, each different one once, with what it is told."""
    found: dict[Path, tuple[Measured, Config]] = {}
    for seed in seeds:
        for experiment in experiments:
            for row, _ in experiment.runs([seed]):
                config = scale.config(row.recipe, seed)
                here = place(out, config, f"{experiment.name}: {row.label}, seed {seed}")
                found.setdefault(here.folder, (here, config))
    for here, config in found.values():
        here.prepare(config)
    return [here for here, _ in found.values()]


def find(experiment: Experiment, scale: Scale, seeds: range, out: Path) -> Findings:
    """What came of an experiment, as far as its runs are finished."""
    found = {row.label: _group(row, scale, seeds, out) for row in experiment.rows}
    groups = {label: one for label, one in found.items() if one is not None}
    return Findings(experiment, scale, seeds, groups, experiment.judged(groups))


def _group(row: Row, scale: Scale, seeds: range, out: Path) -> Group | None:
    """The runs of a row, by the seeds that are finished; None if none is."""
    runs, results = {}, {}
    for seed in seeds:
        try:
            here = place(out, scale.config(row.recipe, seed))
        except FileNotFoundError:  # of the data, without which nothing was trained
            continue
        if (result := here.result()) is not None:
            results[seed], runs[seed] = result, read_run(here.run)
    return Group(row.label, runs, results, row.recipe.length) if runs else None
