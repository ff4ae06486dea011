"""Segments: they continue one another, are a function of the step, and evaluation covers every target once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topkast.data.batches import generator
from topkast.data.segments import IGNORED, Segments, evaluation_segments

sizes = st.integers(1, 7)


def test_a_small_case_by_eye() -> None:
    segments = Segments(torch.arange(14, dtype=torch.uint8), batch=2, length=3)
    assert segments.steps_per_epoch == 2
    first, second, third = (segments.at(step) for step in range(3))
    assert first.inputs.tolist() == [[0, 1, 2], [6, 7, 8]]
    assert first.targets.tolist() == [[1, 2, 3], [7, 8, 9]]
    assert second.inputs.tolist() == [[3, 4, 5], [9, 10, 11]]
    assert (first.is_first, second.is_first, third.is_first) == (True, False, True)
    assert torch.equal(first.inputs, third.inputs)
    assert first.inputs.dtype == torch.int64


@given(
    n=st.integers(2, 200),
    batch=sizes,
    length=sizes,
    seed=st.none() | st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_every_segment_follows_the_formula(
    n: int, batch: int, length: int, seed: int | None, epoch: int
) -> None:
    text = torch.randint(1000, (n,), dtype=torch.int32)
    if n < batch * length + 1:
        with pytest.raises(ValueError, match=f"need {batch * length + 1}; give more text"):
            Segments(text, batch, length, seed)
        return
    segments = Segments(text, batch, length, seed)
    stream, steps = (n - 1) // batch, segments.steps_per_epoch
    assert steps == stream // length
    offset = segments.offset(epoch)
    assert 0 <= offset < n
    for t in range(steps):
        segment = segments.at(epoch * steps + t)
        p = torch.tensor(
            [[offset + b * stream + t * length + j for j in range(length)] for b in range(batch)]
        )
        assert torch.equal(segment.inputs, text[p % n].long())
        assert torch.equal(segment.targets, text[(p + 1) % n].long())
        assert segment.is_first == (t == 0)


@given(step=st.integers(0, 60), seed=st.integers(0, 5))
def test_going_on_at_a_step_is_running_up_to_it(step: int, seed: int) -> None:
    text = torch.arange(97)
    run = Segments(text, 3, 4, seed)
    for k in range(step):
        run.at(k)
    assert torch.equal(run.at(step).inputs, Segments(text, 3, 4, seed).at(step).inputs)
    if step % run.steps_per_epoch:
        assert torch.equal(run.at(step).inputs[:, 0], run.at(step - 1).targets[:, -1])


def test_the_seed_begins_each_epoch_elsewhere() -> None:
    segments = Segments(torch.arange(10_000), 4, 10, seed=1)
    offsets = [segments.offset(epoch) for epoch in range(20)]
    assert len(set(offsets)) == 20
    assert offsets != [Segments(torch.arange(10_000), 4, 10, seed=2).offset(epoch) for epoch in range(20)]


@given(n=st.integers(2, 120), batch=sizes, length=sizes)
def test_evaluation_has_every_target_exactly_once(n: int, batch: int, length: int) -> None:
    text = torch.arange(n, dtype=torch.int32)
    if n <= batch:
        with pytest.raises(ValueError, match="too few for .* streams"):
            evaluation_segments(text, batch, length)
        return
    seen: list[int] = []
    remembered = None
    for segment in evaluation_segments(text, batch, length):
        assert segment.is_first == (remembered is None)
        counted = segment.targets != IGNORED
        seen += segment.targets[counted].tolist()
        assert segment.num_targets == int(counted.sum())
        assert torch.equal(segment.targets[counted], segment.inputs[counted] + 1)
        if remembered is not None:
            assert torch.equal(segment.inputs[:, 0], remembered + 1)
        remembered = segment.inputs[:, -1]
        assert segment.inputs.shape[1] <= length
    assert sorted(seen) == list(range(1, n))


def test_a_mean_loss_can_be_put_together_from_segments() -> None:
    text = torch.randint(5, (38,), dtype=torch.uint8)
    logits = torch.randn(5, 5)
    whole = torch.nn.functional.cross_entropy(logits[text[:-1].long()], text[1:].long())
    total = sum(
        float(torch.nn.functional.cross_entropy(logits[s.inputs].flatten(0, 1), s.targets.flatten()))
        * s.num_targets
        for s in evaluation_segments(text, 4, 5)
    )
    assert total / 37 == pytest.approx(float(whole), rel=1e-5)


@pytest.mark.parametrize(
    ("text", "batch", "length", "message"),
    [
        (torch.zeros(9), 1, 1, "`text` must be 1-D and of integers, got 1-D torch.float32"),
        (torch.zeros(3, 3).long(), 1, 1, "got 2-D"),
        (torch.zeros(9).long(), 0, 1, "`batch` must be at least 1, got 0"),
        (torch.zeros(9).long(), 1, -2, "`length` must be at least 1, got -2"),
        (torch.zeros(0).long(), 1, 1, "the text has 0 symbols"),
    ],
)
def test_what_cannot_be_cut_is_refused(text: torch.Tensor, batch: int, length: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Segments(text, batch, length)
    with pytest.raises(ValueError, match=message):
        evaluation_segments(text, batch, length)


def test_steps_count_from_zero() -> None:
    with pytest.raises(ValueError, match="`step` must be 0 or more, got -1"):
        Segments(torch.arange(9), 1, 1).at(-1)


def test_keys_name_generators() -> None:
    def draw(*key: int | str) -> float:
        return float(torch.rand((), generator=generator(*key)))

    assert draw("a", 1, 2) == draw("a", 1, 2)
    assert len({draw("a", 1, 2), draw("a", 2, 1), draw("b", 1, 2), draw("a", 12)}) == 4
