"""No kernel reads before or behind its inputs: pages that nobody may touch lie on both sides of each."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from topkast.kernels.engine import ConvGeometry
from topkast.kernels.engines import ENGINES
from topkast.kernels.plan import Plan

pytest.importorskip("topkast.kernels._native", reason="the compiled core is not built")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect of Linux")

TESTS = Path(__file__).parents[1]
_KEPT: list[mmap.mmap] = []


def guarded(like: Tensor, *, at_end: bool) -> Tensor:
    """A copy whose last byte, or first, is at the edge of a page that cannot be touched."""
    page, size = mmap.PAGESIZE, like.numel() * like.element_size()
    inner = -(-max(size, 1) // page) * page
    memory = mmap.mmap(-1, inner + 2 * page)
    _KEPT.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for edge in (address, address + page + inner):
        assert libc.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(page), 0) == 0
    offset = page + (inner - size if at_end else 0)
    copy = torch.frombuffer(memory, dtype=like.dtype, count=like.numel(), offset=offset).view(like.shape)
    return copy.copy_(like)


def plan_of(shape: tuple[int, ...]) -> tuple[Plan, Tensor]:
    n = torch.Size(shape).numel()
    positions = torch.randperm(n)[: max(1, n // 4)].sort().values
    return Plan(shape, positions, torch.rand(len(positions)) < 0.5), torch.randn(len(positions))


def run_linear(at_end: bool, dtype: torch.dtype = torch.float32) -> None:
    engine = ENGINES["native"]

    def of(numbers: Tensor) -> Tensor:
        return guarded(numbers.to(dtype), at_end=at_end)

    for rows, columns in ((1, 3), (17, 130), (300, 129)):
        plan, values = plan_of((rows, columns))
        values = of(values)
        for tokens in (1, 5, 8, 64, 65, 130):
            x, dy, bias = (
                of(torch.randn(tokens, columns)),
                of(torch.randn(tokens, rows)),
                of(torch.randn(rows)),
            )
            engine.linear_alone(plan, values, x, None, transpose=False)
            engine.linear(plan, values, x, bias, transpose=False)
            engine.linear_grads(plan, values, x, dy, (True, True, True), transpose=False)


def run_bfloat16(at_end: bool) -> None:
    run_linear(at_end, torch.bfloat16)


def run_conv(at_end: bool) -> None:
    engine = ENGINES["native"]
    for kernel, stride, padding, dilation in (
        (1, 1, 0, 1),
        (1, 2, 0, 1),
        (3, 1, 1, 1),
        (3, 2, 1, 1),
        (2, 3, 0, 2),
    ):
        geometry = ConvGeometry((stride, stride), (padding, padding), (dilation, dilation), 1)
        plan, values = plan_of((9, 5, kernel, kernel))
        values = guarded(values, at_end=at_end)
        for batch, height, width in ((1, 7, 7), (3, 9, 20), (17, 8, 5), (40, 6, 11)):
            x = guarded(torch.randn(batch, 5, height, width), at_end=at_end)
            y = engine.conv(plan, values, x, guarded(torch.randn(9), at_end=at_end), geometry)
            engine.conv_grads(plan, values, x, guarded(y, at_end=at_end), geometry, (True, True))


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "beginning"])
@pytest.mark.parametrize("kind", ["linear", "bfloat16", "conv"])
def test_nothing_outside_of_an_input_is_touched(kind: str, at_end: bool) -> None:
    ran = run(f"from kernels.test_guard_pages import run_{kind}; run_{kind}({at_end})")
    assert ran.returncode == 0, f"ended with {ran.returncode}: {ran.stderr}"


def test_the_pages_do_catch_it() -> None:
    there = "from kernels.test_guard_pages import guarded; import torch, ctypes; x = guarded(torch.ones(3), at_end=True)"
    assert run(f"{there}; ctypes.string_at(x.data_ptr(), 12)").returncode == 0
    assert run(f"{there}; ctypes.string_at(x.data_ptr(), 13)").returncode != 0  # a sanitizer exits by itself


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=False
    )
