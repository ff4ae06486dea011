from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topkast.core.select import (
    absent,
    absent_portable,
    derive_key,
    gather,
    generator_for,
    locate,
    locate_portable,
    random_outside,
    random_subset,
    top_k,
    top_k_portable,
    union,
)
from topkast.kernels.passes import Union


def test_ties_go_to_the_smaller_position() -> None:
    assert top_k(torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0]), 2).tolist() == [1, 2]
    assert top_k(torch.tensor([2.0, 1.0, 1.0, 1.0]), 3).tolist() == [0, 1, 2]
    assert top_k(torch.zeros(6), 4).tolist() == [0, 1, 2, 3]


def test_none_and_all() -> None:
    assert top_k(torch.tensor([1.0, 2.0]), 0).tolist() == []
    assert top_k(torch.tensor([1.0, 2.0]), 2).tolist() == [0, 1]


# Few distinct magnitudes, so that ties are the rule.
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 7.0]), min_size=1, max_size=60), st.data())
def test_top_k_equals_sorting(numbers: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(numbers)))
    signed = [-x if i % 3 else x for i, x in enumerate(numbers)]
    order = sorted(range(len(numbers)), key=lambda i: (-numbers[i], i))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensor = torch.tensor(signed, dtype=dtype)
        assert top_k(tensor, k).tolist() == sorted(order[:k])
        if 0 < k < len(numbers):
            assert top_k_portable(tensor, k).tolist() == sorted(order[:k])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "ties", "constant", "tiny", "huge", "misleading", "sorted"])
def test_native_and_portable_agree_on_large_inputs_for_every_number_of_threads(
    dtype: torch.dtype, kind: str
) -> None:
    n = 200_003  # several chunks, none of them even
    numbers = torch.randn(n, dtype=dtype)
    if kind == "ties":
        numbers = (numbers * 4).round()
    elif kind == "constant":
        numbers = torch.full((n,), -0.5, dtype=dtype)
    elif kind == "tiny":
        numbers *= torch.finfo(dtype).tiny  # denormal
    elif kind == "huge":
        numbers *= torch.finfo(dtype).max / 10
    elif kind == "misleading":
        numbers[:: n >> 14 | 1] *= 1000  # what the native one takes its sample from
    elif kind == "sorted":
        numbers = numbers.sort().values
    threads = torch.get_num_threads()
    try:
        for k in (1, 17, n // 10, n // 2, n - 1):
            expected = top_k_portable(numbers, k)
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                assert torch.equal(top_k(numbers, k), expected)
    finally:
        torch.set_num_threads(threads)


INTEGERS = (torch.int32, torch.int64)


@given(
    st.sets(st.integers(0, 40)),
    st.sets(st.integers(0, 40)),
    st.sampled_from([0, 16, 53, 200]),
    st.sampled_from(INTEGERS),
    st.sampled_from(INTEGERS),
)
def test_what_stays_enters_and_leaves(
    before: set[int], after: set[int], num_same: int, first: torch.dtype, second: torch.dtype
) -> None:
    same = {20 + i for i in range(num_same)}  # long stretches in common, as at an exchange
    before, after = before | same, after | same
    old, new = sorted(before), sorted(after)
    tensors = torch.tensor(old, dtype=first), torch.tensor(new, dtype=second)
    places = {position: place for place, position in enumerate(old)}
    for function in (locate, locate_portable):
        assert function(*tensors).tolist() == [places.get(position, -1) for position in new]
    for function in (absent, absent_portable):
        assert [new[i] for i in function(*reversed(tensors))] == sorted(after - before)
        assert [old[i] for i in function(*tensors)] == sorted(before - after)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 1.0])
@pytest.mark.parametrize("threads", [1, 3])
def test_long_lists_are_compared_in_pieces_as_in_one(share: float, threads: int) -> None:
    before = random_subset(1_000_000, 100_003, generator_for(1, 0)) + 500_000
    stay = before[torch.rand(before.numel()) >= share]
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for new in (random_subset(400_000, 30_000, generator_for(2, 0)), before[:0]):  # all smaller; none
            for after in (
                torch.cat([new, stay]),
                stay,
                torch.cat([new, stay]) + (before[-1] if share == 1 else 0),
            ):
                assert torch.equal(locate(before, after).long(), locate_portable(before, after))
                for lists in ((before, after), (after, before)):
                    assert torch.equal(absent(*lists).long(), absent_portable(*lists))
    finally:
        torch.set_num_threads(usual)


@given(st.data(), st.sampled_from(INTEGERS), st.integers(0, 70_000))
def test_a_union_is_both_lists_sorted_less_what_is_dropped(
    data: st.DataObject, dtype: torch.dtype, num_more: int
) -> None:
    everything = data.draw(st.lists(st.integers(0, 10**9), unique=True, max_size=50))
    cut = data.draw(st.integers(0, len(everything)))
    more = list(range(2 * 10**9, 2 * 10**9 + num_more))  # more than one piece, behind the rest
    first, second = sorted(everything[:cut]), sorted(everything[cut:])
    first, second = (first + more, second) if data.draw(st.booleans()) else (first, second + more)
    a, b = (torch.tensor(p, dtype=dtype) for p in (first, second))
    assert union(a, b).tolist() == sorted(first + second)
    places = st.integers(-1, len(first) - 1) if first else st.just(-1)
    dropped = data.draw(st.lists(places, max_size=20))
    both = Union(a, b, dropped=torch.tensor(dropped, dtype=dtype))
    kept = [x for place, x in enumerate(first) if place not in dropped]
    positions = both.positions()
    assert positions.tolist() == sorted(kept + second)
    assert torch.equal(both.numbers(a.double(), b.double()), positions.double())


def test_a_union_refuses_what_is_not_there() -> None:
    a, b = torch.arange(4), torch.arange(10, 12)
    with pytest.raises(ValueError, match=r"dropped must lie in \[-1, 4\)"):
        Union(a, b, dropped=torch.tensor([4]))
    with pytest.raises(ValueError, match="positions are written before numbers"):
        Union(a, b).numbers(a.double(), b.double())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.complex128], ids=str
)
@pytest.mark.parametrize("count", [0, 1, 50_000])
def test_gather_is_indexing(dtype: torch.dtype, count: int) -> None:
    numbers = (1000 * torch.randn(30_000)).to(dtype)[::3]
    places = torch.randint(10_000, (count,))
    assert torch.equal(gather(numbers, places), numbers[places])
    assert torch.equal(gather(numbers, places.int()), numbers[places])
    if count:
        places[::7] = -1
        expected = numbers[places].masked_fill(places < 0, 1)
        assert torch.equal(gather(numbers, places, 1), expected)


@pytest.mark.parametrize("place", [-2, 4, 2**62])
def test_gather_refuses_places_that_are_not_there(place: int) -> None:
    with pytest.raises(
        (ValueError, IndexError, RuntimeError), match="source must lie|out of range|not in range"
    ):
        gather(torch.randn(4), torch.tensor([0, place]))
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        gather(torch.randn(0), torch.tensor([0]))


@given(st.integers(1, 200), st.data())
def test_random_choices_are_exact_and_avoid_the_excluded(n: int, data: st.DataObject) -> None:
    excluded = sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=n)))
    k = data.draw(st.integers(0, n - len(excluded)))
    got = random_outside(n, k, torch.tensor(excluded, dtype=torch.int64), generator_for(1, 2)).tolist()
    assert len(got) == k
    assert got == sorted(set(got))
    assert not set(got) & set(excluded)
    assert all(0 <= i < n for i in got)


def test_random_choice_is_uniform() -> None:
    # 4 of 60 by redrawing, 30 of 60 by permutation: each position equally often, within 5 sigma.
    for k in (4, 30):
        counts = torch.zeros(60)
        for step in range(3000):
            counts[random_subset(60, k, generator_for(0, step))] += 1
        expected, sigma = 3000 * k / 60, (3000 * k / 60 * (1 - k / 60)) ** 0.5
        assert (counts - expected).abs().max() < 5 * sigma


def test_keys_depend_on_seed_and_name_and_nothing_else() -> None:
    assert derive_key(0, "fc1") == derive_key(0, "fc1")
    assert len({derive_key(s, n) for s in range(10) for n in ("fc1", "fc2", "fc11")}) == 30
    # The same on every machine: the value itself is part of what a checkpoint relies on.
    assert derive_key(7, "layer") == 8320059842863791872
    assert 0 <= derive_key(2**62, "x") < 2**63
