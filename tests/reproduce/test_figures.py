"""Every figure can be drawn, also with rows missing."""

from __future__ import annotations

import pytest

from topkast.report.groups import Group
from topkast.reproduce import figures
from topkast.reproduce.catalogue import EXPERIMENTS
from topkast.reproduce.experiment import Experiment, Findings, Row
from topkast.reproduce.scales import TINY
from topkast.store.run import LayerPoint, Progress, Run


def outcome(row: Row, quality: float) -> Group:
    run = Run(row.label, "images", "accuracy, %", True, steps=10)
    run.flops_per_step = {"sparse": 0.5, "dense": 1.0}
    layers = {"0": LayerPoint(0.1, 0.2, 0.1, 1.0, 0.5, 10, 20)}
    run.points = [Progress(step, 1.0, 1.0, quality, 0.5 * step, layers) for step in (5, 10)]
    masks = [{"from": 0, "to": 5, "layers": {"0": 0.2}}, {"from": 5, "to": 10, "layers": {"0": 0.1}}]
    results = {seed: {"quality": quality + seed, "masks": masks} for seed in range(2)}
    return Group(row.label, dict.fromkeys(results, run), results, row.recipe.length)


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)
@pytest.mark.parametrize("part", [1, 2])
def test_every_figure_is_drawn(experiment: Experiment, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "mean_backward", lambda found: 0.25 * len(found.name))
    rows = experiment.rows[: max(1, len(experiment.rows) // part)]
    outcomes = {row.label: outcome(row, 80.0 + i) for i, row in enumerate(rows)}
    figure = figures.draw(Findings(experiment, TINY, range(2), outcomes, ()))
    assert figure is not None
    figure.canvas.draw()
    drawn = sum(len(axes.lines) + len(axes.patches) + len(axes.containers) for axes in figure.axes)
    assert drawn >= len(rows)
