"""What is made of an optimizer's step: by the compiled core and by torch alone, to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import topkast
from topkast.core import steps
from topkast.core.weight import SparseWeight


def weight_of(dtype: torch.dtype) -> SparseWeight:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 90, dtype=dtype))
    (weight,) = topkast.sparsify(model, topkast.TopKAST(0.9, 0.5), engine="csr").weights.values()
    return weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("factor", [0.0, 0.1, 0.7, 1.0])
def test_steps_are_shortened_outside_of_a(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, is_native: bool, factor: float
) -> None:
    weight = weight_of(dtype)
    before = weight.values.detach().clone()
    with torch.no_grad():
        weight.values.add_(torch.randn_like(before))
    after, version = weight.values.detach().clone(), weight.values._version
    if not is_native:
        monkeypatch.setattr(steps, "_is_native", lambda *_: False)
    steps.shorten_step_(weight, before.clone(), factor)
    expected = torch.where(weight.active, after, before + factor * (after - before) if factor else before)
    assert torch.equal(weight.values.detach(), expected)
    assert weight.values._version > version  # autograd sees it


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_native", [True, False])
def test_values_decay_by_flag(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, is_native: bool) -> None:
    weight = weight_of(dtype)
    before, version = weight.values.detach().clone(), weight.values._version
    if not is_native:
        monkeypatch.setattr(steps, "_is_native", lambda *_: False)
    steps.decay_(weight, 0.01, 0.1)
    factors = torch.where(weight.active, before.new_tensor(1 - 0.01), before.new_tensor(1 - 0.1))
    assert torch.equal(weight.values.detach(), before * factors)
    assert weight.values._version > version
