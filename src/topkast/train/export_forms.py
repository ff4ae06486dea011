"""A trained network as a file for others: dense with zeros, compressed, or ONNX."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from topkast.convert.compressed import compress
from topkast.convert.onnx import check_onnx, to_onnx
from topkast.store.files import replace
from topkast.store.state import tensor_chunks
from topkast.train.trained import Trained

# How far onnxruntime's float32 outputs may be from torch's, against their size.
TOLERANCE = 1e-4


def export(trained: Trained, form: str, path: Path) -> str:
    """Writes the network to a file, whole or not at all.

    Args:
        trained: The network.
        form: One of `FORMS`.
        path: The file; replaced if it is there.

    Returns:
        What was checked, in a line.

    Raises:
        ValueError: The network has no such form.
        ImportError: ONNX is wanted and its packages are missing.
        OSError: The file cannot be written.
    """
    if path.is_dir() or not path.parent.is_dir():
        why = "is a folder" if path.is_dir() else f"lies in {path.parent}, which is no folder"
        raise FileNotFoundError(f"{path} {why}: give the name of a file in a folder that exists")
    return FORMS[form](trained, path)


def _safetensors(trained: Trained, path: Path) -> str:
    """The dense network's state_dict. Tied tensors are there once; the metadata say under which name."""
    tensors, tied = _untied(trained.dense().state_dict())
    metadata = {**_metadata(trained), "tied": json.dumps(tied)}
    replace(path, tensor_chunks(tensors, metadata))
    return f"dense, {_zeros(tensors)} of its numbers are zero"


def _state_dict(trained: Trained, path: Path) -> str:
    """For `torch.load(…, weights_only=True)`."""
    state = trained.dense().state_dict()
    content = io.BytesIO()
    torch.save(dict(state), content)
    replace(path, content.getvalue())
    return f"dense, {_zeros(state)} of its numbers are zero"


def _compressed(trained: Trained, path: Path) -> str:
    """Of sparse weights only the elements of A, see `topkast.convert.compressed`."""
    if trained.sparse is None:
        raise ValueError("the run is dense: there are no zeros to leave out; use --format safetensors")
    small = compress(trained.model)
    replace(path, tensor_chunks(small.tensors, {**small.metadata, **_metadata(trained)}))
    return "compressed: weights that are in use, and where they are"


def _onnx(trained: Trained, path: Path) -> str:
    """Dense with zeros: ONNX has no sparse weights that a runtime would compute with."""
    check_onnx()
    if trained.network.name == "transformer-xl":
        raise ValueError("a network with a memory cannot be written as ONNX; use another --format")
    model, example = trained.dense().eval(), _example(trained)
    replace(path, to_onnx(model, example, _dynamic(trained)))
    return _checked_by_onnxruntime(model, example, path)


FORMS: dict[str, Callable[[Trained, Path], str]] = {
    "safetensors": _safetensors,
    "state_dict": _state_dict,
    "compressed": _compressed,
    "onnx": _onnx,
}
SUFFIXES = {
    "safetensors": ".safetensors",
    "state_dict": ".pt",
    "compressed": ".sparse.safetensors",
    "onnx": ".onnx",
}


def _untied(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in state.items():
        owner = first.setdefault((tensor.data_ptr(), tensor.shape), name) if tensor.numel() else name
        if owner == name:
            tensors[name] = tensor
        else:
            tied[name] = owner
    return tensors, tied


def _metadata(trained: Trained) -> dict[str, str]:
    """What `topkast.load` needs beside the tensors."""
    network, inputs = trained.network.to_json(), trained.inputs
    said = {"network": json.dumps(network), "inputs": json.dumps(inputs), "step": str(trained.step)}
    if trained.quality is not None:
        said["quality"] = repr(trained.quality)
    if inputs.get("symbols") == "words":
        said["vocabulary"] = "\n".join(trained.read_vocabulary().words) + "\n"
    return {**said, "config": trained.config.to_toml()}


def _zeros(state: dict[str, Tensor]) -> str:
    total = sum(tensor.numel() for tensor in state.values())
    return f"{1 - sum(int(tensor.count_nonzero()) for tensor in state.values()) / max(1, total):.1%}"


def _example(trained: Trained) -> Tensor:
    """Two rows of what the network takes: one would be taken for a constant."""
    generator = torch.Generator().manual_seed(0)
    if "shape" in trained.inputs:
        return torch.randn(2, *trained.inputs["shape"], generator=generator)
    num_symbols = trained.network.arguments["num_symbols"]
    return torch.randint(num_symbols, (2, trained.inputs["window"]), generator=generator)


def _dynamic(trained: Trained) -> dict[int, Any]:
    """The batch, and for text the length up to the window."""
    sizes = {0: torch.export.Dim("batch")}
    window = trained.inputs.get("window")
    return sizes if window is None else {**sizes, 1: torch.export.Dim("length", max=window)}


def _checked_by_onnxruntime(model: nn.Module, example: Tensor, path: Path) -> str:
    try:
        import onnxruntime
    except ImportError:
        return "dense with zeros; not checked: onnxruntime is not installed"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for rows in (2, 1):
        with torch.no_grad():
            ours = model(example[:rows]).numpy()
        theirs = session.run(None, {session.get_inputs()[0].name: example[:rows].numpy()})[0]
        worst = max(worst, float(np.abs(ours - theirs).max() / np.abs(ours).max()))
    if not worst <= TOLERANCE:
        path.unlink()
        raise ValueError(
            f"onnxruntime gives other outputs than torch ({worst:.1e} apart, {TOLERANCE:.0e} is allowed); "
            f"{path} was removed"
        )
    return f"dense with zeros; onnxruntime's outputs are torch's to {worst:.0e}"
