"""Training on a device that is not the CPU: the same numbers, and nothing left behind on the CPU by mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import topkast
from devices.elsewhere import Elsewhere, WithDevice, here, there
from methods.conftest import METHODS, STEPS, Example, batch

Make = Callable[[], topkast.Method]
pytestmark = pytest.mark.usefixtures("one_thread")


class Run:
    """A model in training, on the CPU or elsewhere."""

    def __init__(self, make: Make, engine: str, *, moves: bool, **options: Any) -> None:
        torch.manual_seed(0)
        with torch.device("meta" if options.get("reservoir") == "implicit" else "cpu"):
            self.model = Example()
        self.handle = topkast.sparsify(self.model, make(), engine=engine, seed=0, **options)
        self.place: Callable[[Tensor], Tensor] = there if moves else lambda x: x
        if moves:
            self.model._apply(there)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.handle.attach(self.optimizer)

    def steps(self, count: int) -> list[float]:
        losses = []
        for number in range(count):
            ids, labels = batch(number)
            loss = F.cross_entropy(self.model(self.place(ids)), self.place(labels))
            (loss + 1e-4 * self.handle.penalty()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def state_here(run: Run) -> dict[str, Tensor]:
    """Its state; the reservoir that is not stored, and what engine auto chose, are on the CPU by design."""
    return {k: here(v) if isinstance(v, Elsewhere) else v for k, v in run.model.state_dict().items()}


def check_same(make: Make, engine: str, **options: Any) -> None:
    on_cpu = Run(make, engine, moves=False, **options)
    expected = on_cpu.steps(STEPS)
    moved = Run(make, engine, moves=True, **options)
    with WithDevice():
        assert all(w.values.device.type == "meta" for w in moved.handle.weights.values())
        assert moved.steps(STEPS) == expected
        assert all(p.device.type == "meta" for p in moved.model.parameters())
        found = state_here(moved)
    for name, tensor in on_cpu.model.state_dict().items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_every_method_trains_as_on_the_cpu(make: Make) -> None:
    check_same(make, "masked")


@pytest.mark.parametrize("reservoir", ["stored", "implicit"])
@pytest.mark.parametrize("engine", ["masked", "csr"])
def test_both_portable_engines_and_reservoirs(engine: str, reservoir: str) -> None:
    check_same(lambda: topkast.TopKAST(0.8, 0.6, exchange_every=3), engine, reservoir=reservoir)


@pytest.mark.parametrize("engine", ["native", "auto"])
def test_engines_of_the_cpu_give_way_to_masked_and_say_so(engine: str) -> None:
    with WithDevice():
        moved = Run(lambda: topkast.TopKAST(0.8, 0.6), engine, moves=True)
        losses = moved.steps(3)
        described = {w.describe_engine() for w in moved.handle.weights.values()}
    assert described == {f"{engine}: masked on meta"}
    assert losses == Run(lambda: topkast.TopKAST(0.8, 0.6), "masked", moves=False).steps(3)


@pytest.mark.filterwarnings("ignore:.*non-meta parameter in the checkpoint")
def test_a_state_goes_to_the_device_and_back() -> None:
    make = METHODS["TopKAST"]
    source = Run(make, "masked", moves=False)
    source.steps(4)
    with WithDevice():
        moved = Run(make, "masked", moves=True)
        moved.model.load_state_dict(source.model.state_dict())
        again = {name: tensor.clone() for name, tensor in state_here(moved).items()}
    back = Run(make, "masked", moves=False)
    back.model.load_state_dict(again)
    for name, tensor in source.model.state_dict().items():
        assert torch.equal(back.model.state_dict()[name], tensor), name


def test_what_is_asked_of_a_network_is_answered_there_too() -> None:
    x = batch(0)[0]
    on_cpu = Run(METHODS["TopKAST"], "masked", moves=False)
    with WithDevice(), torch.no_grad():
        moved = Run(METHODS["TopKAST"], "masked", moves=True)
        dense = topkast.densify(moved.model)
        assert isinstance(dense(there(x)), Elsewhere)
        y = here(dense(there(x)))
        told = moved.handle.stats()
    assert torch.equal(y, topkast.densify(on_cpu.model)(x))
    assert told == on_cpu.handle.stats()


def test_the_device_of_these_tests_refuses_what_a_real_one_refuses() -> None:
    x = torch.ones(3)
    with WithDevice():
        assert here(there(x) + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a number is no tensor of the CPU
        assert isinstance(torch.zeros(3, device="meta"), Elsewhere)
        with pytest.raises(RuntimeError, match="same device"):
            there(x) + x
        with pytest.raises(RuntimeError, match="same device"):
            x.index_select(0, there(torch.tensor([0])))
        with pytest.raises((RuntimeError, TypeError)):
            there(x).numpy()
        assert there(x).to("cpu").tolist() == [1, 1, 1]
        assert not isinstance(there(x).cpu(), Elsewhere)
    layer = nn.Linear(3, 2)._apply(there)
    with WithDevice(), pytest.raises(RuntimeError, match="same device"):
        layer(x)
