"""A table of optimizers: each trains sparse values right, or is refused by name.

Right means two things. With a learning rate of almost nothing, random exploration and a refresh at every step,
θ moves no further than on fixed sets: no state pulls entrants anywhere. And on fixed sets, training equals
that of a *dense twin*: the same optimizer on the whole weight as one vector, zero outside B and its gradient
masked. Optimizers with a mean over the whole tensor take it over B: their twin is the vector of B alone.

The packages are no dependencies of topkast: `make test-optimizers` runs this in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import topkast

po = pytest.importorskip("pytorch_optimizer", reason="run `make test-optimizers`")
schedulefree = pytest.importorskip("schedulefree", reason="run `make test-optimizers`")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages

Make = Callable[..., Any]
TINY = 1e-12


def of(package: Any, name: str, **options: Any) -> Make:
    """An optimizer by name, with its own learning rate unless one is given."""

    def make(params: Any, lr: float | None = None) -> Any:
        cls = po.load_optimizer(name) if package is po else getattr(package, name)
        return cls(params, **options, **({} if lr is None else {"lr": lr}))

    return make


def around(wrapper: str, name: str, inner: dict[str, Any], **options: Any) -> Make:
    """A wrapper of pytorch_optimizer around an optimizer of torch."""

    def make(params: Any, lr: float | None = 0.01) -> Any:
        optimizer = getattr(torch.optim, name)(params, lr=0.01 if lr is None else lr, **inner)
        return getattr(po, wrapper)(optimizer, **options)

    return make


def sam(params: Any, lr: float | None = None) -> Any:
    return po.SAM(params, torch.optim.SGD, lr=0.01 if lr is None else lr, momentum=0.9)


ELEMENTWISE = """
    accsgd adabelief adabound adadelta adagc adai adalite adam adamax adamc adamg adamod adamp adamw
    adamwsn adan adapnm adasmooth adatam ademamix adopt aida ano apollo apollodqn bcos conda
    dadaptadagrad dadaptadam dadaptadan dadaptlion dadaptsgd diffgrad dualadam emofact emolynx emonavi
    exadam fira fromage ftrl galore grams grokfastadamw kate lamb laprop lars lion madgrad magma msvag
    nadam novograd padam pid pnm prodigy qhm radam ranger rmsprop rose schedulefreeadamw
    schedulefreeradam schedulefreesgd sgd sgdp sgdsai sgdw signsgd simplifiedademamix sm3 spam srmm
    stablespam tam tiger vsgd yogi
""".split()  # noqa: SIM905

RIGHT: dict[str, Make] = {
    "torch SGD": of(torch.optim, "SGD", momentum=0.9, nesterov=True, weight_decay=0.1),
    "torch Adam": of(torch.optim, "Adam", amsgrad=True),
    "torch AdamW": of(torch.optim, "AdamW"),
    "torch NAdam": of(torch.optim, "NAdam"),
    "torch RAdam": of(torch.optim, "RAdam"),
    "torch Adamax": of(torch.optim, "Adamax"),
    "torch RMSprop": of(torch.optim, "RMSprop", momentum=0.9, centered=True),
    "torch Adagrad": of(torch.optim, "Adagrad", initial_accumulator_value=0.1),
    "torch Adadelta": of(torch.optim, "Adadelta"),
    "torch ASGD": of(torch.optim, "ASGD"),
    "torch Rprop": of(torch.optim, "Rprop", step_sizes=(1e-15, 50)),
    "schedulefree SGD": of(schedulefree, "SGDScheduleFree"),
    "schedulefree AdamW": of(schedulefree, "AdamWScheduleFree"),
    "schedulefree RAdam": of(schedulefree, "RAdamScheduleFree"),
    **{name: of(po, name) for name in ELEMENTWISE},
    "mars": of(po, "mars", lr_1d=TINY),
    "Lookahead": around("Lookahead", "AdamW", {}, k=3),
    "Lookahead pullback": around("Lookahead", "SGD", {"momentum": 0.9}, k=3, pullback_momentum="pullback"),
    "ScheduleFreeWrapper": around("ScheduleFreeWrapper", "SGD", {}),
    "SAM": sam,
}
# Those with a mean over the whole tensor.
WIDE = {
    name: of(po, name)
    for name in ["adams", "amos", "avagrad", "came", "nero", "scion", "scionlight", "stableadamw"]
}

STATE = r"keeps '[\w:]+' for layer '0' as a (deque|dict|list|tensor of shape \(.*\)); only single numbers"
START = r"keeps '\w+' for layer '0', and what it starts at for a weight that is new to B cannot be told"
KIND = "cannot train sparse values: "
REFUSED: dict[str, tuple[Make, str]] = {
    "torch Adafactor": (of(torch.optim, "Adafactor"), KIND),
    "torch LBFGS": (of(torch.optim, "LBFGS"), KIND),
    "torch SparseAdam": (lambda params, lr=None: torch.optim.SparseAdam(list(params)), KIND),
    **{
        name: (of(po, name), KIND)
        for name in ["adafactor", "adahessian", "asgd", "kron", "lbfgs", "scalableshampoo", "shampoo", "soap", "sophiah", "spectralsphere"]
    },
    **{
        name: (lambda p, lr=None, name=name: po.load_optimizer(name)([{"params": p, "use_muon": False}]), KIND)
        for name in ["adago", "adamuon", "muon", "normuon"]
    },
    **{name: (of(po, name), STATE) for name in ["a2grad", "adanorm", "adashift", "aggmo", "alice", "dash", "flashadamw", "qhadam", "racs", "sara", "swats"]},
    **{name: (of(po, name), START) for name in ["focus", "gravity", "splus"]},
}  # fmt: skip


def layer() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 24, bias=False)).double()


def inputs(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 20, generator=generator, dtype=torch.float64) for _ in range(count)]


def in_training(optimizer: Any) -> Any:
    if hasattr(optimizer, "train"):
        optimizer.train()
    return optimizer


def take_step(optimizer: Any, seed: int, backward: Callable[[], Any]) -> None:
    """A step, with random numbers that do not depend on what came before."""
    optimizer.zero_grad()
    loss = backward()
    torch.manual_seed(seed)
    if type(optimizer).__name__ == "SAM":
        optimizer.step(backward)
    else:
        optimizer.step()
    assert torch.isfinite(loss)


def loss_of(output: Tensor) -> Tensor:
    loss = (output - 1).square().mean()
    loss.backward()
    return loss.detach()


def movement(make: Make, refresh_every: int) -> float:
    """How far θ moves in twelve steps with almost no learning rate."""
    model = layer()
    method = topkast.TopKAST(
        0.9, 0.8, refresh_every=refresh_every, exchange_every=refresh_every, exploration="random"
    )
    sparse = topkast.sparsify(model, method, seed=3, engine="masked")
    optimizer = in_training(make(list(model.parameters()), lr=TINY))
    sparse.attach(optimizer)
    weight = sparse.weights["0"]
    theta, indices = weight.theta(), weight.indices.clone()
    for i, x in enumerate(inputs(12)):
        take_step(optimizer, i, lambda x=x: loss_of(model(x)))
    assert torch.equal(weight.indices, indices) == (refresh_every > 12)
    assert weight.steps == 12
    return float((weight.theta() - theta).abs().max())


@pytest.mark.parametrize("name", [*RIGHT, *WIDE])
def test_entrants_are_not_pulled_anywhere(name: str) -> None:
    make = {**RIGHT, **WIDE}[name]
    assert movement(make, refresh_every=1) <= 2 * movement(make, refresh_every=1000) + 1e-8


@pytest.mark.parametrize("name", [*RIGHT, *WIDE])
def test_training_equals_that_of_the_twin(name: str) -> None:
    make, is_wide = {**RIGHT, **WIDE}[name], name in WIDE
    model = layer()
    sparse = topkast.sparsify(model, topkast.Static(0.8), seed=3, engine="masked")
    weight = sparse.weights["0"]
    mask = weight.forward_mask().flatten()
    dense = weight.alpha().flatten()
    twin = nn.Parameter(dense[mask] if is_wide else dense.clone())
    optimizer = in_training(make(list(model.parameters())))
    its_optimizer = in_training(make([twin]))
    sparse.attach(optimizer)

    def backward(x: Tensor) -> Tensor:
        alpha = torch.zeros_like(dense).masked_scatter(mask, twin) if is_wide else twin
        loss = loss_of(x @ alpha.view(24, 20).T)
        assert twin.grad is not None
        if not is_wide:
            twin.grad.mul_(mask)
        return loss

    for i, x in enumerate(inputs(6)):
        take_step(optimizer, i, lambda x=x: loss_of(model(x)))
        take_step(its_optimizer, i, lambda x=x: backward(x))
        with torch.no_grad():
            if not is_wide:
                twin.mul_(mask)  # some move weights without a gradient too; those outside B are not there
    learned = twin.detach() if is_wide else twin.detach()[mask]
    torch.testing.assert_close(weight.alpha().flatten()[mask], learned, rtol=1e-9, atol=1e-12)
    assert not torch.equal(learned, dense[mask])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_follow_is_refused_by_name(name: str) -> None:
    make, message = REFUSED[name]
    model = layer()
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.9, 0.8, refresh_every=1, exchange_every=1), engine="masked"
    )
    indices = sparse.weights["0"].indices.clone()

    def train() -> None:
        optimizer = in_training(make(list(model.parameters())))
        sparse.attach(optimizer)
        for i, x in enumerate(inputs(12)):
            take_step(optimizer, i, lambda x=x: loss_of(model(x)))

    with pytest.raises(TypeError, match=message):
        train()
    assert torch.equal(sparse.weights["0"].indices, indices)
