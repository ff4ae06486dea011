"""The learning rate of each row, found on validation data by the same search for all, and kept in a file.

`rates.json` has, for each network and data set at a scale, and for each method at each forward sparsity,
the rates that were tried with the quality on validation data, and which was best. Rows that differ in the
backward sparsity, the length of the run or in when sets are chosen share a rate. A row that is not there has
the rate that follows from the library's rule. `topkast reproduce --find-rates` makes the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from topkast.store.files import replace

FILE = "rates.json"


@dataclass(frozen=True)
class Rate:
    """What a search has found.

    Attributes:
        lr: The best rate.
        quality: What validation data said of it.
        tried: All rates, with their qualities; None for a run that could not be finished.
    """

    lr: float
    quality: float
    tried: Mapping[str, float | None]


def key(scale: str, network: str, data: str, method: str, forward: float | None) -> str:
    """Under which name a rate is kept."""
    sparsity = "" if forward is None else f" {100 * forward:g}"
    return f"{scale}: {network} on {data}: {method}{sparsity}"


def read(path: Path | None = None) -> dict[str, Rate]:
    """All rates of a file; of the package's own if none is given.

    Raises:
        ValueError: The file is none of ours.
    """
    text = _packaged() if path is None else path.read_text(encoding="utf-8") if path.is_file() else "{}"
    try:
        return {
            name: Rate(float(entry["lr"]), float(entry["quality"]), dict(entry["tried"]))
            for name, entry in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path or FILE} is not a file of rates: {error!r}") from None


@cache
def _packaged() -> str:
    return resources.files("topkast.reproduce").joinpath(FILE).read_text(encoding="utf-8")


@cache
def known() -> Mapping[str, Rate]:
    """The rates that come with the package."""
    return read()


def write(path: Path, rates: Mapping[str, Rate]) -> None:
    """Writes a file of rates, in the order of their names."""
    content = {name: vars(rate) | {"tried": dict(rate.tried)} for name, rate in sorted(rates.items())}
    replace(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
