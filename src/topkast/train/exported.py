"""A compressed export as a network again: sparse, for inference, and for training with the sets it has."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from topkast.convert import Handle, sparsify
from topkast.convert.read_compressed import read, read_metadata
from topkast.data.vocabulary import Vocabulary
from topkast.methods.fixed import InUse
from topkast.models.network import Network
from topkast.train.config import Config
from topkast.train.trained import Trained

_OLDER = "it was exported by an older version, which does not say how it was trained: `config` has defaults"


def load_export(path: Path, *, engine: str | None = None) -> Trained:
    """The network in a file of `topkast export RUN --format compressed`.

    The file holds A alone. So the network has A for ever: more training changes values, not sets.

    Args:
        path: The file.
        engine: In place of that of its run.

    Raises:
        ValueError: It is no such file, or it was cut or altered.
        OSError: It cannot be read.
    """
    metadata = read_metadata(path)
    try:
        network = Network.from_json(_table(metadata, "network"))
        inputs, shapes = _table(metadata, "inputs"), _table(metadata, "shapes")
        config, notes = _config(metadata)
        step, quality = int(metadata["step"]), metadata.get("quality")
        weights = {name: torch.from_numpy(array.copy()) for name, array in read(path).items()}
        tied = [name for name, owner in _table(metadata, "tied").items() if owner in shapes]
        model, sparse = _build(network, weights, [*shapes, *tied], engine or config.method.engine)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is no export that can be loaded: {error}") from error
    words = metadata.get("vocabulary", "")
    return Trained(
        config,
        network,
        inputs,
        model.eval(),
        sparse,
        step,
        None if quality is None else float(quality),
        notes,
        lambda: Vocabulary(words.split("\n")[:-1]),
    )


def _table(metadata: dict[str, str], name: str) -> dict[str, Any]:
    if not isinstance(table := json.loads(metadata.get(name, "null")), dict):
        raise ValueError(f"its metadata must have {name!r}; export it with `topkast export`")
    return table


def _config(metadata: dict[str, str]) -> tuple[Config, tuple[str, ...]]:
    """The options of its run, and what a user must know of them."""
    if "config" not in metadata:
        return Config(), (_OLDER,)
    values = tomllib.loads(metadata["config"])
    return Config().with_values({name: values[name] for name in values if name != "format"}), ()


def _build(
    network: Network, weights: dict[str, torch.Tensor], sparse: list[str], engine: str
) -> tuple[nn.Module, Handle]:
    with torch.random.fork_rng(devices=[]):  # what it draws is overwritten
        model = network.build()
    model.load_state_dict(weights)
    names = [name.removesuffix(".weight") for name in sparse]
    sparsities = {name: 1 - _density(weights[f"{name}.weight"]) for name in names}
    handle = sparsify(
        model,
        InUse(0.0),
        skip=lambda name, _: name not in sparsities,
        distribution=sparsities,
        engine=engine,
        seed=0,
    )
    return model, handle


def _density(weight: torch.Tensor) -> float:
    return max(1, int(weight.count_nonzero())) / weight.numel()
