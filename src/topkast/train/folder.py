"""The run folder: one run, one folder, one writer. Nothing outside it is written.

    RUN/topkast-run.json   says that this is a run of ours, and in which format
        environment.json   where it was started: versions, CPU, threads, commit
        metrics.jsonl      what happened
        checkpoints/       from where it can go on
        lock               who is writing

and whatever else the run puts there, such as its configuration. The first is written last: a folder without
it is one whose creation was interrupted, and may be created again.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from topkast.core.ranks import together
from topkast.kernels import native
from topkast.kernels.machine import cpu_model
from topkast.store.files import (
    LOCK,
    TEMPORARY,
    JsonLines,
    Lock,
    is_lock_file,
    remove_temporary,
    replace,
    sync_folder,
)
from topkast.store.record import METRICS

# Raised when a file changes its meaning or goes.
FORMAT = 1
MARKER = "topkast-run.json"
ENVIRONMENT = "environment.json"
_KIND = "a training run of topkast"


class RunFolder:
    """A run folder that this process writes to. Use `create` or `resume`, and close it: it is locked.

    Attributes:
        path: Where it is.
        metrics: Its record.
    """

    def __init__(self, path: Path, held: Lock, record: JsonLines) -> None:
        self.path = path
        self.metrics = record
        self._lock = held

    @classmethod
    def create(cls, path: Path, files: Mapping[str, str] | None = None) -> RunFolder:
        """Makes a new run folder.

        Args:
            path: Where: a folder that does not exist or is empty.
            files: Name → text of files that every run has, such as its configuration.

        Raises:
            FileExistsError: There is something else.
            BlockingIOError: Another process is making it.
            OSError: It cannot be written.
        """
        files = dict(files or {})
        names = {ENVIRONMENT, *files}
        _check_free(path, names)
        try:
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
            held = Lock(path)
        except BlockingIOError:
            raise
        except OSError as error:
            raise OSError(f"the run folder {path} cannot be created ({error})") from error
        try:
            _check_free(path, names)  # another process may have been faster
            remove_temporary(path)
            folder = cls(path, held, JsonLines(path / METRICS))
            for name, text in {ENVIRONMENT: _dump(environment()), **files}.items():
                folder.write_text(name, text)
            folder.write_text(MARKER, _dump({"format": FORMAT, "kind": _KIND}))
            return folder
        except BaseException:
            held.release()
            raise

    @classmethod
    def resume(cls, path: Path) -> RunFolder:
        """Opens the folder of a run that is to go on.

        Raises:
            ValueError: It is not a run folder, or one of another format.
            BlockingIOError: Another process is writing to it.
        """
        check_marker(path)
        held = Lock(path)
        try:
            remove_temporary(path)
            return cls(path, held, JsonLines(path / METRICS))
        except BaseException:
            held.release()
            raise

    def write_text(self, name: str, text: str) -> Path:
        """Writes a file into the folder, whole or not at all.

        Args:
            name: Of a file in the folder itself, or in a folder within it, which is made.
            text: Its content.

        Raises:
            ValueError: The name leads out of the folder.
        """
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise ValueError(f"a file of the run must lie in its folder, got {name!r}")
        path = self.path / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, text.encode())
        return path

    def environment(self) -> dict[str, Any]:
        """Where the run was started; `differences` compares it with where we are.

        Raises:
            ValueError: The file is missing or damaged.
        """
        return _read_json(self.path / ENVIRONMENT)

    def close(self) -> None:
        """Closes the record and lets others have the folder; may be called again."""
        try:
            self.metrics.close()
        finally:
            self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_marker(path: Path) -> None:
    """Raises ValueError if this is not a run folder in our format. For readers too: it needs no lock."""
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder, so not a run; give the folder that a run was started in")
    if not (path / MARKER).is_file():
        raise ValueError(f"{path} is not a run folder: it has no {MARKER}; start a run, do not resume one")
    content = _read_json(path / MARKER)
    if content.get("kind") != _KIND:
        raise ValueError(f"{path / MARKER} does not say that this is {_KIND}")
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} is a run of format {content.get('format')!r}, this version of topkast reads {FORMAT}; "
            "use the version it was made with"
        )


def _check_free(path: Path, names: set[str]) -> None:
    """Raises FileExistsError unless there is nothing, or only what an interrupted creation left."""
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_dir():
        raise FileExistsError(f"{path} is a file; choose another place for the run folder")
    found = {p.name for p in path.iterdir() if not p.name.startswith(TEMPORARY)}
    if MARKER in found:
        raise FileExistsError(f"{path} holds a run already; resume it, or choose another folder")
    is_interrupted = found <= {LOCK, METRICS, *names} and is_lock_file(path / LOCK)
    if found and not is_interrupted:
        raise FileExistsError(
            f"{path} is not empty and not a run folder ({sorted(found)[0]!r} is in it); choose another folder"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def environment() -> dict[str, Any]:
    """Versions, CPU, instruction set, threads, ranks, and the commit if the package lies in its checkout."""
    ranks = together()
    return {
        "topkast": metadata.version("topkast"),
        "commit": _commit(Path(__file__).resolve().parents[1]),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "safetensors": metadata.version("safetensors"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "isa": native.isa(),
        "threads": torch.get_num_threads(),
        "ranks": 1 if ranks is None else ranks.count,
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What is not as it was: name → (before, now). A run that goes on then may not do so bit for bit."""
    names = [*before, *(name for name in now if name not in before)]
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}


def _commit(package: Path) -> str | None:
    """The commit, with "+" if files were changed since; None if the package is not under version control."""
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # at most it lies inside somebody else's checkout
    commit = _git(package, "rev-parse", "HEAD")
    is_changed = bool(_git(package, "status", "--porcelain", "--untracked-files=no", "--", "."))
    return commit if commit is None else commit + "+" * is_changed


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]  # nothing is written anywhere
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
