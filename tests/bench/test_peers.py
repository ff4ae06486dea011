from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from topkast.bench import contenders, peers
from topkast.bench.contenders import Case, Contender, measure
from topkast.bench.peers import PEERS, Peer, find_peers
from topkast.bench.ratios import Pair

PAIR = (0.9, 0.9)
CASES = [
    Case("32 → 48, 16 tokens", lambda: nn.Linear(32, 48), (16, 32)),
    Case("33 → 20, 7 tokens", lambda: nn.Linear(33, 20), (7, 33)),
]


def stand_in_for_spops() -> ModuleType:
    """The two products of spops, as its README states them, on dense matrices."""

    def matrix(values: Tensor, starts: Tensor, columns: Tensor, shape: tuple[int, int]) -> Tensor:
        assert starts.dtype == columns.dtype == torch.int32
        return torch.sparse_csr_tensor(starts, columns, values, shape).to_dense()

    def spmm(val: Tensor, row_offsets: Tensor, row_idx: Tensor, col_idx: Tensor, b: Tensor, m: int) -> Tensor:
        assert b.is_contiguous()
        counts = row_offsets.diff()[row_idx.long()]
        assert counts.equal(counts.sort(descending=True).values)
        return matrix(val, row_offsets, col_idx, (m, b.shape[0])) @ b

    def sddmm(row_offsets: Tensor, row_idx: Tensor, col_idx: Tensor, a: Tensor, bt: Tensor) -> Tensor:
        assert a.is_contiguous()
        assert bt.is_contiguous()
        ones = torch.ones(col_idx.numel())
        mask = matrix(ones, row_offsets, col_idx, (a.shape[0], bt.shape[0])) != 0
        return (a @ bt.t())[mask]

    module = ModuleType("spops")
    module.spmm, module.sddmm = spmm, sddmm  # pyright: ignore[reportAttributeAccessIssue]
    return module


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("peer", PEERS, ids=lambda p: p.name)
def test_a_peer_that_is_there_computes_the_same(
    peer: Peer, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    if peer.name == "spops":
        monkeypatch.setitem(sys.modules, "spops", stand_in_for_spops())
    elif peer.missing():
        pytest.skip(f"{peer.name} is {peer.missing()}: `make bench-peers` has an environment with it")
    layer = case.build()
    work = contenders.Work.of(layer, case.shape)
    alpha, mask = contenders.alpha_layer(layer, PAIR)
    contenders.check(peer.build(alpha, PAIR), contenders.expect(alpha, mask, work), work, case.name)


def test_another_project_of_the_same_name_is_not_taken_for_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("spops")
    other.__spec__ = pytest.__spec__  # as any installed package has one
    monkeypatch.setitem(sys.modules, "spops", other)
    assert "another project (it has no spmm and no sddmm)" in find_peers()[1]["spops"]


def test_torch_csr_is_always_there() -> None:
    usable, missing = find_peers()
    assert usable[0].name == "torch_csr"
    assert usable[0].version() == torch.__version__
    assert {peer.name for peer in usable} | set(missing) == {peer.name for peer in PEERS}


class Wrong(peers.TorchCSR):
    """Forgets the bias."""

    name = "wrong"

    def build(self, alpha: nn.Module, pair: Pair) -> Contender:
        assert isinstance(alpha, nn.Linear)
        plain = nn.Linear(alpha.in_features, alpha.out_features, bias=False)
        plain.weight = alpha.weight
        return Contender(self.name, plain, plain.weight, lambda grad: grad)


class Failing(peers.TorchCSR):
    name = "failing"

    def build(self, alpha: nn.Module, pair: Pair) -> Contender:
        raise IndexError("odd sizes")


def test_a_peer_that_is_wrong_or_fails_is_left_out_with_the_reason() -> None:
    result = measure(CASES[0], PAIR, ("masked",), [Wrong(), Failing(), peers.TorchCSR()], repeats=1)
    assert list(result.timings) == ["dense", "masked", "torch_csr"]
    wrong, failing = result.left_out.items()
    assert wrong[0] == "wrong at 32 → 48, 16 tokens, 90/90 %"
    assert "wrong at 32 → 48, 16 tokens, 90/90 %: output is wrong in" in wrong[1]
    assert failing == ("failing at 32 → 48, 16 tokens, 90/90 %", "odd sizes")
