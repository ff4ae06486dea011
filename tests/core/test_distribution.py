from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topkast.core.distribution import spread
from topkast.core.sets import Counts

SHAPES = {"conv": (64, 3, 7, 7), "block.a": (64, 64, 3, 3), "block.b": (256, 64, 1, 1), "fc": (1000, 256)}


def total(counts: dict[str, Counts], part: str) -> int:
    return sum(getattr(c, part) for c in counts.values())


def test_counts_by_eye() -> None:
    assert Counts.from_density(100, 0.1, 0.2) == Counts(100, 10, 20)
    assert Counts.from_density(3, 0.1, 0.1) == Counts(3, 1, 1)  # at least one each
    assert Counts.from_density(5, 1 - 0.9, 1 - 0.5) == Counts(5, 1, 2)  # 2.5 rounds to even
    assert Counts.from_density(7, 1.0, 1.0) == Counts(7, 7, 7)


def test_uniform_gives_every_layer_the_same_density() -> None:
    for counts in spread("uniform", SHAPES, 0.9, 0.8).values():
        assert counts.forward == round(0.1 * counts.numel)
        assert counts.backward == round(0.2 * counts.numel)


@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9, 0.95, 0.98])
def test_erk_keeps_the_total_and_favours_small_layers(sparsity: float) -> None:
    counts = spread("erk", SHAPES, sparsity, sparsity / 2)
    n = total(counts, "numel")
    # Rounding moves each layer by at most half an element.
    assert abs(total(counts, "forward") - (1 - sparsity) * n) <= len(SHAPES) / 2
    assert abs(total(counts, "backward") - (1 - sparsity / 2) * n) <= len(SHAPES) / 2
    assert all(c.forward <= c.backward <= c.numel for c in counts.values())
    scale = {name: sum(s) / math.prod(s) for name, s in SHAPES.items()}
    sparse = [name for name in SHAPES if counts[name].forward < counts[name].numel]
    ratios = [counts[name].forward_density / scale[name] for name in sparse]
    assert max(ratios) / min(ratios) < 1.05


def test_a_mapping_overrides_single_layers_and_later_entries_win() -> None:
    counts = spread({"block": 0.5, "block.b": (0.95, 0.9), "f*": 0.0}, SHAPES, 0.9, 0.8)
    assert counts["conv"].forward_density == pytest.approx(0.1, abs=1e-3)
    assert counts["block.a"].forward_density == pytest.approx(0.5, abs=1e-3)
    assert counts["block.a"].backward_density == pytest.approx(1.0)  # twice the forward, as elsewhere
    assert counts["block.b"].backward_density == pytest.approx(0.1, abs=1e-3)
    assert counts["fc"].forward == counts["fc"].numel


@given(
    st.sampled_from(["uniform", "erk"]),
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=6),
    st.integers(0, 50),
    st.floats(0.0, 0.99),
    st.floats(0.0, 1.0),
)
def test_a_budget_for_the_whole_model_is_met_exactly(
    kind: str, sizes: list[tuple[int, int]], num_dense: int, sparsity: float, ratio: float
) -> None:
    shapes = {f"layer{i}": shape for i, shape in enumerate(sizes)}
    n = sum(math.prod(s) for s in sizes) + num_dense
    backward = sparsity * ratio
    try:
        counts = spread(kind, shapes, sparsity, backward, num_dense=num_dense)
    except ValueError as error:
        assert "the dense parameters leave" in str(error)
        assert round((1 - sparsity) * n) - num_dense < len(shapes)
        return
    assert total(counts, "forward") + num_dense == round((1 - sparsity) * n)
    assert all(1 <= c.forward <= c.backward <= c.numel for c in counts.values())


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ("ERK", r"`distribution` must be one of 'uniform', 'erk' or a mapping.*got 'ERK'"),
        (
            {"blok": 0.5},
            r"`distribution` names 'blok', which matches no sparse layer; there are 'block.b', 'block.a'",
        ),
        ({"fc": 1.0}, r"`distribution\['fc'\]` must be in \[0, 1\), got 1.0"),
        ({"fc": (0.5, 0.7)}, r"`distribution\['fc'\]` backward must not exceed .* forward \(0.5\), got 0.7"),
    ],
)
def test_bad_distributions_are_named(distribution: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spread(distribution, SHAPES, 0.9, 0.8)  # type: ignore[arg-type]


def test_a_mapping_cannot_have_a_model_budget() -> None:
    with pytest.raises(ValueError, match="`budget='model'` needs `distribution` 'uniform' or 'erk'"):
        spread({"fc": 0.5}, SHAPES, 0.9, 0.8, num_dense=10)
