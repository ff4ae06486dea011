"""A plain torch network as ONNX: dense with zeros, since no runtime computes with ONNX's sparse weights."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def check_onnx() -> None:
    """Raises ImportError, with what to install, unless the packages of torch's exporter are there."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"ONNX needs {error.name}, which is not installed: pip install 'topkast[onnx]'"
        ) from error


def to_onnx(model: nn.Module, example: Tensor, dynamic: dict[int, Any] | None = None) -> bytes:
    """The content of an ONNX file for a network with one input, "input", and one output, "output".

    Args:
        model: In plain torch, see `topkast.densify`.
        example: An input; at least two rows if their number is to stay open.
        dynamic: Dimension of the input → `torch.export.Dim`, for those that stay open.
    """
    check_onnx()
    with warnings.catch_warnings(), _quiet_exporter(), torch.no_grad():
        warnings.simplefilter("ignore")  # about its own deprecations
        program = torch.onnx.export(
            model, (example,), dynamo=True, verbose=False, external_data=False, input_names=["input"],
            output_names=["output"], dynamic_shapes=None if dynamic is None else (dynamic,),
        )  # fmt: skip
    assert program is not None
    return program.model_proto.SerializeToString()


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keeps the exporter from telling that torchvision, which nobody asked for, is not there."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
