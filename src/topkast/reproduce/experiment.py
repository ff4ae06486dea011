"""`Experiment`: one table or figure of the paper, as rows to be run and claims to be judged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from topkast.reproduce.claims import Claim, Verdict, judge
from topkast.reproduce.outcome import Outcome, outcome
from topkast.reproduce.published import Published, published
from topkast.reproduce.recipe import Recipe
from topkast.reproduce.scales import Scale


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
        place: In the paper.
        title: What it shows.
        about: What differs from the paper at our scales, and what to look at.
        rows: In the paper's order.
        claims: What the paper says of it.
        figure: How it is drawn: a name in `topkast.reproduce.figures`; empty for a table alone.
    """

    name: str
    place: str
    title: str
    about: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    figure: str = ""

    @property
    def published(self) -> Published:
        return published(self.name)

    def without_exploration(self) -> Experiment:
        """The control: the same rows with B = A."""
        rows = tuple(Row(row.label, row.recipe.without_exploration()) for row in self.rows)
        fields = {name: getattr(self, name) for name in ("name", "place", "title", "about", "figure")}
        return Experiment(rows=rows, claims=self.claims, **fields)


@dataclass(frozen=True)
class Findings:
    """An experiment and what came of it at one scale.

    Attributes:
        experiment: What was asked.
        scale: At which size.
        seeds: That were wanted.
        outcomes: By row, those that are finished.
        verdicts: On its claims, in order.
    """

    experiment: Experiment
    scale: Scale
    seeds: range
    outcomes: dict[str, Outcome]
    verdicts: tuple[Verdict, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every row has every seed."""
        rows = self.experiment.rows
        return all(
            r.label in self.outcomes and len(self.outcomes[r.label].runs) == len(self.seeds) for r in rows
        )


def find(experiment: Experiment, scale: Scale, seeds: range, out: Path) -> Findings:
    """What came of an experiment, as far as its runs are finished."""
    found = {row.label: outcome(row.label, row.recipe, scale, seeds, out) for row in experiment.rows}
    outcomes = {label: one for label, one in found.items() if one is not None}
    verdicts = tuple(judge(claim, outcomes) for claim in experiment.claims)
    return Findings(experiment, scale, seeds, outcomes, verdicts)
