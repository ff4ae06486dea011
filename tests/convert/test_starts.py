"""How sparse layers start: drawn in place of what is there, and scaled to make up for what is outside A."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import topkast
from topkast.core.initial import initial

METHOD = topkast.TopKAST(0.9, 0.8)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 50))


def start(reservoir: Any = "stored", method: topkast.Method = METHOD, **options: Any) -> topkast.Handle:
    with torch.device("meta" if reservoir == "implicit" else "cpu"):
        model = net()
    return topkast.sparsify(model, method, reservoir=reservoir, seed=3, **options)


def energies(weight: Any) -> tuple[float, float]:
    """Σ_A θ² and Σ θ²."""
    theta = weight.theta().double().square()
    return float(theta[weight.forward_mask()].sum()), float(theta.sum())


STARTS: list[Any] = [
    "lecun_normal",
    "kaiming_uniform",
    topkast.TruncatedNormal(1.0, 2.0),
    "keep_variance:lecun_normal",
    "supar:xavier_uniform",
    topkast.Scaled(topkast.TruncatedNormal(0.5, 0.7)),
    {"*": "lecun_normal", "2": topkast.Scaled("torch", by="density")},
]


@pytest.mark.parametrize("init", STARTS, ids=str)
@pytest.mark.parametrize("method", [METHOD, topkast.Static(0.9), topkast.TopKAST(0.9, 0.8, scope="global")])
def test_stored_and_implicit_weights_of_one_seed_start_alike(init: Any, method: topkast.Method) -> None:
    stored, implicit = (start(reservoir, method, init=init) for reservoir in ("stored", "implicit"))
    for name, weight in stored.weights.items():
        other = implicit.weights[name]
        assert torch.equal(weight.indices, other.indices)
        assert torch.equal(weight.active, other.active)
        assert torch.equal(weight.values, other.values)
        assert weight.reservoir.kind == ("stored" if method.fetches else "empty")
        if method.fetches:
            assert torch.equal(weight.theta(), other.theta())


def test_they_go_on_alike() -> None:
    runs = [start(reservoir, init="keep_variance:lecun_normal") for reservoir in ("stored", "implicit")]
    for run in runs:
        model = run.model
        with torch.no_grad():  # what is dense is the model's own, or comes from the seed
            for layer in (model.get_submodule("0"), model.get_submodule("2")):
                layer.bias.zero_()
        optimizer = run.attach(torch.optim.Adam(model.parameters(), lr=0.02))
        for step in range(12):
            x = torch.randn(8, 300, generator=torch.Generator().manual_seed(step))
            (model(x).square().mean() + 1e-3 * run.penalty()).backward()
            optimizer.step()
            optimizer.zero_grad()
    for name, weight in runs[0].weights.items():
        assert torch.equal(weight.theta(), runs[1].weights[name].theta())


@pytest.mark.parametrize(
    ("init", "share"), [("torch", 0.271), ("lecun_normal", 0.439)], ids=["uniform", "normal"]
)
def test_variance_is_kept_at_a(init: str, share: float) -> None:
    """What the largest tenth of a distribution has of Σθ²: 1 - 0.9³, and D + 2tφ(t) with t = Φ⁻¹(0.95)."""
    plain, kept = start(init=init), start(init=f"keep_variance:{init}")
    for name, weight in kept.weights.items():
        on_a, total = energies(plain.weights[name])
        assert on_a / total == pytest.approx(share, abs=2e-3)
        assert energies(weight)[0] == pytest.approx(total, rel=2e-3)
        torch.testing.assert_close(weight.forward_mask(), plain.weights[name].forward_mask())


def test_weights_that_are_there_are_scaled_as_they_are() -> None:
    dense = net().state_dict()
    for method in (METHOD, topkast.Static(0.9)):
        sparse = start(method=method, init="keep_variance")
        for name, weight in sparse.weights.items():
            theta = dense[f"{name}.weight"]
            assert energies(weight)[0] == pytest.approx(float(theta.double().square().sum()), rel=1e-5)
            b = weight.indices.long()
            ratio = weight.values.detach() / theta.flatten()[b]
            torch.testing.assert_close(ratio, ratio[0].expand_as(ratio))


def test_supar_scales_by_the_density_of_each_layer() -> None:
    dense = net().state_dict()
    sparse = start(init="supar", distribution={"2": (0.99, 0.98)})
    for name, density in (("0", 0.1), ("2", 0.01)):
        theta = sparse.weights[name].theta()
        torch.testing.assert_close(theta, dense[f"{name}.weight"] * density**-0.5)


def test_layers_that_are_named_own_keep_what_they_have() -> None:
    dense = net().state_dict()
    sparse = start(init={"*": "lecun_normal", "2": "own"})
    assert torch.equal(sparse.weights["2"].theta(), dense["2.weight"])
    assert sparse.weights["0"].theta().std() == pytest.approx(300**-0.5, rel=0.02)


def test_a_padding_row_stays_at_zero() -> None:
    model = nn.Sequential(nn.Embedding(20, 8, padding_idx=3), nn.Flatten(), nn.Linear(16, 4))
    sparse = topkast.sparsify(model, METHOD, init="keep_variance:lecun_normal", seed=0)
    theta = sparse.weights["0"].theta()
    assert not theta[3].any()
    assert theta[4].any()


def test_a_layer_by_itself_can_be_scaled() -> None:
    plain = topkast.nn.Linear(300, 200, method=METHOD, seed=1)
    kept = topkast.nn.Linear(300, 200, method=METHOD, seed=1, init="keep_variance")
    assert energies(kept.weight)[0] == pytest.approx(energies(plain.weight)[1], rel=2e-3)


@pytest.mark.parametrize("init", ["torch", "lecun_normal", topkast.TruncatedNormal(0.3, 0.5)], ids=str)
def test_variances_are_those_of_what_is_drawn(init: Any) -> None:
    theta = start(init=init).weights["0"].theta().double()
    expected = (init if not isinstance(init, str) else initial(init, (200, 300))).variance
    assert float(theta.square().mean()) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("lecun", r"layer '0': the initial distribution 'lecun' is not known .* 'keep_variance:NAME' and"),
        ("supar:lecun", r"the initial distribution 'lecun' is not known"),
        ({"3": "lecun_normal"}, r"`init` names '3', which matches no sparse layer"),
    ],
    ids=str,
)
def test_what_cannot_be_a_start_is_refused_and_changes_nothing(init: Any, message: str) -> None:
    model = net()
    with pytest.raises(ValueError, match=message):
        topkast.sparsify(model, METHOD, init=init)
    assert type(model[0]) is nn.Linear


def test_zeros_and_half_precision_are_refused() -> None:
    model = net()
    nn.init.zeros_(model[0].weight)
    with pytest.raises(ValueError, match="layer '0': its variance cannot be kept: all that is in A is zero"):
        topkast.sparsify(model, METHOD, init="keep_variance")
    with pytest.raises(ValueError, match="layer '0'"):
        topkast.sparsify(net().bfloat16(), METHOD, init="lecun_normal")
    with pytest.raises(ValueError, match="`by` must be 'variance' or 'density', got 'x'"):
        topkast.Scaled(by="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`init` must be a name or a distribution, got 3"):
        topkast.Scaled(3)  # type: ignore[arg-type]
