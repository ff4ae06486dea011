"""Any optimizer, any loop: the schedule follows real optimizer steps and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from small_loop import loss_of, setup, steps
from torch import nn

import topkast


def test_attach_returns_the_same_optimizer_and_twice_is_once() -> None:
    model, sparse = setup()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert sparse.attach(optimizer) is optimizer
    assert sparse.attach(optimizer) is optimizer
    loss_of(model).backward()
    optimizer.step()
    assert steps(sparse) == {1}


def test_an_optimizer_made_before_sparsify_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5))
    with pytest.raises(
        ValueError, match=r"the optimizer \(SGD\) holds the values of no sparse layer; create it from"
    ):
        sparse.attach(optimizer)


def test_what_is_not_an_optimizer_is_refused() -> None:
    _, sparse = setup()
    with pytest.raises(TypeError, match=r"`optimizer` must be a torch.optim.Optimizer, got 'SGD'"):
        sparse.attach("SGD")  # type: ignore[arg-type]


def test_gradient_accumulation_and_clipping_count_real_steps() -> None:
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(torch.optim.AdamW(model.parameters(), lr=0.1))
    for micro_batch in range(12):
        loss_of(model).backward()
        if micro_batch % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            optimizer.zero_grad()
    assert steps(sparse) == {3}


def test_closures_schedulers_and_param_groups() -> None:
    model, sparse = setup(refresh_every=2)
    groups = sparse.param_groups(weight_decay=0.1)
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]
    assert sum(p.numel() for g in groups for p in g["params"]) == sum(p.numel() for p in model.parameters())
    assert {id(p) for p in groups[1]["params"]} == {id(w.values) for w in sparse.weights.values()}
    optimizer = sparse.attach(torch.optim.AdamW(groups, lr=0.1))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model) + 1e-3 * sparse.penalty()
        loss.backward()
        return loss

    for _ in range(6):
        optimizer.step(closure)
        scheduler.step()
    assert steps(sparse) == {6}


def test_param_groups_can_decay_values_too_and_have_no_empty_group() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.5, 0.5))
    (group,) = sparse.param_groups(0.1, values_weight_decay=0.2)
    assert group["weight_decay"] == 0.2


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_grad_scaler_skips_do_not_count(fused: bool) -> None:
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=0.1, fused=fused))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale(loss_of(model) * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    step(1.0)
    before = [w.theta() for w in sparse.weights.values()]
    step(float("inf"))
    assert steps(sparse) == {1}
    assert all(torch.equal(w.theta(), t) for w, t in zip(sparse.weights.values(), before, strict=True))
    step(1.0)
    assert steps(sparse) == {2}


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_leaves_frozen_weights_alone(fused: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 12))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5, refresh_every=100, explore_until=0))
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=0.1, fused=fused))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        weight = sparse.weights["0"]
        frozen = weight.values.detach()[~weight.active].clone()
        optimizer.zero_grad()
        scaler.scale(loss_of(model) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weight.values.detach()[~weight.active], frozen)


def test_several_optimizers_each_drive_their_own_layers() -> None:
    model, sparse = setup(refresh_every=2)
    first = sparse.attach(torch.optim.SGD(model[0].parameters(), lr=0.1))
    second = sparse.attach(torch.optim.Adam(model[2].parameters(), lr=0.1))
    for i in range(6):
        loss_of(model).backward()
        first.step()
        if i % 2:
            second.step()
        model.zero_grad()
    assert (sparse.weights["0"].steps, sparse.weights["2"].steps) == (6, 3)


def test_values_belong_to_one_attached_optimizer_until_it_is_detached() -> None:
    model, sparse = setup()
    old = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    new = torch.optim.Adam(model.parameters(), lr=0.1)
    with pytest.raises(
        ValueError, match=r"the values of layer '0' belong to an optimizer that is attached already"
    ):
        sparse.attach(new)
    sparse.detach(old)
    sparse.attach(new)
    loss_of(model).backward()
    old.step()
    assert steps(sparse) == {0}
    new.step()
    assert steps(sparse) == {1}
    with pytest.raises(ValueError, match="the optimizer is not attached"):
        sparse.detach(old)


def test_foreach_fused_and_single_tensor_paths_agree() -> None:
    runs = []
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        torch.manual_seed(0)
        model, sparse = setup(refresh_every=1)
        model.double()
        optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=0.05, **options))
        for _ in range(20):
            model(torch.randn(16, 8, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        runs.append({name: layer.theta() for name, layer in sparse.layers.items()})
    for other in runs[1:]:
        for name, theta in runs[0].items():
            torch.testing.assert_close(other[name], theta, rtol=1e-9, atol=1e-9)


def test_the_parameter_the_optimizer_holds_is_the_one_that_trains() -> None:
    """A refresh must not leave the optimizer with a stale Parameter, as other implementations do."""
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    held = [id(p) for g in optimizer.param_groups for p in g["params"]]
    for _ in range(5):
        before = copy.deepcopy(model.state_dict())
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert [id(p) for p in model.parameters()] == held
        assert any(not torch.equal(v, before[k]) for k, v in model.state_dict().items() if "values" in k)


def test_a_refresh_between_forward_and_backward_is_caught() -> None:
    model, sparse = setup()
    loss = loss_of(model)
    with torch.no_grad():
        sparse.weights["0"].values.mul_(torch.linspace(0, 2, 48))
    sparse.refresh()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("power", [1, 2])
def test_the_penalty_as_a_gradient_is_that_of_the_loss(power: int) -> None:
    model, sparse = setup()
    sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    loss = loss_of(model)
    (loss + 0.3 * sparse.penalty(power)).backward(retain_graph=True)
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    loss.backward()
    sparse.add_penalty_gradient(0.3, power)
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    with pytest.raises(ValueError, match="`power` must be 1 or 2, got 3"):
        sparse.add_penalty_gradient(0.3, 3)


def test_of_a_wrapped_optimizer_the_one_within_is_attached() -> None:
    class Wrapper:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

    model, sparse = setup()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped: Any = Wrapper(Wrapper(inner))
    assert sparse.attach(wrapped) is wrapped
    assert sparse.attach(inner) is inner
    loss_of(model).backward()
    inner.step()
    assert steps(sparse) == {1}
    sparse.detach(wrapped)
    inner.step()
    assert steps(sparse) == {1}


# ---- steps are counted once --------------------------------------------------------------------------------


class Clipped(torch.optim.Adam):
    """Calls its base's step: torch calls the hooks for both, once the base was instantiated."""

    fails = False

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        if self.fails:
            raise ArithmeticError("the step failed")
        for group in self.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        return super().step(closure)


def test_a_step_that_calls_its_base_counts_once() -> None:
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # anywhere before in the process
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(Clipped(model.parameters(), lr=0.1))
    for step in range(4):
        loss_of(model).backward()
        if step == 2:  # a step that ends with an error must not be remembered as one that goes on
            optimizer.fails = True
            with pytest.raises(ArithmeticError):
                optimizer.step()
            optimizer.fails = False
        optimizer.step()
        assert steps(sparse) == {step + 1}


def test_one_optimizer_drives_one_handle() -> None:
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    other = topkast.Handle(model, sparse.method)
    with pytest.raises(ValueError, match="attached already, perhaps by another handle of this model"):
        other.attach(optimizer)
    loss_of(model).backward()
    optimizer.step()
    assert steps(sparse) == {1}
    other.detach(optimizer)  # for whoever has lost the first handle
    other.attach(optimizer)
    optimizer.step()
    assert steps(sparse) == {2}


def test_a_handle_and_optimizer_that_nobody_holds_any_more_are_no_obstacle() -> None:
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    method = sparse.method
    del sparse, optimizer
    other = topkast.Handle(model, method)
    other.attach(torch.optim.SGD(model.parameters(), lr=0.1))


# ---- parameter groups that change -----------------------------------------------------------------------------


def test_a_group_that_is_added_later_is_refreshed_too() -> None:
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(torch.optim.SGD(model[0].parameters(), lr=0.3))
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": list(model[2].parameters())})
        loss_of(model).backward()
        optimizer.step()
        model.zero_grad()
    assert [w.steps for w in sparse.weights.values()] == [4, 2]
    weight = sparse.weights["2"]
    order = weight.theta().flatten().abs().sort(descending=True, stable=True).indices
    assert set(order[: weight.counts.forward].tolist()) == set(weight.indices[weight.active].tolist())


def test_a_group_that_is_taken_away_lets_its_layers_go() -> None:
    model, sparse = setup(refresh_every=1)
    groups = [{"params": list(model[i].parameters())} for i in (0, 2)]
    optimizer = sparse.attach(torch.optim.AdamW(groups, lr=0.1))
    for step in range(4):
        if step == 2:
            del optimizer.param_groups[1]
        loss_of(model).backward()
        optimizer.step()
        model.zero_grad()
    assert [w.steps for w in sparse.weights.values()] == [4, 2]
    sparse.attach(torch.optim.SGD(model[2].parameters(), lr=0.1))  # nobody has it any more


def test_a_group_that_cannot_be_taken_is_refused_before_the_step() -> None:
    model, sparse = setup(refresh_every=1)
    first = sparse.attach(torch.optim.SGD(model[0].parameters(), lr=0.1))
    sparse.attach(torch.optim.SGD(model[2].parameters(), lr=0.1))
    first.add_param_group({"params": list(model[2].parameters())})
    before = copy.deepcopy(model.state_dict())
    loss_of(model).backward()
    with pytest.raises(ValueError, match="the values of layer '2' belong to an optimizer that is attached"):
        first.step()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items() if "choices" not in k)


# ---- states that are loaded early, or of two models --------------------------------------------------------------


def test_a_state_loaded_before_attaching_is_checked_all_the_same() -> None:
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(torch.optim.AdamW(model.parameters(), lr=0.1))
    for _ in range(5):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    saved = {"model": copy.deepcopy(model.state_dict()), "optimizer": copy.deepcopy(optimizer.state_dict())}

    for is_whole in (True, False):
        other, its_sparse = setup(refresh_every=1)
        its_optimizer = torch.optim.AdamW(other.parameters(), lr=0.1)
        its_optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        its_sparse.attach(its_optimizer)
        if is_whole:
            other.load_state_dict(saved["model"])
        loss_of(other).backward()
        if is_whole:
            its_optimizer.step()
            assert "topkast" not in its_optimizer.param_groups[0]
        else:
            with pytest.raises(RuntimeError, match="saved with other sets than layer '0' has now"):
                its_optimizer.step()


def test_the_tags_of_version_0_1_are_still_read() -> None:
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(torch.optim.AdamW(model.parameters(), lr=0.1))
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        del group["topkast"]
    optimizer.load_state_dict({**saved, "topkast": {"0": "0123456789abcdef"}})
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match="saved with other sets than layer '0' has now"):
        optimizer.step()


def test_two_models_with_the_same_names_share_an_optimizer() -> None:
    def build(seed: int) -> tuple[list[nn.Module], torch.optim.Optimizer]:
        torch.manual_seed(seed)
        parts = [setup(refresh_every=1) for _ in range(2)]
        optimizer = torch.optim.Adam([p for model, _ in parts for p in model.parameters()], lr=0.1)
        for _, sparse in parts:
            sparse.attach(optimizer)
        return [model for model, _ in parts], optimizer

    models, optimizer = build(0)
    for _ in range(3):
        sum(loss_of(model) for model in models).backward()  # type: ignore[union-attr]
        optimizer.step()
    others, its_optimizer = build(1)
    for model, other in zip(models, others, strict=True):
        other.load_state_dict(model.state_dict())
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    its_optimizer.zero_grad()
    sum(loss_of(model) for model in others).backward()  # type: ignore[union-attr]
    its_optimizer.step()

    others, its_optimizer = build(1)
    others[0].load_state_dict(models[0].state_dict())  # the second model's is forgotten
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    sum(loss_of(model) for model in others).backward()  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="saved with other sets"):
        its_optimizer.step()
