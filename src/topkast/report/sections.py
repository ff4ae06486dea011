"""Which figures a page shows, in which order, and what it says of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from topkast.report import costs, masks
from topkast.report.curves import AXES, Curves, loss_figure, of_run, quality_figure
from topkast.report.drawings import Drawing
from topkast.report.words import bare
from topkast.store.run import Run


@dataclass(frozen=True)
class Section:
    """Figures under one heading."""

    title: str
    drawings: list[Drawing]


_WHY = {
    "step": "At equal steps: what sparsity costs in quality when training is equally long.",
    "flops": "At equal FLOPs: a curve further left has spent less computation on the same quality. "
    "The paper compares methods so in Figure 2a.",
    "time": "At equal training time on this machine, evaluation not counted.",
}


def of_one(run: Run) -> list[Section]:
    """The figures of a run's own page."""
    curves = of_run(run)
    sections = [
        Section("Held-out quality", qualities(curves, run)),
        Section("Training loss", _losses(curves)),
    ]
    if masks.has_masks(run):
        sections.append(Section("How the sets moved", _masks(run)))
    sections.append(Section("What it takes", _costs(run)))
    return [section for section in sections if section.drawings]


def every_drawing(sections: Iterable[Section]) -> list[Drawing]:
    return [drawing for section in sections for drawing in section.drawings]


def qualities(curves: Curves, run: Run) -> list[Drawing]:
    """Held-out quality by step, FLOPs and time."""
    return [
        Drawing(
            f"quality_by_{axis.name}",
            f"Held-out {bare(run.quality_name)} {axis.title}",
            _WHY[axis.name],
            quality_figure(curves, axis, run.quality_name, run.higher_is_better),
        )
        for axis in AXES
    ]


def _losses(curves: Curves) -> list[Drawing]:
    caption = "Mean over the batches since the record before; a gap is a value that was not finite."
    return [
        Drawing(f"loss_by_{axis.name}", f"Training loss {axis.title}", caption, loss_figure(curves, axis))
        for axis in AXES
    ]


def _masks(run: Run) -> list[Drawing]:
    return [
        Drawing(
            "mask_change",
            "How the mask changes",
            "Share of a layer's weights that entered or left A at the last refresh: mean over layers, and a "
            "band from the smallest to the largest. It falls as the mask settles, as in the paper's Figure "
            "3a, which compares masks 5,000 steps apart.",
            masks.change_figure(run),
        ),
        Drawing(
            "reservoir_use",
            "How much of the reservoir is ever used",
            "Share of the initial C that has been in B or in A by then: mean over layers and band. In the "
            "paper's Figure 3b only about 5 % is ever used, most of it early.",
            masks.reservoir_figure(run),
        ),
        Drawing(
            "weight_size",
            "Size of weights by set",
            "Mean |θ| on A, which the network uses, and on B∖A, which is trained beside it: mean over layers "
            "and band. A weight enters A when it outgrows the smallest there; the penalty is 1/D times as "
            "strong on B∖A (the paper's section 2.3).",
            masks.size_figure(run),
        ),
    ]


def _costs(run: Run) -> list[Drawing]:
    drawings = []
    if run.bytes is not None and run.is_sparse:
        caption = "What weights, gradients, optimizer and sets hold at the end; activations are not in it."
        figure = costs.memory_figure(run, run.bytes)
        drawings.append(Drawing("memory", "Memory against dense", caption, figure))
    if run.references:  # a single bar would say no more than the tile does
        caption = "Mean over each run, with its refreshes, without evaluation, on the same machine."
        drawings.append(Drawing("step_time", "Time per step", caption, costs.time_figure(run)))
    return drawings
