"""One run in a process of its own: ``python -m topkast.reproduce.worker FOLDER [keep]``.

It trains, or goes on, tests the network as published (all test images; the test text with the long memory),
and compares masks where the recipe asks for it. Checkpoints are removed then, unless they are to be kept: the
run can be had again from its configuration.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from topkast.kernels.machine import keep_freed_memory
from topkast.reproduce.farm import Measured
from topkast.store.checkpoint import found, step_of
from topkast.train import job, trained
from topkast.train.config import read_config
from topkast.train.display import Quiet
from topkast.train.resolve import make_task
from topkast.train.session import Stopped


def work(folder: Path, *, keeps: bool = False) -> int:
    """Finishes one run.

    Returns:
        0, or what the shell expects after a signal.
    """
    place = Measured.at(folder)
    config = read_config(place.told)
    try:
        is_begun = place.is_begun
        outcome = job.resume(place.run, Quiet()) if is_begun else job.start(config, place.run, Quiet())
        if not outcome.is_finished:
            return outcome.exit_code
        place.keep(measure(place.run))
    except (Stopped, ValueError) as error:
        place.fail(f"{error}\n")
        return 1
    if not keeps:
        for checkpoint in found(place.run):
            shutil.rmtree(checkpoint)
    return 0


def measure(run: Path) -> dict[str, Any]:
    """What is measured at the end of a run."""
    network = trained.load(run)
    task, recorded = make_task(network.config), network.config.run
    has_masks = recorded.keep > 1 and network.sparse is not None and recorded.checkpoint_every is not None
    return {
        "quality": task.quality(network.model, whole=True),
        "tested": task.whole_name,
        "masks": _mask_changes(run, recorded.checkpoint_every or 1) if has_masks else [],
    }


def _mask_changes(run: Path, every: int) -> list[dict[str, Any]]:
    """(m(t) - m(t'))²/n of each layer from one multiple of `every` steps to the next, as in Figure 3a."""
    changes, before, step = [], None, 0
    for checkpoint in sorted(found(run), key=step_of):
        if step_of(checkpoint) % every:  # the last one, and those of interruptions
            continue
        network = trained.load(run, checkpoint.name)
        assert network.sparse is not None
        masks = {name: _mask(weight) for name, weight in network.sparse.weights.items()}
        if before is not None:
            shares = {name: float((mask != before[name]).float().mean()) for name, mask in masks.items()}
            changes.append({"from": step, "to": network.step, "layers": shares})
        before, step = masks, network.step
    return changes


def _mask(weight: Any) -> Tensor:
    mask = torch.zeros(weight.numel(), dtype=torch.bool)
    mask[weight.indices[weight.active].long()] = True
    return mask


if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(work(Path(sys.argv[1]), keeps=sys.argv[2:] == ["keep"]))
