"""A network run by onnxruntime, for comparison: in its dense form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topkast.convert.onnx import check_onnx, to_onnx


def missing() -> str | None:
    """Why onnxruntime cannot take part, or None if it can."""
    try:
        check_onnx()
        import onnxruntime  # noqa: F401
    except ImportError as error:
        return f"{error}; pip install 'topkast[onnx]' installs all of it"
    return None


class Session:
    """A network in onnxruntime, with as many threads as torch has.

    Args:
        model: In plain torch.
        x: Its input; `run` computes on it.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Its threads would spin for tens of milliseconds after a run, on the cores of whoever is timed next
        # (23 ms in place of 1.2 for ours); without spinning onnxruntime itself loses at most 5 %.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        content = to_onnx(model, x)
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._given = {"input": x.numpy()}

    def run(self) -> Tensor:
        (y,) = self._session.run(None, self._given)
        return torch.from_numpy(y)
