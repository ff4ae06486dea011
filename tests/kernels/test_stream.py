"""The stream of an implicit θ: equal to a plain twin, uniform in position, of the right distribution."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from topkast.core.initial import Initial, Normal, TruncatedNormal, Uniform
from topkast.core.select import derive_key
from topkast.kernels.stream import LARGEST, Known, Stream

_BITS = 2**64 - 1


def stream_of(numel: int, key: int, initial: Initial, dtype: torch.dtype = torch.float64) -> Stream:
    return Stream(numel, key, initial.kind, initial.scale, initial.mass, dtype)


def mixed(h: int) -> int:
    h ^= h >> 32
    h = h * 0xD6E8FEB86659FD93 & _BITS
    h ^= h >> 32
    h = h * 0xD6E8FEB86659FD93 & _BITS
    return h ^ h >> 32


class Twin:
    """The permutation and the signs in plain integers of any length."""

    def __init__(self, numel: int, key: int) -> None:
        self.numel = numel
        self.a = math.isqrt(numel - 1) + 1
        self.b = -(-numel // self.a)
        states = [(key + (i + 1) * 0x9E3779B97F4A7C15) & _BITS for i in range(7)]
        *self.keys, self.sign_key = (mixed(state) for state in states)

    def position(self, rank: int) -> int:
        while True:
            left, right = divmod(rank, self.b)
            for i in range(0, 6, 2):
                left = (left + (mixed(right ^ self.keys[i]) * self.a >> 64)) % self.a
                right = (right + (mixed(left ^ self.keys[i + 1]) * self.b >> 64)) % self.b
            rank = left * self.b + right
            if rank < self.numel:
                return rank

    def is_negative(self, rank: int) -> bool:
        return bool(mixed(rank ^ self.sign_key) >> 63)


def magnitude(rank: int, numel: int, initial: Initial) -> float:
    """F⁻¹(1 - (r+½)/n) of |θ|, by the standard library's quantile of the normal distribution."""
    if initial.kind == "uniform":
        return initial.scale * (1 - (rank + 0.5) / numel)
    outside = (1 - initial.mass) + initial.mass * (rank + 0.5) / numel
    return -initial.scale * NormalDist().inv_cdf(outside / 2)


@settings(max_examples=50, deadline=None)
@given(
    numel=st.integers(1, 3000),
    key=st.integers(0, 2**63 - 1),
    initial=st.sampled_from([Uniform(0.3), Normal(0.02), TruncatedNormal(1.0, 2.0)]),
)
def test_every_element_equals_the_twins(numel: int, key: int, initial: Initial) -> None:
    twin, stream = Twin(numel, key), stream_of(numel, key, initial)
    expected = torch.empty(numel, dtype=torch.float64)
    for rank in range(numel):
        sign = -1 if twin.is_negative(rank) else 1
        expected[twin.position(rank)] = sign * magnitude(rank, numel, initial)
    torch.testing.assert_close(stream.dense(), expected, rtol=1e-11, atol=0)


@settings(max_examples=50, deadline=None)
@given(numel=st.integers(1, LARGEST), key=st.integers(0, 2**63 - 1), data=st.data())
def test_positions_and_ranks_are_inverse_at_any_size(numel: int, key: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, numel - 1))
    stream = stream_of(numel, key, Normal(1.0))
    position = stream.positions(rank, 1)
    assert int(position) == Twin(numel, key).position(rank)
    assert int(stream.ranks(position)) == rank


def test_positions_come_sorted_and_do_not_depend_on_threads() -> None:
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            stream = stream_of(1_000_003, 5, Normal(0.02), torch.float32)
            positions = stream.positions(1000, 300_000)
            results.append((positions, *stream.look_up(positions)))
    finally:
        torch.set_num_threads(before)
    positions, ranks, _ = results[0]
    assert (positions.diff() > 0).all()
    assert torch.equal(ranks.sort().values, torch.arange(1000, 301_000))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_magnitudes_never_increase_and_are_counted_exactly() -> None:
    for initial in (Uniform(0.3), Normal(0.02), TruncatedNormal(0.02, 0.03)):
        stream = stream_of(100_000, 3, initial, torch.float32)
        values = stream.dense().abs()
        by_rank = values[stream.ranks(torch.arange(100_000)).argsort()]
        assert (by_rank.diff() <= 0).all()
        for threshold in (0.0, float(by_rank[0]), float(by_rank[777]), 0.01, 1.0):
            assert stream.count_at_least(threshold) == int((values >= threshold).sum())


def kolmogorov(sample: Tensor, cdf: Tensor) -> float:
    """√n·D, which exceeds 1.95 with probability 0.001 if the sample follows the distribution."""
    steps = torch.arange(1, len(sample) + 1, dtype=torch.float64) / len(sample)
    above, below = (steps - cdf).max(), (cdf - steps + 1 / len(sample)).max()
    return float(torch.maximum(above, below)) * math.sqrt(len(sample))


@pytest.mark.parametrize("key", range(5))
def test_any_part_of_theta_follows_the_distribution(key: int) -> None:
    """A fixed stretch of positions, signs included, is a sample of the initial distribution."""
    theta = stream_of(1_000_000, key, Normal(0.02)).dense()
    for start in (0, 123_456):
        sample = (theta[start : start + 20_000] / 0.02).sort().values
        assert kolmogorov(sample, torch.special.ndtr(sample)) < 1.95
    uniform = stream_of(1_000_000, key, Uniform(0.5)).dense()[:20_000].sort().values
    assert kolmogorov(uniform, uniform + 0.5) < 1.95


@pytest.mark.parametrize("numel", [10_000, 1_000_000, 999_983])
def test_positions_of_the_largest_are_uniform(numel: int) -> None:
    """χ² over 100 stretches, and over 100 columns of a matrix, both within 5 standard deviations."""
    stream = stream_of(numel, derive_key(0, f"layer {numel}"), Normal(1.0))
    count = numel // 5
    positions = stream.positions(0, count)
    for cells in (positions * 100 // numel, positions % 100):
        observed = torch.bincount(cells, minlength=100).double()
        expected = count / 100
        chi_square = float(((observed - expected) ** 2 / expected).sum())
        assert abs(chi_square - 99) < 5 * math.sqrt(2 * 99)


def test_neighbours_in_rank_are_not_neighbours_in_position() -> None:
    numel = 1_000_000
    twin = Twin(numel, 11)
    positions = torch.tensor([twin.position(rank) for rank in range(20_000)], dtype=torch.float64)
    for lag in (1, 2, 1000):  # 1000 is the length of a row of the network
        correlation = torch.corrcoef(torch.stack([positions[lag:], positions[:-lag]]))[0, 1]
        assert abs(float(correlation)) < 5 / math.sqrt(20_000)


def test_layers_are_independent() -> None:
    first, second = (
        stream_of(200_000, derive_key(7, name), Normal(1.0)).dense() for name in ("layer.0", "layer.1")
    )
    for a, b in ((first, second), (first.abs(), second.abs()), (first.sign(), second.sign())):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 5 / math.sqrt(200_000)


def test_the_same_on_every_machine() -> None:
    """Bits of a few elements, written down: they must never change."""
    stream = stream_of(10**9, 42, Normal(0.02), torch.float32)
    positions = stream.positions(0, 4)
    assert positions.tolist() == [259682090, 760142654, 791690540, 885540753]
    assert [value.hex() for value in stream.look_up(positions)[1].tolist()] == [
        "-0x1.e3d6de0000000p-4",
        "-0x1.fd78140000000p-4",
        "-0x1.ef27840000000p-4",
        "-0x1.e85ccc0000000p-4",
    ]


@pytest.mark.parametrize(
    ("numel", "scale", "dtype", "message"),
    [
        (0, 1.0, torch.float32, "1 to 2\\^48 elements, got 0"),
        (LARGEST + 1, 1.0, torch.float32, "1 to 2\\^48 elements, got 281,474,976,710,657"),
        (5, float("nan"), torch.float32, "scale must be positive and finite"),
        (5, 1.0, torch.bfloat16, "must be float32 or float64, got torch.bfloat16"),
    ],
)
def test_what_cannot_be_is_refused(numel: int, scale: float, dtype: torch.dtype, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stream(numel, 1, "normal", scale, 1.0, dtype)


def test_ranks_and_positions_outside_are_refused() -> None:
    stream = stream_of(10, 1, Normal(1.0))
    with pytest.raises(ValueError, match="ranks must lie in"):
        stream.positions(8, 3)
    for position in (-1, 10):
        with pytest.raises(ValueError, match="positions must lie in"):
            stream.look_up(torch.tensor([position]))


def empty_lists() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    nothing = torch.empty(0, dtype=torch.int32), torch.empty(0)
    return nothing, nothing


@pytest.mark.parametrize(
    ("cursor", "early", "message"),
    [
        (-1, [], "cursor must lie in"),
        (101, [], "cursor must lie in"),
        (5, [4], "early must be increasing ranks from the cursor on"),
        (5, [7, 7], "early must be increasing"),
        (5, [7, 100], "early must be increasing"),
    ],
)
def test_ranks_that_cannot_be_known_are_refused(cursor: int, early: list[int], message: str) -> None:
    stream = stream_of(100, 1, Normal(1.0), torch.float32)
    known = Known(cursor, torch.tensor(early, dtype=torch.int64))
    with pytest.raises(ValueError, match=message):
        stream.largest(known, *empty_lists(), 3)
    with pytest.raises(ValueError, match=message):
        stream.enter(known, torch.tensor([3]), torch.tensor([-1]), torch.empty(0))


def test_what_does_not_fit_the_stream_is_refused() -> None:
    stream = stream_of(100, 1, Normal(1.0), torch.float32)
    none_known = Known(0, torch.empty(0, dtype=torch.int64))
    for k in (0, 101):
        with pytest.raises(ValueError, match=r"k must lie in \[1, n\]"):
            stream.largest(none_known, *empty_lists(), k)
    for position, source in ((100, -1), (-1, -1), (3, 0), (3, -2)):
        with pytest.raises(ValueError, match="out of range, or known"):
            stream.enter(none_known, torch.tensor([position]), torch.tensor([source]), torch.empty(0))
    # All is said to be known, but B has nothing.
    with pytest.raises(RuntimeError, match="do not fit each other"):
        stream.largest(Known(100, none_known.early), *empty_lists(), 3)


_BITS_OF_A_STREAM = """
import hashlib, torch
from topkast.kernels.stream import Stream
digest = hashlib.sha256()
for numel in (1, 2, 3, 1000, 10**6 + 3, 10**9, 2**48):
    stream = Stream(numel, 7, "normal", 0.02, 1.0, torch.float32)
    positions = stream.positions(0, min(numel, 5000))
    for tensor in (positions, *stream.look_up(positions)):
        digest.update(tensor.numpy().tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_draws_the_same_bits() -> None:
    found = {}
    for isa in ("portable", "avx2", "avx512"):
        command = [sys.executable, "-c", _BITS_OF_A_STREAM]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "TOPKAST_ISA": isa}, check=False
        )
        if "this CPU or build does not have" not in done.stderr:
            assert done.returncode == 0, done.stderr
            found[isa] = done.stdout
    assert "portable" in found
    assert len(set(found.values())) == 1
