"""Engine `auto`: what it measures, remembers and restores."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import topkast
from topkast.kernels import auto
from topkast.kernels.auto import NAMES, Auto, fastest
from topkast.kernels.engines import ENGINES
from topkast.kernels.plan import Plan
from topkast.kernels.product import Conv


class Clock:
    """Passes that take as long as they are told to, on a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now

    def run(self, name: str, *seconds: float) -> Callable[[], None]:
        remaining = list(seconds)

        def passes() -> None:
            self.ran.append(name)
            self.now += remaining.pop(0) if len(remaining) > 1 else remaining[0]

        return passes


def test_the_fastest_wins_by_its_shortest_pass() -> None:
    clock = Clock()
    passes = {
        "native": clock.run("native", 9.0, 2.0, 9.0, 2.0),  # 9: warm-up, and a disturbance
        "masked": clock.run("masked", 1.0, 1.5, 1.5, 9.0, 1.5),
    }
    assert fastest(passes, clock) == "masked"


def test_the_preferred_one_wins_where_it_is_as_good() -> None:
    clock = Clock()
    assert (
        fastest({"native": clock.run("native", 1.04), "masked": clock.run("masked", 1.0)}, clock) == "native"
    )
    assert (
        fastest({"native": clock.run("native", 1.06), "masked": clock.run("masked", 1.0)}, clock) == "masked"
    )


def test_the_hopeless_are_not_timed_again() -> None:
    clock = Clock()
    passes = {
        "native": clock.run("native", 1.0),
        "masked": clock.run("masked", 1.1),
        "csr": clock.run("csr", 5.0),
    }
    assert fastest(passes, clock) == "native"
    assert clock.ran.count("csr") == 2
    assert clock.ran.count("native") == 5


@pytest.fixture
def winners(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the timing: names to win, one per measurement, taken from the front."""
    names: list[str] = []
    monkeypatch.setattr(auto, "fastest", lambda _passes: names.pop(0))
    auto.forget_measurements()
    yield names
    auto.forget_measurements()


def build(seed: int = 0) -> tuple[nn.Sequential, topkast.Handle]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8))
    return model, topkast.sparsify(
        model, topkast.TopKAST(0.8, 0.6, refresh_every=1, exchange_every=1), engine="auto"
    )


def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engines that compute linear layers from now on."""
    names: list[str] = []
    for engine in ENGINES.values():
        original = engine.linear

        def linear(*args: object, _engine=engine, _original=original, **options: object) -> torch.Tensor:
            names.append(_engine.name)
            return _original(*args, **options)

        monkeypatch.setattr(engine, "linear", linear)
    return names


def test_it_decides_once_per_larger_input_and_shows_it(
    winners: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sparse = build()
    assert " auto" in str(sparse)
    assert "auto:" not in str(sparse)
    seen = used(monkeypatch)
    winners += ["csr", "masked"]
    model(torch.randn(16, 24))
    assert "auto: csr" in str(sparse)
    assert "auto: masked" in str(sparse)
    model(torch.randn(16, 24))
    model(torch.randn(3, 24))  # smaller: nothing new is decided
    assert seen[-4:] == ["csr", "masked"] * 2
    winners += ["native", "native"]
    model(torch.randn(200, 24))
    assert not winners
    assert "auto: native" in str(sparse)
    model(torch.randn(16, 24))
    assert seen[-4:] == ["native", "native", "csr", "masked"]


def test_it_measures_only_in_training(winners: list[str]) -> None:
    model, sparse = build()
    with torch.no_grad():
        model(torch.randn(16, 24))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model(torch.randn(16, 24))
    assert all(not w.choices.any() for w in sparse.weights.values())
    assert winners == []


def test_equal_layers_are_measured_once(winners: list[str]) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.6), engine="auto")
    winners += ["csr"]
    model(torch.randn(8, 16))
    assert [w.describe_engine() for w in sparse.weights.values()] == ["auto: csr"] * 3


def test_measuring_leaves_results_and_random_numbers_alone() -> None:
    auto.forget_measurements()
    model, _ = build()
    twin, _ = build()
    x = torch.randn(16, 24)
    state = torch.random.get_rng_state()
    y = model(x)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.testing.assert_close(y, topkast.densify(twin)(x))


def test_a_resumed_run_uses_the_engines_of_the_first_to_the_last_bit(winners: list[str]) -> None:
    """The resumed process would have measured otherwise."""

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for step in range(first, last):
            x = torch.randn(16, 24, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    def start() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        model, sparse = build()
        return model, sparse.attach(torch.optim.Adam(model.parameters(), 0.01))

    model, optimizer = start()
    winners += ["native", "csr"]
    train(model, optimizer, 0, 5)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 5, 10)

    auto.forget_measurements()
    winners += ["masked", "masked"]
    resumed, optimizer = start()
    resumed.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(resumed, optimizer, 5, 10)
    assert winners == ["masked", "masked"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (torch.zeros(3, dtype=torch.int8), "choices must be 64 int8 numbers, got \\(3,\\)"),
        (torch.zeros(64), "choices must be 64 int8 numbers, got \\(64,\\) torch.float32"),
        (torch.full((64,), 4, dtype=torch.int8), "choices must name engines, 0 to 3, got 4"),
        (torch.full((64,), -1, dtype=torch.int8), "choices must name engines, 0 to 3, got -1"),
    ],
)
def test_bad_choices_in_a_state_are_refused(choices: torch.Tensor, message: str) -> None:
    model, _ = build()
    state = model.state_dict()
    state["0.weight.choices"] = choices
    with pytest.raises(ValueError, match=f"layer '0'.*{message}"):
        model.load_state_dict(state)


def test_a_large_weight_is_never_made_dense_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_DENSE_LIMIT", 500)
    tried: list[str] = []
    monkeypatch.setattr(auto, "fastest", lambda passes: tried.extend(passes) or next(iter(passes)))
    auto.forget_measurements()
    model, _ = build()
    model(torch.randn(16, 24))
    auto.forget_measurements()
    assert tried == ["native", "csr", "native", "masked", "csr"]  # 24·32 > 500, 32·8 < 500


def test_a_choice_that_cannot_run_here_is_replaced() -> None:
    """As when a checkpoint goes to a machine without the compiled core."""
    choices = torch.zeros(auto.NUM_SIZES, dtype=torch.int8)
    choices[:] = NAMES.index("csr")
    plan = Plan((4, 2, 3, 3, 3), torch.tensor([0]), torch.tensor([True]))
    geometry = topkast.kernels.engine.ConvGeometry((1,) * 3, (0,) * 3, (1,) * 3, 1)
    x = torch.randn(1, 2, 5, 5, 5)
    assert Auto(choices).pick(Conv(geometry), plan, torch.ones(1), x, is_training=False).name == "masked"


def test_layers_native_cannot_do_are_named() -> None:
    model = nn.Sequential(nn.Conv3d(2, 4, 3), nn.Flatten(), nn.Linear(4, 4))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.5, 0.2), engine="auto")
    assert "other engine: 0 uses masked: native has no 3-D convolution" in str(sparse)


def test_a_trial_leaves_nothing_of_the_losers_behind() -> None:
    model = nn.Sequential(nn.Linear(256, 256))
    sparse = topkast.sparsify(model, topkast.Static(0.9), seed=0)
    model(torch.randn(64, 256)).sum().backward()
    chosen = sparse.memory().layers["0"]["plan"]
    engine = sparse.weights["0"].describe_engine().removeprefix("auto: ")
    alone = topkast.sparsify(nn.Sequential(nn.Linear(256, 256)), topkast.Static(0.9), seed=0, engine=engine)
    alone.model(torch.randn(64, 256)).sum().backward()
    assert chosen == alone.memory().layers["0"]["plan"]
