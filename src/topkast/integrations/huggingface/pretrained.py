"""Sparse models in a folder: what `save_pretrained` of transformers writes, and the recipe beside it.

`model.save_pretrained` alone writes the sparse state as it is, tied weights once. Reading it takes a model
that is sparse in the same way: `topkast.json` says how. Nothing is unpickled, and positions are checked
before anything is computed with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from topkast.convert import Handle
from topkast.convert.recipe import follow_recipe, is_implicit, recipe
from topkast.core.loading import LATER
from topkast.store.state import parse_tensors

RECIPE, WEIGHTS = "topkast.json", "model.safetensors"
_MAX_RECIPE = 100_000_000  # bytes


def save_pretrained(sparse: Handle, folder: str | Path) -> None:
    """Writes config, sparse state and recipe; `from_pretrained` makes the same sparse model of them.

    To give away a model for use without topkast: ``topkast.densify(model).save_pretrained(folder)``.

    Raises:
        TypeError: The model is not one of transformers'.
    """
    if not isinstance(sparse.model, PreTrainedModel):
        found = type(sparse.model).__name__
        raise TypeError(f"the model must be a transformers.PreTrainedModel, got {found}")
    sparse.model.save_pretrained(str(folder), max_shard_size="1000000GB")  # one file: its names are checked
    save_recipe(sparse, Path(folder))


def save_recipe(sparse: Handle, folder: Path) -> None:
    """Writes what the state does not say."""
    (folder / RECIPE).write_text(json.dumps(recipe(sparse), indent=1) + "\n", encoding="utf-8")


def from_pretrained(model_class: Any, folder: str | Path) -> Handle:
    """The sparse model that `save_pretrained` or a Trainer with `TopKASTCallback` has written, to go on with.

    Args:
        model_class: Of transformers: a model's class, or an ``AutoModelFor…``.
        folder: On this machine.

    Returns:
        The handle; the model is its `model`. In evaluation mode, as transformers has it.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: The files do not belong together, or were altered.
    """
    folder = Path(folder)
    data = _read_recipe(folder / RECIPE)
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    build = getattr(model_class, "from_config", None) or model_class._from_config
    with torch.device("meta" if is_implicit(data) else "cpu"):
        model = build(config)
    sparse = follow_recipe(model, data, initialise=model._init_weights if is_implicit(data) else None)
    state = parse_tensors(_read(folder / WEIGHTS))
    _check_names(model, state, folder)
    model.load_state_dict(state, strict=False)  # names were checked: the missing ones are tied
    model.eval()
    return sparse


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: a sparse model has {RECIPE} and one {WEIGHTS} beside its config; "
            "write it with topkast.integrations.huggingface.save_pretrained"
        )
    return path.read_bytes()


def _read_recipe(path: Path) -> Any:
    content = _read(path)
    try:
        if len(content) > _MAX_RECIPE:
            raise ValueError(f"longer than {_MAX_RECIPE:,} bytes")
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _check_names(model: Any, state: dict[str, Tensor], folder: Path) -> None:
    """Raises unless every tensor of the model is there under one of its names, and nothing else."""
    mine = model.state_dict(keep_vars=True)
    there = {id(tensor) for name, tensor in mine.items() if name in state}
    ours = model._keys_to_ignore_on_save or ()  # tables that the model computes itself
    missing = [n for n, tensor in mine.items() if id(tensor) not in there and n not in ours]
    missing = [name for name in missing if not _came_later(name, mine, there)]
    unexpected = [name for name in state if name not in mine]
    for what, names in (("lacks", missing), ("has, but the model has not,", unexpected)):
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            raise ValueError(f"{folder / WEIGHTS} {what} {', '.join(names[:4])}{more}")


def _came_later(name: str, mine: Mapping[str, Tensor], there: set[int]) -> bool:
    """Whether a tensor belongs to a sparse weight that is there, and version 0.1 did not have it."""
    weight, _, part = name.rpartition(".")
    step = mine.get(f"{weight}.step")
    return part in LATER and step is not None and id(step) in there
