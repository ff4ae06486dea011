"""What the tests of integrations share: quiet, small networks and real text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from small_models import MODELS
from torch import Tensor
from transformers import PreTrainedModel


@pytest.fixture(autouse=True)
def _alone(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small, without the network, and without what another test has told Accelerate."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("BACKEND", "MODE"):  # which a Trainer that compiles sets, for every Accelerator to come
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", "no")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(params=MODELS)
def make_model(request: pytest.FixtureRequest) -> Callable[[], PreTrainedModel]:
    return MODELS[request.param]


@pytest.fixture(scope="session")
def windows() -> list[dict[str, Tensor]]:
    """Bytes of a file of Python's standard library, 32 at a time."""
    content = Path(argparse.__file__).read_bytes()[: 32 * 512]
    text = torch.frombuffer(bytearray(content), dtype=torch.uint8).long().view(-1, 32)
    # No symbol predicts the first one: marked, since the Trainer divides by the labels that count.
    labels = text.clone()
    labels[:, 0] = -100
    return [{"input_ids": row, "labels": label} for row, label in zip(text, labels, strict=True)]
