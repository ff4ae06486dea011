"""A trained network, taken out of its run folder for use. Nothing is written, and no data is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from topkast.convert import Handle, densify
from topkast.core.distribution import nearest
from topkast.data.vocabulary import Vocabulary
from topkast.models.network import Network
from topkast.store import snapshot
from topkast.store.checkpoint import found, latest, read, step_of
from topkast.store.manifest import CheckpointError, check_files
from topkast.store.snapshot import Snapshot
from topkast.train.config import Config, read_run_config
from topkast.train.folder import check_marker
from topkast.train.resolve import build, make_method
from topkast.train.symbols import Bytes, Symbols, Words
from topkast.train.task import Task
from topkast.train.text_tasks import VOCABULARY

CONFIG = "config.toml"
NAME = "model.json"


@dataclass(frozen=True)
class Trained:
    """A network as a checkpoint has it, in evaluation mode.

    Attributes:
        config: Of its run.
        network: What it is.
        inputs: What it takes, as its task says (`Task.inputs`).
        model: The network, through the sparse kernels.
        sparse: The handle to it; None if it is dense.
        step: Steps it was trained for.
        quality: Held-out quality that was recorded last before the checkpoint, if any.
        notes: What a user must know, such as a damaged checkpoint that was passed over.
        read_vocabulary: Reads the words of a network of words.
    """

    config: Config
    network: Network
    inputs: dict[str, Any]
    model: nn.Module
    sparse: Handle | None
    step: int
    quality: float | None
    notes: tuple[str, ...]
    read_vocabulary: Callable[[], Vocabulary]

    @cached_property
    def symbols(self) -> Symbols:
        """What the numbers mean that it takes and gives.

        Raises:
            ValueError: It is no network of text, or its vocabulary cannot be used.
        """
        kind = self.inputs.get("symbols")
        if kind not in ("bytes", "words"):
            raise ValueError(f"the network takes images of shape {self.inputs.get('shape')}: it has no text")
        return Bytes() if kind == "bytes" else Words(self.read_vocabulary())

    def encode(self, text: str) -> list[int]:
        """The numbers of a text, as the network takes them.

        Raises:
            ValueError: See `symbols`; or a word that is not known, where the vocabulary has no `<unk>`.
        """
        return self.symbols.encode(text)

    def decode(self, symbols: Iterable[int]) -> str:
        """The text of numbers, such as a list or a tensor of one dimension."""
        return self.symbols.decode(symbols)

    def dense(self) -> nn.Module:
        """The same network of plain torch layers, with zeros outside A."""
        return self.model if self.sparse is None else densify(self.model)


def describe(task: Task) -> str:
    """The file of a run that says what network it trains and what that takes."""
    return json.dumps({"network": task.network().to_json(), "inputs": task.inputs()}, indent=1) + "\n"


def load(run: Path, checkpoint: str = "last", *, engine: str | None = None) -> Trained:
    """Takes the network out of a run.

    Args:
        run: The run's folder; it may be running.
        checkpoint: "last", "best" by held-out quality, or the name of one.
        engine: In place of the run's own.

    Raises:
        ValueError: Not a run, no such checkpoint, or a damaged file.
    """
    check_marker(run)
    config = read_run_config(run / CONFIG)
    if engine is not None:
        config = config.with_values({"method": {"engine": engine}})
    network, inputs = described(run / NAME)
    saved, notes = chosen_checkpoint(run, checkpoint)
    with torch.random.fork_rng(devices=[]):  # the caller's numbers stay as they are
        torch.manual_seed(config.train.seed)
        model, sparse = build(config, network, make_method(config))
    quality = saved.kept.get("quality")
    try:
        if not (quality is None or type(quality) is float):
            raise ValueError("its quality is no number")
        snapshot.load_part(saved, "model", model)
    except ValueError as error:
        raise ValueError(f"the checkpoint of step {saved.step} in {run} cannot be used: {error}") from error
    vocabulary = run / VOCABULARY
    return Trained(
        config,
        network,
        inputs,
        model.eval(),
        sparse,
        saved.step,
        quality,
        tuple(notes),
        lambda: _read_vocabulary(vocabulary),
    )


def _read_vocabulary(path: Path) -> Vocabulary:
    try:
        return Vocabulary(path.read_text(encoding="utf-8").split("\n")[:-1])
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error


def described(path: Path) -> tuple[Network, dict[str, Any]]:
    """The network that a run trains, and what it takes, as `describe` has written them.

    Raises:
        ValueError: The file cannot be read, or says something else.
    """
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or not isinstance(content.get("inputs"), dict):
            raise ValueError("expected `network` and `inputs`")
        return Network.from_json(content.get("network")), content["inputs"]
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} does not describe a network: {error}") from error


def chosen_checkpoint(run: Path, checkpoint: str) -> tuple[Snapshot, list[str]]:
    """A checkpoint of a run by what it is called, and what a user must know of it.

    Raises:
        ValueError: There is no such one, or it is damaged.
    """
    if checkpoint == "last":
        last = latest(run)
        notes = [f"{path.name} is damaged and passed over: {why}" for path, why in last.damaged.items()]
        if last.snapshot is None:
            raise ValueError(f"{run} has no good checkpoint" + "".join(f"; {note}" for note in notes))
        return last.snapshot, notes
    path = _best(run) if checkpoint == "best" else _named(run, checkpoint)
    try:
        return read(path), []
    except CheckpointError as error:
        raise ValueError(f"{error}; choose another with --checkpoint") from error


def _named(run: Path, name: str) -> Path:
    paths = {path.name: path for path in found(run)}
    if name not in paths:
        raise ValueError(
            f"`checkpoint` must be last, best or one of {nearest(name, paths) or 'none yet'}, got {name!r}"
        )
    return paths[name]


def _best(run: Path) -> Path:
    """Of those that are whole at first sight, the one with the highest score; of equal ones, the newest."""
    scores: dict[Path, float] = {}
    for path in found(run):
        try:
            score = check_files(path, step_of(path)).score
        except CheckpointError:
            continue
        if score is not None:
            scores[path] = score
    if not scores:
        raise ValueError(f"{run} has no checkpoint with a held-out quality yet")
    return max(scores, key=lambda path: scores[path])
