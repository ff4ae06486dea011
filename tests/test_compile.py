"""Sparse layers in a compiled model: one graph, whatever the refreshes do, and the results of the eager one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import topkast

TOPKAST = topkast.TopKAST(0.8, 0.5, refresh_every=2, exchange_every=2)


@pytest.fixture(autouse=True)
def _one_graph(one_thread: None) -> Iterator[None]:
    """From nothing, and whoever compiles a second time fails."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()


class Net(nn.Module):
    """One layer of each kind, attention, and an embedding tied to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16, padding_idx=0)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.output = nn.Linear(16, 11, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids)
        h = h + self.conv(h.transpose(1, 2)).transpose(1, 2).relu()
        return self.output(self.block(h))


def train(
    method: topkast.Method, engine: str, backend: str | None, *, steps: int = 8, amp: bool = False
) -> tuple[list[float], topkast.Handle]:
    """Accumulated over two batches, clipped, with the penalty; compiled if there is a backend."""
    torch.manual_seed(0)
    model = Net()
    sparse = topkast.sparsify(model, method, engine=engine, seed=1)
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=1e-2))
    called: Any = torch.compile(model, backend=backend, fullgraph=True) if backend else model
    data = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(steps):
        for _ in range(2):
            ids = torch.randint(11, (4, 7), generator=data)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
                logits = called(ids)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), ids.roll(1, 1).flatten())
            (loss / 2 + 1e-4 * sparse.penalty()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, sparse


def assert_same_sets_and_values(a: topkast.Handle, b: topkast.Handle) -> None:
    for mine, theirs in zip(a.weights.values(), b.weights.values(), strict=True):
        assert torch.equal(mine.indices, theirs.indices)
        assert torch.equal(mine.active, theirs.active)
        # Gradients of tied weights are added up in another order, and inductor rounds in another place.
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-5)


CASES = [
    pytest.param("native", TOPKAST, False, id="native"),
    pytest.param("native", TOPKAST, True, id="native-bf16"),
    pytest.param("csr", topkast.TopKAST(0.8, 0.5, explore_until=4), False, id="csr-explore_until"),
    pytest.param("masked", topkast.RigL(0.8, t_end=100, update_every=3), True, id="masked-rigl-bf16"),
]


@pytest.mark.parametrize(("engine", "method", "amp"), CASES)
def test_a_compiled_run_is_the_eager_run(engine: str, method: topkast.Method, amp: bool) -> None:
    eager_losses, eager = train(method, engine, None, amp=amp)
    losses, compiled = train(method, engine, "aot_eager", amp=amp)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert losses == pytest.approx(eager_losses, rel=1e-4)
    assert_same_sets_and_values(eager, compiled)
    moved = {name: int(w.changed) for name, w in compiled.weights.items()}
    assert sum(moved.values()) > 0 or engine == "csr", "no refresh moved anything: nothing was tested"


@pytest.mark.parametrize("method", [topkast.STR(), topkast.DSR(0.8, update_every=3)], ids=["str", "dsr"])
def test_methods_that_resize_compile_again_and_are_right(method: topkast.Method) -> None:
    eager_losses, eager = train(method, "native", None)
    with torch._dynamo.config.patch(error_on_recompile=False):
        losses, compiled = train(method, "native", "aot_eager")
    assert losses == pytest.approx(eager_losses, rel=1e-4)
    assert_same_sets_and_values(eager, compiled)


def test_gates_are_compiled_with_their_noise_and_again_without_it() -> None:
    """The noise is not that of the eager run: a graph draws its numbers in another order."""
    with torch._dynamo.config.patch(error_on_recompile=False):
        losses, sparse = train(
            topkast.VariationalDropout(cut_at=3, threshold=-1.0, log_sigma2_init=-6.0), "native", "aot_eager"
        )
        called: Any = torch.compile(sparse.model, backend="aot_eager", fullgraph=True)
        ids = torch.randint(11, (4, 7))
        torch.testing.assert_close(called(ids), topkast.densify(sparse.model)(ids), rtol=1e-4, atol=1e-5)
    assert all(loss == loss for loss in losses)
    assert all(0 < w.counts.backward < w.numel() for w in sparse.weights.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own, within inductor
@pytest.mark.parametrize("amp", [False, True])
def test_inductor_gives_the_same(amp: bool) -> None:
    eager_losses, eager = train(TOPKAST, "native", None, amp=amp)
    losses, compiled = train(TOPKAST, "native", "inductor", amp=amp)
    assert losses == pytest.approx(eager_losses, rel=1e-3)
    assert_same_sets_and_values(eager, compiled)


def test_auto_measures_in_a_compiled_model_too() -> None:
    _, sparse = train(TOPKAST, "auto", "aot_eager", steps=1)
    for name, weight in sparse.weights.items():
        assert weight.describe_engine() != "auto", f"{name} was not measured"


def test_layers_of_one_class_share_a_graph() -> None:
    """As whoever compiles block by block relies on: which weight it is, is not part of the graph."""
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4))
    twins = copy.deepcopy(blocks)
    sparse = topkast.sparsify(blocks, TOPKAST, engine="native", seed=0)
    topkast.sparsify(twins, TOPKAST, engine="native", seed=0)
    x, y = torch.randn(5, 8, requires_grad=True), torch.randn(5, 8)
    expected = x
    for block in twins:
        expected = block(expected)
    for block in blocks:
        x = torch.compile(block, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(x, expected)
    F.mse_loss(x, y).backward()
    F.mse_loss(expected, y).backward()
    theirs = [block[0].weight.values.grad for block in twins]
    for weight, grad in zip(sparse.weights.values(), theirs, strict=True):
        assert torch.equal(weight.values.grad, grad)


def small(engine: str = "native") -> tuple[nn.Sequential, topkast.Handle]:
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    return model, topkast.sparsify(model, TOPKAST, engine=engine, seed=0)


def test_sets_that_change_before_the_backward_pass_are_an_error() -> None:
    """Values that moved are noticed by autograd; if A alone changed, by the Plan."""
    model, sparse = small()
    loss = torch.compile(model, backend="aot_eager")(torch.randn(4, 8)).sum()
    for weight in sparse.weights.values():
        weight.active.copy_(weight.active.flip(0))
    with pytest.raises(RuntimeError, match="were changed after this Plan was made"):
        loss.backward()
    loss = torch.compile(model, backend="aot_eager")(torch.randn(4, 8)).sum()
    for weight in sparse.weights.values():
        weight.active.copy_(weight.active.flip(0))
    model(torch.randn(4, 8))  # has Plans of its own by now
    with pytest.raises(ValueError, match="it is gone, as after a refresh between a forward pass and its"):
        loss.backward()


def test_a_copy_of_a_compiled_model_computes_with_its_own_sets() -> None:
    model, sparse = small()
    x = torch.randn(4, 8)
    before = torch.compile(model, backend="aot_eager")(x)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight in sparse.weights.values():
            weight.values.copy_(torch.randn_like(weight.values))
    sparse.refresh()
    assert torch.equal(torch.compile(twin, backend="aot_eager")(x), before)
    assert not torch.equal(torch.compile(model, backend="aot_eager")(x), before)


def test_steps_that_a_grad_scaler_skips_do_not_refresh() -> None:
    model, sparse = small()
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = compiled(torch.randn(4, 8)).float().square().mean()
        scaler.scale(loss * float("inf") if step == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert {w.steps for w in sparse.weights.values()} == {3}


def test_the_penalty_can_be_compiled_with_the_loss() -> None:
    model, sparse = small()
    x = torch.randn(4, 8)

    def objective(x: Tensor) -> Tensor:
        return model(x).square().mean() + 0.1 * sparse.penalty()

    objective(x).backward()
    eager = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    torch.compile(objective, backend="aot_eager", fullgraph=True)(x).backward()
    for parameter, grad in zip(model.parameters(), eager, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_bad_ids_are_refused_by_a_compiled_embedding() -> None:
    model = nn.Sequential(nn.Embedding(8, 5))
    topkast.sparsify(model, TOPKAST)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert compiled(torch.tensor([0, 7])).shape == (2, 5)
    with pytest.raises(IndexError, match=r"embedding ids must lie in \[0, 8\), got values from 1 to 8"):
        compiled(torch.tensor([1, 8]))
