"""A floor per neuron: F ∪ TopK of the others, exactly, within B and over all of θ."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import topkast
from topkast.core import floor as floors
from topkast.core.floor import Floor, Grid
from topkast.core.reservoir import DenseTheta
from topkast.core.select import top_k

GRIDS = [
    Grid(4, 6),
    Grid(3, 2, taps=4),
    Grid(4, 2, taps=3, groups=2),
    Grid(6, 4, is_transposed=True),
    Grid(1, 7),
]


def lines_of(mask: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """How many elements each output and each input has, written with shapes alone."""
    blocks = mask.view(grid.groups, grid.rows // grid.groups, grid.columns, grid.taps).long()
    rows, columns = blocks.sum((2, 3)).flatten(), blocks.sum((1, 3)).flatten()
    return (columns, rows) if grid.is_transposed else (rows, columns)


def definition(theta: Tensor, k: int, grid: Grid, fan_in: int, fan_out: int) -> list[int]:
    """Line by line, with sorted lists."""
    ids = torch.arange(theta.numel()).view(grid.groups, -1, grid.columns, grid.taps)
    rows = [ids[g, r] for g in range(grid.groups) for r in range(ids.shape[1])]
    columns = [ids[g, :, c] for g in range(grid.groups) for c in range(grid.columns)]
    outputs, inputs = (columns, rows) if grid.is_transposed else (rows, columns)

    def best(positions: list[int], count: int) -> list[int]:
        return sorted(positions, key=lambda p: (-abs(float(theta[p])), p))[:count]

    kept: set[int] = set()
    for lines, count in ((outputs, fan_in), (inputs, fan_out)):
        for line in lines:
            kept |= set(best(line.flatten().tolist(), count))
    others = [p for p in range(theta.numel()) if p not in kept]
    return sorted(kept | set(best(others, k - len(kept))))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, int, Grid, int, int]:
    grid = draw(st.sampled_from(GRIDS))
    n = grid.rows * grid.columns * grid.taps
    levels = draw(st.sampled_from([3, 1000]))  # many ties, and few
    theta = torch.tensor(
        draw(st.lists(st.integers(-levels, levels), min_size=n, max_size=n)), dtype=torch.float64
    )
    fan_in, fan_out = draw(st.integers(0, 2)), draw(st.integers(0, 1))
    least = fan_in * lines_of(theta, grid)[0].numel() + fan_out * lines_of(theta, grid)[1].numel()
    return theta, draw(st.integers(min(n, max(1, least)), n)), grid, fan_in, fan_out


@given(cases(), st.sampled_from([torch.float32, torch.float64]))
def test_every_path_gives_the_definition(
    case: tuple[Tensor, int, Grid, int, int], dtype: torch.dtype
) -> None:
    theta, k, grid, fan_in, fan_out = case
    theta = theta.to(dtype)
    floor = grid.floor(fan_in, fan_out)
    if floor is None:
        return
    expected = definition(theta, k, grid, fan_in, fan_out)
    assert floor.top(DenseTheta(theta), k).tolist() == expected
    positions = torch.arange(theta.numel(), dtype=torch.int32)
    assert floor.within(theta, positions, k).tolist() == expected
    outputs, inputs = lines_of(
        torch.zeros_like(theta, dtype=torch.bool).index_fill(0, torch.tensor(expected), True), grid
    )
    assert outputs.min() >= fan_in
    assert inputs.min() >= fan_out


@given(cases(), st.data())
def test_the_native_repair_is_the_portable_one(
    case: tuple[Tensor, int, Grid, int, int], data: st.DataObject
) -> None:
    """Within any B, with any flags before, and the same least magnitude outside F."""
    theta, _, grid, fan_in, fan_out = case
    floor = grid.floor(fan_in, fan_out)
    if floor is None:
        return
    n = theta.numel()
    b = torch.tensor(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    values, active = theta[b], torch.zeros(b.numel(), dtype=torch.bool)
    k = data.draw(st.integers(max(1, num_kept(floor, values, b)), b.numel()))
    active[
        torch.tensor(data.draw(st.lists(st.integers(0, b.numel() - 1), max_size=5)), dtype=torch.int64)
    ] = True
    chosen = top_k(values, k)
    wanted = torch.zeros_like(active).index_fill(0, chosen, True)
    wrong = torch.nonzero(wanted != active).flatten()
    least = float(values[chosen].abs().min())
    slots, free = floor.repair(values, b, active, wrong, least, float("inf"))
    expected, free_expected = floor.repair_portable(values, b, active, wrong)
    assert slots.tolist() == expected.tolist()
    assert free == free_expected
    assert torch.equal(floor.repair(values, b, active, wrong, least, -1.0)[0], slots)


def num_kept(floor: Floor, values: Tensor, positions: Tensor) -> int:
    """|F| of some elements."""
    order = sorted(range(values.numel()), key=lambda i: (-abs(float(values[i])), i))
    kept: set[int] = set()
    for least, is_row in ((floor.per_row, True), (floor.per_column, False)):
        seen: dict[int, int] = {}
        for i in order:
            line = int(floor._line_of(positions[i], is_row))
            if seen.get(line, 0) < least:
                kept.add(i)
            seen[line] = seen.get(line, 0) + 1
    return len(kept)


@given(st.lists(st.integers(0, 6), min_size=12, max_size=12), st.integers(0, 2), st.integers(6, 10))
def test_with_a_floor_for_outputs_alone_no_set_has_more(numbers: list[int], fan_in: int, k: int) -> None:
    theta, grid = torch.tensor(numbers, dtype=torch.float32), Grid(3, 4)
    floor = grid.floor(fan_in, 0)
    if floor is None:
        return
    best = max(
        sum(numbers[p] for p in chosen)
        for chosen in itertools.combinations(range(12), k)
        if all(sum(p // 4 == row for p in chosen) >= fan_in for row in range(3))
    )
    assert float(theta[floor.top(DenseTheta(theta), k)].sum()) == best


@pytest.mark.parametrize(
    ("fan_in", "fan_out", "k", "chosen"),
    [
        (1, 0, 6, [0, 1, 2, 3, 4, 7]),  # 0.2 of the last row for 0.5; the smaller position of two
        (1, 0, 4, [0, 1, 3, 7]),  # 7 leaves, and not 6, which is the best of its row
        (1, 0, 3, [0, 3, 7]),  # nothing but the floor
        (2, 0, 6, [0, 1, 3, 4, 7, 8]),
        (0, 1, 3, [0, 1, 2]),  # no input is short
        (0, 2, 6, [0, 1, 2, 3, 4, 5]),
        (1, 1, 5, [0, 1, 2, 3, 7]),
    ],
)
def test_who_is_chosen(fan_in: int, fan_out: int, k: int, chosen: list[int]) -> None:
    theta = torch.tensor([9.0, -8.0, 7.0, -6.0, 5.0, 0.5, 0.1, -0.2, 0.2])
    floor = Grid(3, 3).floor(fan_in, fan_out)
    assert floor is not None
    assert floor.top(DenseTheta(theta), k).tolist() == chosen


def test_the_number_of_threads_and_of_lines_at_a_time_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    theta = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    theta[::3] *= 1e-3
    theta[:, ::5] *= 1e-3
    floor = Grid(300, 200).floor(3, 2)
    assert floor is not None
    threads, results = torch.get_num_threads(), []
    for number, at_a_time in ((1, 1 << 20), (2, 1 << 20), (1, 1000)):
        torch.set_num_threads(number)
        monkeypatch.setattr(floors, "_MANY", at_a_time)
        results.append(floor.top(DenseTheta(theta.flatten()), 4000))
    torch.set_num_threads(threads)
    assert all(torch.equal(results[0], other) for other in results[1:])
    assert results[0].tolist() == definition(theta.flatten(), 4000, Grid(300, 200), 3, 2)


# ---- in training ---------------------------------------------------------------------------------------


class Net(nn.Module):
    """Linear layers and a convolution with groups."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 5, groups=2)
        self.mid = nn.Linear(32, 24)
        self.out = nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.mid(torch.tanh(self.conv(x)).flatten(1))))


def start(reservoir: Any = "stored", engine: str = "masked", **options: Any) -> tuple[Any, topkast.Handle]:
    torch.manual_seed(0)
    with torch.device("meta" if reservoir == "implicit" else "cpu"):
        model = Net()
    method = topkast.TopKAST(0.8, 0.6, **{"min_fan_in": 2, "min_fan_out": 1, **options})
    sparse = topkast.sparsify(model, method, seed=1, engine=engine, reservoir=reservoir)
    return model, sparse


def train(model: Any, sparse: topkast.Handle, optimizer: Any, steps: range) -> None:
    """The targets leave most outputs without use, so that the penalty shrinks them."""
    for step in steps:
        x = torch.randn(16, 8, 8, generator=torch.Generator().manual_seed(step))
        y = model(x)
        loss = (y[:, 0] - x[:, 0, 0]).square().mean() + (y[:, 1] - x[:, 1, 3]).square().mean()
        (loss + 1e-3 * sparse.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("reservoir", ["stored", "implicit"])
@settings(max_examples=8)
@given(
    st.floats(1e-3, 0.3),
    st.sampled_from([(1, 1), (1, 5), (1, 100), (2, 4)]),
    st.sampled_from(
        [{}, {"hysteresis": 1.5}, {"explore_until": 4}, {"min_fan_out": 0}, {"exploration": "random"}]
    ),
)
def test_sets_are_the_definition_after_every_step(
    reservoir: str, lr: float, clocks: tuple[int, int], options: dict[str, Any]
) -> None:
    """A within B; both over all of θ at an exchange; what is free in A is above all of C."""
    model, sparse = start(reservoir, refresh_every=clocks[0], exchange_every=clocks[1], **options)
    method: Any = sparse.method
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr))
    for step in range(1, 7):
        before = [(w.forward_mask().flatten(), int(w.early)) for w in sparse.weights.values()]
        train(model, sparse, optimizer, range(step, step + 1))
        for weight, (mask, early) in zip(sparse.weights.values(), before, strict=True):
            floor = method.floor(weight.grid)
            assert floor is not None
            assert int(weight.active.sum()) == weight.counts.forward
            outputs, inputs = lines_of(weight.forward_mask(), weight.grid)
            assert outputs.min() >= 2
            assert inputs.min() >= method.min_fan_out
            if step % clocks[0]:
                continue
            theta = weight.theta().flatten()
            theta = torch.where(mask, method.hysteresis * theta, theta)
            b = weight.indices.long()
            a, fans = b[weight.active], (2, method.min_fan_out)
            assert torch.equal(b[floor.within(theta[b], b, a.numel())], a)
            if step % clocks[1] == 0 or int(weight.early) > early:
                assert a.tolist() == definition(theta, a.numel(), weight.grid, *fans)
                if method.exploration == "magnitude":
                    assert b.tolist() == definition(theta, b.numel(), weight.grid, *fans)
            elif method.exploration == "magnitude":
                _, free = floor.repair_portable(theta[b], b, weight.active, torch.empty(0, dtype=torch.int64))
                assert free > theta.index_fill(0, b, 0.0).abs().max()


@pytest.mark.parametrize("clocks", [(1, 1), (1, 6)])
def test_a_stored_reservoir_goes_the_same_way(clocks: tuple[int, int]) -> None:
    ends = []
    for is_stored in (False, True):
        model, sparse = start("implicit", refresh_every=clocks[0], exchange_every=clocks[1])
        if is_stored:
            sparse.materialise()
        optimizer = sparse.attach(torch.optim.Adam(model.parameters(), 0.02))
        train(model, sparse, optimizer, range(30))
        ends.append([(w.indices, w.active, w.values) for w in sparse.weights.values()])
    for mine, theirs in zip(*ends, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("reservoir", ["stored", "implicit"])
@pytest.mark.parametrize("engine", ["masked", "native"])
def test_a_run_resumed_within_an_interval_keeps_its_bits(reservoir: str, engine: str) -> None:
    def begin() -> tuple[Any, topkast.Handle, Any]:
        model, sparse = start(reservoir, engine, exchange_every=10)
        return model, sparse, sparse.attach(torch.optim.Adam(model.parameters(), 0.05))

    whole, resumed = begin(), begin()
    train(*whole, range(7))
    saved = copy.deepcopy((whole[0].state_dict(), whole[2].state_dict()))
    train(*whole, range(7, 25))
    resumed[0].load_state_dict(saved[0])
    resumed[2].load_state_dict(saved[1])
    train(*resumed, range(7, 25))
    for key, tensor in whole[0].state_dict().items():
        assert torch.equal(tensor, resumed[0].state_dict()[key]), key


def test_weak_outputs_do_not_make_exchanges_come_early() -> None:
    """What a floor holds up is compared with B alone: a weak row would fall below its C again and again."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 8))
    model[0].weight.data[::2] *= 0.05
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8, min_fan_in=3), engine="masked")
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), 1e-3))
    sparse.expects_penalty = False
    for step in range(60):
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))
        (model(x) - x[:, :8]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weight = sparse.weights["0"]
    held_up = weight.active & ~torch.zeros_like(weight.active).index_fill(
        0, top_k(weight.values.detach(), weight.counts.forward), True
    )
    assert int(held_up.sum()) > 30
    assert int(weight.early) <= 2


def test_a_transposed_weight_has_the_outputs_of_its_layer() -> None:
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    model: Any = nn.Sequential(Conv1D(6, 20), nn.Tanh())
    model[0].weight.data[:, 0] *= 1e-3
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.7, min_fan_in=3))
    mask = sparse.weights["0"].forward_mask()
    assert mask.shape == (20, 6)
    assert mask.sum(0).tolist()[0] == 3
    assert mask.sum(0).min() >= 3


# ---- what cannot be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_fan_in": 5}, r"layer '0': `min_fan_in` is 5, but an output has 4 elements; lower the floor"),
        ({"min_fan_out": 31}, r"layer '0': `min_fan_out` is 31, but an input has 30 elements"),
        (
            {"min_fan_in": 2},
            r"layer '0': `min_fan_in` 2 for 30 outputs may need 60 elements, but \|A\| is 36;",
        ),
        (
            {"min_fan_in": 1, "min_fan_out": 2},
            r"`min_fan_in` 1 for 30 outputs and `min_fan_out` 2 for 4 inputs may need 38 .* leave the layer dense",
        ),
    ],
)
def test_a_floor_that_cannot_be_met_is_refused(options: dict[str, Any], message: str) -> None:
    model = nn.Sequential(nn.Linear(4, 30), nn.Linear(30, 30))
    with pytest.raises(ValueError, match=message):
        topkast.sparsify(model, topkast.TopKAST(0.7, 0.5, **options))
    assert type(model[0]) is nn.Linear
    topkast.sparsify(model, topkast.TopKAST(0.7, 0.5))
    with pytest.raises(ValueError, match=message):
        topkast.Handle(model, topkast.TopKAST(0.7, 0.5, **options))


def test_settings_that_cannot_be_are_refused() -> None:
    make: Any = topkast.TopKAST
    for name in ("min_fan_in", "min_fan_out"):
        with pytest.raises(ValueError, match=f"`{name}` must be at least 0, got -1"):
            make(0.9, 0.8, **{name: -1})
        with pytest.raises(TypeError, match=f"`{name}` must be a whole number of elements, got 1.5"):
            make(0.9, 0.8, **{name: 1.5})
        with pytest.raises(ValueError, match="`min_fan_in` and `min_fan_out` need `scope='layer'`"):
            make(0.9, 0.8, **{name: 1}, scope="global")


def test_what_the_compiled_core_is_given_is_checked() -> None:
    values, active, nothing = (
        torch.ones(3),
        torch.ones(3, dtype=torch.bool),
        torch.empty(0, dtype=torch.int64),
    )
    floor = Floor(Grid(2, 2), 1, 0)
    for positions in ([0, 1, 4], [-1, 0, 1], [0, 2, 1], [1, 1, 2]):
        with pytest.raises(ValueError, match="positions must increase and lie within the lines"):
            floor.repair(values, torch.tensor(positions), active, nothing, 1.0, 0.0)
    good = torch.tensor([0, 1, 2])
    for wrong in ([3], [-1], [1, 0]):
        with pytest.raises(ValueError, match=r"slots must increase and lie in \[0, 3\)"):
            floor.repair(values, good, active, torch.tensor(wrong), 1.0, 0.0)
    with pytest.raises(ValueError, match="positions must have 3 numbers, got 2"):
        floor.repair(values, good[:2], active, nothing, 1.0, 0.0)
    with pytest.raises(ValueError, match="groups of one size"):
        Floor(Grid(3, 2, groups=2), 1, 0).repair(values, good, active, nothing, 1.0, 0.0)
    one = torch.tensor([True, False, False])
    with pytest.raises(ValueError, match="need more elements than are to be chosen"):
        floor.repair(values, good, one, nothing, 1.0, 0.0)


def test_a_floor_must_hold_at_every_stage_of_a_schedule() -> None:
    """Refused before anything is trained, not at the exchange that would have too few elements."""
    model = nn.Sequential(nn.Linear(20, 10))
    stages = topkast.Stages({0: 0.5, 10: 0.98, 20: 0.5})
    method = topkast.TopKAST(stages, 0.4, min_fan_in=2, exchange_every=5)
    with pytest.raises(ValueError, match=r"layer '0': .*min_fan_in"):
        topkast.sparsify(model, method)
