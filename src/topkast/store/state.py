"""State as files: nested plain data as a JSON skeleton and tensors, and tensors as a safetensors file.

In the skeleton, numbers, strings, None and lists stand for themselves. Everything else is an object with one
key that says what it is: {"tuple": […]}, {"dict": [[key, value], …]}, {"counter": …}, {"float": "inf"} for
numbers that JSON has not, {"tensor": name}. Nothing is pickled, and everything comes back exactly.

We write the safetensors file ourselves, piece by piece. The library would put the whole file into memory
first, or into a file that it alone opens: with mode 0600 and not synced. The library reads it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

Skeleton = Any
# An ordered dictionary becomes an ordinary one, which keeps its order as well.
_DICTS = (dict, OrderedDict)
_ODD_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
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


def flatten(value: Any, name: str) -> tuple[Skeleton, dict[str, Tensor]]:
    """Takes data apart.

    Args:
        value: None, bools, ints, floats, strings, tensors, and lists, tuples and dictionaries of them.
        name: What messages and the names of tensors begin with.

    Returns:
        The skeleton, and the tensors by name. They are those of `value`, not copies; one that occurs twice
        is there once.

    Raises:
        TypeError: Something of another type, or a tensor that cannot be stored; its path is named.
    """
    taker = _Taker()
    return taker.take(value, name), taker.tensors


def unflatten(skeleton: Skeleton, tensors: dict[str, Tensor]) -> Any:
    """What `flatten` took apart.

    Raises:
        ValueError: The skeleton is not one, or names other tensors than there are.
    """
    builder = _Builder(tensors)
    try:
        value = builder.build(skeleton)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    left = sorted(tensors.keys() - builder.used)
    if left:
        raise ValueError(f"nothing refers to the tensor {left[0]!r}")
    return value


class _Taker:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[Any, str] = {}

    def take(self, value: Any, path: str) -> Skeleton:
        kind = type(value)  # exactly: a subclass would come back as something else
        if value is None or kind in (bool, int):
            return value
        if kind is str:
            return _text(value, path)
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if kind is list:
            return [self.take(v, f"{path}/{i}") for i, v in enumerate(value)]
        if kind is tuple:
            return {"tuple": [self.take(v, f"{path}/{i}") for i, v in enumerate(value)]}
        if kind in _DICTS or kind is Counter:
            pairs = [[self._key(k, path), self.take(v, f"{path}/{k}")] for k, v in value.items()]
            return {"counter" if kind is Counter else "dict": pairs}
        if kind in (Tensor, nn.Parameter):
            return {"tensor": self._tensor(value.detach(), path)}
        raise TypeError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold; it takes "
            "None, bool, int, float, str, tensors, and lists, tuples and dicts of them"
        )

    def _key(self, key: Any, path: str) -> Skeleton:
        if isinstance(key, list | dict | Tensor):
            raise TypeError(f"{path} has a key of type {type(key).__name__}, which a checkpoint cannot hold")
        return self.take(key, f"{path}/{key}")

    def _tensor(self, tensor: Tensor, path: str) -> str:
        wrong = _tensor_problem(tensor)
        if wrong is not None:
            raise TypeError(f"{path} is a tensor that a checkpoint cannot hold: {wrong}")
        _text(path, path)
        # Tied tensors are stored once. The address is theirs for as long as we hold on to them.
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if place not in self._names or tensor.numel() == 0:
            number, name = 1, path
            while name in self.tensors:  # {"a/b": …} beside {"a": {"b": …}}
                number, name = number + 1, f"{path}#{number + 1}"
            self._names[place] = name
            self.tensors[name] = tensor
        return self._names[place]


def _text(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TypeError(f"{path!a} is or has a text that is not valid Unicode") from None
    return text


class _Builder:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.used: set[str] = set()
        self._tensors = tensors
        self._makers: dict[str, Callable[[Any], Any]] = {
            "float": self._float,
            "tuple": lambda items: tuple(self._list(items)),
            "dict": lambda pairs: dict(self._pairs(pairs)),
            "counter": self._counter,
            "tensor": self._tensor,
        }

    def build(self, skeleton: Skeleton) -> Any:
        if isinstance(skeleton, list):
            return self._list(skeleton)
        if not isinstance(skeleton, dict):
            return skeleton
        kind, content = next(iter(skeleton.items())) if len(skeleton) == 1 else ("", None)
        if kind not in self._makers:
            raise ValueError(
                f"an object must have one key of {', '.join(self._makers)}, got {list(skeleton)}"
            )
        return self._makers[kind](content)

    def _list(self, items: Any) -> list[Any]:
        if not isinstance(items, list):
            raise ValueError(f"expected a list, got a {type(items).__name__}")
        return [self.build(item) for item in items]

    def _pairs(self, pairs: Any) -> list[tuple[Any, Any]]:
        built = []
        for pair in self._list(pairs):
            if not isinstance(pair, list) or len(pair) != 2:
                raise ValueError("the entries of a dict must be pairs")
            try:
                hash(pair[0])
            except TypeError:
                raise ValueError(f"a {type(pair[0]).__name__} cannot be a key") from None
            if isinstance(pair[0], Tensor):
                raise ValueError("a tensor cannot be a key")
            built.append((pair[0], pair[1]))
        return built

    def _counter(self, pairs: Any) -> Counter[Any]:
        return Counter(dict(self._pairs(pairs)))

    def _float(self, word: Any) -> float:
        if not isinstance(word, str) or word not in _ODD_FLOATS:
            raise ValueError(f"a float must be one of {', '.join(_ODD_FLOATS)}, got {word!r}")
        return _ODD_FLOATS[word]

    def _tensor(self, name: Any) -> Tensor:
        if not isinstance(name, str) or name not in self._tensors:
            raise ValueError(f"the tensor {name!r} is missing")
        self.used.add(name)
        return self._tensors[name]


def _tensor_problem(tensor: Tensor) -> str | None:
    """Why the tensor cannot be in a safetensors file, or None if it can."""
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}; only strided ones are stored"
    if tensor.dtype not in _NAMES:
        return f"its dtype is {tensor.dtype}; safetensors has no such type"
    return "it is on the meta device and has no values" if tensor.is_meta else None


def tensor_chunks(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[memoryview]:
    """A safetensors file, piece by piece; at most one tensor is copied at a time.

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


def parse_tensors(content: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

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
