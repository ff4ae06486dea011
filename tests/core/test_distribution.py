from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import topkast
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


@pytest.mark.parametrize("kind", ["er", "erk"])
@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9, 0.95, 0.98])
def test_erk_keeps_the_total_and_favours_small_layers(kind: str, sparsity: float) -> None:
    counts = spread(kind, SHAPES, sparsity, sparsity / 2)
    n = total(counts, "numel")
    assert total(counts, "forward") == round((1 - sparsity) * n)
    assert total(counts, "backward") == round((1 - sparsity / 2) * n)
    assert all(c.forward <= c.backward <= c.numel for c in counts.values())
    num_dims = 2 if kind == "er" else 4
    scale = {name: sum(s[:num_dims]) / math.prod(s[:num_dims]) for name, s in SHAPES.items()}
    sparse = [name for name in SHAPES if counts[name].forward < counts[name].numel]
    ratios = [counts[name].forward_density / scale[name] for name in sparse]
    assert max(ratios) / min(ratios) < 1.05


def test_erk_and_er_by_eye() -> None:
    shapes = {"conv": (2, 2, 5, 5), "fc": (10, 10)}
    # ε·Σ dims = ε·14 and ε·20 elements of 34; in ER ε·(2 + 2)/4·100 and ε·(10 + 10)/100·100.
    assert [c.forward for c in spread("erk", shapes, 0.83, 0.83).values()] == [14, 20]
    assert [c.forward for c in spread("er", shapes, 0.7, 0.7).values()] == [50, 10]


def test_layers_that_would_exceed_dense_leave_the_rest_to_the_others() -> None:
    counts = spread("erk", {"small": (2, 2), "large": (100, 100)}, 0.9, 0.5)
    assert counts["small"] == Counts(4, 4, 4)
    assert counts["large"] == Counts(10_000, 1000 - 4, 5002 - 4)


SIZES = st.lists(st.lists(st.integers(1, 12), min_size=2, max_size=4).map(tuple), min_size=1, max_size=8)


@given(st.sampled_from(["er", "erk"]), SIZES, st.floats(0.0, 0.99), st.floats(0.0, 1.0))
def test_the_total_of_er_and_erk_is_exact_to_the_element(
    kind: str, sizes: list[tuple[int, ...]], sparsity: float, ratio: float
) -> None:
    shapes = {f"layer{i}": shape for i, shape in enumerate(sizes)}
    n = sum(math.prod(s) for s in sizes)
    backward = sparsity * ratio
    try:
        counts = spread(kind, shapes, sparsity, backward)
    except ValueError as error:
        assert "the sparsity leaves" in str(error)
        assert round((1 - sparsity) * n) < len(shapes)
        return
    assert total(counts, "forward") == round((1 - sparsity) * n)
    assert total(counts, "backward") == round((1 - backward) * n)
    assert all(1 <= c.forward <= c.backward <= c.numel for c in counts.values())


@given(SIZES, st.floats(0.0, 0.99), st.floats(0.0, 1.0))
def test_uniform_is_exact_in_every_layer(sizes: list[tuple[int, ...]], sparsity: float, ratio: float) -> None:
    shapes = {f"layer{i}": shape for i, shape in enumerate(sizes)}
    backward = sparsity * ratio
    for c in spread("uniform", shapes, sparsity, backward).values():
        assert c.forward == max(1, round((1 - sparsity) * c.numel))
        assert c.backward == max(1, round((1 - backward) * c.numel))


def test_a_budget_too_small_for_the_layers_is_refused() -> None:
    shapes = {"a": (4, 4), "b": (4, 4), "c": (4, 4)}
    with pytest.raises(ValueError, match=r"leaves 2 elements \(of 48 parameters\) for 3 sparse layers"):
        spread("erk", shapes, 0.95, 0.5)
    with pytest.raises(ValueError, match=r"leaves -4 elements \(of 58 parameters, 10 of them dense\)"):
        spread("uniform", shapes, 0.9, 0.5, num_dense=10)


@pytest.mark.parametrize("kind", ["er", "erk"])
def test_what_is_kept_dense_is_no_part_of_the_budget(kind: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 16, 3), nn.Linear(16, 10))
    handle = topkast.sparsify(
        model, topkast.TopKAST(0.9, 0.7), keep_dense=("first", "last"), distribution=kind
    )
    counts = {name: weight.counts for name, weight in handle.weights.items()}
    assert list(counts) == ["1", "2"]
    n = 8 * 16 * 9 + 16 * 16 * 9
    assert total(counts, "forward") == round((1 - 0.9) * n)
    assert total(counts, "backward") == round((1 - 0.7) * n)


def test_a_mapping_overrides_single_layers_and_later_entries_win() -> None:
    counts = spread({"block": 0.5, "block.b": (0.95, 0.9), "f*": 0.0}, SHAPES, 0.9, 0.8)
    assert counts["conv"].forward_density == pytest.approx(0.1, abs=1e-3)
    assert counts["block.a"].forward_density == pytest.approx(0.5, abs=1e-3)
    assert counts["block.a"].backward_density == pytest.approx(1.0)  # twice the forward, as elsewhere
    assert counts["block.b"].backward_density == pytest.approx(0.1, abs=1e-3)
    assert counts["fc"].forward == counts["fc"].numel


@given(
    st.sampled_from(["uniform", "er", "erk"]),
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
        assert "the sparsity leaves" in str(error)
        assert round((1 - sparsity) * n) - num_dense < len(shapes)
        return
    assert total(counts, "forward") + num_dense == round((1 - sparsity) * n)
    assert total(counts, "backward") + num_dense == round((1 - backward) * n)
    assert all(1 <= c.forward <= c.backward <= c.numel for c in counts.values())


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ("ERK", r"`distribution` must be one of 'uniform', 'er', 'erk' or a mapping.*got 'ERK'"),
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
    with pytest.raises(ValueError, match="`budget='model'` needs `distribution` 'uniform', 'er' or 'erk'"):
        spread({"fc": 0.5}, SHAPES, 0.9, 0.8, num_dense=10)
