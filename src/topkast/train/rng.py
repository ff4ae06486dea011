"""The random numbers a run draws from, as plain data: torch, Python and numpy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def rng_state() -> dict[str, Any]:
    """Where all global generators are now."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": (version, torch.tensor(words), gauss),
        "numpy": {**legacy, "state": {**legacy["state"], "key": _to_tensor(legacy["state"]["key"])}},
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Puts the global generators where they were."""
    version, words, gauss = state["python"]
    if not (gauss is None or type(gauss) is float):  # Python would hand it out as it is
        raise ValueError("the number that Python's generator has ready must be a float")
    random.setstate((version, tuple(words.tolist()), gauss))
    numpy_state = state["numpy"]
    key = numpy_state["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**numpy_state, "state": {**numpy_state["state"], "key": key}})
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])


def _to_tensor(words: Any) -> Tensor:
    return torch.from_numpy(words.astype(np.int64))
