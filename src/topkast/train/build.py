"""A network as a configuration wants it: sparse by its method, or dense."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from topkast.convert import Handle, sparsify
from topkast.core.initial import Normal
from topkast.methods.base import Method
from topkast.models.network import Network
from topkast.models.transformer_xl import INITIAL_STD, initialise
from topkast.train.config import Config


def build(config: Config, network: Network, method: Method | None) -> tuple[nn.Module, Handle | None]:
    """The network and the handle to its sparse weights; None for a dense one.

    What is random comes from torch's global generator, which has to be seeded before.
    """
    options = config.method
    is_implicit = method is not None and options.reservoir == "implicit"
    with torch.device("meta" if is_implicit else "cpu"):
        model = network.build()
    if method is None:
        return model, None
    start: dict[str, Any] = {}
    if is_implicit and network.name == "transformer-xl":  # whose initialisation is not that of its layers
        start = {"init": Normal(INITIAL_STD), "initialise": initialise}
    sparse = sparsify(
        model,
        method,
        **start,
        skip=list(options.skip) or None,
        keep_dense=options.keep_dense,
        distribution=options.distribution,
        budget="model" if options.budget == "model" else "layers",
        reservoir="implicit" if is_implicit else "stored",
        engine=options.engine,
        seed=config.train.seed,
    )
    return model, sparse
