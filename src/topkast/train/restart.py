"""Reading checkpoints: everything is checked before it is parsed, and a damaged one is passed over."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from topkast.train import tensor_file
from topkast.train.checkpoint import found, step_of
from topkast.train.flatten import unflatten
from topkast.train.snapshot import Snapshot
from topkast.train.verify import STATE, TENSORS, CheckpointError, read_checked, read_manifest


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
    manifest = read_manifest(path, step_of(path))
    state = read_checked(path / STATE, manifest.files[STATE])
    tensors = _tensors(path / TENSORS, manifest.files[TENSORS])
    snapshot = _snapshot(path / STATE, state, tensors)
    if snapshot.step != manifest.step:
        raise CheckpointError(f"{path / STATE} is that of step {snapshot.step}, not {manifest.step}")
    return snapshot


def _tensors(path: Path, file: dict[str, Any]) -> dict[str, Tensor]:
    content = read_checked(path, file)
    try:
        return tensor_file.parse(content)
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
