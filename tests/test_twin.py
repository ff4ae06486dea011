"""The library against the dense twin, element by element, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import topkast
import twin

TOLERANCE = 1e-10
STEPS = 200


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(12, 20)
        self.fc2 = nn.Linear(20, 16, bias=False)
        self.fc3 = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2)
        self.fc = nn.Linear(8 * 2 * 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.conv2(torch.tanh(self.conv1(x.view(-1, 2, 6, 6)))))
        return self.fc(h.flatten(1))


MODELS: dict[str, tuple[type[nn.Module], int, list[str]]] = {
    "mlp": (MLP, 12, ["fc1.weight", "fc2.weight", "fc3.weight"]),
    "convnet": (ConvNet, 72, ["conv1.weight", "conv2.weight", "fc.weight"]),
}

OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], twin.Optimizer]] = {
    "sgd-nesterov": (
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        twin.Optimizer(twin.sgd(0.05, 0.9, True), {"momentum_buffer": 0.0}),
    ),
    "adam": (
        lambda p: torch.optim.Adam(p, lr=0.01),
        twin.Optimizer(twin.adam(0.01), {"exp_avg": 0.0, "exp_avg_sq": 0.0}),
    ),
    "adamw": (
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        twin.Optimizer(twin.adam(0.01, decay=0.1), {"exp_avg": 0.0, "exp_avg_sq": 0.0}),
    ),
    "rmsprop": (
        lambda p: torch.optim.RMSprop(p, lr=0.003, alpha=0.95, momentum=0.5),
        twin.Optimizer(twin.rmsprop(0.003, 0.95, 0.5), {"square_avg": 0.0, "momentum_buffer": 0.0}),
    ),
    "adagrad": (
        lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1),
        twin.Optimizer(twin.adagrad(0.05, 0.01), {"sum": 0.1}),
    ),
    "nadam": (
        lambda p: torch.optim.NAdam(p, lr=0.01),
        twin.Optimizer(twin.nadam(0.01), {"exp_avg": 0.0, "exp_avg_sq": 0.0}),
    ),
}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """Torch keeps its own scalars, such as NAdam's product of momenta, in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def batches(inputs: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    teacher = torch.randn(inputs, 4, generator=generator, dtype=torch.float64)
    xs = torch.randn(40, 16, inputs, generator=generator, dtype=torch.float64)
    return [(x, (x @ teacher).argmax(1)) for x in xs]


def assert_equal(sparse: topkast.Handle, optimizer: torch.optim.Optimizer, dense: twin.Twin) -> None:
    """θ, A, B and every state tensor, in dense coordinates."""
    for name, layer in sparse.layers.items():
        entry = dense.entries[f"{name}.weight"]
        assert torch.equal(layer.forward_mask(), entry.a), name
        assert torch.equal(layer.backward_mask(), entry.b), name
        torch.testing.assert_close(layer.theta(), entry.theta, rtol=0, atol=TOLERANCE)
        for key, expected in entry.state.items():
            state = optimizer.state[layer.weight.values][key]
            b = layer.weight.indices[layer.weight.updated()].long()
            ours = state[layer.weight.updated()]
            torch.testing.assert_close(ours, expected.flatten()[b], rtol=0, atol=TOLERANCE)
    for name, parameter in sparse.model.named_parameters():
        if name in dense.entries:  # biases
            torch.testing.assert_close(parameter.detach(), dense.entries[name].theta, rtol=0, atol=TOLERANCE)


# Of A and of B, as the library takes them; the same written out, by the step; steps of more exchanges.
Schedules = tuple[Any, Any, Callable[[int], tuple[float, float]], tuple[int, ...]]


def run_both(
    model_name: str,
    optimizer_name: str,
    engine: str,
    clocks: tuple[int, int],
    explore_until: int | None = None,
    steps: int = STEPS,
    backward: float = 0.5,
    forward: float = 0.8,
    weak: float = 1.0,
    schedules: Schedules | None = None,
    **options: Any,
) -> tuple[topkast.Handle, set[int], twin.Twin]:
    model_type, inputs, sparse_names = MODELS[model_name]
    model = model_type().double()
    for name in sparse_names:  # the first output and the last input of each layer
        weight = model.get_parameter(name).data
        weight[0] *= weak
        weight[:, -1] *= weak
    make, twin_optimizer = OPTIMIZERS[optimizer_name]
    options = {"explore_until": explore_until, **options}
    dense = twin.Twin(
        copy.deepcopy(model), sparse_names, forward, backward, *clocks, twin_optimizer, 1e-3, **options,
        lr=make(model.parameters()).param_groups[0]["lr"],
        **({} if schedules is None else {"schedule": schedules[2], "ends": schedules[3]}),
    )  # fmt: skip
    refresh, exchange = clocks
    sparsities = (forward, backward) if schedules is None else schedules[:2]
    method = topkast.TopKAST(*sparsities, refresh_every=refresh, exchange_every=exchange, **options)
    sparse = topkast.sparsify(model, method, engine=engine)
    optimizer = sparse.attach(make(model.parameters()))
    data = batches(inputs)
    sets_seen: set[int] = set()
    for step in range(steps):
        x, y = data[step % len(data)]
        loss = F.cross_entropy(model(x), y)
        (loss + 1e-3 * sparse.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() == pytest.approx(
            dense.step(lambda f, x=x, y=y: F.cross_entropy(f(x), y)), abs=1e-9
        )
        if step % 25 == 0 or step == steps - 1:
            assert_equal(sparse, optimizer, dense)
        sets_seen.add(hash(tuple(tuple(w.indices.tolist()) for w in sparse.weights.values())))
    return sparse, sets_seen, dense


# A network of convolutions with two of the clocks; the others take minutes.
_TRAINED = [
    pytest.param(
        model, clocks, marks=[] if model == "mlp" or clocks in ((1, 7), (5, 20)) else [pytest.mark.slow]
    )
    for model in MODELS
    for clocks in ((1, 1), (1, 7), (1, 100), (5, 20), (100, 100))
]


@pytest.mark.parametrize(("model", "clocks"), _TRAINED)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_equals_the_dense_twin(
    model: str, optimizer: str, clocks: tuple[int, int], engine: str
) -> None:
    _, sets_seen, _ = run_both(model, optimizer, engine, clocks)
    # The comparison means something only if B really moved.
    assert len(sets_seen) > 1


@pytest.mark.parametrize("optimizer", ["sgd-nesterov", "adam"])
@pytest.mark.parametrize("model", MODELS)
def test_exchanges_that_come_early_equal_the_dense_twin(model: str, optimizer: str, engine: str) -> None:
    """B is hardly larger than A, so that the least of A soon falls to the largest of C."""
    sparse, _, dense = run_both(model, optimizer, engine, (1, 100), steps=150, backward=0.78)
    early = [stats.early_exchanges for stats in sparse.stats().values()]
    assert sum(early) == dense.num_early > 10


@pytest.mark.parametrize("optimizer", ["sgd-nesterov", "adam"])
def test_exchanges_that_hysteresis_holds_off_equal_the_dense_twin(optimizer: str, engine: str) -> None:
    """One of C enters A only if it is larger than the least of A as that counts: fewer come early."""
    _, _, plain = run_both("mlp", optimizer, engine, (1, 100), steps=80, backward=0.78)
    sparse, _, dense = run_both("mlp", optimizer, engine, (1, 100), steps=80, backward=0.78, hysteresis=1.05)
    assert sum(stats.early_exchanges for stats in sparse.stats().values()) == dense.num_early
    assert dense.num_early < plain.num_early


@pytest.mark.parametrize("clocks", [(7, 7), (1, 20)], ids=str)
@pytest.mark.parametrize("explore_until", [0, 50, 53])
@pytest.mark.parametrize("optimizer", ["sgd-nesterov", "adamw"])
def test_ending_exploration_equals_the_dense_twin(
    optimizer: str, explore_until: int, clocks: tuple[int, int], engine: str
) -> None:
    sparse, *_ = run_both("mlp", optimizer, engine, clocks, explore_until, steps=150)
    for stats in sparse.stats().values():
        assert stats.backward == stats.forward


FLOORS: dict[str, dict[str, Any]] = {
    "fan-in": {"min_fan_in": 2},
    "fan-out": {"min_fan_out": 1},
    "both, hysteresis": {"min_fan_in": 1, "min_fan_out": 1, "hysteresis": 1.3},
    "fan-in (t)": {"min_fan_in": 2, "explore_until": 23},
}
_SETTINGS = (
    ("mlp", "sgd-nesterov", (1, 7), 0.4),
    ("mlp", "adamw", (1, 1), 0.5),
    ("convnet", "adam", (5, 20), 0.4),
    ("convnet", "sgd-nesterov", (1, 100), 0.62),
)
# Each of both once; all pairs take half a minute.
_FLOORED = [
    pytest.param(options, *setting, id=f"{name}-{setting}", marks=[] if i == j else [pytest.mark.slow])
    for i, (name, options) in enumerate(FLOORS.items())
    for j, setting in enumerate(_SETTINGS)
]


@pytest.mark.parametrize(("options", "model", "optimizer", "clocks", "backward"), _FLOORED)
def test_floors_equal_the_dense_twin(
    options: dict[str, Any],
    model: str,
    optimizer: str,
    clocks: tuple[int, int],
    backward: float,
    engine: str,
) -> None:
    options = {"forward": 0.65, "backward": backward, "weak": 0.01, **options}
    sparse, _, dense = run_both(model, optimizer, engine, clocks, steps=45, **options)
    assert sum(stats.early_exchanges for stats in sparse.stats().values()) == dense.num_early
    held_up = 0
    for entry in dense.entries.values():
        if entry.num_a:
            a = entry.a.flatten(2).sum(2) if entry.a.ndim > 2 else entry.a
            assert a.sum(1).min() >= dense.floors[0]
            assert a.sum(0).min() >= dense.floors[1]
            held_up += int((entry.a & ~twin.top_k(entry.theta, entry.num_a)).sum())
    assert held_up  # else the floors had nothing to do


OPTIONS: dict[str, dict[str, Any]] = {
    "short steps": {"exploration_rate": 0.1},
    "no steps": {"exploration_rate": 0.0},
    "warm-up": {"exploration_rate": 0.5, "exploration_warmup": 30},
    "decay": {"decay": 0.5},
    "hysteresis": {"hysteresis": 1.5},
    "all": {"hysteresis": 1.2, "exploration_rate": 0.5, "exploration_warmup": 10, "decay": 0.2},
    "decay and short steps that end": {"decay": 0.2, "exploration_rate": 0.3, "explore_until": 33},
    "short steps that end": {"exploration_rate": 0.3, "explore_until": 33},
}


# Every optimizer and every pair of clocks once; the other pairs of both take minutes.
_TOGETHER = (("sgd-nesterov", (1, 7)), ("adam", (5, 20)), ("adamw", (1, 1)))
_PAIRS = [
    pytest.param(optimizer, clocks, marks=[] if (optimizer, clocks) in _TOGETHER else [pytest.mark.slow])
    for optimizer in ("sgd-nesterov", "adam", "adamw", "rmsprop")
    for clocks in ((1, 1), (1, 7), (5, 20))
]


@pytest.mark.parametrize(("optimizer", "clocks"), _PAIRS, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_equal_the_dense_twin(
    options: dict[str, Any], optimizer: str, clocks: tuple[int, int], engine: str
) -> None:
    model = "convnet" if optimizer == "adam" else "mlp"
    run_both(model, optimizer, engine, clocks, steps=60, **options)


def _ramp(step: int) -> tuple[float, float]:
    """Cubic, from dense to 80/50 % within 45 steps."""
    share = min(1.0, step / 45)
    return 0.8 - 0.8 * (1 - share) ** 3, 0.5 - 0.5 * (1 - share) ** 3


def _stages(step: int) -> tuple[float, float]:
    """Sparser than in the end, then denser, then as it stays."""
    if step < 13:
        return 0.9, 0.75
    return (0.5, 0.25) if step < 40 else (0.8, 0.5)


SCHEDULES: dict[str, Schedules] = {
    "annealed": (
        topkast.Anneal(0.0, 0.8, to_step=45), topkast.Anneal(0.0, 0.5, to_step=45), _ramp, (45,)
    ),
    "A alone": (
        topkast.Anneal(0.5, 0.8, from_step=5, to_step=45, form="linear"),
        0.5,
        lambda step: (0.5 + 0.3 * min(1.0, max(0, step - 5) / 40), 0.5),
        (45,),
    ),
    "stages": (
        topkast.Stages({0: 0.9, 13: 0.5, 40: 0.8}), topkast.Stages({0: 0.75, 13: 0.25, 40: 0.5}), _stages,
        (13, 40),
    ),
}  # fmt: skip
_CASES = [
    ("sgd-nesterov", (1, 7), {}),
    ("adam", (5, 20), {"explore_until": 33}),
    ("adamw", (1, 1), {"hysteresis": 1.2, "exploration_rate": 0.5, "decay": 0.2}),
    ("adagrad", (1, 20), {}),
    ("rmsprop", (7, 7), {"explore_until": 44, "exploration_rate": 0.3}),
]


# Every case once; with the other schedules they take long.
_SCHEDULED = [
    pytest.param(schedules, *case, id=f"{name}-{case[0]}", marks=[] if quick else [pytest.mark.slow])
    for place, (name, schedules) in enumerate(SCHEDULES.items())
    for number, case in enumerate(_CASES)
    for quick in [name == "annealed" or number % 3 == place]
]


@pytest.mark.parametrize(("schedules", "optimizer", "clocks", "options"), _SCHEDULED)
def test_schedules_of_sparsity_equal_the_dense_twin(
    schedules: Schedules, optimizer: str, clocks: tuple[int, int], options: dict[str, Any], engine: str
) -> None:
    sparse, _, dense = run_both("mlp", optimizer, engine, clocks, steps=60, schedules=schedules, **options)
    for name, weight in sparse.weights.items():
        entry = dense.entries[f"{name}.weight"]
        assert (weight.counts.forward, weight.counts.backward) == (entry.num_a, entry.num_b)
        assert weight.counts == weight.target
