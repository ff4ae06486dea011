"""Schedules of sparsity: what they give at a step, the sizes that follow, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import topkast
from topkast import Anneal, Stages, TopKAST
from topkast.convert.recipe import follow_recipe, recipe
from topkast.core.anneal import schedule_from
from topkast.core.sets import Counts


def both(start: float = 0.0, **options: Any) -> TopKAST:
    """90/80 % by step 40, from `start`."""
    return TopKAST(
        Anneal(start, 0.9, to_step=40), Anneal(start, 0.8, to_step=40), exchange_every=10, **options
    )


@pytest.mark.parametrize(
    ("form", "quarter", "half"),
    [
        ("linear", 0.3, 0.4),
        ("cubic", 0.6 - 0.4 * 0.421875, 0.55),
        ("cosine", 0.6 - 0.4 * 0.8535533905932737, 0.4),
    ],
)
def test_forms(form: Any, quarter: float, half: float) -> None:
    schedule = Anneal(0.2, 0.6, from_step=100, to_step=300, form=form)
    assert [schedule.at(step) for step in (0, 100)] == [0.2, 0.2]
    assert [schedule.at(step) for step in (150, 200)] == pytest.approx([quarter, half], abs=1e-12)
    assert [schedule.at(step) for step in (300, 10**9)] == [0.6, 0.6]


def test_shares_of_a_run() -> None:
    assert Anneal.over(1000, 0.1, 0.9, from_share=0.1, to_share=0.5) == Anneal(
        0.1, 0.9, from_step=100, to_step=500
    )
    assert Stages.over(1000, {0: 0.5, 0.3: 0.9}) == Stages({0: 0.5, 300: 0.9})


def test_a_number_is_the_final_sparsity() -> None:
    method = both()
    assert (method.forward_sparsity, method.backward_sparsity) == (0.9, 0.8)
    assert method.last_step() == 40
    with pytest.raises(ValueError, match="ends at step 40, beyond the run of 39 steps"):
        method.check_run(39)
    method.check_run(40)


def test_sizes_change_at_exchanges_alone() -> None:
    method = TopKAST(Anneal(0.0, 0.9, to_step=25, form="linear"), 0.0, exchange_every=10)
    final = Counts.from_density(100, 0.1, 1.0)
    sizes = [method.sizes(step, final).forward for step in range(30)]
    assert sizes == [100] * 10 + [64] * 10 + [28] * 5 + [10] * 5
    assert [step for step in range(1, 31) if method.is_due(step)] == [10, 20, 25, 30]
    assert [method.densities(step, final)[0] for step in (10, 11, 25, 26)] == [1.0, 0.64, 0.28, 0.1]


def test_other_distributions_keep_the_sparsity_of_all_layers_together() -> None:
    """Each layer is the same share of the way from dense to its own end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(400, 300), nn.Linear(300, 100), nn.Linear(100, 10))
    method = TopKAST(
        Anneal(0.0, 0.9, to_step=40, form="linear"),
        Anneal(0.0, 0.8, to_step=40, form="linear"),
        exchange_every=10,
    )
    sparse = topkast.sparsify(model, method, distribution="erk")
    finals = [weight.target for weight in sparse.weights.values()]
    total = sum(final.numel for final in finals)
    for step in range(0, 50, 10):
        sizes = [method.sizes(step, final) for final in finals]
        share = min(1.0, step / 40)
        for size, final in zip(sizes, finals, strict=True):
            assert size.forward == pytest.approx(final.numel - share * (final.numel - final.forward), abs=1)
            assert size.forward <= size.backward
        assert sum(size.forward for size in sizes) / total == pytest.approx(1 - 0.9 * share, abs=1e-4)
        assert sum(size.backward for size in sizes) / total == pytest.approx(1 - 0.8 * share, abs=1e-4)
    assert [method.sizes(40, final) for final in finals] == finals


def test_sparser_than_in_the_end_scales_densities() -> None:
    method = TopKAST(Stages({0: 0.9, 10: 0.5}), Stages({0: 0.8, 10: 0.2}))
    own = Counts(1000, 800, 960)  # of a layer that is denser than the others
    assert method.sizes(0, own) == Counts(1000, 160, 240)
    assert method.sizes(10, own) == own


def test_every_layer_keeps_an_element_and_b_contains_a() -> None:
    method = TopKAST(Stages({0: 0.99, 10: 0.5}), Stages({0: 0.99, 10: 0.5}))
    assert method.sizes(0, Counts(20, 1, 1)) == Counts(20, 1, 1)
    assert method.sizes(0, Counts(1000, 500, 400 + 100)) == Counts(1000, 10, 10)


def test_a_recipe_carries_the_schedule() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    method = TopKAST(Anneal(0.1, 0.9, to_step=40), Stages({0: 0.0, 40: 0.8}), exchange_every=10)
    data = json.loads(json.dumps(recipe(topkast.sparsify(model, method))))
    again = follow_recipe(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10)), data)
    assert again.method == method
    assert [w.counts.forward for w in again.weights.values()] == [540, 270]
    assert [w.target.forward for w in again.weights.values()] == [60, 30]
    data["method"]["settings"]["forward_schedule"] = {"kind": "spiral"}
    with pytest.raises(ValueError, match="a schedule must be of kind anneal or stages, got .*spiral"):
        follow_recipe(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10)), data)


def test_schedules_are_plain_data() -> None:
    for schedule in (Anneal(0.1, 0.9, to_step=40), Stages({0: 0.5, 7: 0.9})):
        assert schedule_from(json.loads(json.dumps(schedule.to_data()))) == schedule


@pytest.mark.parametrize("reservoir", ["stored", "implicit"])
def test_stats_and_flops_are_those_of_the_step(reservoir: Any) -> None:
    torch.manual_seed(0)
    with torch.device("meta" if reservoir == "implicit" else "cpu"):
        model = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 10))
    sparse = topkast.sparsify(model, both(start=0.4), reservoir=reservoir, engine="native")
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=0.01))
    x, y, forward = torch.randn(16, 40), torch.randint(10, (16,)), []
    for _ in range(45):
        forward.append(sparse.flops(x).layers[0].forward_density)
        (nn.functional.cross_entropy(model(x), y) + 1e-4 * sparse.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()
    weight = sparse.weights["0"]
    assert forward == [sparse.method.densities(step, weight.target)[0] for step in range(1, 46)]
    assert forward[0] == 0.6
    stats = sparse.stats()["0"]
    assert (stats.forward, stats.backward) == (200, 400)
    run = sparse.flops(x, steps=45).layers[0]
    assert run.forward_density == pytest.approx(sum(forward) / 45)


@pytest.mark.parametrize("floor", [0, 3])
def test_a_drawn_network_is_annealed_like_a_stored_one(floor: int) -> None:
    """θ, A and B at every step: up and down again, under the options for Adam, with a floor."""
    rise = {0: 0.5, 10: 0.8, 20: 0.6, 30: 0.9}
    trained: dict[str, tuple[topkast.Handle, Any, nn.Module]] = {}
    for reservoir in ("stored", "implicit"):
        with torch.device("meta" if reservoir == "implicit" else "cpu"):
            model = nn.Sequential(nn.Linear(40, 50, bias=False), nn.Tanh(), nn.Linear(50, 10, bias=False))
        method = TopKAST.under_adam(
            Stages(rise), Stages({t: s / 2 for t, s in rise.items()}), exchange_every=10, min_fan_in=floor
        )
        options: Any = {"reservoir": reservoir, "init": "kaiming_normal", "seed": 3}
        sparse = topkast.sparsify(model, method, **options)
        optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=0.02))
        trained[reservoir] = sparse, optimizer, model
    for step in range(1, 46):
        torch.manual_seed(step)
        x, y = torch.randn(16, 40), torch.randint(10, (16,))
        for _, optimizer, model in trained.values():
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        for name, stored in trained["stored"][0].weights.items():
            drawn = trained["implicit"][0].weights[name]
            assert torch.equal(stored.indices, drawn.indices), (step, name)
            assert torch.equal(stored.active, drawn.active), (step, name)
            assert torch.equal(stored.theta(), drawn.theta()), (step, name)


def test_engines_are_measured_again_when_a_layer_is_twice_as_sparse() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20))
    method = TopKAST(Stages({0: 0.0, 2: 0.45, 4: 0.6}), 0.0, exchange_every=2)
    sparse = topkast.sparsify(model, method, engine="auto")
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    sparse.expects_penalty = False
    choices, decided = sparse.weights["0"].choices, []
    for _ in range(6):
        model(torch.randn(4, 30)).square().mean().backward()
        optimizer.step()
        decided.append(bool(choices.any()))
    assert decided == [True, True, True, False, True, True]  # 55 % is still above the half


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Anneal(0.0, 1.0, to_step=9), ValueError, r"`end` of Anneal must be in \[0, 1\), got 1.0"),
        (lambda: Anneal(-0.1, 0.9, to_step=9), ValueError, r"`start` of Anneal must be in \[0, 1\), got -0.1"),
        (lambda: Anneal(0.0, "0.9", to_step=9), TypeError, r"`end` of Anneal must be a number"),
        (lambda: Anneal(0.0, 0.9, from_step=9, to_step=9), ValueError, r"must be after `from_step` of Anneal \(9\)"),
        (lambda: Anneal(0.0, 0.9, to_step=0.5), TypeError, r"`to_step` of Anneal must be a whole number of steps"),
        (lambda: Anneal(0, 0.9, to_step=9, form="round"), ValueError, "one of linear, cubic, cosine, got 'round'"),
        (lambda: Anneal.over(100, 0.0, 0.9, to_share=1.5), ValueError, r"`to_share` must be in \[0, 1\], got 1.5"),
        (lambda: Stages({10: 0.5}), ValueError, "the first step of Stages must be 0.* got 10"),
        (lambda: Stages({}), ValueError, "the first step of Stages must be 0.* got none"),
        (lambda: Stages({0: 0.5, 9: 0.9, 5: 0.8}), ValueError, "must increase, got 5 after 9: sort them"),
        (lambda: Stages({0: 1.0}), ValueError, r"the sparsity of Stages from step 0 on must be in \[0, 1\)"),
        (lambda: Stages(0.5), TypeError, r"sparsities by step, such as \{0: 0.5, 1000: 0.9\}, got 0.5"),
        (
            lambda: TopKAST(Anneal(0.0, 0.9, to_step=9), 0.8),
            ValueError,
            "must not exceed `forward_sparsity` at any step, but after 0 steps they are 0.8 and 0: .*same steps",
        ),
        (
            lambda: TopKAST(
                Anneal(0.0, 0.9, to_step=90), Anneal(0.0, 0.8, to_step=40, form="linear"), exchange_every=10
            ),
            ValueError,
            "at any step, but after 40 steps they are 0.8 and 0.745679",
        ),
        (lambda: TopKAST(0.8, Anneal(0.9, 0.5, to_step=9)), ValueError, "after 0 steps they are 0.9 and 0.8"),
        (lambda: TopKAST(0.9, Anneal(0.0, 0.95, to_step=9)), ValueError, "`backward_sparsity` must not exceed"),
        (
            lambda: TopKAST(0.9, 0.8, forward_schedule=Anneal(0.0, 0.95, to_step=9)),
            ValueError,
            r"`forward_sparsity` must be that in which `forward_schedule` ends \(0.95\), got 0.9",
        ),
        (lambda: TopKAST(0.9, 0.8, forward_schedule=0.9), TypeError, "`forward_schedule` must be a schedule"),
        (
            lambda: topkast.RigL(Anneal(0.0, 0.9, to_step=9), t_end=9),
            TypeError,
            r"`forward_sparsity` of RigL must be a number in \[0, 1\), got a schedule: .*TopKAST follows one",
        ),
        (lambda: topkast.Pruning(Stages({0: 0.9}), begin=0, end=9), TypeError, "`forward_sparsity` of Pruning"),
    ],
)  # fmt: skip
def test_what_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
