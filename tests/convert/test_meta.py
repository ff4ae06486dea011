"""Models built on the meta device: drawn sparse, each layer from its own distribution, all from the seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import topkast
from topkast.core.initial import Initial, Normal, TruncatedNormal, Uniform

METHOD = topkast.TopKAST(0.9, 0.8)


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def implicit(model: nn.Module, **options: Any) -> topkast.Handle:
    return topkast.sparsify(model, METHOD, reservoir="implicit", **{"seed": 0, **options})


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True, add_bias_kv=True)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 200)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))


def test_a_model_comes_to_life_and_trains() -> None:
    model = on_meta(Tied)
    handle = implicit(model)
    assert not any(t.is_meta for t in model.state_dict().values())
    assert handle.layers["embedding"].weight is handle.layers["head"].weight
    optimizer = handle.attach(torch.optim.Adam(model.parameters(), lr=0.01))
    ids = torch.randint(200, (4, 9), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert torch.isfinite(model.norm.running_var).all()  # buffers were initialised, not left as they were


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: nn.Linear(300, 200), "0"),
        (lambda: nn.Conv2d(30, 40, 3), "0"),
        (lambda: nn.Conv1d(30, 40, 5, groups=2), "0"),
        (lambda: nn.Embedding(300, 100), "0"),
        (lambda: nn.MultiheadAttention(96, 4), "0.q_proj"),
        (lambda: nn.MultiheadAttention(96, 4), "0.out_proj"),
        (lambda: nn.MultiheadAttention(96, 4, kdim=64, vdim=80), "0.k_proj"),
    ],
)
def test_a_layer_starts_as_torch_would_start_it(build: Callable[[], nn.Module], name: str) -> None:
    """Quantiles of |θ⁰|, and what is dense, against torch's own layer."""
    torch.manual_seed(0)
    given = topkast.sparsify(nn.Sequential(build()), METHOD)
    drawn = implicit(on_meta(lambda: nn.Sequential(build())))
    theirs, mine = (h.layers[name].theta().flatten() for h in (given, drawn))
    shares = torch.linspace(0.05, 0.95, 19)
    torch.testing.assert_close(
        mine.quantile(shares), theirs.quantile(shares), rtol=0.1, atol=0.06 * float(theirs.std())
    )
    torch.testing.assert_close(mine.abs().max(), theirs.abs().max(), rtol=0.15, atol=0)
    biases = [h.layers[name].bias for h in (given, drawn)]
    assert (biases[0] is None) == (biases[1] is None)
    if biases[0] is not None:
        torch.testing.assert_close(biases[1].std(), biases[0].std(), rtol=0.4, atol=1e-9)


def test_everything_follows_from_the_seed_and_the_names() -> None:
    states = []
    for noise, seed in ((1, 5), (2, 5), (1, 6)):
        torch.manual_seed(noise)
        model = on_meta(Tied)
        implicit(model, seed=seed)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["head.bias"], states[2]["head.bias"])
    assert not torch.equal(states[0]["head.weight.indices"], states[2]["head.weight.indices"])


@pytest.mark.parametrize(
    ("init", "std"),
    [
        ("kaiming_normal", math.sqrt(2 / 300)),
        ("kaiming_uniform", math.sqrt(2 / 300)),
        ("xavier_normal", math.sqrt(2 / 500)),
        ("xavier_uniform", math.sqrt(2 / 500)),
        ("lecun_normal", math.sqrt(1 / 300)),
        ("lecun_uniform", math.sqrt(1 / 300)),
        ("transformer_xl", 0.02),
        (Normal(0.3), 0.3),
        (Uniform(0.3), 0.3 / math.sqrt(3)),
        (TruncatedNormal(1.0, 2.0), 0.8796),
        ({"0": Normal(0.5)}, 0.5),
        ({"*": "torch", "0": Normal(0.5)}, 0.5),
    ],
)
def test_init_chooses_the_distribution(init: str | Initial | dict[str, Any], std: float) -> None:
    handle = implicit(on_meta(lambda: nn.Sequential(nn.Linear(300, 200))), init=init)
    assert float(handle.layers["0"].theta().std()) == pytest.approx(std, rel=0.01)


def test_a_truncated_normal_ends_at_its_limit() -> None:
    handle = implicit(on_meta(lambda: nn.Sequential(nn.Linear(300, 200))), init=TruncatedNormal(1.0, 2.0))
    torch.manual_seed(0)
    theirs = nn.init.trunc_normal_(torch.empty(200, 300))
    mine = handle.layers["0"].theta()
    assert 1.99 < float(mine.abs().max()) < 2.0
    shares = torch.linspace(0.05, 0.95, 19)
    torch.testing.assert_close(
        mine.flatten().quantile(shares), theirs.flatten().quantile(shares), rtol=0.05, atol=0.02
    )


def test_static_and_random_exploration_draw_too() -> None:
    for method in (topkast.Static(0.9), topkast.TopKAST(0.9, 0.8, exploration="random")):
        model = on_meta(lambda: nn.Sequential(nn.Linear(300, 200)))
        handle = topkast.sparsify(model, method, reservoir="implicit", seed=0)
        values = handle.weights["0"].values.detach()
        assert values.abs().max() <= 1 / math.sqrt(300)
        assert abs(float(values.mean())) < 5 * float(values.std()) / math.sqrt(len(values))


def test_every_distribution_of_sparsity() -> None:
    for distribution in ("uniform", "erk", {"0": 0.5}):
        model = on_meta(lambda: nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 50)))
        handle = implicit(model, distribution=distribution)
        for weight in handle.weights.values():
            theta = weight.theta().flatten().abs()
            assert theta[weight.indices.long()].min() >= theta.sort().values[-weight.counts.backward]


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("mask", torch.ones(2))


class OwnStart(nn.Linear):
    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 8)), {}, "layer '0' has values, which an implicit reservoir"),
        (lambda: on_meta(Odd), {}, r"module '' \(Odd\) .* no `reset_parameters` for its scale, mask"),
        (lambda: on_meta(lambda: nn.Sequential(OwnStart(8, 8))), {}, "layer '0': OwnStart has an init"),
        (
            lambda: on_meta(lambda: nn.Sequential(nn.Linear(8, 8))),
            {"init": "orthogonal"},
            "'orthogonal' is not",
        ),
        (
            lambda: on_meta(lambda: nn.Sequential(nn.Linear(8, 8))),
            {"init": {"x*": "torch"}},
            "'x\\*', which mat",
        ),
        (lambda: on_meta(lambda: nn.Sequential(nn.Embedding(9, 8, padding_idx=0))), {}, "padding row"),
        (lambda: on_meta(lambda: nn.Sequential(nn.Linear(8, 8).half())), {}, "must be float32 or float64"),
        (lambda: on_meta(lambda: nn.Sequential(nn.Linear(2**30, 2**19))), {}, r"1 to 2\^48 elements"),
    ],
)
def test_what_cannot_be_implicit_is_refused_and_nothing_changes(
    build: Callable[[], nn.Module], options: dict[str, Any], message: str
) -> None:
    model = build()
    before = {name: (id(p), p.is_meta) for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match=message):
        implicit(model, **options)
    assert {name: (id(p), p.is_meta) for name, p in model.named_parameters()} == before


def test_initialise_says_how_the_rest_starts() -> None:
    seen: list[str] = []

    def initialise(module: nn.Module) -> None:
        seen.append(type(module).__name__)
        if isinstance(module, Odd):
            module.scale.fill_(2.0)
            module.mask.fill_(3.0)

    model = on_meta(Odd)
    implicit(model, initialise=initialise)
    assert seen == ["Odd"]
    assert model.scale.tolist() == [2.0] * 3
    assert model.mask.tolist() == [3.0] * 2


def test_initialise_is_for_implicit_reservoirs() -> None:
    with pytest.raises(ValueError, match='`initialise` is for reservoir="implicit"'):
        topkast.sparsify(nn.Sequential(nn.Linear(8, 8)), METHOD, initialise=print)
    with pytest.raises(ValueError, match="'stored' or 'implicit', got 'none'"):
        topkast.sparsify(nn.Sequential(nn.Linear(8, 8)), METHOD, reservoir="none")  # pyright: ignore


def test_a_frozen_table_on_the_meta_device_is_computed_by_what_contains_it() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 8).requires_grad_(False)
            self.inner = nn.Linear(8, 8)

    def initialise(module: nn.Module) -> None:
        if isinstance(module, Encoder):
            module.table.weight.copy_(torch.arange(56.0).view(7, 8))

    model = on_meta(lambda: nn.Sequential(Encoder(), nn.Linear(8, 8)))
    handle = implicit(model, initialise=initialise)
    assert list(handle.layers) == ["0.inner", "1"]
    assert handle.left_dense["0.table"].startswith("frozen (requires_grad=False)")
    assert torch.equal(model[0].table.weight, torch.arange(56.0).view(7, 8))
    assert not model[0].table.weight.requires_grad
