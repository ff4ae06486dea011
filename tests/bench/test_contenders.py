from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from topkast.bench import contenders
from topkast.bench.contenders import Contender, Expected, Work, WrongResult, check, compare

PAIR = (0.9, 0.8)


@pytest.fixture
def layer() -> nn.Linear:
    return nn.Linear(32, 24)


@pytest.fixture
def work(layer: nn.Linear) -> Work:
    return Work.of(layer, (7, 32))


@pytest.fixture
def expected(layer: nn.Linear, work: Work) -> Expected:
    return contenders.expect(*contenders.alpha_layer(layer, PAIR), work)


def test_the_reference_is_alpha_and_its_gradient_on_b(
    layer: nn.Linear, work: Work, expected: Expected
) -> None:
    magnitudes = layer.weight.detach().abs().flatten()
    alpha = torch.where(layer.weight.abs() >= magnitudes.sort().values[-77], layer.weight, 0.0).detach()
    assert int((alpha != 0).sum()) == 77  # 10 % of 768
    torch.testing.assert_close(expected.output.float(), work.x.detach() @ alpha.T + layer.bias.detach())
    torch.testing.assert_close(expected.input_grad.float(), work.upstream @ alpha)
    assert int((expected.weight_grad != 0).sum()) == 154  # 20 % of 768


def test_every_engine_passes_the_check(layer: nn.Linear, work: Work, expected: Expected, engine: str) -> None:
    contender = contenders.ours(layer, PAIR, engine)
    assert (contender.name, contender.engine()) == (engine, engine)
    check(contender, expected, work, "here")


def wrong(contender: Contender, what: str) -> Contender:
    """The contender with one element of one result off by little."""

    class Off(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = contender.module(x)
            if what == "output":
                return y + torch.nn.functional.one_hot(torch.tensor(0), y.shape[1]) * 0.01
            if what == "input gradient":
                return y + 0.01 * (x - x.detach()).sum()
            return y

    def spread(grad: torch.Tensor) -> torch.Tensor:
        dense = contender.spread(grad)
        if what == "weight gradient":
            dense[0, 0] += 0.05
        return dense

    return replace(contender, module=Off(), spread=spread)


@pytest.mark.parametrize("what", ["output", "input gradient", "weight gradient"])
def test_a_wrong_contender_is_named_with_its_shape(
    layer: nn.Linear, work: Work, expected: Expected, what: str
) -> None:
    contender = wrong(contenders.ours(layer, PAIR, "masked"), what)
    with pytest.raises(WrongResult, match=rf"^masked at 32 → 24: {what} is wrong in \d+ of \d+ elements"):
        check(contender, expected, work, "32 → 24")


def test_the_dense_layer_is_not_taken_for_the_sparse_one(
    layer: nn.Linear, work: Work, expected: Expected
) -> None:
    with pytest.raises(WrongResult, match="dense at here: output"):
        check(contenders.dense(layer), expected, work, "here")


def test_nan_and_other_shapes_are_wrong() -> None:
    with pytest.raises(WrongResult, match="y is wrong in 1 of 2 elements"):
        compare("y", torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]))
    with pytest.raises(WrongResult, match=r"y has shape \(2, 1\), expected \(2,\)"):
        compare("y", torch.ones(2, 1), torch.ones(2))
