from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topkast.kernels import positions as positions_module
from topkast.kernels.engines import ENGINES, why_not
from topkast.kernels.ops import compute
from topkast.kernels.plan import Plan
from topkast.kernels.positions import check_positions, fingerprint, index_dtype
from topkast.kernels.product import Lookup


def flags(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.bool)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 3, 12], r"indices must lie in \[0, 12\), got 12"),
        ([-1, 3, 5], r"indices must lie in \[0, 12\), got -1"),
        ([0, 5, 5], r"strictly increasing, got duplicate 5, 5 at slot 1"),
        ([0, 7, 5], r"strictly increasing, got unsorted 7, 5 at slot 1"),
    ],
)
def test_unsound_indices_are_refused(indices: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan((3, 4), torch.tensor(indices), flags(3))


def test_wrong_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1-D int32 or int64 tensor, got 1-D torch.float32"):
        Plan((3, 4), torch.tensor([0.0, 1.0]), flags(2))
    with pytest.raises(ValueError, match=r"1-D int32 or int64 tensor, got 2-D"):
        Plan((3, 4), torch.zeros(1, 1, dtype=torch.int64), flags(1))
    with pytest.raises(ValueError, match=r"one bool per index \(2\), got \(3,\)"):
        Plan((3, 4), torch.tensor([0, 1]), flags(3))
    with pytest.raises(ValueError, match=r"one bool per index \(2\).*int64"):
        Plan((3, 4), torch.tensor([0, 1]), torch.tensor([0, 1]))


@given(st.lists(st.integers(-20, 40), max_size=12), st.integers(1, 5), st.integers(1, 5))
def test_a_plan_is_built_exactly_for_sound_indices(indices: list[int], rows: int, columns: int) -> None:
    sound = indices == sorted(set(indices)) and all(0 <= i < rows * columns for i in indices)
    positions = torch.tensor(indices, dtype=torch.int64)
    if sound:
        assert Plan((rows, columns), positions, flags(len(indices))).num_slots == len(indices)
    else:
        with pytest.raises(ValueError, match="indices must"):
            Plan((rows, columns), positions, flags(len(indices)))


@given(st.lists(st.integers(-3, 14), max_size=6), st.sampled_from([torch.int32, torch.int64]))
def test_the_compiled_core_says_what_torch_says(indices: list[int], dtype: torch.dtype) -> None:
    said = [check_positions(torch.tensor(indices, dtype=dtype), flags(len(indices)), 12)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions_module, "_native", None)
        said.append(check_positions(torch.tensor(indices, dtype=dtype), flags(len(indices)), 12))
    assert said[0] == said[1]


@pytest.mark.parametrize("core", ["compiled", "torch"])
def test_other_sets_have_another_fingerprint(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if core == "torch":
        monkeypatch.setattr(positions_module, "_native", None)
    seen: dict[int, tuple[int, int]] = {}
    for chosen, active in itertools.product(range(2**8), range(2**8)):
        if active & ~chosen:
            continue
        elements = [i for i in range(8) if chosen >> i & 1]
        in_a = torch.tensor([bool(active >> i & 1) for i in elements], dtype=torch.bool)
        number = fingerprint(torch.tensor(elements, dtype=torch.int32), in_a, 8)
        assert seen.setdefault(number, (chosen, active)) == (chosen, active)


def written_plan() -> tuple[Plan, torch.Tensor, torch.Tensor]:
    indices, active = torch.tensor([1, 4, 5]), torch.tensor([True, False, True])
    return Plan((2, 3), indices, active), indices, active


def test_a_plan_takes_no_copy_of_the_sets() -> None:
    plan, indices, active = written_plan()
    assert plan.indices is indices
    assert plan.active is active
    assert plan.positions.tolist() == [1, 4, 5]
    assert plan.active_positions.tolist() == [1, 5]


@pytest.mark.parametrize("which", ["indices", "active"])
@pytest.mark.parametrize("engine", ["masked", "csr", "native"])
def test_a_plan_whose_sets_were_changed_is_refused(which: str, engine: str) -> None:
    if why_not(engine, "linear", None, "cpu"):
        pytest.skip("the compiled core is not built")
    plan, indices, active = written_plan()
    values, x = torch.ones(3), torch.ones(4, 3)
    ENGINES[engine].linear(plan, values, x, None, transpose=False)
    {"indices": indices, "active": active}[which].zero_()
    assert not plan.describes(indices, active, explores=True)
    for use in (
        lambda: plan.positions,
        lambda: plan.active_positions,
        lambda: ENGINES[engine].linear_grads(plan, values, x, x[:, :2], (True, True, True), transpose=False),
        lambda: ENGINES[engine].lookup_grad(plan, torch.zeros(4, dtype=torch.int64), x),
    ):
        with pytest.raises(RuntimeError, match="changed after this Plan was made; a Plan holds for the sets"):
            use()


def test_writing_the_same_sets_again_leaves_a_plan_as_it_is() -> None:
    """As DistributedDataParallel does before every forward pass."""
    plan, indices, active = written_plan()
    indices.copy_(indices.clone())
    active.copy_(active.clone())
    assert plan.active_positions.tolist() == [1, 5]
    assert plan.describes(indices.clone(), active.clone(), explores=True)
    assert not plan.describes(indices, active, explores=False)
    assert not plan.describes(indices[:2], active[:2], explores=True)
    assert not plan.describes(indices, ~active, explores=True)


def test_sets_changed_between_forward_and_backward_are_noticed() -> None:
    plan, indices, _ = written_plan()
    values = torch.ones(3, requires_grad=True)
    y = compute(Lookup(), ENGINES["masked"], plan, values, torch.tensor([0, 1]))
    indices.copy_(torch.tensor([0, 1, 2]))
    with pytest.raises(RuntimeError, match="between a forward pass and its backward pass"):
        y.sum().backward()


def test_patterns_by_eye() -> None:
    # 2 × 3 weight: B = {(0,1), (1,0), (1,2)}, A = {(0,1), (1,2)}
    plan = Plan((2, 3), torch.tensor([1, 3, 5]), torch.tensor([True, False, True]))
    assert plan.forward_rows.crow.tolist() == [0, 1, 2]
    assert plan.forward_rows.col.tolist() == [1, 2]
    assert plan.forward_columns.crow.tolist() == [0, 0, 1, 2]
    assert plan.forward_columns.col.tolist() == [0, 1]
    assert plan.backward_rows.crow.tolist() == [0, 1, 3]
    assert plan.backward_rows.col.tolist() == [1, 0, 2]
    frozen = Plan((2, 3), plan.positions, torch.tensor([True, False, True]), explores=False)
    assert frozen.updated_positions.tolist() == [1, 5]


def test_indices_are_32_bit_where_they_fit() -> None:
    assert index_dtype(2**31 - 1) == torch.int32
    assert index_dtype(2**31) == torch.int64
