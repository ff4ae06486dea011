"""Reading a run folder: `metrics.jsonl` is the record, a line at a time, perhaps cut off in the middle."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from topkast.report.fields import Fields
from topkast.report.runs import Bytes, End, Layer, LayerPoint, Point, Reference, Run
from topkast.train.metrics import NAME as METRICS


def read_run(folder: Path | str) -> Run:
    """The run in a folder.

    What a resumed run did again counts once: records from the step on at which it was continued, or which
    comes a second time, are replaced by the later ones.

    Raises:
        FileNotFoundError: The folder is not there, or is not a run.
        ValueError: It has no metrics yet, or a line that is none of ours.
    """
    folder = Path(folder)
    _check_folder(folder)
    notes: list[str] = []
    run: Run | None = None
    for place, content in _objects(folder / METRICS, notes):
        event = content.get("event") if isinstance(content, dict) else None
        fields = Fields(content, f"{place} ({event})")
        if event == "start":
            run = _start(folder, fields, run)
        elif event in _TAKERS:
            if run is None:
                raise ValueError(f"{place} ({event}) comes before any start: not a record of ours")
            _TAKERS[event](run, fields)
    if run is None or not run.points:
        raise ValueError(
            f"{folder} has no metrics yet: its first progress comes with the first evaluation; wait for it, "
            "or train longer"
        )
    run.notes = [*notes, *run.notes]
    run.config = _read_text(folder / "config.toml")
    run.environment = _environment(folder / "environment.json", run.notes)
    return run


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"{folder} {what}: give the folder of a run, as `topkast train` makes it")
    if not (folder / METRICS).is_file():
        raise FileNotFoundError(
            f"{folder} is not a run: it has no {METRICS}; give the folder that `topkast train` has written"
        )


def _objects(path: Path, notes: list[str]) -> list[tuple[str, Any]]:
    """Place and content of each line; one that was cut off when a run was killed is left out with a note."""
    found: list[tuple[str, Any]] = []
    torn: tuple[int, Exception] | None = None
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:  # wrong JSON, wrong UTF-8, or thousands of brackets
            if torn is not None:
                raise _bad(path, *torn) from torn[1]
            torn = number, error
            continue
        if torn is not None:
            # Only the end of a killed run is torn: what continued it says so on the next line.
            if not (isinstance(content, dict) and content.get("event") in ("resume", "start")):
                raise _bad(path, *torn) from torn[1]
            notes.append(_torn_note(torn[0]))
            torn = None
        found.append((f"{path}, line {number}", content))
    if torn is not None:
        notes.append(_torn_note(torn[0]))
    return found


def _bad(path: Path, number: int, error: Exception) -> ValueError:
    return ValueError(
        f"{path}, line {number} is not JSON ({error}) and not the last line, which a killed run may cut "
        "off: mend or remove it"
    )


def _torn_note(number: int) -> str:
    return f"Line {number} of {METRICS} was cut off, as when a run is killed while it writes; it is left out."


# ---- what each event says -----------------------------------------------------------------------------


def _start(folder: Path, fields: Fields, before: Run | None) -> Run:
    """A second start is that of a resumed run: what was recorded before stays."""
    run = Run(
        folder=folder,
        name=fields.text("run"),
        task=fields.text("task"),
        quality_name=fields.text("quality_name"),
        higher_is_better=fields.flag("higher_is_better"),
        steps=fields.count("steps"),
        parameters=fields.numbers("parameters"),
        flops_per_step=fields.numbers("flops_per_step"),
        layers={name: _layer(inner) for name, inner in fields.items("layers").items()},
        data=fields.text("title", ""),
        unit=fields.text("unit", "units"),
        units_per_step=fields.number_or_nan("units_per_step"),
    )
    if before is not None:
        run.points, run.references = before.points, before.references
        run.resumed, run.notes = before.resumed, before.notes
    return run


def _layer(fields: Fields) -> Layer:
    shape = fields.content.get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise ValueError(f"{fields.place}: 'shape' must be a list of whole numbers, got {shape!r}")
    return Layer(
        shape=tuple(shape),
        numel=fields.count("numel"),
        forward=fields.count("forward"),
        backward=fields.count("backward"),
        engine=fields.text("engine", "unknown"),
        flops=fields.numbers("flops"),
    )


def _progress(run: Run, fields: Fields) -> None:
    point = Point(
        step=fields.count("step"),
        seconds=fields.number("seconds"),
        loss=fields.number("loss"),
        quality=fields.number("quality"),
        flops=fields.number_or_nan("flops"),
        layers={name: _layer_point(inner) for name, inner in fields.items("layers").items()},
    )
    run.points = _until(run.points, point.step - 1)
    run.points.append(point)


def _layer_point(fields: Fields) -> LayerPoint:
    return LayerPoint(
        changed=fields.number_or_nan("changed"),
        used=fields.number_or_nan("used"),
        activated=fields.number_or_nan("activated"),
        mean_a=fields.number_or_nan("mean_a"),
        mean_explored=fields.number_or_nan("mean_explored"),
        forward=fields.count_or_none("forward"),
        backward=fields.count_or_none("backward"),
    )


def _resume(run: Run, fields: Fields) -> None:
    step = fields.count("step")
    run.points = _until(run.points, step)
    run.resumed.append(step)
    run.end = None


def _until(points: list[Point], step: int) -> list[Point]:
    """Those up to a step. Records come in order, so that most often there is nothing to drop."""
    if not points or points[-1].step <= step:
        return points
    return [point for point in points if point.step <= step]


def _reference(run: Run, fields: Fields) -> None:
    curve = fields.rows("curve", 5)
    if not all(math.isfinite(row[0]) for row in curve):
        raise ValueError(f"{fields.place}: each row of 'curve' must begin with a step")
    name = fields.text("run")
    run.references[name] = Reference(
        name=name,
        quality=fields.number("quality"),
        seconds_per_step=fields.number_or_nan("seconds_per_step"),
        bytes=fields.number_or_nan("bytes"),
        parameters=fields.number_or_nan("parameters"),
        points=tuple(Point(int(row[0]), row[1], row[2], row[3], row[4]) for row in curve),
    )


def _end(run: Run, fields: Fields) -> None:
    sizes = fields.inner("bytes")
    counted = None
    if sizes.content:
        layers = {name: _parts(inner) for name, inner in sizes.items("layers").items()}
        counted = Bytes(layers, sizes.count("sparse"), sizes.count("dense"))
    stopped = fields.content.get("stopped")
    run.end = End(
        step=fields.count("step"),
        seconds_per_step=fields.number("seconds_per_step"),
        bytes=counted,
        peak_rss=fields.count_or_none("peak_rss"),
        stopped=None if stopped is None else str(stopped),
    )


def _parts(fields: Fields) -> dict[str, int]:
    return {name: fields.count(name) for name in fields.content}


_TAKERS = {"progress": _progress, "resume": _resume, "reference": _reference, "end": _end}


# ---- the files beside it ------------------------------------------------------------------------------


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _environment(path: Path, notes: list[str]) -> dict[str, Any]:
    text = _read_text(path)
    try:
        content = json.loads(text) if text else {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        notes.append(f"{path.name} cannot be read as JSON; it is left out.")
        return {}
    return content
