"""Plain data comes back exactly as it was, and nothing else is taken."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, OrderedDict
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import nn

from store.small_run import assert_same
from topkast.store.snapshot import rng_state, set_rng_state
from topkast.store.state import flatten, parse_tensors, tensor_chunks, unflatten


def there_and_back(value: Any) -> Any:
    skeleton, tensors = flatten(value, "x")
    text = json.dumps(skeleton, allow_nan=False)
    return unflatten(json.loads(text), parse_tensors(b"".join(tensor_chunks(tensors))))


PLAIN: dict[str, Any] = {
    "numbers": [0, -1, 2**70, True, False, None, 0.1, -0.0, 5e-324, math.inf, -math.inf, math.nan],
    "floats that are whole": [1.0, 1, 0.0, 0],
    "tuples": ((), (1,), (1, (2.0, [3])), []),
    "keys": {1: "a", "1": "b", None: 2, (1, "x"): 3, 2.5: 4, True + 1: 5, "": {}},
    "names that look like ours": {"tensor": "x", "dict": [], "tuple": {"float": "nan"}},
    "texts": ["", "λ∖é\n\x00", '"'],
    "counter": Counter({3: 2, 5: 1}),
    "ordered": OrderedDict(b=1, a=2),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_data_comes_back(name: str) -> None:
    assert_same(PLAIN[name], there_and_back(PLAIN[name]))


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint32, torch.float16,
     torch.bfloat16, torch.float32, torch.float64, torch.complex64],
    ids=str,
)  # fmt: skip
def test_tensors_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (6 * dtype.itemsize,), dtype=torch.uint8)
    tensor = bits.view(dtype).view(2, 3)
    assert_same(*([t, there_and_back(t)][i] for t in [{"a": tensor, "0-d": tensor[0, 0]}] for i in (0, 1)))
    assert_same([tensor.T, tensor[:0], tensor[:, 1]], there_and_back([tensor.T, tensor[:0], tensor[:, 1]]))


def test_odd_bits_of_floats_are_kept() -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800001, -0x80000000, 0x00000001], dtype=torch.int64).to(torch.int32)
    assert there_and_back([bits.view(torch.float32)])[0].view(torch.int32).tolist() == bits.tolist()


def test_a_tied_tensor_is_stored_once_and_a_view_is_not() -> None:
    a = torch.arange(6.0)
    value = {"a": a, "again": a.detach(), "part": a[:3], "shaped": a.view(2, 3)}
    skeleton, tensors = flatten(value, "x")
    assert sorted(tensors) == ["x/a", "x/part", "x/shaped"]
    assert_same(value, there_and_back(value))
    assert skeleton == {"dict": [["a", {"tensor": "x/a"}], ["again", {"tensor": "x/a"}],
                                 ["part", {"tensor": "x/part"}], ["shaped", {"tensor": "x/shaped"}]]}  # fmt: skip


def test_names_that_collide_stay_apart() -> None:
    value = {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2), 0: torch.tensor(3), "0": torch.tensor(4)}}
    assert_same(value, there_and_back(value))
    empty = [torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.int32)]
    assert_same(empty, there_and_back(empty))


def test_the_file_is_one_that_the_library_reads() -> None:
    tensors = {"flags": torch.tensor([True]), "w": torch.randn(3), "none": torch.empty(0, 3)}
    content = b"".join(tensor_chunks(tensors))
    assert_same(tensors, {name: load(content)[name] for name in tensors})
    assert load(b"".join(tensor_chunks({}))) == {}


class Color(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {2}]}, r"x/a/1 is a builtins.set, which a checkpoint cannot hold; it takes None, bool"),
        ({"a": np.float64(1)}, r"x/a is a numpy.float64"),
        ({"c": Color.RED}, r"x/c is a .*Color"),
        ({"f": len}, r"x/f is a builtins.builtin_function_or_method"),
        ({"b": b""}, r"x/b is a builtins.bytes"),
        ([torch.ones(2, 2).to_sparse()], r"x/0 is a tensor that a checkpoint cannot hold: its layout is torch.sparse_coo"),
        ([torch.ones(1, dtype=torch.complex128)], r"x/0 .*dtype is torch.complex128"),
        ([torch.empty(1, device="meta")], r"x/0 .*meta device"),
        ([nn.UninitializedParameter()], r"x/0 is a torch.nn.parameter.UninitializedParameter"),
        ({torch.tensor(1): 2}, r"x has a key of type Tensor"),
        ({"\ud800": 2}, r"not valid Unicode"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_by_type_and_path(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        flatten(value, "x")


@pytest.mark.parametrize(
    ("skeleton", "message"),
    [
        ({}, "one key of float, tuple"),
        ({"set": []}, r"got \['set'\]"),
        ({"tuple": 1}, "expected a list, got a int"),
        ({"dict": [[1]]}, "must be pairs"),
        ({"dict": [[[1], 2]]}, "a list cannot be a key"),
        ({"counter": [[{"dict": []}, 2]]}, "a dict cannot be a key"),
        ({"float": "1e3"}, "a float must be one of nan"),
        ({"float": 1}, "a float must be one of nan"),
        ({"tensor": "b"}, "the tensor 'b' is missing"),
        ({"tensor": ["a"]}, "is missing"),
        (1, "nothing refers to the tensor 'a'"),
    ],
)
def test_a_bad_skeleton_is_refused(skeleton: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unflatten(skeleton, {"a": torch.tensor(1)})


def test_a_bottomless_skeleton_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        unflatten(deep, {})


@pytest.mark.parametrize(
    "content",
    [b"", b"1234567", (2**63).to_bytes(8, "little") + b"{}", (50).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]",
     (2).to_bytes(8, "little") + b"{}extra", (4).to_bytes(8, "little") + b"\xff\xff\xff\xff"],
)  # fmt: skip
def test_what_is_no_safetensors_file_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="it is not a safetensors file"):
        parse_tensors(content)


def test_global_generators_go_on_where_they_were() -> None:
    def draw() -> list[Any]:
        return [
            random.random(),
            random.gauss(0, 1),
            np.random.rand(),
            np.random.randn(),
            torch.rand(3).tolist(),
        ]

    random.gauss(0, 1), np.random.randn()  # each has a second number in store now
    state = there_and_back(rng_state())
    first = draw()
    assert draw() != first
    set_rng_state(state)
    assert draw() == first
