"""Tensors as a safetensors file: written piece by piece, read by the safetensors library.

The library would write the whole file in memory first, or to a file that it alone opens: with mode 0600 and
not synced. The format is simple: eight bytes of header length, a JSON header, the tensors one after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

# What the library itself accepts.
MAX_HEADER = 100_000_000
_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def problem(tensor: Tensor) -> str | None:
    """Why the tensor cannot be in such a file, or None if it can."""
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}; only strided ones are stored"
    if tensor.dtype not in _NAMES:
        return f"its dtype is {tensor.dtype}; safetensors has no such type"
    return "it is on the meta device and has no values" if tensor.is_meta else None


def chunks(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[memoryview]:
    """The file, piece by piece; at most one tensor is copied at a time.

    Args:
        tensors: By name.
        metadata: Strings that go into its header.

    Raises:
        ValueError: There are so many names that no reader would take the header.
    """
    # Large elements first: then all are aligned, as the format wants it.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header = _header(tensors, names, {"format": "pt", **(metadata or {})})
    if len(header) > MAX_HEADER:
        raise ValueError(f"the names of {len(names):,} tensors take more than {MAX_HEADER:,} bytes")
    yield memoryview(len(header).to_bytes(8, "little") + header)
    for name in names:
        flat = tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous().view(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


def _header(tensors: Mapping[str, Tensor], names: list[str], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": metadata}
    start = 0
    for name in names:
        tensor = tensors[name]
        end = start + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def parse(content: bytes) -> dict[str, Tensor]:
    """The tensors of a file.

    Raises:
        ValueError: It is not a safetensors file.
    """
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(MAX_HEADER, len(content) - 8):
        raise ValueError("it is not a safetensors file: its header is longer than it may be")
    try:
        return load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"it is not a safetensors file that can be read ({error})") from error
