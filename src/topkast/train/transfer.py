"""A run that starts from the weights of another: values and sets, and nothing else of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from topkast.models.network import Network
from topkast.store import snapshot
from topkast.train.config import Config, read_run_config
from topkast.train.folder import check_marker
from topkast.train.trained import CONFIG, NAME, chosen_checkpoint, described
from topkast.train.trainer import Trainer


def source_options(run: Path) -> Config:
    """The options of another run, for a new one of its own length.

    Raises:
        ValueError: It is not a run, or its options cannot be read.
    """
    check_marker(run)
    config = read_run_config(run / CONFIG)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, extended=None))


@torch.no_grad()
def take_weights(trainer: Trainer, run: Path) -> None:
    """Gives a freshly built trainer the weights and sets of a run's newest checkpoint; steps count from 0.

    Raises:
        ValueError: It is not a run, it has no good checkpoint, its network is another, or its sets have other
            sizes.
    """
    check_marker(run)
    theirs, _ = described(run / NAME)
    differences = list(_differences(trainer.task.network(), theirs))
    if differences:
        raise ValueError(
            f"--from {run}: its network is another ({'; '.join(differences)}); give the options of its "
            "network"
        )
    saved, _ = chosen_checkpoint(run, "last")
    try:
        snapshot.load_part(saved, "model", trainer.model)
    except ValueError as error:
        raise ValueError(
            f"--from {run}: its weights do not fit, use its method and sparsities: {error}"
        ) from None
    if trainer.sparse is None:
        return
    for weight in trainer.sparse.weights.values():
        for counter in (weight.step, weight.changed, weight.exchanged, weight.early):
            counter.zero_()


def _differences(ours: Network, theirs: Network) -> list[str]:
    if ours.name != theirs.name:
        return [f"a {theirs.name}, not a {ours.name}"]
    names = {**ours.arguments, **theirs.arguments}
    return [
        f"`{name}` is {theirs.arguments.get(name)} there and {ours.arguments.get(name)} here"
        for name in names
        if ours.arguments.get(name) != theirs.arguments.get(name)
    ]
