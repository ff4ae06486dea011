"""What each of two ranks runs: every check on both, in the same order. Started by `test_ranks.py`.

A check is a function of (rank, folder) that raises where something is wrong.
"""

from __future__ import annotations

import datetime
import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_training import CHECKS, METHODS, Check, Net, Training, assert_alike, batch, check
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import topkast
from topkast.train.workers import leave


def make_same_as_one_process(method: str) -> Check:
    def function(rank: int, folder: Path) -> None:
        together = Training(METHODS[method]()).run(13, rank)
        alone = Training(METHODS[method](), is_alone=True).run(13, None)
        assert_alike(together, alone)
        changed = [w.indices for w in Training(METHODS[method]()).sparse.weights.values()]
        moved = [
            not torch.equal(w.indices, i)
            for w, i in zip(together.sparse.weights.values(), changed, strict=True)
        ]
        assert any(moved) == (method not in ("Static", "DNW")), "the sets were not put to the test"

    return function


for _name in METHODS:
    CHECKS[f"same_as_one_process_{_name}"] = make_same_as_one_process(_name)


@check
def same_in_other_set_ups(rank: int, folder: Path) -> None:
    """Attached before it is wrapped; momentum; an implicit reservoir; gradients that are views of buckets."""
    method = METHODS["TopKAST_random"]
    variants: list[dict[str, Any]] = [
        {"attach_first": True},
        {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)},
        {"reservoir": "implicit"},
        {"wrapper": {"gradient_as_bucket_view": True}},
        {"wrapper": {"static_graph": True, "forward_sync_buffers": False}},
    ]
    for options in variants:
        together = Training(method(), **options).run(9, rank)
        del_keys = ("wrapper", "attach_first")
        rest = {name: value for name, value in options.items() if name not in del_keys}
        assert_alike(together, Training(method(), is_alone=True, **rest).run(9, None))


@check
def gradients_are_accumulated_without_sync(rank: int, folder: Path) -> None:
    for method in ("TopKAST", "RigL", "TopKAST_annealed"):
        together = Training(METHODS[method]())
        assert isinstance(together.called, DistributedDataParallel)
        alone = Training(METHODS[method](), is_alone=True)
        for step in range(7):
            ids = batch(step)
            with together.called.no_sync():
                (together.loss(ids[4 * rank : 4 * rank + 2]) / 2).backward()
            (together.loss(ids[4 * rank + 2 : 4 * rank + 4]) / 2).backward()
            alone.loss(ids).backward()
            for training in (together, alone):
                training.optimizer.step()
                training.optimizer.zero_grad()
        assert_alike(together, alone)


@check
def sizes_that_change_go_together_with_other_set_ups(rank: int, folder: Path) -> None:
    method = METHODS["TopKAST_annealed"]
    variants: list[dict[str, Any]] = [
        {"attach_first": True, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)},
        {"reservoir": "implicit"},
        {"wrapper": {"gradient_as_bucket_view": True, "find_unused_parameters": True}},
        {"wrapper": {"static_graph": True}},
    ]
    for options in variants:
        together = Training(method(), **options).run(11, rank)
        rest = {name: value for name, value in options.items() if name in ("optimizer", "reservoir")}
        assert_alike(together, Training(method(), is_alone=True, **rest).run(11, None))


@check
def gradients_that_we_average_are_clipped_and_scaled_as_all_others(rank: int, folder: Path) -> None:
    """Two backward passes, clipping between them and the step, and a step that a scaler skips."""
    trainings = [Training(METHODS["TopKAST_annealed"](), is_alone=is_alone) for is_alone in (False, True)]
    for training in trainings:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        is_alone = training is trainings[1]
        for step in range(11):
            ids = batch(step) if is_alone else batch(step)[4 * rank : 4 * rank + 4]
            scaler.scale(1e-2 * training.sparse.penalty()).backward()
            overflows = step == 5 and (is_alone or rank == 1)
            scaler.scale(training.loss(ids) * (float("inf") if overflows else 1.0)).backward()
            scaler.unscale_(training.optimizer)
            nn.utils.clip_grad_norm_(training.model.parameters(), 0.05)
            scaler.step(training.optimizer)
            scaler.update()
            training.optimizer.zero_grad()
        assert training.sparse.weights["mid"].steps == 10
    assert_alike(*trainings)


@check
def a_larger_module_must_leave_changing_values_alone(rank: int, folder: Path) -> None:
    class Larger(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.last = inner, nn.Linear(20, 20).double()

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(self.inner(ids))

    for is_told in (False, True):
        training = Training(METHODS["Pruning"](), is_alone=True)
        training.sparse.detach(training.optimizer)
        training.sparse.attach(training.optimizer)
        torch.manual_seed(0)
        larger = Larger(training.model)
        if is_told:
            topkast.distributed.keep_local(larger)
        training.called = DistributedDataParallel(larger)
        if is_told:
            training.run(11, rank)
            continue
        with pytest.raises(RuntimeError, match=r"has taken 'embedding.weight'.*keep_local\(module\)"):
            training.run(1, rank)


@check
def a_layer_that_one_rank_does_not_use_is_averaged(rank: int, folder: Path) -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.LayerNorm(8)
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, which: int) -> Tensor:
            return self.dense(x) if which == 0 else self.b(self.a(self.dense(x)))

    torch.manual_seed(0)
    model = Gated().double()
    sparse = topkast.sparsify(model, topkast.Pruning(0.8, begin=1, end=5, update_every=1))
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    before = sparse.weights["b"].theta()
    for step in range(7):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4, 8, dtype=torch.float64, generator=generator)
        wrapped(x, (rank + step) % 2 if step else 0).square().sum().backward()
        assert (model.b.weight.values.grad is None) == (step == 0)
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(sparse.weights["b"].theta(), before)


@check
def attached_before_the_ranks_met_is_refused(rank: int, folder: Path) -> None:
    training = Training(METHODS["Pruning"]())
    driver = training.sparse._driver
    driver._averaging.remove()
    driver._averaging = None  # as if there had been no process group yet
    with pytest.raises(RuntimeError, match="call `attach` after `init_process_group`"):
        training.run(1, rank)


@check
def an_average_follows(rank: int, folder: Path) -> None:
    averages = []
    for is_alone in (False, True):
        training = Training(METHODS["TopKAST"](), is_alone=is_alone)
        average = torch.optim.swa_utils.AveragedModel(
            training.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        training.sparse.follow(average)
        for step in range(7):
            ids = batch(step)
            training.step(ids if is_alone else ids[4 * rank : 4 * rank + 4])
            average.update_parameters(training.model)
        averages.append(average)
    for mine, other in zip(*(average.parameters() for average in averages), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-11)


@check
def only_gradients_are_sent(rank: int, folder: Path) -> None:
    """|B| numbers and the dense rest; no buffer of a sparse layer, before or after it has grown."""
    training = Training(METHODS["TopKAST_random"](), reservoir="implicit")
    ddp = training.called
    assert isinstance(ddp, DistributedDataParallel)
    sent: list[int] = []

    def count(state, bucket):  # without annotations: torch wants them to be classes
        sent.append(bucket.buffer().numel())
        return (
            dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda f: f.value()[0])
        )

    ddp.register_comm_hook(None, count)
    training.run(5, rank)
    assert ddp.modules_buffers == []
    in_b = sum(w.counts.backward for w in training.sparse.weights.values())
    rest = sum(p.numel() for n, p in training.model.named_parameters() if n.endswith("bias"))
    assert sum(sent) == 5 * (in_b + rest)

    class Larger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = training.model, nn.BatchNorm1d(3)

    larger = Larger()
    assert len(DistributedDataParallel(larger).modules_buffers) > 3
    wrapped = DistributedDataParallel(topkast.distributed.keep_local(larger))
    assert len(wrapped.modules_buffers) == 3  # mean, variance and count of the norm


@check
def other_seeds_are_caught(rank: int, folder: Path) -> None:
    for method, what in (("TopKAST", "sets"), ("SET", "random key")):
        training = Training(METHODS[method](), seed=rank if what == "sets" else 0)
        if what == "random key":  # the sets are the same by chance, later ones will not be
            training.sparse.weights["mid"].key.fill_(rank)
        with pytest.raises(topkast.distributed.RanksDiffer, match="same seed") as caught:
            training.run(1, rank)
        layer = "embedding" if what == "sets" else "mid"
        first = "random key" if what == "sets" else what
        assert f"layer '{layer}': its {first} on rank 1" in str(caught.value)


@check
def sets_that_come_apart_are_caught_at_the_refresh(rank: int, folder: Path) -> None:
    training = Training(topkast.TopKAST(0.8, 0.6, refresh_every=3, exchange_every=3)).run(2, rank)
    weight = training.sparse.weights["mid"]
    if rank == 1:  # as a broken kernel or memory would have it
        with torch.no_grad():
            weight.reservoir.get_buffer("rest")[:] = 7.0
            weight.reservoir.get_buffer("rest")[weight.indices.long()] = 0.0
    with pytest.raises(topkast.distributed.RanksDiffer, match=r"layer 'mid': its sets on rank 1 are not"):
        training.run(1, rank)


@check
def a_model_that_is_not_wrapped_is_caught(rank: int, folder: Path) -> None:
    training = Training(METHODS["TopKAST"](), is_alone=True)
    training.sparse.detach(training.optimizer)
    training.sparse.attach(training.optimizer)
    with pytest.raises(
        topkast.distributed.RanksDiffer, match="its values on rank 1 .*: wrap the model in it"
    ):
        training.run(2, rank)


@check
def other_layers_are_caught(rank: int, folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    skip = ["1"] if rank else None
    sparse = topkast.sparsify(model, METHODS["TopKAST"](), skip=skip)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.randn(2, 8)).sum().backward()
    with pytest.raises(topkast.distributed.RanksDiffer, match="the sparse layers are not the same"):
        optimizer.step()


@check
def each_may_train_its_own_model(rank: int, folder: Path) -> None:
    training = Training(topkast.DSR(0.8, update_every=2), is_alone=True, seed=rank).run(5, None)
    assert sum(w.counts.forward for w in training.sparse.weights.values()) > 0
    other = Training(METHODS["TopKAST"](), is_alone=True)
    model = other.sparse
    model.detach(other.optimizer)
    first, second = list(model.weights.values())[:2]
    model.attach(torch.optim.SGD([first.values], lr=0.1), process_group="alone")
    with pytest.raises(ValueError, match="give the same `process_group`"):
        model.attach(torch.optim.SGD([second.values], lr=0.1))


@check
def what_changes_its_sizes_is_refused(rank: int, folder: Path) -> None:
    methods = [
        topkast.DSR(0.8),
        topkast.STR(s_init=-2.0),
        topkast.L0(cut_at=9),
        topkast.SNFS(0.8, t_end=9),
        topkast.TopKAST(0.8, 0.6, scope="global"),
        topkast.TopKAST(topkast.Anneal(0.0, 0.8, to_step=9), 0.0, scope="global"),
    ]
    for method in methods:
        name = type(method).__name__
        rule = f"{name} changes the sizes of the sets within one process only: 2 processes are training here"
        with pytest.raises(RuntimeError, match=rule):
            Training(method)


@check
def a_broadcast_gives_one_start(rank: int, folder: Path) -> None:
    """Only the first rank has trained, and its implicit reservoir has grown."""
    for reservoir in ("stored", "implicit"):
        method = topkast.TopKAST(0.8, 0.6, refresh_every=1, exchange_every=1, exploration="random")
        source = Training(method, is_alone=True, reservoir=reservoir).run(4, None).model
        torch.manual_seed(rank)
        with torch.device("meta" if reservoir == "implicit" else "cpu"):
            model = Net().double()
        sparse = topkast.sparsify(model, method, reservoir=reservoir, engine="native")
        if rank == 0:
            model.load_state_dict(source.state_dict())
        topkast.distributed.broadcast(model)
        for name, tensor in source.state_dict().items():
            assert torch.equal(tensor, model.state_dict()[name]), name
        optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
        wrapped = DistributedDataParallel(model)
        wrapped(batch(0)[4 * rank : 4 * rank + 4]).square().mean().backward()
        optimizer.step()


@check
def a_layer_that_one_rank_does_not_use_still_grows(rank: int, folder: Path) -> None:
    """RigL's gradient of it is that of the other rank; nobody waits for ever."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if rank else self.b(self.a(x))

    torch.manual_seed(0)
    model = Gated().double()
    sparse = topkast.sparsify(model, topkast.RigL(0.8, update_every=1, t_end=9), engine="native")
    before = sparse.weights["b"].indices.clone()
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    for _ in range(3):
        wrapped(torch.randn(4, 8, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(sparse.weights["b"].indices, before)


@check
def engines_are_agreed_on(rank: int, folder: Path) -> None:
    training = Training(METHODS["TopKAST"](), engine="auto")
    choices = training.sparse.weights["mid"].choices
    choices[60] = 1 + rank  # as if each had measured something else
    choices[61] = 3 * rank
    training.run(1, rank)
    assert choices[60] == 1, "that of the first rank"
    assert choices[61] == 3, "that of the first that has one"


@check
def values_in_pieces_are_refused(rank: int, folder: Path) -> None:
    with warnings.catch_warnings():  # torch itself uses what it calls deprecated
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8))
    sparse = topkast.sparsify(model, METHODS["TopKAST"]())
    with pytest.raises(TypeError, match="ZeroRedundancyOptimizer cannot train sparse values"):
        sparse.attach(ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    with pytest.raises(TypeError, match=r"layer '0' were split between ranks: it is a DTensor \(S"):
        sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))


@check
def skipped_steps_are_skipped_by_all(rank: int, folder: Path) -> None:
    """Only one rank's loss overflows; gradients are added up, so that every scaler sees it."""
    training = Training(METHODS["TopKAST"]())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        loss = training.loss(batch(step)[4 * rank : 4 * rank + 4])
        scaler.scale(loss * (float("inf") if step == 1 and rank == 1 else 1.0)).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()
    assert training.sparse.weights["mid"].steps == 3


@check
def join_is_refused_at_once(rank: int, folder: Path) -> None:
    """A rank that has run out of data would be waited for at the next refresh."""
    for method in ("TopKAST", "Static"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 12))
        sparse = topkast.sparsify(model, METHODS[method]())
        wrapped = DistributedDataParallel(model)
        optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))

        def train(count: int, wrapped: nn.Module = wrapped, optimizer: Any = optimizer) -> None:
            for _ in range(count):
                wrapped(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        if method == "Static":  # which refreshes nothing
            with wrapped.join():
                train(2 + rank)
            continue
        message = r"cannot be trained within DistributedDataParallel's join\(\).*throw_on_early_termination"
        with pytest.raises(RuntimeError, match=message), wrapped.join():
            train(2 + rank)
        with (
            pytest.raises(RuntimeError, match="exhausted all inputs|exhausted inputs"),
            wrapped.join(throw_on_early_termination=True),
        ):
            train(3 + rank)
        assert {w.steps for w in sparse.weights.values()} == {3}


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", topkast.NoPenaltyWarning)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=120),
    )
    results = {}
    for name, function in CHECKS.items():
        try:
            function(rank, folder)
            results[name] = None
        except BaseException:
            results[name] = traceback.format_exc()
    dist.destroy_process_group()
    (folder / f"results-{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    leave(0)  # as a rank of `topkast train` does, and for its reason
