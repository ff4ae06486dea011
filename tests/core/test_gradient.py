"""The dense gradient in pieces: the same as autograd's, for every kind of layer, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import topkast
from topkast.bench.apart import why_not
from topkast.core.gradient import Tape

pytestmark = pytest.mark.usefixtures("one_thread")


def largest(gradient: Tensor, k: int, excluded: set[int]) -> list[int]:
    ranked = sorted(range(gradient.numel()), key=lambda i: (-abs(float(gradient[i])), i))
    return sorted([i for i in ranked if i not in excluded][:k])


@given(
    rows=st.integers(1, 7),
    columns=st.integers(1, 6),
    chunk=st.integers(1, 30),
    k=st.integers(0, 40),
    seed=st.integers(0, 1000),
    zeros=st.floats(0, 1),
)
def test_the_top_k_is_exact_whatever_the_chunks(
    rows: int, columns: int, chunk: int, k: int, seed: int, zeros: float
) -> None:
    """With ties and zeros in plenty, for which the smaller position goes first."""
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randint(-3, 4, (rows, columns), generator=generator).double()
    gradient[torch.rand(rows, columns, generator=generator) < zeros] = 0.0
    excluded = torch.nonzero(torch.rand(rows * columns, generator=generator) < 0.3).flatten()
    tape = Tape((rows, columns), chunk)
    part = torch.randn(rows, columns, generator=generator).double()
    tape.add(lambda first, last: (gradient - part)[first:last].clone())
    tape.add(lambda first, last: part[first:last])
    total = (gradient - part) + part
    k = min(k, rows * columns - excluded.numel())
    assert tape.top(k, excluded).tolist() == largest(total.flatten(), k, set(excluded.tolist()))


def _layers() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    conv = nn.Conv2d
    return {
        "linear": (lambda: nn.Linear(7, 5), (3, 2, 7)),
        "conv": (lambda: conv(4, 6, 3, stride=2, padding=1), (2, 4, 7, 6)),
        "grouped": (lambda: conv(6, 9, (2, 3), groups=3, dilation=2, padding=2), (2, 6, 7, 6)),
        "same": (lambda: conv(2, 3, 2, padding="same"), (2, 2, 5, 5)),
        "reflect": (lambda: conv(2, 3, 3, padding=1, padding_mode="reflect"), (2, 2, 5, 5)),
        "unbatched": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
        "conv3d": (lambda: nn.Conv3d(2, 4, 2), (2, 2, 3, 4, 3)),
    }


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", _layers())
@pytest.mark.parametrize("chunk", [1, 40, 10**6])
def test_rows_are_those_of_autograd(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topkast.core.weight.Tape", lambda shape: Tape(shape, chunk))
    build, shape = _layers()[name]
    model = nn.Sequential(build()).double()
    sparse = topkast.sparsify(model, topkast.RigL(0.5, t_end=10, update_every=1), engine="masked")
    sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    dense = topkast.densify(model)
    x = torch.randn(shape, dtype=torch.float64)
    model(x).sin().sum().backward()
    dense(x).sin().sum().backward()
    tape = sparse.weights["0"].tape
    assert tape is not None
    got = torch.cat([chunk for _, chunk in tape.chunks()])
    torch.testing.assert_close(got, dense[0].weight.grad.flatten())


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}])
def test_rows_of_an_embedding_and_of_a_tied_output(options: dict[str, object]) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 6, **options)  # pyright: ignore[reportArgumentType]

        def forward(self, ids: Tensor) -> Tensor:
            return F.linear(self.embedding(ids).tanh(), self.embedding.weight)

    model = Tied().double()
    sparse = topkast.sparsify(model, topkast.RigL(0.5, t_end=10, update_every=1))
    sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    dense = topkast.densify(model)
    ids = torch.tensor([[1, 2, 2, 8], [2, 0, 1, 1]])
    model(ids).sin().sum().backward()
    dense(ids).sin().sum().backward()
    tape = sparse.weights["embedding"].tape
    assert tape is not None
    got = torch.cat([chunk for _, chunk in tape.chunks()])
    torch.testing.assert_close(got, dense.embedding.weight.grad.flatten())


_PEAK = """
    import gc, json, sys
    from pathlib import Path
    import torch, topkast
    from topkast.kernels.machine import resident
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows, columns = json.loads(sys.argv[1])
    density = 40_000 / (rows * columns)
    layer = topkast.nn.Linear(columns, rows, method=topkast.Static(1 - density), bias=False, engine="native")
    model = torch.nn.Sequential(layer)
    sparse = topkast.Handle(model, topkast.RigL(1 - density, t_end=10, update_every=2))
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    peaks = []
    for step in range(4):
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        model(torch.randn(16, columns)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(resident("VmHWM") - before)
    print(json.dumps(peaks))
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_memory_of_an_update_does_not_grow_with_the_dense_size() -> None:
    """Four and thirty-two chunks: 64 MB and 512 MB of dense gradient, an update of either takes a chunk's worth."""
    growth = {}
    for shape in ((4096, 4096), (8192, 16384)):
        command = [sys.executable, "-c", textwrap.dedent(_PEAK), json.dumps(shape)]
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed is given back
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        peaks = json.loads(done.stdout)
        growth[shape] = max(peaks[1], peaks[3]) - max(0, peaks[2])
    chunk = 16 * 2**20
    print(f"\npeak of an update beyond a step without: {growth}")
    assert growth[8192, 16384] < growth[4096, 4096] + chunk
    assert growth[8192, 16384] < 4 * chunk  # the dense gradient is 32 chunks
