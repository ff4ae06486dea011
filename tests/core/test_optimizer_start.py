"""What state starts at is found by asking the optimizer, and asking leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import topkast
from topkast.core.optimizer_start import Start, TrialFailed, find_starts

ZERO = Start("constant", 0.0)
# Optimizer, and what its state starts at.
STARTS: list[tuple[Callable[[Any], torch.optim.Optimizer], dict[str, Start]]] = [
    (lambda p: torch.optim.SGD(p, lr=0.1), {}),
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1), {"momentum_buffer": ZERO}),
    (lambda p: torch.optim.Adam(p, amsgrad=True), dict.fromkeys(("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), ZERO)),
    (lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), weight_decay=0.5), dict.fromkeys(("exp_avg", "exp_avg_sq"), ZERO)),
    (lambda p: torch.optim.Adagrad(p, lr=0.5, initial_accumulator_value=0.5), {"sum": Start("constant", 0.5)}),
    (lambda p: torch.optim.Rprop(p, lr=0.5), {"prev": ZERO, "step_size": Start("lr")}),
    (lambda p: torch.optim.ASGD(p, lr=0.1), {"ax": Start("value")}),
    (lambda p: torch.optim.Adamax(p), {"exp_avg": ZERO, "exp_inf": ZERO}),
]  # fmt: skip


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.randn(40))


@pytest.mark.parametrize(("make", "expected"), STARTS)
def test_torch_optimizers(make: Callable[[Any], torch.optim.Optimizer], expected: dict[str, Start]) -> None:
    values = parameter()
    optimizer = make([values])
    before, state = values.detach().clone(), dict(optimizer.state)
    found = find_starts([optimizer], values)
    assert {name: start for (_, name), start in found.items()} == expected
    assert torch.equal(values, before)
    assert values.grad is None
    assert optimizer.state == state  # it was a twin that stepped


class Keeper(torch.optim.Optimizer):
    """Keeps whatever `start` makes of a weight."""

    def __init__(self, params: Any, start: Callable[[Tensor], Tensor], lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.start, self.count = start, [0]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count[0] += 1
        for group in self.param_groups:
            for p in group["params"]:
                if "kept" not in self.state[p]:
                    self.state[p]["kept"] = self.start(p)
                p.lerp_(self.state[p]["kept"], 0.1)


def test_what_cannot_be_told_is_left_out() -> None:
    for start in (torch.rand_like, lambda p: 0.5 * p, lambda p: p / 0):
        values = parameter()
        assert find_starts([Keeper([values], start)], values) == {}


def test_a_trial_leaves_attributes_generators_and_schedules_alone() -> None:
    values = parameter()
    optimizer = Keeper([values], lambda p: p + 0 * torch.rand_like(p))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # puts a `step` on the instance that calls the original
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    before = torch.get_rng_state()
    assert find_starts([optimizer], values) == {(0, "kept"): Start("value")}
    assert torch.equal(torch.get_rng_state(), before)
    assert (optimizer.count, calls) == ([0], [])


def test_a_trial_that_fails_says_why() -> None:
    values = parameter()
    with pytest.raises(TrialFailed, match="ZeroDivisionError: integer division"):
        find_starts([Keeper([values], lambda p: p / (1 // 0))], values)


def trained(make: Callable[[Any], Any], steps: int = 8) -> float:
    """How far θ moves with random exploration and a refresh at every step."""
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)).double()
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.9, 0.8, refresh_every=1, exchange_every=1, exploration="random")
    )
    optimizer = sparse.attach(make(list(model.parameters())))
    thetas = [weight.theta() for weight in sparse.weights.values()]
    for _ in range(steps):
        model(torch.randn(16, 20, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = zip(sparse.weights.values(), thetas, strict=True)
    return max(float((weight.theta() - theta).abs().max()) for weight, theta in moved)


def test_state_that_is_a_copy_of_the_weight_does_not_pull_entrants() -> None:
    """Its weights never move: a copy of an unmoved weight is the weight, and the average of both is too."""
    assert trained(lambda p: Keeper(p, torch.clone)) < 1e-15


def only_long(weight: Tensor) -> Tensor:
    if len(weight) < 64:
        raise IndexError("too short")
    return weight.clone()


@pytest.mark.parametrize(
    ("start", "why"),
    [(torch.rand_like, ""), (only_long, r" \(a trial step .* failed: IndexError: too short")],
)
def test_what_cannot_be_told_is_refused_by_name_before_anything_moves(
    start: Callable[[Tensor], Tensor], why: str
) -> None:
    model = nn.Sequential(nn.Linear(20, 64))
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.9, 0.8, refresh_every=2, exchange_every=2, exploration="random")
    )
    optimizer = sparse.attach(Keeper(model.parameters(), start))
    indices = sparse.weights["0"].indices.clone()
    optimizer.step()
    with pytest.raises(
        TypeError, match=rf"Keeper keeps 'kept' for layer '0', and what it starts at .* cannot be told{why}"
    ):
        optimizer.step()
    assert torch.equal(sparse.weights["0"].indices, indices)


class Hidden(torch.optim.SGD):
    """Keeps the weights of yesterday where nobody moves them."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.yesterday = [[p.detach().clone() for p in g["params"]] for g in self.param_groups]


def test_tensors_by_slot_outside_the_state_are_refused() -> None:
    model = nn.Sequential(nn.Linear(20, 64))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8))
    with pytest.raises(
        TypeError, match=r"Hidden keeps a tensor as long as the values of layer '0' in 'yesterday', outside"
    ):
        sparse.attach(Hidden(model.parameters()))


class Quantized(Tensor):
    """A tensor whose elements are not its slots."""


def test_tensor_subclasses_in_the_state_are_refused() -> None:
    model = nn.Sequential(nn.Linear(20, 64))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8))
    optimizer = sparse.attach(Keeper(model.parameters(), lambda p: p.detach().as_subclass(Quantized)))
    with pytest.raises(TypeError, match=r"Keeper keeps 'kept' for layer '0' as a Quantized"):
        optimizer.step()


# ---- wrappers ---------------------------------------------------------------------------------------------


class Lookahead(torch.optim.Optimizer):
    """Slow weights, made when it is constructed; its own hooks, its own state."""

    def __init__(self, optimizer: torch.optim.Optimizer, every: int = 3) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer, self.every, self.count = optimizer, every, 0
        self.param_groups = optimizer.param_groups
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["slow"] = p.detach().clone()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step()
        self.count += 1
        if self.count % self.every == 0:
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["slow"].lerp_(p, 0.5)
                    p.copy_(self.state[p]["slow"])


class Swapping(torch.optim.Optimizer):
    """While the optimizer within steps, the weights are others: only the outer step has the real ones."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for p in parameters:
            p.mul_(-0.01)
        self.optimizer.step()
        for p in parameters:
            p.mul_(-100)


class SAM(torch.optim.Optimizer):
    """As usually written: two calls per step, the second steps the optimizer within."""

    def __init__(self, params: Any, base: Any, **options: Any) -> None:
        super().__init__(params, {"rho": 0.05, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.detach().clone()
                p.add_(p.grad, alpha=group["rho"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.first_step()
        closure()
        self.second_step()


def test_slow_weights_of_a_wrapper_follow() -> None:
    assert trained(lambda p: Lookahead(torch.optim.SGD(p, lr=0.0, momentum=0.9))) == 0.0


def test_a_wrapper_without_state_made_in_time_is_refused_by_name() -> None:
    """Slow weights that have moved before it was attached: nothing tells what an entrant starts with."""
    model = nn.Sequential(nn.Linear(20, 64))
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.9, 0.8, refresh_every=1, exchange_every=1, exploration="random")
    )
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.0), every=100)
    optimizer.state[sparse.weights["0"].values]["slow"].normal_()
    sparse.attach(optimizer)
    model(torch.randn(16, 20)).square().mean().backward()
    with pytest.raises(TypeError, match=r"Lookahead keeps 'slow' .* must be attached before its first step"):
        optimizer.step()


def test_a_refresh_waits_for_the_outermost_step() -> None:
    model = nn.Sequential(nn.Linear(20, 64)).double()
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8, refresh_every=1, exchange_every=1))
    optimizer = sparse.attach(Swapping(torch.optim.SGD(model.parameters(), lr=1e-3)))
    weight = sparse.weights["0"]
    for step in range(5):
        model(torch.randn(16, 20, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        assert weight.steps == step + 1
        order = weight.theta().flatten().abs().sort(descending=True, stable=True).indices
        assert set(order[: weight.counts.forward].tolist()) == set(weight.indices[weight.active].tolist())


@pytest.mark.parametrize("calls", ["first and second", "closure"])
def test_sam_trains_as_on_a_fixed_mask_between_refreshes(calls: str) -> None:
    def train(refresh_every: int) -> tuple[topkast.Handle, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5)).double()
        sparse = topkast.sparsify(
            model, topkast.TopKAST(0.9, 0.8, refresh_every=refresh_every, exchange_every=refresh_every)
        )
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.3, momentum=0.9)
        sparse.attach(optimizer)
        x = torch.randn(16, 20, dtype=torch.float64)

        def backward() -> None:
            (model(x) - 1).square().mean().backward()

        for _ in range(6):
            backward()
            if calls == "closure":
                optimizer.step(backward)
            else:
                optimizer.first_step()
                backward()
                optimizer.second_step()
        return sparse, (model(x) - 1).square().mean().detach()

    sparse, loss = train(refresh_every=1)
    assert {w.steps for w in sparse.weights.values()} == {6}
    for weight in sparse.weights.values():
        order = weight.theta().flatten().abs().sort(descending=True, stable=True).indices
        assert set(order[: weight.counts.forward].tolist()) == set(weight.indices[weight.active].tolist())
    assert loss < 0.5  # 1.1 at the start
