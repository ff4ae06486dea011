from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import topkast
from topkast.core.moment import Moment
from topkast.methods.named import Choice, named_method


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"forward_sparsity": 1.0, "backward_sparsity": 0.5}, ValueError, r"`forward_sparsity` must be in \[0, 1\), got 1.0"),
        ({"forward_sparsity": -0.1, "backward_sparsity": 0.5}, ValueError, r"`forward_sparsity` must be in \[0, 1\), got -0.1"),
        ({"forward_sparsity": 90, "backward_sparsity": 80}, ValueError, r"got 90; it is the share of zeros, 0.9 for 90 %"),
        ({"forward_sparsity": float("nan"), "backward_sparsity": 0.5}, ValueError, r"`forward_sparsity` must be in .* got nan"),
        ({"forward_sparsity": 0.8, "backward_sparsity": 0.9}, ValueError, r"`backward_sparsity` must not exceed `forward_sparsity` \(0.8\), got 0.9: the backward set B contains"),
        ({"forward_sparsity": "0.9", "backward_sparsity": 0.5}, TypeError, r"`forward_sparsity` must be a number in \[0, 1\), got '0.9'"),
        ({"refresh_every": 0}, ValueError, r"`refresh_every` must be at least 1, got 0"),
        ({"refresh_every": 2.5}, TypeError, r"`refresh_every` must be a whole number of steps, got 2.5"),
        ({"explore_until": -1}, ValueError, r"`explore_until` must be at least 0, got -1"),
        ({"exploration": "both"}, ValueError, r"`exploration` must be 'magnitude' or 'random', got 'both'"),
        ({"scope": "network"}, ValueError, r"`scope` must be 'layer' or 'global', got 'network'"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        topkast.TopKAST(**{"forward_sparsity": 0.9, "backward_sparsity": 0.8, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: topkast.SET(0.9, drop_fraction=1.0), r"`drop_fraction` must be in \[0, 1\), got 1.0"),
        (lambda: topkast.SET(0.9, drop_fraction=-0.1), r"`drop_fraction` must be in \[0, 1\), got -0.1"),
        (lambda: topkast.SET(0.9, grown_at="one"), r"`grown_at` must be 'initial' or 'zero', got 'one'"),
        (lambda: topkast.SET(0.9, update_every=0), r"`update_every` must be at least 1, got 0"),
        (lambda: topkast.RigL(0.9, t_end=100), r"`t_end` must be after the first update .*100.* never be updated"),
        (lambda: topkast.RigL(1.2, t_end=1000), r"`forward_sparsity` must be in \[0, 1\), got 1.2"),
        (lambda: topkast.SNFS(0.9, t_end=0), r"`t_end` must be at least 1, got 0"),
        (lambda: topkast.SNFS(0.9, t_end=10, beta=1.0), r"`beta` must be in \[0, 1\), got 1.0"),
        (lambda: topkast.Pruning(0.9, begin=50, end=50), r"`end` must be after `begin` \(50\), got 50"),
        (lambda: topkast.Pruning(0.9, begin=50, end=20), r"`end` must be after `begin` \(50\), got 20"),
        (lambda: topkast.Pruning(0.9, begin=-1, end=20), r"`begin` must be at least 0, got -1"),
        (lambda: topkast.Pruning(0.9, begin=0, end=9, updates="some"), r"`updates` must be 'active' or 'all'"),
        (lambda: topkast.DNW(0.9, refresh_every=0), r"`refresh_every` must be at least 1, got 0"),
        (lambda: topkast.STR(s_init=1.0), r"`s_init` must be between -1e6 and 0"),
        (lambda: topkast.L0(droprate_init=1.0), r"`droprate_init` must be above 0 and below 1, got 1.0: gates that start fully"),
        (lambda: topkast.L0(penalty_warmup=-1), r"`penalty_warmup` must be at least 0, got -1"),
        (lambda: topkast.L0(cut_at=0), r"`cut_at` must be at least 1, got 0"),
        (lambda: topkast.VariationalDropout(threshold=float("inf")), r"`threshold` must be finite, got inf"),
        (lambda: topkast.VariationalDropout(log_sigma2_init=float("nan")), r"`log_sigma2_init` must be finite, got nan"),
        (lambda: topkast.DSR(0.9, target_fraction=1.5), r"`target_fraction` must be in \[0, 1\), got 1.5"),
        (lambda: topkast.DSR(0.9, threshold=0.0), r"`threshold` must be above 0 and finite, got 0.0"),
        (lambda: topkast.DeepR(0.9, l1=-1.0), r"`l1` must be at least 0 and finite, got -1.0"),
        (lambda: topkast.DeepR(0.9, temperature=float("nan")), r"`temperature` must be at least 0 and finite"),
        (lambda: topkast.TopKAST(0.9, 0.8, scope="global", exploration="random"), r"needs `scope='layer'`"),
    ],
)  # fmt: skip
def test_bad_settings_of_the_rivals_are_named(make: Callable[[], topkast.Method], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: topkast.L0(droprate_init="0.5"), r"`droprate_init` must be a number, got '0.5'"),
        (lambda: topkast.VariationalDropout(threshold=None), r"`threshold` must be a number, got None"),
        (lambda: topkast.VariationalDropout(log_sigma2_init=True), r"`log_sigma2_init` must be a number, got True"),
        (lambda: topkast.L0(cut_at=2.5), r"`cut_at` must be a whole number of steps, got 2.5"),
    ],
)  # fmt: skip
def test_settings_that_are_no_numbers_are_named(make: Callable[[], topkast.Method], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_a_schedule_beyond_the_run_is_refused() -> None:
    topkast.RigL(0.9, t_end=750).check_run(1000)
    topkast.TopKAST(0.9, 0.8).check_run(1)
    with pytest.raises(ValueError, match=r"schedule of RigL ends at step 750, beyond the run of 700 steps"):
        topkast.RigL(0.9, t_end=750).check_run(700)
    with pytest.raises(ValueError, match=r"schedule of Pruning ends at step 90, beyond the run of 80"):
        topkast.Pruning(0.9, begin=0, end=90).check_run(80)
    with pytest.raises(ValueError, match=r"schedule of L0 ends at step 90, beyond the run of 80"):
        topkast.L0(cut_at=90).check_run(80)


def test_static_is_random_fixed_and_keeps_nothing_of_c() -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    theta = model[0].weight.detach().clone()
    sparse = topkast.sparsify(model, topkast.Static(0.9), seed=1)
    layer = sparse.layers["0"]
    mask = layer.forward_mask()
    assert int(mask.sum()) == 60
    assert torch.equal(layer.backward_mask(), mask)
    assert torch.equal(layer.theta(), theta * mask)
    assert sparse.stats()["0"].bytes["reservoir"] == 0
    # Random, not by magnitude: the mean magnitude is that of the layer, within 5 sigma of the mean of 60.
    chosen = theta[mask].abs()
    assert abs(float(chosen.mean() - theta.abs().mean())) < 5 * float(theta.abs().std()) / 60**0.5
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for _ in range(5):
        model(torch.randn(8, 20)).square().sum().backward()
        optimizer.step()
    assert torch.equal(layer.forward_mask(), mask)
    assert layer.weight.steps == 5


def test_random_exploration_takes_a_by_magnitude_and_the_rest_anew_each_time() -> None:
    model = nn.Sequential(nn.Linear(30, 30))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8, exploration="random"))
    layer = sparse.layers["0"]
    magnitude = topkast.TopKAST(0.9, 0.8)
    top_b = magnitude.choose(Moment(layer.weight.full_theta(), layer.weight.counts, torch.Generator()))
    assert not torch.equal(layer.weight.indices.long(), top_b.indices)
    assert torch.equal(layer.weight.indices[layer.weight.active].long(), top_b.indices[top_b.active])
    seen = []
    for _ in range(3):
        layer.weight.step.add_(1)
        sparse.refresh()
        seen.append(tuple(layer.weight.indices.tolist()))
    assert len(set(seen)) == 3


def test_after_explore_until_nothing_outside_a_moves_whatever_the_optimizer_holds() -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))
    method = topkast.TopKAST(0.9, 0.5, refresh_every=4, exchange_every=4, explore_until=10)
    sparse = topkast.sparsify(model, method)
    optimizer = sparse.attach(torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5))
    for step in range(24):
        before = [
            (layer.theta(), layer.forward_mask(), layer.backward_mask()) for layer in sparse.layers.values()
        ]
        loss = model(torch.randn(8, 20)).square().sum() + 1e-2 * sparse.penalty()
        loss.backward()
        for layer, (_, a, b) in zip(sparse.layers.values(), before, strict=True):
            outside_a = layer.weight.values.grad[~layer.weight.active]
            assert bool(outside_a.any()) == (step < 10)
            assert torch.equal(a, b) == (step >= 10)
        optimizer.step()
        optimizer.zero_grad()
        for layer, (theta, a, b) in zip(sparse.layers.values(), before, strict=True):
            moved = layer.theta() != theta
            assert moved[a].any()
            assert not moved[~b].any()
            if step < 10:
                assert moved[b & ~a].any()


def test_annealing_by_name_takes_both_sets_the_same_share_of_the_way() -> None:
    method = named_method("topkast", Choice(0.9, 0.6, anneal="linear", anneal_from=0.3, steps=1000))
    assert method == topkast.TopKAST(
        topkast.Anneal(0.3, 0.9, to_step=750, form="linear"),
        topkast.Anneal(0.2, 0.6, to_step=750, form="linear"),
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("topkast", {"anneal_from": 0.5}, "`anneal_from` needs `anneal`, the form: linear, cubic or cosine"),
        ("topkast", {"anneal": "cubic"}, "`anneal` goes by shares of the run: give `steps`"),
        ("topkast", {"anneal": "cubic", "anneal_from": 0.95, "steps": 9}, r"not exceed `forward_sparsity` \(0.9\), got 0.95"),
        ("rigl", {"anneal": "cubic", "steps": 9}, "rigl has no `anneal`"),
    ],
)  # fmt: skip
def test_bad_options_of_annealing(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named_method(name, Choice(**options))
