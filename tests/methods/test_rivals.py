"""Each rival against its own paper: who is dropped, who is grown, what they start at."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import topkast
from methods.conftest import Example, Training, batch

pytestmark = pytest.mark.usefixtures("one_thread")


def dense_gradients(training: Training, batches: list[int]) -> dict[str, Tensor]:
    """∂L/∂α of every sparse weight by plain autograd on the dense twin, summed over batches; flat."""
    twin = topkast.densify(training.model)
    for number in batches:
        ids, labels = batch(number)
        F.cross_entropy(twin(ids), labels).backward()
    return {name: twin.get_submodule(name).weight.grad.flatten() for name in training.sparse.weights}


def largest_outside(gradient: Tensor, kept: set[int], count: int) -> set[int]:
    ranked = sorted(range(gradient.numel()), key=lambda i: (-abs(float(gradient[i])), i))
    return set([i for i in ranked if i not in kept][:count])


def smallest_dropped(values: dict[int, float], count: int) -> set[int]:
    """What is left after the `count` smallest have gone; of equals the one with the larger position goes."""
    ranked = sorted(values, key=lambda i: (-abs(values[i]), i))
    return set(ranked[: len(ranked) - count])


def members(training: Training) -> dict[str, dict[int, float]]:
    return {
        name: dict(zip(w.indices.tolist(), w.values.tolist(), strict=True))
        for name, w in training.sparse.weights.items()
    }


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_rigl_grows_the_top_k_of_the_true_dense_gradient(micro_batches: int) -> None:
    """Also with gradient accumulation, where the gradient is the sum over the micro-batches."""
    training = Training.start(topkast.RigL(0.8, t_end=40, update_every=2))
    for step in range(4):
        numbers = [10 * step + i for i in range(micro_batches)]
        gradients = dense_gradients(training, numbers)
        training.optimizer.zero_grad()
        for number in numbers:
            ids, labels = batch(number)
            F.cross_entropy(training.model(ids), labels).backward()
        before = {name: set(values) for name, values in members(training).items()}
        snapshot: dict[str, dict[int, float]] = {}
        _step_with_snapshot(training, snapshot)
        for name, weight in training.sparse.weights.items():
            now = set(weight.indices.tolist())
            if step % 2 == 0:
                assert now == before[name]
                continue
            fraction = 0.3 / 2 * (1 + math.cos(math.pi * (step + 1) / 40))
            count = round(fraction * len(now))
            kept = smallest_dropped(snapshot[name], count)
            grown = largest_outside(gradients[name], kept, count)
            assert count > 0
            assert now == kept | grown
            theta = weight.theta().flatten()
            assert all(float(theta[i]) == 0.0 for i in grown - before[name])


def _step_with_snapshot(training: Training, snapshot: dict[str, dict[int, float]]) -> None:
    """An optimizer step; `snapshot` gets θ on B as the optimizer left it, before the sets were chosen."""
    driver = training.sparse._driver
    choose = driver.exchange

    def spy(*arguments: object, **options: object) -> None:
        snapshot.update(members(training))
        choose(*arguments, **options)  # pyright: ignore[reportArgumentType]

    driver.exchange = spy  # pyright: ignore[reportAttributeAccessIssue]
    training.optimizer.step()
    del driver.exchange


def test_a_step_that_a_scaler_skips_leaves_no_trace_in_the_grown_elements() -> None:
    """Under AMP an overflow skips the step: its micro-batches must not be part of the next gradient."""
    torch.manual_seed(0)
    runs = []
    for has_overflow in (False, True):
        training = Training.start(topkast.RigL(0.8, t_end=40, update_every=2))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step in range(5):
            if has_overflow and step == 1:  # the step in which the gradient is wanted
                ids, labels = batch(77)
                loss = F.cross_entropy(training.model(ids), labels)
                scaler.scale(loss * float("inf")).backward()
                scaler.step(training.optimizer)
                scaler.update()
                training.optimizer.zero_grad()
            ids, labels = batch(step)
            scaler.scale(F.cross_entropy(training.model(ids), labels)).backward()
            scaler.step(training.optimizer)
            scaler.update()
            training.optimizer.zero_grad(set_to_none=step % 2 == 0)
        runs.append({name: w.indices.tolist() for name, w in training.sparse.weights.items()})
    assert runs[0] == runs[1]


def test_rigl_trains_under_autocast() -> None:
    torch.manual_seed(0)
    model = Example()
    sparse = topkast.sparsify(model, topkast.RigL(0.8, t_end=40, update_every=2))
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    before = {name: w.indices.clone() for name, w in sparse.weights.items()}
    for step in range(4):
        ids, labels = batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(ids).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(not torch.equal(w.indices, before[name]) for name, w in sparse.weights.items())


def test_a_gradient_that_is_not_finite_names_the_layer_and_changes_nothing() -> None:
    training = Training.start(topkast.RigL(0.8, t_end=40, update_every=1))
    before = {name: w.indices.clone() for name, w in training.sparse.weights.items()}
    ids, labels = batch(0)
    loss = F.cross_entropy(training.model(ids), labels)
    loss.backward()
    tape = training.sparse.weights["hidden"].tape
    assert tape is not None
    tape.add(
        lambda first, last: torch.full((last - first, tape.num_columns), float("nan"), dtype=torch.float64)
    )
    with pytest.raises(
        FloatingPointError, match=r"layer 'hidden': the dense gradient is not finite at step 1"
    ):
        training.optimizer.step()
    assert all(torch.equal(w.indices, before[name]) for name, w in training.sparse.weights.items())


def test_rigl_cannot_be_refreshed_by_hand() -> None:
    training = Training.start(topkast.RigL(0.8, t_end=200))
    with pytest.raises(RuntimeError, match=r"RigL grows by the dense gradient of the step"):
        training.sparse.refresh()


def test_a_layer_that_takes_no_part_keeps_its_sets() -> None:
    model = nn.ModuleDict({"used": nn.Linear(20, 20), "idle": nn.Linear(20, 20)})
    sparse = topkast.sparsify(model, topkast.RigL(0.8, t_end=10, update_every=1))
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    before = {name: w.indices.clone() for name, w in sparse.weights.items()}
    model["used"](torch.randn(8, 20)).square().sum().backward()
    optimizer.step()
    assert torch.equal(sparse.weights["idle"].indices, before["idle"])
    assert not torch.equal(sparse.weights["used"].indices, before["used"])


def test_set_drops_the_smallest_and_draws_the_new_from_the_initial_distribution() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 100))
    nn.init.normal_(model[0].weight, std=0.5)
    sparse = topkast.sparsify(model, topkast.SET(0.5, drop_fraction=0.4, update_every=1))
    weight = sparse.weights["0"]
    old = dict(zip(weight.indices.tolist(), weight.values.tolist(), strict=True))
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.0))
    model(torch.randn(4, 100)).sum().backward()
    optimizer.step()
    new = dict(zip(weight.indices.tolist(), weight.values.tolist(), strict=True))
    kept = smallest_dropped(old, round(0.4 * 5000))
    assert kept <= set(new)
    assert all(new[i] == old[i] for i in kept)
    grown = torch.tensor([new[i] for i in set(new) - set(old)])
    assert grown.numel() > 1000
    assert abs(float(grown.mean())) < 0.06
    assert abs(float(grown.std()) - 0.5) < 0.06


def test_dnw_updates_everything_and_uses_the_top_k() -> None:
    training = Training.start(topkast.DNW(0.8))
    for step in range(3):
        training.step(step)
        for weight in training.sparse.weights.values():
            magnitudes = weight.theta().abs().flatten()
            assert float(magnitudes[weight.forward_mask().flatten()].min()) >= float(
                magnitudes[~weight.forward_mask().flatten()].max()
            )
            assert weight.backward_mask().all()


def test_pruning_keeps_what_is_pruned_and_lets_it_come_back() -> None:
    model = nn.Sequential(nn.Linear(4, 2, bias=False))
    model[0].weight.data = torch.tensor([[8.0, 7, 6, 5], [4, 3, 2, 1]])
    sparse = topkast.sparsify(model, topkast.Pruning(0.75, begin=1, end=3, update_every=1))
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=1.0))
    weight = sparse.weights["0"]
    for step in range(1, 4):
        with torch.no_grad():
            if step == 3:
                weight.values.mul_(0.1)  # what was pruned at step 2 is larger now
        model(torch.zeros(1, 4)).sum().backward()
        optimizer.step()
        sparsity = 0.75 * (1 - (1 - (step - 1) / 2) ** 3)
        assert weight.counts.forward == round(8 * (1 - sparsity))
    assert sorted(weight.values.tolist(), reverse=True) == [5.0, 4.0]


def test_str_uses_soft_thresholded_weights_and_learns_the_threshold() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 10, bias=False)).double()
    theta = model[0].weight.detach().clone().requires_grad_()
    s = torch.tensor(-2.0, dtype=torch.float64, requires_grad=True)
    sparse = topkast.sparsify(model, topkast.STR(s_init=-2.0))
    x = torch.randn(7, 12, dtype=torch.float64)
    model(x).square().sum().backward()
    alpha = theta.sign() * F.relu(theta.abs() - torch.sigmoid(s))
    F.linear(x, alpha).square().sum().backward()
    weight = sparse.weights["0"]
    torch.testing.assert_close(weight.alpha(), alpha.detach())
    torch.testing.assert_close(weight.values.grad, theta.grad.flatten())
    torch.testing.assert_close(weight.companion.s.grad, s.grad)
    assert 0 < weight.counts.forward < weight.numel()


def test_dsr_moves_budgets_to_where_more_survives_and_corrects_its_threshold() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False))
    nn.init.normal_(model[0].weight, std=1.0)
    nn.init.normal_(model[1].weight, std=0.01)
    method = topkast.DSR(0.8, update_every=1, threshold=0.02, target_fraction=0.1)
    sparse = topkast.sparsify(model, method)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.0))
    first, second = sparse.weights.values()
    survivors = [int((w.values.abs() >= 0.02).sum()) for w in (first, second)]
    model(torch.randn(2, 40)).sum().backward()
    optimizer.step()
    assert first.counts.forward + second.counts.forward == 640
    pruned = 640 - sum(survivors)
    share = survivors[0] + pruned * survivors[0] / sum(survivors)
    assert abs(first.counts.forward - share) <= 1
    assert first.counts.forward > second.counts.forward
    # Far more than a tenth has gone: the threshold is halved, in every layer's copy.
    assert [float(w.companion.height) for w in (first, second)] == [0.01, 0.01]


def test_deepr_replaces_what_changes_its_sign() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 30, bias=False))
    sparse = topkast.sparsify(model, topkast.DeepR(0.8, l1=0.0, temperature=0.0))
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.5))
    weight = sparse.weights["0"]
    before = dict(zip(weight.indices.tolist(), weight.values.tolist(), strict=True))
    model(torch.randn(9, 30)).square().mean().backward()
    gradient = dict(zip(weight.indices.tolist(), weight.values.grad.tolist(), strict=True))
    optimizer.step()
    flipped = {i for i in before if before[i] * (before[i] - 0.5 * gradient[i]) < 0}
    now = dict(zip(weight.indices.tolist(), weight.values.tolist(), strict=True))
    assert flipped
    assert set(before) - set(now) == flipped
    assert all(now[i] == 0.0 for i in set(now) - set(before))


def test_snfs_grows_where_the_momentum_is_largest_and_gives_to_layers_by_its_mean() -> None:
    method = topkast.SNFS(0.8, t_end=40, update_every=3)
    training = Training.start(method)
    smoothed = {
        name: torch.zeros(w.numel(), dtype=torch.float64) for name, w in training.sparse.weights.items()
    }
    snapshot: dict[str, dict[int, float]] = {}
    for step in range(3):
        for name, gradient in dense_gradients(training, [step]).items():
            smoothed[name] = 0.9 * smoothed[name] + 0.1 * gradient
        training.optimizer.zero_grad()
        ids, labels = batch(step)
        F.cross_entropy(training.model(ids), labels).backward()
        _step_with_snapshot(training, snapshot)
    fraction = 0.2 / 2 * (1 + math.cos(math.pi * 3 / 40))
    kept = {n: smallest_dropped(v, round(fraction * len(v))) for n, v in snapshot.items()}
    means = {n: float(smoothed[n][sorted(k)].abs().mean()) for n, k in kept.items()}
    freed = sum(len(snapshot[n]) - len(k) for n, k in kept.items())
    room = {n: w.numel() - len(kept[n]) for n, w in training.sparse.weights.items()}
    full: set[str] = set()
    while True:  # what a full layer cannot take goes to the others in proportion
        left = freed - sum(room[n] for n in full)
        weight_left = sum(means[n] for n in means if n not in full)
        expected = {n: room[n] if n in full else left * means[n] / weight_left for n in means}
        over = {n for n in means if expected[n] > room[n]}
        if not over:
            break
        full |= over
    assert full  # the small output layer overflows here, so that this is tested too
    for name, weight in training.sparse.weights.items():
        now = set(weight.indices.tolist())
        assert kept[name] <= now
        count = len(now) - len(kept[name])
        assert now == kept[name] | largest_outside(smoothed[name], kept[name], count)
        assert abs(count - expected[name]) <= 1


def test_global_scope_is_the_top_k_over_all_layers() -> None:
    training = Training.start(topkast.TopKAST(0.8, 0.6, refresh_every=2, exchange_every=2, scope="global"))

    def check() -> None:
        weights = training.sparse.weights
        every = [
            (-abs(t), i, j)
            for i, w in enumerate(weights.values())
            for j, t in enumerate(w.theta().flatten().tolist())
        ]
        every.sort()
        for k, sets in ((sum(w.target.forward for w in weights.values()), "forward_mask"),
                        (sum(w.target.backward for w in weights.values()), "backward_mask")):  # fmt: skip
            expected = {(i, j) for _, i, j in every[:k]}
            got = {(i, j) for i, w in enumerate(weights.values())
                   for j in getattr(w, sets)().flatten().nonzero().flatten().tolist()}  # fmt: skip
            assert got == expected

    check()
    for step in range(6):
        training.step(step)
        if step % 2:
            check()
    assert len({w.counts.forward_density for w in training.sparse.weights.values()}) > 1


def test_global_scope_with_an_implicit_reservoir_equals_the_stored_one() -> None:
    def build() -> tuple[nn.Module, topkast.Handle]:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(60, 50), nn.Tanh(), nn.Linear(50, 40))
        method = topkast.TopKAST(0.9, 0.8, refresh_every=2, exchange_every=2, scope="global")
        return model, topkast.sparsify(model, method, reservoir="implicit", seed=5)

    (first, implicit), (second, stored) = build(), build()
    stored.materialise()
    data = torch.randn(8, 16, 60)
    for model, sparse in ((first, implicit), (second, stored)):
        optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9))
        for x in data:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for name, weight in implicit.weights.items():
        assert torch.equal(weight.indices, stored.weights[name].indices)
        assert torch.equal(weight.values, stored.weights[name].values)


def test_a_global_method_needs_one_optimizer_for_all() -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20))
    sparse = topkast.sparsify(model, topkast.DSR(0.8))
    half = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"DSR moves budgets between layers.*those of layer '1' are not"):
        sparse.attach(half)


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("hidden.weight.values", lambda t: t[:-1], r"indices must have one entry per value"),
        ("hidden.weight.values", lambda t: t.new_zeros(0), r"\|B\| must be between 1 and 4608, got values of shape \(0,\)"),
        ("hidden.weight.active", lambda t: torch.zeros_like(t), r"\|A\| must be at least 1, got 0"),
        ("hidden.weight.companion.height", lambda t: t.new_full((2,), 1.0), r"companion.height must have shape \(\)"),
        ("hidden.weight.companion.height", lambda t: t.new_tensor(float("nan")), r"companion.height has numbers that are not finite"),
        ("hidden.weight.companion.height", None, r"companion.height missing; sparsify with the method"),
    ],
)  # fmt: skip
def test_a_bad_state_of_a_method_that_resizes_changes_nothing(key: str, change: object, message: str) -> None:
    state = Training.start(topkast.DSR(0.8, update_every=1)).run(0, 3).model.state_dict()
    if change is None:
        del state[key]
    else:
        state[key] = change(state[key])  # pyright: ignore[reportCallIssue]
    training = Training.start(topkast.DSR(0.8, update_every=1), seed=1)
    before = {k: v.clone() for k, v in training.model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        training.model.load_state_dict(state)
    after = training.model.state_dict()
    assert all(torch.equal(after[k], before[k]) for k in before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: topkast.DSR(0.8), r"layer '0' was made sparse for another method: it keeps no Threshold beside it"),
        (lambda: topkast.TopKAST(0.8, 0.8, scope="global"), r"it keeps its size, which TopKAST needs"),
    ],
)  # fmt: skip
def test_a_handle_for_weights_of_another_method_is_refused(make: object, message: str) -> None:
    model = nn.Sequential(nn.Linear(20, 20))
    topkast.sparsify(model, topkast.Static(0.8))
    topkast.Handle(model, topkast.RigL(0.8, t_end=200))  # keeps sizes, and nothing beside the weights
    with pytest.raises(ValueError, match=message):
        topkast.Handle(model, make())  # pyright: ignore[reportCallIssue]
