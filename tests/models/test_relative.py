"""Relative attention is the equation of Dai et al. 2019, section 3.3, whatever the sizes and blocks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from topkast.models import relative
from topkast.models.relative import RelativeAttention, drop, positions_of, shift


def sinusoid(distance: int, width: int) -> Tensor:
    angles = [distance / 10000 ** (2 * i / width) for i in range(width // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def naive(model: RelativeAttention, h: Tensor, context: Tensor) -> Tensor:
    """One score at a time, in double precision."""
    batch, length, d_model = h.shape
    memory, d_head = context.shape[1] - length, d_model // model.num_heads
    w_q, w_kv, w_r, w_o = (
        layer.weight.double() for layer in (model.query, model.key_value, model.position, model.out)
    )
    out = torch.zeros(batch, length, d_model, dtype=torch.float64)
    for b in range(batch):
        for n in range(model.num_heads):
            rows = slice(n * d_head, (n + 1) * d_head)
            u, v = model.u[n].double(), model.v[n].double()
            for i in range(length):
                q = w_q[rows] @ h[b, i].double()
                scores, values = [], []
                for j in range(memory + i + 1):
                    x = context[b, j].double()
                    r = w_r[rows] @ sinusoid(memory + i - j, d_model).double()
                    scores.append(((q + u) @ (w_kv[:d_model][rows] @ x) + (q + v) @ r) / math.sqrt(d_head))
                    values.append(w_kv[d_model:][rows] @ x)
                out[b, i, rows] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return out @ w_o.T


def example(length: int, memory: int) -> tuple[RelativeAttention, Tensor, Tensor]:
    torch.manual_seed(0)
    model = RelativeAttention(8, 2)
    with torch.no_grad():
        model.u.normal_()
        model.v.normal_()
    context = torch.randn(2, memory + length, 8)
    return model, context[:, memory:], context


@pytest.mark.parametrize(("length", "memory"), [(1, 0), (1, 4), (5, 0), (5, 3), (4, 9)])
@pytest.mark.parametrize("block", [256, 2])
def test_attention_is_the_equation(
    length: int, memory: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relative, "_BLOCK", block)
    model, h, context = example(length, memory)
    out = model(h, context, positions_of(memory + length, 8, h))
    torch.testing.assert_close(out.double(), naive(model, h, context), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block", [256, 2])
def test_gradients_are_those_of_the_equation(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relative, "_BLOCK", block)
    model, _, context = example(5, 3)
    context.requires_grad_()
    wanted = [context, *model.parameters()]
    seed = torch.randn(2, 5, 8)
    ours = torch.autograd.grad(
        model(context[:, 3:], context, positions_of(8, 8, context)), wanted, grad_outputs=seed
    )
    theirs = torch.autograd.grad(naive(model, context[:, 3:], context), wanted, grad_outputs=seed.double())
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_shift_by_eye() -> None:
    # Two queries, three keys, so one of memory; columns are the distances 2, 1, 0 and -1.
    by_distance = torch.tensor([[[12, 11, 10, -1], [22, 21, 20, -1]]])
    shifted = shift(by_distance)
    assert shifted[0, 0, :2].tolist() == [11, 10]  # the first query is at distance 1 and 0
    assert shifted[0, 1].tolist() == [22, 21, 20]
    assert shifted.untyped_storage().data_ptr() == by_distance.untyped_storage().data_ptr()


def test_positions_are_sinusoids_of_falling_distances() -> None:
    like = torch.zeros((), dtype=torch.float64)
    positions = positions_of(4, 6, like)
    assert positions.shape == (5, 6)
    assert positions.dtype == torch.float64
    expected = torch.stack([sinusoid(d, 6) for d in (3, 2, 1, 0)]).double()
    torch.testing.assert_close(positions[:4], expected, atol=1e-6, rtol=0)
    clamped = positions_of(4, 6, like, clamp_length=1)
    torch.testing.assert_close(clamped[:3], expected[2].expand(3, 6), atol=1e-6, rtol=0)


def test_dropout_acts_in_training_only() -> None:
    x = torch.ones(100)
    assert drop(x, 0.5, False) is x
    assert drop(x, 0.0, True) is x
    assert set(drop(x, 0.5, True).tolist()) == {0.0, 2.0}


def test_attention_weights_are_dropped() -> None:
    model, h, context = example(5, 3)
    positions = positions_of(8, 8, h)
    whole = model(h, context, positions)
    model.dropatt = 0.5
    assert not torch.equal(model(h, context, positions), whole)
    assert torch.equal(model.eval()(h, context, positions), whole)


@pytest.mark.parametrize("heads", [3, 0])
def test_heads_must_divide_the_width(heads: int) -> None:
    with pytest.raises(ValueError, match=rf"`num_heads` must divide `d_model` \(8\), got {heads}"):
        RelativeAttention(8, heads)
