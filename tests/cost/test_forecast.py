"""What is foreseen is what is there: forecasts beside real models after real steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import topkast
from topkast.core.sets import Counts
from topkast.cost.flops import dense_flops
from topkast.cost.forecast import Forecast, forecast, largest_sets, ring_bytes, seconds, survey, why_alone
from topkast.cost.memory import PARTS, dense_bytes
from topkast.cost.parameters import parameters
from topkast.models import MLP, Decoder, ResNet50
from topkast.train.image_tasks import ImageTask

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
}
# Each with a step that changes the sets, where the method does that; the forecast is for fixed sizes.
METHODS: dict[str, topkast.Method] = {
    "TopKAST": topkast.TopKAST(0.9, 0.8, refresh_every=2, exchange_every=2),
    "TopKAST, two clocks": topkast.TopKAST(0.9, 0.8),
    "TopKAST, sparser": topkast.TopKAST(0.98, 0.95, refresh_every=1, exchange_every=1),
    "Static": topkast.Static(0.9),
    "SET": topkast.SET(0.9, update_every=2),
    "RigL": topkast.RigL(0.9, t_end=100, update_every=2),
    "SNFS": topkast.SNFS(0.9, t_end=100, update_every=2, redistributes=False),
    "Pruning": topkast.Pruning(0.9, begin=10, end=20),
    "DNW": topkast.DNW(0.9),
    "DSR": topkast.DSR(0.9),
    "DeepR": topkast.DeepR(0.9),
    "STR": topkast.STR(),
    "L0": topkast.L0(),
    "VariationalDropout": topkast.VariationalDropout(),
    "Dense": topkast.Dense(),
}


class Attention(nn.Module):
    """Attention as torch packs it, a tied embedding and a convolution with groups."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 64)
        self.conv = nn.Conv1d(64, 64, 3, padding=1, groups=2)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.head = nn.Linear(64, 200, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.conv(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
        return self.head(self.attention(h, h, h, need_weights=False)[0])


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: MLP([300, 400, 200, 10]), lambda: torch.randn(8, 300)),
    "decoder": (lambda: Decoder(256, 128, 2, 4, 16), lambda: torch.randint(256, (2, 16))),
    "resnet50": (
        lambda: ResNet50(10, stages=(1, 1, 1, 1), width=32),
        lambda: torch.randn(2, 3, 32, 32),
    ),
    "attention": (Attention, lambda: torch.randint(200, (2, 16))),
}


def trained(
    model: nn.Module, x: Tensor, method: topkast.Method, optimizer: str, steps: int = 3, **options: Any
) -> topkast.Handle:
    handle = topkast.sparsify(model, method, engine="native", **options)
    stepper = handle.attach(OPTIMIZERS[optimizer](model.parameters()))
    for step in range(steps + 1):
        stepper.zero_grad()
        model(x).square().mean().backward()
        if step < steps:  # the last pass is there for the Plan of the present sets
            stepper.step()
    return handle


def meta(make: Callable[[], Any]) -> Any:
    with torch.device("meta"):
        return make()


def planned(name: str, method: topkast.Method, **options: Any) -> Forecast:
    model, example = (meta(make) for make in MODELS[name])
    return forecast(model, example, method, **options)


def check_bytes(plan: Forecast, handle: topkast.Handle, plan_tolerance: float) -> None:
    """All parts to the byte, but for the Plan."""
    memory = handle.memory()
    real = {part: sum(layer[part] for layer in memory.layers.values()) for part in PARTS}
    for part in PARTS:
        if part == "plan":
            assert plan.sparse[part] == pytest.approx(real[part], rel=plan_tolerance)
        else:
            assert plan.sparse[part] == real[part], part
    for part in ("weight", "gradient", "optimizer"):
        assert plan.rest[part] == memory.rest[part]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_bytes_flops_and_parameters_are_those_of_a_real_model(model: str, optimizer: str) -> None:
    method, options = METHODS["TopKAST"], {"keep_dense": ["first"], "distribution": "erk"}
    plan = planned(model, method, optimizer=optimizer, **options)
    make, example = MODELS[model]
    x = example()
    handle = trained(make(), x, method, optimizer, **options)
    check_bytes(plan, handle, 0.03)
    assert plan.step == handle.flops(x)
    assert plan.parameters == parameters(handle.model, handle.weights)
    assert plan.survey.left_dense == handle.left_dense
    ours = {id(b) for weight in handle.weights.values() for b in weight.buffers()}
    assert plan.buffer_bytes == sum(b.nbytes for b in handle.model.buffers() if id(b) not in ours)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_what_is_foreseen(name: str) -> None:
    method = METHODS[name]
    plan = planned("mlp", method, optimizer="adam", steps=200)
    x = torch.randn(8, 300)
    handle = trained(MODELS["mlp"][0](), x, method, "adam")
    check_bytes(plan, handle, 0.02)
    assert plan.run == handle.flops(x, steps=200)
    if name != "Pruning":  # which has not pruned yet
        assert plan.step == handle.flops(x)


def test_a_learned_threshold_counts_as_companion() -> None:
    plan = planned("mlp", topkast.STR(), optimizer="adam")
    handle = trained(MODELS["mlp"][0](), torch.randn(8, 300), topkast.STR(), "adam")
    real = handle.memory()
    assert plan.sparse["companion"] == 3 * (3 * 4 + 4 + 4)  # s, gradient, two moments, counter
    assert sum(plan.rest.values()) == real.rest["total"]
    assert plan.sparse["companion"] == sum(layer["companion"] for layer in real.layers.values())
    assert plan.sparse["weight"] == sum(layer["weight"] for layer in real.layers.values())


@pytest.mark.parametrize(("forward", "backward"), [(0.9, 0.8), (0.98, 0.95)])
def test_an_implicit_reservoir_by_the_share_of_c_that_has_been_in_b(forward: float, backward: float) -> None:
    method = topkast.TopKAST(forward, backward, refresh_every=2, exchange_every=2)
    x = torch.randn(8, 300)
    handle = trained(meta(MODELS["mlp"][0]), x, method, "adam", steps=20, reservoir="implicit", seed=0)
    outside = {name: w.numel() - w.counts.backward for name, w in handle.weights.items()}
    been = sum(round(handle.stats()[name].reservoir_used * n) for name, n in outside.items())
    returned = sum(w.reservoir.get_buffer("returned_values").numel() for w in handle.weights.values())
    assert returned == been > 100
    share = been / sum(outside.values())
    plan = planned("mlp", method, optimizer="adam", reservoir="implicit", returned=share)
    real = sum(layer["reservoir"] for layer in handle.memory().layers.values())
    # 4 bytes for each that has left B are sure; positions take as many, or a bit for each of the weight.
    assert real >= 4 * returned
    assert plan.sparse["reservoir"] == pytest.approx(real, rel=0.3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_dense_model_takes_what_is_foreseen(optimizer: str) -> None:
    plan = planned("decoder", METHODS["TopKAST"], optimizer=optimizer)
    make, example = MODELS["decoder"]
    model = make()
    stepper = OPTIMIZERS[optimizer](model.parameters())
    model(example()).square().mean().backward()
    stepper.step()
    assert plan.dense_bytes == sum(dense_bytes(p, stepper)["total"] for p in model.parameters())
    assert plan.step.dense_total == dense_flops(model, example()).total


def test_after_training_elements_gather_and_the_plan_is_at_most_a_little_smaller() -> None:
    task = ImageTask()
    model, method = task.network().build(), topkast.TopKAST(0.98, 0.95, refresh_every=10, exchange_every=10)
    handle = topkast.sparsify(model, method, engine="native")
    optimizer = handle.attach(torch.optim.Adam(model.parameters(), lr=task.lr))
    generator = torch.Generator().manual_seed(0)
    for step in range(301):
        optimizer.zero_grad()
        (task.loss(model, step, generator) + 1e-4 * handle.penalty()).backward()
        if handle.weights["0"].steps < 300:
            optimizer.step()
    plan = forecast(meta(task.network().build), meta(lambda: torch.empty(64, 64)), method)
    memory = handle.memory()
    real = sum(layer["plan"] for layer in memory.layers.values())
    assert real < plan.sparse["plan"] < 1.15 * real
    assert plan.sparse_bytes == pytest.approx(memory.sparse, rel=0.01)


def test_gradients_are_what_data_parallel_training_adds_up(tmp_path: Any) -> None:
    """DistributedDataParallel hands each bucket of gradients to a hook, which sees its bytes."""
    distributed = torch.distributed
    store = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        make, example = MODELS["decoder"]
        model = make()
        handle = topkast.sparsify(model, METHODS["TopKAST"], engine="native")
        handle.attach(torch.optim.Adam(model.parameters()))
        parallel = nn.parallel.DistributedDataParallel(model)
        seen: list[int] = []

        def hook(state, bucket):  # without annotations: torch wants them to be classes
            seen.append(bucket.buffer().nbytes)
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        parallel.register_comm_hook(None, hook)
        parallel(example()).square().mean().backward()
        plan = planned("decoder", METHODS["TopKAST"])
        assert plan.sparse_gradient_bytes == sum(seen)
        assert plan.buffer_bytes == sum(b.nbytes for b in parallel.modules_buffers)
    finally:
        distributed.destroy_process_group()


def test_each_worker_of_a_ring_sends_nearly_twice_the_gradients() -> None:
    assert [ring_bytes(1200, w) for w in (1, 2, 4, 1000)] == [0, 1200, 1800, 2397.6]
    assert seconds(1.25e9, 10) == 1


def test_who_cannot_run_with_several_workers() -> None:
    assert why_alone(METHODS["TopKAST"]) is None
    assert why_alone(METHODS["SET"]) is None
    assert why_alone(METHODS["DSR"]) == "changes the sizes of its sets"
    assert why_alone(METHODS["RigL"]) is None
    assert why_alone(topkast.Pruning(0.9, begin=1, end=9)) is None


def test_memory_gives_room_in_proportion() -> None:
    plan = planned("mlp", METHODS["TopKAST"])
    assert plan.largest(10 * plan.dense_bytes)[0] == 10 * plan.parameters.dense
    assert plan.largest(10 * plan.sparse_bytes)[1] == 10 * plan.parameters.dense


def test_pruning_is_largest_at_its_start_and_exploration_does_not_shrink_b() -> None:
    counts = Counts(1000, 100, 200)
    assert largest_sets(topkast.Pruning(0.9, begin=1, end=5), counts) == Counts(1000, 1000, 1000)
    assert largest_sets(topkast.TopKAST(0.9, 0.8, explore_until=0), counts) == counts
    assert largest_sets(topkast.SNFS(0.9, t_end=9), Counts(1000, 100, 100)) == Counts(1000, 100, 100)


def test_positions_take_8_bytes_beyond_2_to_the_31_elements() -> None:
    def sets_and_values(width: int) -> tuple[int, int]:
        model = meta(lambda: nn.Sequential(nn.Linear(2**16, width, bias=False)))
        plan = forecast(model, meta(lambda: torch.empty(1, 2**16)), METHODS["TopKAST"])
        values = plan.sparse["weight"] // 4
        return plan.sparse["sets"] - (8 * 7 + 64) - (1 + -(-values // 8)), values

    sets, values = sets_and_values(2**15 - 1)
    assert sets == 5 * values
    sets, values = sets_and_values(2**15)
    assert sets == 9 * values


def test_the_model_is_left_as_it_is() -> None:
    model = Attention()
    before = {name: id(p) for name, p in model.named_parameters()}
    forecast(model, torch.randint(200, (2, 16)), METHODS["TopKAST"])
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert type(model.attention) is nn.MultiheadAttention


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adm"}, r"`optimizer` must be one of 'adam'.*, got 'adm'"),
        ({"reservoir": "none"}, r"`reservoir` must be 'stored' or 'implicit', got 'none'"),
        ({"returned": 1.5}, r"`returned` is the share of C .*, from 0 to 1, got 1.5"),
        ({"steps": 0}, r"`steps` must be at least 1, got 0"),
        ({"skip": ["*"]}, r"no layer is left to make sparse"),
        ({"distribution": "er"}, r"the sparsity leaves \d+ elements .* for 3 sparse layers"),
        ({"budget": "model"}, r"the sparsity leaves -\d+ elements .* lower the sparsity"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned("mlp", topkast.Static(0.99999), **options)


def test_a_schedule_that_ends_after_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match="RigL ends at step 100, beyond the run of 50 steps"):
        planned("mlp", METHODS["RigL"], steps=50)


def test_frozen_weights_stay_dense_in_a_plan_as_in_sparsify() -> None:
    model = nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8))
    found = survey(model, topkast.TopKAST(0.9, 0.8))
    assert [weight.name for weight in found.weights] == ["1"]
    assert found.left_dense["0"].startswith("frozen (requires_grad=False)")
