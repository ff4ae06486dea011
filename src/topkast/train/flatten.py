"""Nested plain data as tensors by name and a JSON skeleton, and back, exactly. Nothing is pickled.

In the skeleton, numbers, strings, None and lists stand for themselves. Everything else is an object with one
key that says what it is: {"tuple": […]}, {"dict": [[key, value], …]}, {"counter": …}, {"float": "inf"} for
numbers that JSON has not, {"tensor": name}.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from topkast.train.tensor_file import problem as tensor_problem

Skeleton = Any
# An ordered dictionary becomes an ordinary one, which keeps its order as well.
_DICTS = (dict, OrderedDict)
_ODD_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


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
        wrong = tensor_problem(tensor)
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
