"""What is frozen, forgotten or copied: left alone, said once, or carried along."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from small_loop import loss_of, setup, steps
from torch import nn

import topkast

# ---- what is frozen --------------------------------------------------------------------------------------------

FROZEN_METHODS = [
    topkast.TopKAST(0.8, 0.5, refresh_every=1, exchange_every=1),
    topkast.SET(0.8, update_every=1),
    topkast.RigL(0.8, update_every=1, t_end=100),
    topkast.SNFS(0.8, update_every=1, t_end=100, redistributes=False),
    topkast.DeepR(0.8),
    topkast.DNW(0.8),
    topkast.Pruning(0.8, begin=0, end=4, update_every=1),
]


@pytest.mark.parametrize("method", FROZEN_METHODS, ids=lambda m: type(m).__name__)
def test_a_frozen_layer_is_left_alone(method: topkast.Method) -> None:
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    sparse = topkast.sparsify(model, method)
    optimizer = sparse.attach(torch.optim.AdamW(model.parameters(), lr=0.1))
    for step in range(6):
        if step == 2:
            model[0].requires_grad_(False)
            optimizer.zero_grad()
            before = copy.deepcopy(model[0].state_dict())
            other = sparse.weights["2"].theta()
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = model[0].state_dict()
    kept = [k for k in before if k not in ("weight.step", "weight.choices")]
    assert all(torch.equal(after[k], before[k]) for k in kept)
    assert not torch.equal(sparse.weights["2"].theta(), other)


def test_a_method_that_moves_budgets_refuses_frozen_layers() -> None:
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.8, 0.5, refresh_every=1, exchange_every=1, scope="global")
    )
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    model[0].requires_grad_(False)
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match=r"layer '0' is frozen .* moves budgets between layers"):
        optimizer.step()


# ---- what is forgotten -------------------------------------------------------------------------------------------


def test_training_without_an_attached_optimizer_is_reminded_of_once() -> None:
    model, sparse = setup()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        loss = loss_of(model)
        if step == 19:
            with pytest.warns(
                topkast.NotAttachedWarning, match="has had 20 backward passes, but no optimizer"
            ):
                loss.backward()
        else:
            loss.backward()
        optimizer.step()
    assert steps(sparse) == {0}


def test_nobody_is_reminded_who_attached_or_needs_not() -> None:
    for method in (topkast.Static(0.8), topkast.TopKAST(0.8, 0.5)):
        model = nn.Sequential(nn.Linear(8, 12))
        sparse = topkast.sparsify(model, method)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if isinstance(method, topkast.TopKAST):
            sparse.attach(optimizer)
        for _ in range(25):
            loss_of(model).backward()
            optimizer.step()


def test_the_penalty_is_reminded_of_once_at_the_first_refresh() -> None:
    def train(asked: str) -> None:
        model, sparse = setup(refresh_every=2)
        optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
        if asked == "off":
            sparse.expects_penalty = False
        for _ in range(6):
            loss = loss_of(model)
            (loss + 1e-4 * sparse.penalty() if asked == "loss" else loss).backward()
            if asked == "gradient":
                sparse.add_penalty_gradient(1e-4)
            optimizer.step()

    with pytest.warns(topkast.NoPenaltyWarning, match=r"`1e-4 \* sparse.penalty\(\)`") as seen:
        train("never")
    assert len(seen) == 1
    assert "under_adam" not in str(seen[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for asked in ("loss", "gradient", "off"):
            train(asked)


def test_who_trains_with_adam_is_told_of_the_settings_for_it() -> None:
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(torch.optim.AdamW(model.parameters(), lr=0.1))
    loss_of(model).backward()
    with pytest.warns(topkast.NoPenaltyWarning, match=r"With AdamW, `topkast.TopKAST.under_adam\(…\)`"):
        optimizer.step()


def test_refreshing_by_hand_beside_an_unattached_optimizer_is_refused() -> None:
    model, sparse = setup()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    sparse.refresh()  # nothing has been trained yet
    loss_of(model).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="layer '0' was trained without an attached optimizer"):
        sparse.refresh()
    sparse.refresh(without_optimizer=True)
    sparse.attach(optimizer)
    loss_of(model).backward()
    optimizer.step()
    sparse.refresh()


def test_model_optimizer_and_handle_copied_together_go_on_together() -> None:
    model, sparse = setup(refresh_every=1)
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=0.1))
    loss_of(model).backward()
    optimizer.step()
    twin, its_optimizer, its_sparse = copy.deepcopy((model, optimizer, sparse))
    for net, opt in ((model, optimizer), (twin, its_optimizer)):
        torch.manual_seed(1)
        for _ in range(3):
            opt.zero_grad()
            loss_of(net).backward()
            opt.step()
    assert steps(its_sparse) == {4}
    for key, value in model.state_dict().items():
        assert torch.equal(value, twin.state_dict()[key])
