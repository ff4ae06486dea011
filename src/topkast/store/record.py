"""The record of a run, `metrics.jsonl`: each event as a line of JSON, and the run that the lines tell of."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from topkast.store.fields import Fields
from topkast.store.run import Bytes, End, Event, Extension, Layer, LayerPoint, Progress, Reference, Run, Start

METRICS = "metrics.jsonl"
SAMPLE = "sample.txt"


# ---- writing ------------------------------------------------------------------------------------------


def as_json(event: Event) -> dict[str, Any]:
    """The line of an event, for `store.files.JsonLines`; what is NaN becomes null there."""
    if isinstance(event, Start):
        return {
            "event": "start",
            "run": event.name,
            "task": event.task,
            "title": event.title,
            "quality_name": event.quality_name,
            "higher_is_better": event.higher_is_better,
            "steps": event.steps,
            "unit": event.unit,
            "units_per_step": event.units_per_step,
            "parameters": event.parameters,
            "flops_per_step": event.flops_per_step,
            "layers": {n: {**vars(layer), "flops": layer.flops or None} for n, layer in event.layers.items()},
        }
    if isinstance(event, Progress):
        return {
            "event": "progress",
            "step": event.step,
            "seconds": event.seconds,
            "loss": event.loss,
            "quality": event.quality,
            "flops": event.flops,
            "lr": event.lr,
            "layers": {name: _point(layer) for name, layer in event.layers.items()},
            **({"losses": [list(pair) for pair in event.losses]} if event.losses else {}),
        }
    if isinstance(event, Extension):
        return {"event": "extension", **vars(event)}
    if isinstance(event, Reference):
        return {
            "event": "reference",
            "run": event.name,
            "quality": event.quality,
            "loss": event.loss,
            "steps": event.steps,
            "seconds_per_step": event.seconds_per_step,
            "bytes": event.bytes,
            "parameters": event.parameters,
            "curve": [[p.step, p.seconds, p.loss, p.quality, p.flops] for p in event.points],
        }
    values = {"event": "end", **vars(event), "bytes": {} if event.bytes is None else vars(event.bytes)}
    if not event.engines:
        del values["engines"]
    return values


def _point(layer: LayerPoint) -> dict[str, Any]:
    """Without what only methods with two clocks have, where there is one, and what is not known."""
    values = dict(vars(layer))
    if layer.early is None:
        del values["exchanged"], values["early"]
    return values


# ---- reading ------------------------------------------------------------------------------------------


def read_events(path: Path, notes: list[str] | None = None) -> list[Event]:
    """The events of a record, which may be that of a running or killed run.

    Args:
        path: The file. A last line that was cut off is left out; so are events that we do not know.
        notes: Is told of a line that was left out.

    Raises:
        ValueError: A line that is none of ours; it is named, and what is wrong with it.
    """
    lines = _objects(path, [] if notes is None else notes)
    return events_of({f"{path}, line {number}": content for number, content in lines.items()})


def events_of(lines: Mapping[str, Any]) -> list[Event]:
    """The events of lines that were parsed, by their places.

    Raises:
        ValueError: A line that is none of ours; it is named, and what is wrong with it.
    """
    events: list[Event] = []
    for place, content in lines.items():
        event = content.get("event") if isinstance(content, dict) else None
        fields = Fields(content, f"{place} ({event})")
        if event not in _READERS:
            continue
        read = _READERS[event](fields)
        if isinstance(read, Start) == bool(events):
            where = "comes a second time" if events else "comes before any start"
            raise ValueError(f"{fields.place} {where}: not a record of ours")
        events.append(read)
    return events


def training_length(path: Path) -> int:
    """Bytes of a record up to its first `end` or `reference`: what was written while the network trained."""
    length = 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            is_over = json.loads(line).get("event") in ("end", "reference")
        except (ValueError, RecursionError, AttributeError):
            is_over = True
        if is_over:
            break
        length += len(line)
    return length


def read_run(folder: Path | str) -> Run:
    """The run in a folder.

    Raises:
        FileNotFoundError: The folder is not there, or is not a run.
        ValueError: It has no metrics yet, or a line that is none of ours.
    """
    folder = Path(folder)
    _check_folder(folder)
    notes: list[str] = []
    return run_of(
        read_events(folder / METRICS, notes),
        folder=folder,
        environment=_environment(folder / "environment.json", notes),
        notes=notes,
        config=_read_text(folder / "config.toml"),
        sample=_read_text(folder / SAMPLE),
    )


def run_of(events: Sequence[Event], *, folder: Path, **more: Any) -> Run:
    """The run that events tell of.

    Args:
        events: In order.
        folder: Where it is, or was.
        more: What else is known: fields of `Run`.

    Raises:
        ValueError: It has no metrics yet.
    """
    points = [event for event in events if isinstance(event, Progress)]
    if not points:
        raise ValueError(
            f"{folder} has no metrics yet: its first progress comes with the first evaluation; wait for it, "
            "or train longer"
        )
    ends = [event for event in events if isinstance(event, End)]
    lengths = [event.steps for event in events if isinstance(event, Start | Extension)]
    return Run(
        **{**vars(events[0]), "steps": lengths[-1]},
        folder=folder,
        points=points,
        references={event.name: event for event in events if isinstance(event, Reference)},
        end=ends[-1] if ends else None,
        **more,
    )


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"{folder} {what}: give the folder of a run, as `topkast train` makes it")
    if not (folder / METRICS).is_file():
        raise FileNotFoundError(
            f"{folder} is not a run: it has no {METRICS}; give the folder that `topkast train` has written"
        )


def _objects(path: Path, notes: list[str]) -> dict[int, Any]:
    """The content of each line, by its number."""
    lines = {n: line for n, line in enumerate(path.read_bytes().split(b"\n"), 1) if line.strip()}
    found: dict[int, Any] = {}
    for number, line in lines.items():
        try:
            found[number] = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:  # wrong JSON, wrong UTF-8, or thousands of brackets
            if number != max(lines):
                raise ValueError(
                    f"{path}, line {number} is not JSON ({error}) and not the last line, which a killed run "
                    "may cut off: mend or remove it"
                ) from error
            why = "as when a run is killed while it writes"
            notes.append(f"Line {number} of {METRICS} was cut off, {why}; it is left out.")
    return found


def _start(fields: Fields) -> Start:
    return Start(
        name=fields.text("run"),
        task=fields.text("task"),
        quality_name=fields.text("quality_name"),
        higher_is_better=fields.flag("higher_is_better"),
        steps=fields.count("steps"),
        parameters=fields.numbers("parameters"),
        flops_per_step=fields.numbers("flops_per_step"),
        layers={name: _layer(inner) for name, inner in fields.items("layers").items()},
        title=fields.text("title", ""),
        unit=fields.text("unit", "units"),
        units_per_step=fields.number_or_nan("units_per_step"),
    )


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


def _progress(fields: Fields) -> Progress:
    return Progress(
        step=fields.count("step"),
        seconds=fields.number("seconds"),
        loss=fields.number("loss"),
        quality=fields.number("quality"),
        flops=fields.number_or_nan("flops"),
        layers={name: _layer_point(inner) for name, inner in fields.items("layers").items()},
        lr=fields.number_or_nan("lr"),
        losses=tuple((int(row[0]), row[1]) for row in fields.rows("losses", 2) if math.isfinite(row[0])),
    )


def _layer_point(fields: Fields) -> LayerPoint:
    return LayerPoint(
        changed=fields.number_or_nan("changed"),
        used=fields.number_or_nan("used"),
        activated=fields.number_or_nan("activated"),
        mean_a=fields.number_or_nan("mean_a"),
        mean_explored=fields.number_or_nan("mean_explored"),
        forward=fields.count_or_none("forward"),
        backward=fields.count_or_none("backward"),
        exchanged=fields.number_or_nan("exchanged"),
        early=fields.count_or_none("early"),
    )


def _reference(fields: Fields) -> Reference:
    curve = fields.rows("curve", 5)
    if not all(math.isfinite(row[0]) for row in curve):
        raise ValueError(f"{fields.place}: each row of 'curve' must begin with a step")
    return Reference(
        name=fields.text("run"),
        quality=fields.number("quality"),
        seconds_per_step=fields.number_or_nan("seconds_per_step"),
        bytes=fields.number_or_nan("bytes"),
        parameters=fields.number_or_nan("parameters"),
        points=tuple(Progress(int(row[0]), row[1], row[2], row[3], row[4]) for row in curve),
        loss=fields.number_or_nan("loss"),
        steps=fields.number_or_nan("steps"),
    )


def _end(fields: Fields) -> End:
    sizes = fields.inner("bytes")
    counted = None
    if sizes.content:
        layers = {name: _parts(inner) for name, inner in sizes.items("layers").items()}
        counted = Bytes(layers, sizes.count("sparse"), sizes.count("dense"))
    stopped = fields.content.get("stopped")
    return End(
        step=fields.count("step"),
        seconds_per_step=fields.number("seconds_per_step"),
        bytes=counted,
        peak_rss=fields.count_or_none("peak_rss"),
        stopped=None if stopped is None else str(stopped),
        engines={name: fields.inner("engines").text(name) for name in fields.inner("engines").content},
    )


def _parts(fields: Fields) -> dict[str, int]:
    return {name: fields.count(name) for name in fields.content}


_READERS: dict[Any, Callable[[Fields], Event]] = {
    "start": _start,
    "progress": _progress,
    "extension": lambda fields: Extension(fields.count("step"), fields.count("steps")),
    "reference": _reference,
    "end": _end,
}


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
