from __future__ import annotations

import torch

from topkast.core.reservoir import EmptyReservoir, StoredReservoir


def test_stored_keeps_c_and_nothing_of_b() -> None:
    theta = torch.tensor([5.0, 4.0, 3.0, 2.0])
    reservoir = StoredReservoir(theta, torch.tensor([0, 2]))
    assert reservoir.rest.tolist() == [0.0, 4.0, 0.0, 2.0]
    dense = reservoir.dense(torch.tensor([0, 2], dtype=torch.int32), torch.tensor([50.0, 30.0]))
    assert dense.tolist() == [50.0, 4.0, 30.0, 2.0]


def test_exchange_writes_leavers_back_and_hands_out_entrants() -> None:
    reservoir = StoredReservoir(torch.tensor([5.0, 4.0, 3.0, 2.0]), torch.tensor([0, 2]))
    got = reservoir.exchange(torch.tensor([2]), torch.tensor([0.5]), torch.tensor([1]))
    assert got.tolist() == [4.0]
    assert reservoir.rest.tolist() == [0.0, 0.0, 0.5, 2.0]


def test_used_counts_what_started_outside_b() -> None:
    reservoir = StoredReservoir(torch.zeros(6), torch.tensor([0, 1]))
    assert reservoir.used() == (0.0, 0.0)
    none = torch.tensor([], dtype=torch.int64)
    no_values = torch.empty(0)
    reservoir.exchange(none, no_values, torch.tensor([2]))
    assert reservoir.used() == (0.25, 0.0)
    reservoir.record(torch.tensor([2]), none)
    reservoir.exchange(none, no_values, torch.tensor([3]))
    assert reservoir.used() == (0.5, 0.25)
    reservoir.record(torch.tensor([0]), none)
    reservoir.exchange(none, no_values, torch.tensor([1, 2]))  # history does not go back
    assert reservoir.used() == (0.5, 0.25)


def test_used_when_b_is_everything() -> None:
    assert StoredReservoir(torch.zeros(2), torch.tensor([0, 1])).used() == (0.0, 0.0)


def test_empty_holds_nothing() -> None:
    reservoir = EmptyReservoir(4)
    assert list(reservoir.buffers()) == []
    assert reservoir.dense(torch.tensor([1]), torch.tensor([7.0])).tolist() == [0.0, 7.0, 0.0, 0.0]
    assert reservoir.exchange(torch.tensor([1]), torch.tensor([7.0]), torch.tensor([0, 2])).tolist() == [
        0.0,
        0.0,
    ]
