"""Networks without their zeros: written, read back with numpy alone, and refused when altered."""

from __future__ import annotations

import copy
import json
import math
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import topkast
from topkast.convert import read_compressed
from topkast.convert.compressed import compress

READER = Path(read_compressed.__file__)


class Net(nn.Module):
    """Every kind of layer, tied and untied, with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.conv = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(16, 2)
        self.deep = nn.Sequential(nn.Linear(16, 70_000, bias=False), nn.Linear(70_000, 4))
        self.head = nn.Linear(16, 30)
        self.head.weight = self.embedding.weight


def network(method: topkast.Method | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = Net()
    topkast.sparsify(model, method or topkast.TopKAST(0.9, 0.8), engine="masked")
    return model


def write(path: Path, model: nn.Module) -> Path:
    small = compress(model)
    save_file(small.tensors, path, small.metadata)
    return path


def test_what_is_read_is_the_dense_networks_state(tmp_path: Path) -> None:
    model = network()
    path = write(tmp_path / "net.safetensors", model)
    expected = topkast.densify(model).state_dict()
    weights = read_compressed.read(path)
    assert set(weights) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(weights[name], tensor.numpy(), err_msg=name)
    assert weights["head.weight"] is weights["embedding.weight"]
    dense_bytes = sum(tensor.nbytes for tensor in expected.values())
    assert path.stat().st_size < 0.25 * dense_bytes
    plain = Net()
    plain.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})


def test_rows_as_they_are(tmp_path: Path) -> None:
    model = network()
    rows = read_compressed.read(write(tmp_path / "net.safetensors", model), dense=False)
    values, columns, offsets, shape = rows["deep.1.weight"]
    weight = dict(model.named_modules())["deep.1"].weight
    assert shape == (4, 70_000)
    assert columns.dtype == np.int32
    assert rows["embedding.weight"][1].dtype == np.uint16
    assert len(values) == weight.counts.forward == offsets[-1]
    x = np.random.default_rng(0).normal(size=70_000).astype(np.float32)
    ours = np.array([values[a:b] @ x[columns[a:b]] if b > a else 0 for a, b in pairwise(offsets)])
    np.testing.assert_allclose(ours, weight.alpha().numpy() @ x, rtol=1e-4)


def test_a_method_that_makes_something_of_its_values_is_written_as_it_computes(tmp_path: Path) -> None:
    model = network(topkast.STR(s_init=-4.0))
    weights = read_compressed.read(write(tmp_path / "net.safetensors", model))
    for name, tensor in topkast.densify(model).state_dict().items():
        np.testing.assert_array_equal(weights[name], tensor.numpy(), err_msg=name)


def test_the_reader_needs_numpy_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "net.safetensors", network())
    code = (
        "import runpy, sys\n"
        "for name in ('torch', 'topkast', 'safetensors'): sys.modules[name] = None\n"
        f"weights = runpy.run_path({str(READER)!r})['read']({str(path)!r})\n"
        "print(len(weights), weights['conv.weight'].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == f"{len(Net().state_dict())} (8, 1, 3, 3)"


def test_a_dense_network_has_nothing_to_leave_out() -> None:
    with pytest.raises(ValueError, match="no sparse layer"):
        compress(nn.Linear(2, 2))


def _with(path: Path, out: Path, **changed: Any) -> Path:
    """The file with other tensors or metadata, well-formed as safetensors."""
    small = compress(network())
    tensors = load_file(path)
    metadata = dict(small.metadata)
    for name, value in changed.items():
        if isinstance(value, str):
            metadata[name] = value
        else:
            tensors[name.replace("__", ".")] = value
    save_file(tensors, out, metadata)
    return out


def _shapes(**changed: list[int]) -> str:
    shapes = json.loads(compress(network()).metadata["shapes"])
    return json.dumps({**shapes, **{name.replace("__", "."): shape for name, shape in changed.items()}})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format": "other"}, "no compressed network of topkast"),
        ({"version": "9"}, "has version '9'"),
        ({"shapes": "[1]"}, "metadata must have 'shapes'"),
        ({"tied": json.dumps({"a": "nowhere"})}, "a is tied to nowhere, which is not there"),
        ({"shapes": _shapes(conv__weight=[8, 1, 3, 2])}, "conv.weight: columns must be from 0 to 5"),
        ({"shapes": _shapes(conv__weight=[9, 1, 3, 3])}, "do not fit shape"),
        ({"shapes": _shapes(conv__weight=[8, 2**40, 2**40])}, "bad shape"),
        ({"shapes": _shapes(nowhere=[8, 1])}, "nowhere must have values, columns and offsets"),
        ({"deep__0__weight__columns": torch.zeros(112_000, dtype=torch.uint16)}, "ascend within a row"),
        ({"conv__weight__offsets": torch.tensor([0, 5, 1, 2, 3, 4, 5, 6, 7], dtype=torch.int32)}, "offsets must rise"),
        ({"conv__weight__offsets": torch.zeros(9)}, "do not fit shape"),
    ],
)  # fmt: skip
def test_altered_files_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "net.safetensors", network())
    with pytest.raises(ValueError, match=message):
        read_compressed.read(_with(path, tmp_path / "altered.safetensors", **changed))


def test_files_that_are_cut_are_refused(tmp_path: Path) -> None:
    content = write(tmp_path / "net.safetensors", network()).read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in [0, 3, 8, 100, 5000, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="cut.safetensors"):
            read_compressed.read(path)


EVIL: list[Any] = [
    None, [], {}, "x", -1, 0, 1e308, 2**63, 2**70, True, [[]], [-1], [0], [2**62], [0, 2**62], [1] * 70,
    math.nan, "../../etc/passwd", [1, 2, 3], {"a": 1},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested data, as the keys that lead there."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def altered(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    twin = copy.copy(value)
    twin[path[0]] = altered(value[path[0]], path[1:], new)
    return twin


def hostile_headers(header: dict[str, Any]) -> Iterator[Any]:
    """The header with each of its parts, those of the tables in its metadata too, replaced by what is evil."""
    for path in places(header):
        yield from (altered(header, path, new) for new in EVIL)
    for table in ("shapes", "tied"):
        inner = json.loads(header["__metadata__"][table])
        for path in places(inner):
            for new in EVIL:
                yield altered(header, ("__metadata__", table), json.dumps(altered(inner, path, new)))
    for new in EVIL:
        yield altered(header, ("__metadata__", "tied"), json.dumps({"z": new}))


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the body of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def tiny(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))
    topkast.sparsify(model, topkast.TopKAST(0.8, 0.5), engine="masked")
    return write(tmp_path / "tiny.safetensors", model)


def test_a_hostile_file_is_a_value_error_with_its_name(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    content = path.read_bytes()
    header, body = split(content)
    contents = [joined(hostile, body) for hostile in hostile_headers(header)]
    chance = random.Random(0)
    for _ in range(1000):
        flipped = bytearray(content)
        for _ in range(chance.choice([1, 2, 5])):
            flipped[chance.randrange(len(flipped))] = chance.randrange(256)
        contents.append(bytes(flipped))
    num_refused = 0
    for hostile in contents:
        path.write_bytes(hostile)
        for dense in (True, False):
            try:
                read_compressed.read(path, dense)
            except ValueError as error:
                assert "tiny.safetensors" in str(error)
                num_refused += 1
    assert num_refused > len(contents)


def test_a_small_file_cannot_ask_for_much_memory(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    header, body = split(path.read_bytes())
    shapes = json.loads(header["__metadata__"]["shapes"])
    wide = json.dumps({**shapes, "0.weight": [12, 2**20, 2**10]})
    path.write_bytes(joined(altered(header, ("__metadata__", "shapes"), wide), body))
    message = (
        r"up to 0.weight, dense arrays take 51,539,607,552 bytes, more than 67,108,864; "
        "if you trust the file, give a larger `max_bytes`, or use dense=False"
    )
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            read_compressed.read(path)
        assert read_compressed.read(path, dense=False)["0.weight"][3] == (12, 2**20, 2**10)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_one_range_of_bytes_cannot_be_many_arrays(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    header, body = split(path.read_bytes())
    entry = {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)]}
    path.write_bytes(joined({"__metadata__": header["__metadata__"], "a": entry, "b": entry}, body))
    with pytest.raises(ValueError, match="b overlaps with another array"):
        read_compressed.read(path)


def test_how_much_memory_dense_arrays_may_take_is_for_the_caller(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    needed = 4 * (16 * 12 + 12 * 4)
    assert read_compressed.read(path, max_bytes=needed)["2.weight"].shape == (4, 12)
    with pytest.raises(ValueError, match="up to 2.weight, dense arrays take 960 bytes, more than 959"):
        read_compressed.read(path, max_bytes=needed - 1)


def test_a_network_with_few_elements_left_is_within_what_a_file_may_take(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6000, 3000, bias=False))  # 72 MB, beyond what every file may take
    topkast.sparsify(model, topkast.Static(0.9995), engine="masked")
    weights = read_compressed.read(write(tmp_path / "net.safetensors", model))
    assert np.count_nonzero(weights["0.weight"]) == 9000
