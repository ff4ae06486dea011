"""`Experiment`: one table or figure, as rows to be run and claims to be judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topkast.report.groups import Group
from topkast.reproduce.archive import Archive
from topkast.reproduce.claims import Claim, Groups, Verdict, bar_missed, fell_short, judge
from topkast.reproduce.farm import Measured, place
from topkast.reproduce.published import Published, published
from topkast.reproduce.recipes import Recipe, Workload
from topkast.reproduce.scales import Scale
from topkast.store.record import read_run
from topkast.store.run import Run
from topkast.train.config import Config, run_config_of
from topkast.train.trained import CONFIG


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
    """

    name: str
    place: str = ""
    title: str = ""
    about: str = ""
    at_scale: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    figure: str = ""

    @property
    def published(self) -> Published:
        return published(self.name)

    def changed(self, change: Callable[[Recipe], Recipe]) -> Experiment:
        """The same with other recipes: a control."""
        return dataclasses.replace(self, rows=tuple(Row(row.label, change(row.recipe)) for row in self.rows))

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


Look = Callable[[Recipe, int], tuple[Run, Mapping[str, Any]] | None]
"""From a recipe and a seed to the run and what was measured at its end; None if it is not finished."""


def in_folders(scale: Scale, out: Path, archive: Archive | None = None) -> Look:
    """Looks for runs where they were trained, and in an archive."""

    def look(recipe: Recipe, seed: int) -> tuple[Run, Mapping[str, Any]] | None:
        try:
            here = place(out, scale.config(recipe, seed))
        except FileNotFoundError:  # of the data, without which nothing was trained
            return None
        kept = None if archive is None else archive.runs.get(here.folder.name)
        if kept is not None:
            return kept.run, kept.result
        result = here.result()
        return None if result is None else (read_run(here.run), result)

    return look


def in_archive(scale: Scale, archive: Archive) -> Look:
    """Looks in an archive alone: the data need not be here."""

    def look(recipe: Recipe, seed: int) -> tuple[Run, Mapping[str, Any]] | None:
        name = place(Path(), scale.config(recipe, seed, is_forecast=True)).folder.name
        kept = archive.runs.get(name)
        return None if kept is None else (kept.run, kept.result)

    return look


def find(experiment: Experiment, scale: Scale, seeds: range, look: Look) -> Findings:
    """What came of an experiment, as far as its runs are finished."""
    found = {row.label: _group(row, seeds, look) for row in experiment.rows}
    groups = {label: one for label, one in found.items() if one is not None}
    missed = not_learned(experiment, scale, groups, look)
    verdicts = tuple(judge(claim, groups, missed) for claim in experiment.claims)
    return Findings(experiment, scale, seeds, groups, verdicts)


def not_learned(experiment: Experiment, scale: Scale, groups: Groups, look: Look) -> dict[str, str]:
    """Row → why it has not learned; "" for all of them, if the dense network of their kind has not."""
    missed = {}
    for row in experiment.rows:
        found = groups.get(row.label)
        if found is not None:
            expected = scale.expected(row.recipe, is_forecast=True) if _is_published(found) else None
            quality = None if expected is None else expected.quality
            missed[row.label] = fell_short(row.label, found, quality)
    workloads: dict[Workload, None] = {row.recipe.workload: None for row in experiment.rows}
    for workload in workloads:
        dense = _group(Row("dense", Recipe(workload=workload, method="dense")), range(scale.seeds), look)
        if dense is not None and _is_published(dense) and not missed.get(""):
            missed[""] = bar_missed("the dense network", dense, scale.bars.get(workload))
    return missed


def _is_published(found: Group) -> bool:
    """Whether it was trained on a published data set: bars and rates are about those."""
    run = found.first
    return run_config_of(run.config.encode(), run.folder / CONFIG).data.dataset is not None


def _group(row: Row, seeds: range, look: Look) -> Group | None:
    """The runs of a row, by the seeds that are finished; None if none is."""
    found = {seed: one for seed in seeds if (one := look(row.recipe, seed)) is not None}
    if not found:
        return None
    runs = {seed: run for seed, (run, _) in found.items()}
    results = {seed: result for seed, (_, result) in found.items()}
    return Group(row.label, runs, results, row.recipe.length)
