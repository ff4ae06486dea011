"""A run in a sentence, in tiles, and in tables of its layers and settings."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from topkast.store.run import Progress, Reference, Run
from topkast.text import (
    MISSING,
    bare,
    count,
    duration,
    flops,
    listed,
    measured,
    of_whole,
    percent,
    quality,
    shape_text,
    size,
    times,
)


@dataclass(frozen=True)
class Tile:
    """One key figure: what it is, the figure, and what it stands beside."""

    title: str
    value: str
    notes: list[str] = field(default_factory=list)


def dense_reference(run: Run) -> Reference | None:
    return next((r for r in run.references.values() if r.is_dense), None)


def shortest(curves: Iterable[Sequence[Progress]]) -> float:
    """Seconds that the fastest of several took; NaN if none has begun."""
    return min((points[-1].seconds for points in curves if points), default=math.nan)


def quality_at(points: Sequence[Progress], seconds: float) -> float:
    """Held-out quality after so much training time, on the line between two evaluations.

    NaN before the first one; the last one's after the end.
    """
    for before, after in pairwise(points):
        if before.seconds <= seconds < after.seconds:
            share = (seconds - before.seconds) / (after.seconds - before.seconds)
            return before.quality + share * (after.quality - before.quality)
    return points[-1].quality if points and seconds >= points[-1].seconds else math.nan


def is_finished(run: Run) -> bool:
    return run.end is not None and run.end.stopped is None and run.end.step >= run.steps


def state(run: Run) -> str:
    """How far the run came, if not to its end; otherwise nothing."""
    if run.end is None:
        return f"It has not ended: {run.last.step:,} of {run.steps:,} steps are recorded."
    if run.end.stopped is not None:
        return f"It was stopped after {run.end.step:,} of {run.steps:,} steps: {run.end.stopped}."
    if run.end.step < run.steps:
        return f"It ended after {run.end.step:,} of {run.steps:,} steps."
    return ""


def sentence(run: Run) -> str:
    """The main numbers in words."""
    better = "higher" if run.higher_is_better else "lower"
    beside = [f"{quality(r.quality, run.quality_name)} for {r.name}" for r in run.references.values()]
    against = f", against {listed(beside)}" if beside else ""
    text = (
        f"{run.name}, on the task “{run.task}”, reached "
        f"{quality(run.last.quality, run.quality_name)} held-out {bare(run.quality_name)} "
        f"({better} is better) in {run.last.step:,} steps{against}"
    )
    shares = _shares(run)
    return f"{text}. It takes {listed(shares)} of the dense network." if shares else f"{text}."


def _shares(run: Run) -> list[str]:
    if not run.is_sparse:
        return []
    found = {
        "parameters": of_whole(run.used, run.parameters.get("dense", math.nan)),
        "FLOPs": of_whole(run.flops_in_step, run.flops_per_step.get("dense", math.nan)),
        "bytes": math.nan if run.bytes is None else of_whole(run.bytes.sparse, run.bytes.dense),
    }
    dense = dense_reference(run)
    if dense is not None:
        found["time per step"] = of_whole(run.seconds_per_step, dense.seconds_per_step)
    return [f"{percent(share)} of the {name}" for name, share in found.items() if math.isfinite(share)]


def tiles(run: Run) -> list[Tile]:
    """Quality, parameters, bytes, time, FLOPs: each that is known."""
    every = [_quality(run), _parameters(run), _bytes(run), _time(run), _flops(run)]
    return [tile for tile in every if tile is not None]


def _quality(run: Run) -> Tile:
    notes = [f"{r.name}: {measured(r.quality, run.quality_name)}" for r in run.references.values()]
    finite = [p for p in run.points if math.isfinite(p.quality)]
    if finite:
        choose = max if run.higher_is_better else min
        best = choose(finite, key=lambda p: p.quality)
        if best.quality != run.last.quality:
            notes.append(f"best: {measured(best.quality, run.quality_name)} at step {best.step:,}")
    notes.append("higher is better" if run.higher_is_better else "lower is better")
    return Tile(f"held-out {run.quality_name}", measured(run.last.quality, run.quality_name), notes)


def _parameters(run: Run) -> Tile | None:
    used, dense = run.used, run.parameters.get("dense")
    if math.isnan(used):
        return None
    notes = (
        [] if dense is None or not run.is_sparse else [f"{percent(of_whole(used, dense))} of {count(dense)}"]
    )
    return Tile("parameters in use", count(used), notes)


def _bytes(run: Run) -> Tile | None:
    if run.bytes is None:
        return None
    notes = []
    if run.is_sparse:
        notes.append(
            f"{percent(of_whole(run.bytes.sparse, run.bytes.dense))} of dense, {size(run.bytes.dense)}"
        )
    if run.end is not None and run.end.peak_rss is not None:
        notes.append(f"whole process at its peak: {size(run.end.peak_rss)}")
    return Tile("weights, gradients, optimizer, sets", size(run.bytes.sparse), notes)


def _time(run: Run) -> Tile:
    mean = run.seconds_per_step
    notes = [
        f"{times(of_whole(mean, r.seconds_per_step))} the time of {r.name}, {duration(r.seconds_per_step)}"
        for r in run.references.values()
        if math.isfinite(r.seconds_per_step)
    ]
    if math.isfinite(run.units_per_step) and mean:
        notes.append(f"{count(run.units_per_step / mean)} {run.unit} per second")
    return Tile("time per step", duration(mean), notes)


def _flops(run: Run) -> Tile | None:
    sparse, dense = run.flops_in_step, run.flops_per_step.get("dense")
    if math.isnan(sparse):
        return None
    notes = ["mean of the run"] if run.has_other_sizes else []
    if dense is not None and run.is_sparse:
        notes.append(f"{percent(of_whole(sparse, dense))} of dense, {flops(dense)}")
    return Tile("FLOPs per step", flops(sparse), notes)


# ---- layers -------------------------------------------------------------------------------------------

LAYER_HEADER = (
    *("layer", "shape", "|A|", "A, share", "|B|", "B, share"),
    *("A changed", "B changed", "early", "C used", "C activated", "engine", "bytes", "of dense"),
)


def layer_rows(run: Run) -> list[tuple[str, ...]]:
    """A row for each sparse weight, as it was last recorded."""
    return [_layer_row(run, name) for name in run.layers]


def _layer_row(run: Run, name: str) -> tuple[str, ...]:
    layer, now = run.layers[name], run.last.layers.get(name)
    forward = now.forward if now is not None and now.forward is not None else layer.forward
    backward = now.backward if now is not None and now.backward is not None else layer.backward
    moved = (MISSING,) * 5
    if now is not None:
        changes = percent(now.changed), percent(now.exchanged), count(now.early)
        moved = (*changes, percent(now.used), percent(now.activated))
    parts = {} if run.bytes is None else run.bytes.layers.get(name, {})
    total, dense = parts.get("total"), parts.get("dense")
    share = of_whole(total, dense) if total is not None and dense is not None else math.nan
    return (
        name,
        shape_text(layer.shape),
        count(forward),
        percent(of_whole(forward, layer.numel)),
        count(backward),
        percent(of_whole(backward, layer.numel)),
        *moved,
        run.engine(name),
        size(total),
        percent(share),
    )


# ---- settings -----------------------------------------------------------------------------------------

SETTINGS_HEADER = ("section", "setting", "value")


def settings(run: Run) -> list[tuple[str, str, str]]:
    """Every value of the run's configuration; none if that is not there or not TOML."""
    try:
        content = tomllib.loads(run.config)
    except tomllib.TOMLDecodeError:
        return []
    rows = _flat("", content)
    return [(*row[:2], _chosen(run)) if row == ("method", "engine", "auto") else row for row in rows]


def _flat(section: str, content: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Values before tables, which have the names of all that they are in."""
    rows = [(section, name, _value(v)) for name, v in content.items() if not isinstance(v, dict)]
    for name, inner in content.items():
        if isinstance(inner, dict):
            rows += _flat(f"{section}.{name}" if section else name, inner)
    return rows


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "none"
    return str(value)


def _chosen(run: Run) -> str:
    """What "auto" has chosen, and for how many layers, as far as that was recorded."""
    counts = Counter(run.engine(name).removeprefix("auto").removeprefix(": ") for name in run.layers)
    found = [f"{engine} for {n} of {len(run.layers)} layers" for engine, n in counts.items() if engine]
    return f"auto: {listed(found)}" if found else "auto"
