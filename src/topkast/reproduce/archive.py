"""Results of runs as lines of JSON, small enough to be kept: pages and figures are made from them again.

    FOLDER/SCALE.jsonl     a finished run a line

A line has the name of the run (the hash of what it was told, `farm.place`), the label of its first row, what
was measured at its end, and its record without what no table or figure shows: losses between evaluations, and
layers but at the last evaluation. Where masks were compared, how much of C was ever in A stays for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topkast.reproduce.farm import Measured
from topkast.store.files import JsonLines
from topkast.store.record import METRICS, as_json, events_of, read_events, read_run, run_of
from topkast.store.run import Event, Progress, Run

_DIGITS = 7
_SHOWN = ("cpu", "isa", "threads", "torch", "topkast")


@dataclass(frozen=True)
class Kept:
    """What is left of a finished run.

    Attributes:
        label: Of the row it was run for first.
        result: What was measured at its end.
        run: Its record.
    """

    label: str
    result: Mapping[str, Any]
    run: Run


@dataclass
class Archive:
    """The kept runs of one scale.

    Attributes:
        path: The file; it need not be there.
        runs: By name.
    """

    path: Path
    runs: dict[str, Kept] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, scale: str) -> Archive:
        """Of a scale, as far as there is one.

        Raises:
            ValueError: A line that is none of ours.
        """
        archive = cls(folder / f"{scale}.jsonl")
        if archive.path.is_file():
            lines = archive.path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines, 1):
                name, kept = _parsed(line, f"{archive.path}, line {number}")
                archive.runs[name] = kept
        return archive

    def keep(self, here: Measured) -> None:
        """Adds a run that is finished, unless it is there already."""
        name, result = here.folder.name, here.result()
        if result is None or name in self.runs:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = _line(here, result)
        file = JsonLines(self.path)
        try:
            file.append(line)
        finally:
            file.close()
        self.runs[name] = _parsed(json.dumps(line), f"{self.path}: {here.label}")[1]


def _line(here: Measured, result: Mapping[str, Any]) -> dict[str, Any]:
    run = read_run(here.run)
    return {
        "name": here.folder.name,
        "label": here.label,
        "environment": {name: run.environment.get(name) for name in _SHOWN},
        "config": run.config,
        "result": _rounded(result),
        "events": [_slim(event, run, result) for event in read_events(here.run / METRICS)],
    }


def _slim(event: Event, run: Run, result: Mapping[str, Any]) -> dict[str, Any]:
    line = as_json(event)
    if isinstance(event, Progress):
        line.pop("losses", None)
        layers = line.pop("layers")
        if event.step == run.last.step:
            line["layers"] = layers
        elif result.get("masks"):
            line["layers"] = {name: {"activated": layer["activated"]} for name, layer in layers.items()}
    elif line["event"] == "end":
        line["bytes"] = {**line["bytes"], "layers": {}} if line["bytes"] else {}
    return _rounded(line)


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as a reader could want; NaN becomes null, which JSON has."""
    if isinstance(value, Mapping):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if value == value and abs(value) != float("inf") else None
    return value


def _parsed(line: str, place: str) -> tuple[str, Kept]:
    try:
        content = json.loads(line)
        name, label, result = content["name"], content["label"], content["result"]
        events = {f"{place}, event {i}": event for i, event in enumerate(content["events"], 1)}
        environment, config = content["environment"], content["config"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{place} is not a run that `topkast reproduce` has kept: {error!r}") from None
    if not isinstance(result, dict) or not isinstance(result.get("quality"), int | float):
        raise ValueError(f"{place} is not a run that `topkast reproduce` has kept: it has no quality")
    run = run_of(events_of(events), folder=Path(name), environment=environment, config=config)
    return name, Kept(label, result, run)
