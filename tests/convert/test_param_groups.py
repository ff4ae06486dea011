"""Learning rates by density: which group each layer is in, and that loops treat the groups as any others."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from small_loop import loss_of
from torch import nn

import topkast
from topkast.core.rates import factors_of, power_of


def setup(**options: Any) -> tuple[nn.Sequential, topkast.Handle]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 100), nn.Tanh(), nn.Linear(100, 50), nn.Tanh(), nn.Linear(50, 3))
    distribution = {"0": (0.75, 0.5), "2": (0.99, 0.98)}
    return model, topkast.sparsify(model, topkast.TopKAST(0.75, 0.5), distribution=distribution, **options)


def rates(sparse: topkast.Handle, **options: Any) -> dict[str, float]:
    groups = sparse.param_groups(lr=0.1, **options)
    by_values = {id(p): group["lr"] for group in groups for p in group["params"]}
    return {name: by_values[id(weight.values)] for name, weight in sparse.weights.items()}


@pytest.mark.parametrize(
    ("rate", "wanted"),
    [
        ("same", [0.1, 0.1, 0.1]),
        ("sqrt", [0.2, 1.0, 0.2]),
        ("inverse", [0.4, 10.0, 0.4]),
        (0.25, [0.1 * 4**0.25, 0.1 * 100**0.25, 0.1 * 4**0.25]),
        (0, [0.1, 0.1, 0.1]),
    ],
)
def test_each_layer_has_a_rate_by_its_own_density(rate: Any, wanted: list[float]) -> None:
    model, sparse = setup()
    # 37.5 of 150 weights make 38: a density of 0.253 that is the layer's own.
    wanted[2] *= (0.25 / float(f"{38 / 150:.3g}")) ** power_of(rate)
    assert list(rates(sparse, rate=rate).values()) == pytest.approx(wanted)
    rest = sparse.param_groups(lr=0.1, rate=rate)[0]
    assert rest["lr"] == 0.1
    assert {id(p) for p in rest["params"]} == {id(m.bias) for m in model if hasattr(m, "bias")}


def test_a_rule_for_the_whole_network_scales_what_is_dense_by_the_mean_density() -> None:
    _, sparse = setup()
    counts = [weight.counts for weight in sparse.weights.values()]
    mean = sum(c.forward for c in counts) / sum(c.numel for c in counts)
    groups = sparse.param_groups(lr=0.1, rate="inverse", whole=True)
    assert groups[0]["lr"] == pytest.approx(0.1 / float(f"{mean:.3g}"))
    assert [g["lr"] for g in groups[1:]] == [g["lr"] for g in sparse.param_groups(lr=0.1, rate="inverse")[1:]]
    assert sparse.param_groups(lr=0.1, whole=True)[0]["lr"] == 0.1  # by the rule "same"
    assert "lr" not in sparse.param_groups(whole=True)[0]


def test_densities_that_differ_by_an_element_share_a_group() -> None:
    densities = {"a": 100_000 / 1_000_000, "b": 100_003 / 1_000_000, "c": 0.2}
    found = factors_of(densities, "inverse", {}, {name: [name] for name in densities})
    assert found == {"a": 10.0, "b": 10.0, "c": 5.0}
    torch.manual_seed(0)
    layers = [nn.Linear(100 + i, 101) for i in range(6)]
    sparse = topkast.sparsify(nn.Sequential(*layers), topkast.TopKAST(0.9, 0.8))
    assert len(sparse.param_groups(lr=0.1, rate="sqrt")) == 2


def test_named_layers_have_a_factor_of_their_own_and_the_last_counts() -> None:
    _, sparse = setup()
    found = rates(sparse, rate="inverse", factors={"*": 2.0, "2": 1.0})
    assert list(found.values()) == pytest.approx([0.2, 0.1, 0.2])


def test_a_tied_weight_goes_by_any_of_its_names() -> None:
    model = nn.Sequential(nn.Embedding(30, 10), nn.Linear(10, 30, bias=False))
    model[1].weight = model[0].weight
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8))
    (group,) = sparse.param_groups(lr=0.1, rate="sqrt", factors={"1": 3.0})
    assert group["lr"] == pytest.approx(0.3)


def test_without_a_rate_groups_are_what_they_were() -> None:
    _, sparse = setup()
    groups = sparse.param_groups(weight_decay=0.1)
    assert [sorted(group) for group in groups] == [["params", "weight_decay"]] * 2
    assert [sorted(group) for group in sparse.param_groups()] == [["params"], ["params", "weight_decay"]]
    with_rate = sparse.param_groups(0.1, lr=0.2)
    assert [g["lr"] for g in with_rate] == [0.2, 0.2]
    assert [[id(p) for p in g["params"]] for g in with_rate] == [[id(p) for p in g["params"]] for g in groups]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rate": "sqrt"}, ValueError, r"`rate` \('sqrt'\) and `factors` need `lr`, .*: give it to `param_gro"),
        ({"factors": {"0": 1.0}}, ValueError, r"`factors` need `lr`"),
        ({"lr": 0.1, "rate": "root"}, ValueError, r"`rate` must be one of 'same', 'sqrt', 'inverse', or the power p .*, got 'root'"),
        ({"lr": 0.1, "rate": -0.5}, ValueError, r"`rate` must be the power p .*, finite and at least 0, got -0.5"),
        ({"lr": 0.1, "rate": math.inf}, ValueError, r"`rate` must be .*, got inf"),
        ({"lr": 0.1, "rate": None}, TypeError, r"`rate` must be .* a number, got None"),
        ({"lr": -1.0}, ValueError, r"`lr` must be the learning rate .* at least 0, got -1.0"),
        ({"lr": "0.1"}, TypeError, r"`lr` must be .* a number, got '0.1'"),
        ({"lr": 0.1, "factors": {"hed": 1.0}}, ValueError, r"`factors` names 'hed', which matches no sparse layer; there are '0'"),
        ({"lr": 0.1, "factors": {"0": -1}}, ValueError, r"`factors\['0'\]` must be a factor .* at least 0, got -1"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_rate_is_refused(options: Any, error: type[Exception], message: str) -> None:
    _, sparse = setup()
    with pytest.raises(error, match=message):
        sparse.param_groups(weight_decay=0.0, **options)


def train(model: nn.Module, sparse: topkast.Handle, optimizer: Any, schedule: Any, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        (loss_of(model) + 1e-3 * sparse.penalty()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_schedules_scale_each_rate_and_a_resumed_run_keeps_its_bits(kind: Any) -> None:
    def start() -> tuple[Any, ...]:
        model, sparse = setup()
        optimizer = sparse.attach(kind(sparse.param_groups(0.01, lr=0.01, rate="sqrt")))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return model, sparse, optimizer, schedule

    whole, stopped, resumed = start(), start(), start()
    first = [group["lr"] for group in whole[2].param_groups]
    assert len({*first}) == len(first) == 4
    train(*whole, range(9))
    assert [g["lr"] for g in whole[2].param_groups] == pytest.approx([lr / 10 for lr in first])
    train(*stopped, range(4))
    saved = copy.deepcopy([part.state_dict() for part in (stopped[0], stopped[2], stopped[3])])
    for part, state in zip((resumed[0], resumed[2], resumed[3]), saved, strict=True):
        part.load_state_dict(state)
    train(*resumed, range(4, 9))
    for key, tensor in whole[0].state_dict().items():
        assert torch.equal(tensor, resumed[0].state_dict()[key]), key


def test_a_step_is_longer_by_the_factor() -> None:
    """Of plain SGD, from the same start and gradient; steps are small numbers added to larger ones."""
    moved = []
    for rate in ("same", "inverse"):
        model, sparse = setup()
        optimizer = sparse.attach(torch.optim.SGD(sparse.param_groups(lr=1e-4, rate=rate)))
        before = sparse.weights["2"].values.detach().clone()
        torch.manual_seed(1)
        (loss_of(model) + 1e-3 * sparse.penalty()).backward()
        optimizer.step()
        moved.append(sparse.weights["2"].values.detach() - before)
    torch.testing.assert_close(moved[1], 100 * moved[0], rtol=1e-2, atol=1e-6)
