"""Where runs are kept: a folder for each configuration and seed, found by the hash of its options.

    OUT/runs/HASH/config.toml      what it is told
        HASH/run/                  its run folder
        HASH/result.json           what came of it, once it is finished
        HASH/failed.txt            why it could not be finished, if so

Two experiments with a row in common share the run, and so do two commands.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topkast.store.files import replace
from topkast.train.config import Config

_HASHED = 16


@dataclass(frozen=True)
class Place:
    """The folder of one run.

    Attributes:
        folder: Itself.
        config: What the run is told.
    """

    folder: Path
    config: Config

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def told(self) -> Path:
        return self.folder / "config.toml"

    @property
    def failure(self) -> str | None:
        """Why the run could not be finished, if so."""
        path = self.folder / "failed.txt"
        return path.read_text() if path.is_file() and not self.is_finished else None

    @property
    def is_finished(self) -> bool:
        return self.result() is not None

    def result(self) -> dict[str, Any] | None:
        """What came of the run; None if it is not finished, or the file is damaged."""
        try:
            content = json.loads((self.folder / "result.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        is_good = isinstance(content, dict) and isinstance(content.get("quality"), int | float)
        return content if is_good else None

    def prepare(self) -> None:
        """Makes the folder, with what the run is told."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.told.is_file():
            replace(self.told, self.config.to_toml().encode())

    def keep(self, result: dict[str, Any]) -> None:
        """Writes the result down, whole or not at all."""
        replace(self.folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())

    def fail(self, why: str) -> None:
        replace(self.folder / "failed.txt", why.encode())


def place(out: Path, config: Config) -> Place:
    """Where the run of a configuration is. The number of threads is no part of what it is."""
    text = config.with_values({"train": {"threads": 1}}).to_toml()
    return Place(out / "runs" / hashlib.sha256(text.encode()).hexdigest()[:_HASHED], config)
