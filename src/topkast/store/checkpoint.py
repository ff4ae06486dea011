"""Checkpoints: one folder each, complete or not there.

    checkpoints/step-00001234/tensors.safetensors   all tensors of a snapshot
                              state.json            everything else, as a skeleton (see `store.state`)
                              manifest.json         what belongs to it, with digests

A checkpoint is written under a temporary name, synced, and then renamed. The writer must hold the lock of the
run folder: leftovers of killed runs are removed here. A reader checks everything before it parses it.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from topkast.store.files import (
    TEMPORARY,
    Patience,
    remove_folder,
    remove_temporary,
    retried,
    sync_folder,
    write_new,
)
from topkast.store.manifest import (
    MANIFEST,
    STATE,
    TENSORS,
    CheckpointError,
    Manifest,
    check_files,
    read_checked,
    read_manifest,
)
from topkast.store.snapshot import Snapshot
from topkast.store.state import flatten, parse_tensors, tensor_chunks, unflatten

FOLDER = "checkpoints"
# One that is being replaced by another of the same step counts until that is in place.
_NAME = re.compile(r"step-(\d{8,})(\.old)?")


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the last ones, and the best one.

    Attributes:
        last: How many of the last, at least 1.
        best: Whether the one with the highest score stays as well.
    """

    last: int = 3
    best: bool = True

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ValueError(f"`last` must be at least 1, got {self.last}")


class CheckpointWriteError(OSError):
    """A checkpoint could not be written; those written before are as they were."""


def write(
    run: Path,
    snapshot: Snapshot,
    *,
    score: float | None = None,
    retention: Retention | None = None,
    patience: Patience | None = None,
) -> Path:
    """Writes a checkpoint, then removes those that need not stay.

    Args:
        run: The run's folder.
        snapshot: What to write.
        score: How good the run is now, larger is better; the best checkpoint stays. None: not known.
        retention: Which checkpoints stay.
        patience: With a disk that fails.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointWriteError: The disk is full or failing. Says which checkpoint is still good.
        TypeError: The snapshot has something that a checkpoint cannot hold.
    """
    if snapshot.step < 0:
        raise ValueError(f"the step of a checkpoint must not be negative, got {snapshot.step}")
    if score is not None:
        score = float(score) if math.isfinite(score) else None  # what is no number is never the best
    skeleton, tensors = flatten(dict(vars(snapshot)), "snapshot")
    state = json.dumps(skeleton, allow_nan=False).encode()
    folder = run / FOLDER
    try:
        path = retried(
            lambda: _write_once(folder, snapshot.step, score, tensors, state), patience or Patience()
        )
    except OSError as error:
        raise CheckpointWriteError(
            f"the checkpoint of step {snapshot.step} could not be written to {folder} ({error}); "
            f"{_what_is_good(run)}"
        ) from error
    _prune(run, snapshot.step, retention or Retention())
    return path


def _write_once(
    folder: Path, step: int, score: float | None, tensors: dict[str, Tensor], state: bytes
) -> Path:
    _make(folder)
    temporary = folder / f"{TEMPORARY}{_name(step)}-{os.getpid()}"
    try:
        temporary.mkdir()
        files = {
            TENSORS: write_new(temporary / TENSORS, tensor_chunks(tensors)),
            STATE: write_new(temporary / STATE, [state]),
        }
        write_new(temporary / MANIFEST, [Manifest(step, score, files).dump()])
        sync_folder(temporary)
        return _put(temporary, folder / _name(step))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def found(run: Path) -> list[Path]:
    """The folders of a run that are named like checkpoints, newest first."""
    try:
        paths = [path for path in (run / FOLDER).iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(paths, key=lambda path: (step_of(path), not path.name.endswith(".old")), reverse=True)


def step_of(path: Path) -> int:
    """The step that a checkpoint's name says."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(f"{path}: a checkpoint is named like {_name(1234)}")
    return int(match[1])


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _make(folder: Path) -> None:
    """The folder of checkpoints, without what killed runs have left in it."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
    remove_temporary(folder)


def _put(temporary: Path, path: Path) -> Path:
    """Gives a complete checkpoint its name. One of the same step that was there counts until then."""
    if path.exists():
        old = path.with_name(f"{path.name}.old")
        if old.exists():
            remove_folder(old)
        os.rename(path, old)
    os.rename(temporary, path)
    sync_folder(path.parent)
    return path


def _prune(run: Path, step: int, retention: Retention) -> None:
    """Removes what need not stay. Newer ones than the one just written are none of its business.

    Those that are damaged at first sight count neither as the last nor as the best. What cannot be removed
    now is tried again after the next checkpoint.
    """
    scores: dict[Path, float | None] = {}
    older = [path for path in found(run) if step_of(path) <= step]
    for path in older:
        if path.name == _name(step_of(path)):
            try:
                scores[path] = check_files(path, step_of(path)).score
            except CheckpointError:
                continue
    stay = set(list(scores)[: retention.last])
    known = {path: score for path, score in scores.items() if score is not None}
    if retention.best and known:
        stay.add(max(known, key=lambda path: known[path]))  # of equal ones, the newest
    for path in older:
        if path not in stay:
            try:
                remove_folder(path)
            except OSError:
                continue


def _what_is_good(run: Path) -> str:
    for path in found(run):
        try:
            check_files(path, step_of(path), thoroughly=True)
        except CheckpointError:
            continue
        return f"the checkpoint {path} is still good; make room and resume from it"
    return "there is no earlier checkpoint; make room and start again"


# ---- reading ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Latest:
    """Where a run can go on.

    Attributes:
        snapshot: The newest good one, or None if there is none.
        path: The folder of its checkpoint.
        damaged: Checkpoint → what is wrong with it, for all that are newer.
    """

    snapshot: Snapshot | None = None
    path: Path | None = None
    damaged: dict[Path, str] = field(default_factory=dict)


def latest(run: Path) -> Latest:
    """The newest good checkpoint of a run, and what is wrong with those that are newer."""
    damaged: dict[Path, str] = {}
    for path in found(run):
        try:
            return Latest(read(path), path, damaged)
        except CheckpointError as error:
            damaged[path] = str(error)
    return Latest(damaged=damaged)


def read(path: Path) -> Snapshot:
    """Reads one checkpoint, into memory.

    Raises:
        CheckpointError: A file is altered, cut, missing or too many; it is named.
    """
    listed = read_manifest(path, step_of(path))
    state = read_checked(path / STATE, listed.files[STATE])
    tensors = _tensors(path / TENSORS, listed.files[TENSORS])
    snapshot = _snapshot(path / STATE, state, tensors)
    if snapshot.step != listed.step:
        raise CheckpointError(f"{path / STATE} is that of step {snapshot.step}, not {listed.step}")
    return snapshot


def _tensors(path: Path, file: dict[str, Any]) -> dict[str, Tensor]:
    content = read_checked(path, file)
    try:
        return parse_tensors(content)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _snapshot(path: Path, state: bytes, tensors: dict[str, Tensor]) -> Snapshot:
    kinds = {"step": int} | dict.fromkeys(("parts", "generators", "rng", "kept"), dict)
    try:
        fields = unflatten(json.loads(state), tensors)
        if type(fields) is not dict or {name: type(value) for name, value in fields.items()} != kinds:
            raise ValueError(f"expected {', '.join(kinds)}")
        for name in ("parts", "generators", "rng", "kept"):
            if not all(type(key) is str for key in fields[name]):
                raise ValueError(f"{name} must be by name")
        return Snapshot(**fields)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not the state of a run ({error})") from error
