from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topkast.kernels.plan import Plan, index_dtype


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


def test_a_plan_owns_its_indices() -> None:
    indices, active = torch.tensor([1, 4, 5]), torch.tensor([True, False, True])
    plan = Plan((2, 3), indices, active)
    indices.zero_()
    active.zero_()
    assert plan.positions.tolist() == [1, 4, 5]
    assert plan.active_positions.tolist() == [1, 5]
    assert not plan.describes(indices, active, explores=True)


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
