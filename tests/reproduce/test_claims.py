"""Claims: when they hold, when they do not, and that every one of them can be judged."""

from __future__ import annotations

import math

import pytest

from topkast.report.groups import Group
from topkast.reproduce.budgets import at_equal
from topkast.reproduce.catalogue import EXPERIMENTS, choose
from topkast.reproduce.claims import (
    FAILS,
    FAILS_ONCE,
    HOLDS,
    HOLDS_ONCE,
    NOISE,
    NOT_LEARNED,
    OPEN,
    Bar,
    Claim,
    Difference,
    at_equal_flops,
    bar_missed,
    beats,
    fell_short,
    judge,
)
from topkast.reproduce.published import names, published
from topkast.reproduce.recipes import CONTROLS, other, topkast
from topkast.reproduce.scales import TINY
from topkast.store.run import Bytes, End, Progress, Run


def outcome(
    label: str,
    *qualities: float,
    higher: bool = True,
    flops: float = 1.0,
    length: float = 1.0,
    unit: str = "bits per byte",
) -> Group:
    run = Run(label, "images", "accuracy, %" if higher else unit, higher, steps=10)
    run.flops_per_step = {"sparse": flops, "dense": 1.0}
    run.points = [Progress(10, 1.0, 1.0, 1.0, 10 * flops)]
    runs = dict.fromkeys(range(len(qualities)), run)
    return Group(label, runs, {seed: {"quality": q} for seed, q in enumerate(qualities)}, length)


@pytest.mark.parametrize(
    ("values", "margin", "verdict"),
    [
        ((1.0, 1.1, 0.9), 0.0, HOLDS),
        ((-1.0, -1.1, -0.9), 0.0, FAILS),
        ((1.0, -1.0, 0.2), 0.0, NOISE),
        ((5.0,), 0.0, HOLDS_ONCE),  # one seed says nothing of the noise
        ((-0.2,), 0.5, HOLDS_ONCE),
        ((-0.5,), 0.5, FAILS_ONCE),
        ((0.0,), 0.0, FAILS_ONCE),  # equal, as with B = A, is not better
        ((0.0, 0.0, 0.0), 0.0, FAILS),  # the same numbers are no advantage
        ((0.0, 0.0), 0.5, HOLDS),  # but they are comparable
        ((-0.4, -0.41, -0.39), 0.5, HOLDS),
        ((-0.6, -0.61, -0.59), 0.5, FAILS),
        ((math.nan, 1.0), 0.0, FAILS),
        ((), 0.0, OPEN),
    ],
)
def test_a_difference_is_judged_by_its_seeds(values: tuple[float, ...], margin: float, verdict: str) -> None:
    assert Difference("a over b", values, margin).verdict == verdict


def test_the_reach_is_students_for_three_seeds() -> None:
    # sd 1, so s = 1/√3; t(2 degrees, one-sided 95 %) = 2.920.
    assert Difference("", (1.0, 2.0, 3.0)).reach == pytest.approx(2.920 / math.sqrt(3))


def test_lower_bits_are_better() -> None:
    found = {"a": outcome("a", 1.0, 1.01, higher=False), "b": outcome("b", 2.0, 2.01, higher=False)}
    assert judge(Claim("", "", beats(("a", "b"))), found).verdict == HOLDS
    assert judge(Claim("", "", beats(("b", "a"))), found).verdict == FAILS


def test_a_claim_holds_only_as_a_whole() -> None:
    found = {"a": outcome("a", 90, 90.1), "b": outcome("b", 80, 80.1), "c": outcome("c", 95, 95.1)}
    assert judge(Claim("", "", beats(("a", "b"))), found).verdict == HOLDS
    assert judge(Claim("", "", beats(("a", "b"), ("a", "c"))), found).verdict == FAILS
    assert judge(Claim("", "", beats(("a", "b"), ("a", "missing"))), found).verdict == OPEN


def test_a_claim_with_one_seed_says_which_way_it_fell() -> None:
    found = {"a": outcome("a", 90), "b": outcome("b", 80), "c": outcome("c", 95)}
    assert judge(Claim("", "", beats(("a", "b"))), found).verdict == HOLDS_ONCE
    assert judge(Claim("", "", beats(("a", "b"), ("a", "c"))), found).verdict == FAILS_ONCE


def test_a_margin_is_in_points_or_in_hundredths() -> None:
    bits = {"a": outcome("a", 2.02, 2.02, higher=False), "b": outcome("b", 2.0, 2.0, higher=False)}
    assert judge(Claim("", "", beats(("a", "b"), margin=2.0)), bits).verdict == HOLDS
    assert judge(Claim("", "", beats(("a", "b"), margin=0.5)), bits).verdict == FAILS


@pytest.mark.parametrize(
    ("qualities", "higher", "unit", "misses"),
    [
        ((600, 600), False, "perplexity", False),  # the bar itself is enough
        ((590, 612), False, "perplexity", True),  # their mean is 601
        ((601,), False, "perplexity", True),
        ((math.nan, 500), False, "perplexity", True),
        ((601, 601), False, "bits per byte", False),  # the rule is about another unit
        ((601, 601), True, "points", False),
        ((599, 599), True, "points", True),
    ],
)
def test_a_dense_network_has_to_reach_its_bar(
    qualities: tuple[float, ...], higher: bool, unit: str, misses: bool
) -> None:
    found = outcome("dense", *qualities, higher=higher, unit=unit)
    bar = Bar("points" if unit == "points" else "perplexity", 600, "because")
    assert bool(bar_missed("dense", found, bar)) is misses
    assert bar_missed("dense", found, None) == ""


@pytest.mark.parametrize(
    ("quality", "higher", "unit", "expected", "misses"),
    [
        (86.0, True, "points", 88.0, False),  # an error of 14 for 12
        (85.0, True, "points", 88.0, True),  # 15, more than 1.2 times 12
        (10.0, True, "points", 88.0, True),
        (3.1, False, "bits per byte", 2.6, False),
        (3.2, False, "bits per byte", 2.6, True),
        (math.nan, False, "bits per byte", 2.6, True),
        (math.nan, True, "points", None, True),
        (3.2, False, "bits per byte", None, False),  # nobody has looked for its rate
    ],
)
def test_a_row_has_to_be_about_as_good_as_when_its_rate_was_looked_for(
    quality: float, higher: bool, unit: str, expected: float | None, misses: bool
) -> None:
    found = outcome("a", quality, quality, higher=higher, unit=unit)
    assert bool(fell_short("a", found, expected)) is misses


def test_claims_on_what_has_not_learned_are_not_judged() -> None:
    found = {"a": outcome("a", 2, 2), "b": outcome("b", 1, 1), "c": outcome("c", 0, 0)}
    claim = Claim("", "", beats(("a", "b")))
    assert judge(claim, found).verdict == HOLDS
    assert judge(claim, found, {"a": "", "c": "c has not"}).verdict == HOLDS, "it does not look at c"
    missed = judge(claim, found, {"b": "b has 1 and should have 2"})
    assert missed.verdict == NOT_LEARNED
    assert missed.numbers.startswith("b has 1 and should have 2; a over b: ")
    assert judge(claim, found, {"": "the dense network has not"}).verdict == NOT_LEARNED
    assert judge(Claim("", "", beats(("a", "missing"))), found, {"": "no"}).verdict == OPEN


def test_what_has_not_learned_is_said_with_its_numbers() -> None:
    found = outcome("dense", 1158.4, 1158.4, higher=False, unit="perplexity")
    assert bar_missed("dense", found, Bar("perplexity", 600, "half of frequencies alone")) == (
        "dense has 1,158 perplexity and should have at most 600 (half of frequencies alone)"
    )
    assert fell_short("RigL", outcome("RigL", 30.0, 30.0), 80.0) == (
        "RigL has 30.0 points, and validation data gave 80 when its rate was looked for"
    )


@pytest.mark.parametrize(("mine", "verdict"), [(86.0, HOLDS), (84.0, FAILS)])
def test_at_equal_cost_the_dense_network_is_found_between_two_widths(mine: float, verdict: str) -> None:
    found = {
        "dense": outcome("dense", 90, 90, flops=0.4),
        "narrow": outcome("narrow", 80, 80, flops=0.1),
        "ours": outcome("ours", mine, mine, flops=0.2),  # half-way on a logarithmic scale: 85
    }
    test = at_equal("FLOPs", "ours", ("dense", "narrow"))
    assert judge(Claim("", "", test), found).verdict == verdict


def test_what_costs_less_than_every_dense_network_is_compared_with_the_cheapest() -> None:
    found = {
        "dense": outcome("dense", 90, 90, flops=0.4),
        "narrow": outcome("narrow", 80, 80, flops=0.1),
        "ours": outcome("ours", 81, 81, flops=0.01),
    }
    (difference,) = at_equal("FLOPs", "ours", ("dense", "narrow"))(found)
    assert difference.mean == pytest.approx(1.0)


@pytest.mark.parametrize(("rival", "verdict"), [(86.0, FAILS), (84.0, HOLDS)])
def test_at_equal_flops_the_frontier_is_read_between_its_points(rival: float, verdict: str) -> None:
    found = {
        "few": outcome("few", 80, 80, flops=0.2),
        "many": outcome("many", 90, 90, flops=0.4),
        "worse": outcome("worse", 10, 10, flops=0.3),
        "rival": outcome("rival", rival, rival, flops=0.3),  # the frontier has 85 there
    }
    test = at_equal_flops(("few", "many", "worse"), "rival", 0.0)
    assert judge(Claim("", "", test), found).verdict == verdict


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)
def test_every_claim_is_about_rows_that_are_there(experiment) -> None:
    labels = [row.label for row in experiment.rows]
    assert len(set(labels)) == len(labels)
    assert set(experiment.published.values) <= set(labels)
    if experiment.name in ("figure-3a", "figure-3b"):  # about masks, see test_reproduce.py
        return
    found = {label: outcome(label, 50.0 + i, 50.0 + i, flops=1 / (1 + i)) for i, label in enumerate(labels)}
    for group in found.values():
        group.first.parameters["used"] = group.first.flops_per_step["sparse"]
        group.first.end = End(10, 1.0, Bytes({}, 100, 100), None, None)
    for claim in experiment.claims:
        assert judge(claim, found).verdict in (HOLDS, FAILS)


def test_published_numbers_have_their_place_and_experiment() -> None:
    assert set(names()) <= set(EXPERIMENTS)
    for name in names():
        assert published(name).place
        assert published(name).quantity
    assert published("figure-2a").values == {}


def test_names_are_chosen_in_the_papers_order() -> None:
    assert [e.name for e in choose(["table-1", "figure-2c"])] == ["figure-2c", "table-1"]
    assert len(choose(["all"])) == len(EXPERIMENTS)
    with pytest.raises(ValueError, match="table-1"):
        choose(["table1"])


def test_the_control_takes_exploration_away_from_topkast_alone() -> None:
    table = EXPERIMENTS["table-1"].changed(CONTROLS["no-exploration"])
    assert all(row.recipe.backward == row.recipe.forward for row in table.rows)
    assert all(row.recipe.exploration is None for row in table.rows)
    dense = other("images", "dense")
    assert CONTROLS["no-exploration"](dense) == dense


def test_the_other_controls_spoil_the_rate_or_the_labels() -> None:
    ours, dense = topkast("images", 0.9, 0.8), other("images", "dense")
    usual, spoilt = (TINY.config(r, 0, is_forecast=True) for r in (ours, CONTROLS["wrong-rate"](ours)))
    assert spoilt.train.lr == pytest.approx(30 * (usual.train.lr or 0))
    assert CONTROLS["wrong-rate"](dense) == dense
    for recipe in (ours, dense):
        shuffled = TINY.config(CONTROLS["shuffled-labels"](recipe), 0, is_forecast=True)
        assert shuffled.data.shuffled_labels is True
