"""Transformer-XL: its memory is the past, its future is hidden, and it becomes sparse like any other network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import topkast
from topkast.core.weight import SparseWeight
from topkast.cost.parameters import parameters
from topkast.models.transformer_xl import TransformerXL, initialise

SIZES: dict[str, Any] = {"depth": 3, "d_model": 16, "num_heads": 2, "d_ff": 24}


def strong(**options: Any) -> TransformerXL:
    """A small model with weights so large that what attention does shows in the outputs."""
    torch.manual_seed(0)
    model = TransformerXL(30, **{**SIZES, **options}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 10
    return model


def in_segments(model: TransformerXL, symbols: Tensor, lengths: Sequence[int]) -> Tensor:
    memory, outputs = None, []
    for segment in symbols.split(lengths, dim=1):
        output, memory = model(segment, memory)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("lengths", [(20, 20), (1,) * 40, (7, 1, 30, 2), (39, 1)])
def test_a_memory_of_the_whole_past_is_one_pass_over_it(lengths: Sequence[int], pre_norm: bool) -> None:
    model = strong(memory_length=40, pre_norm=pre_norm)
    symbols = torch.randint(30, (2, 40))
    whole, _ = model(symbols)
    torch.testing.assert_close(in_segments(model, symbols, lengths), whole, atol=1e-5, rtol=1e-5)


def test_a_short_memory_forgets() -> None:
    model = strong(memory_length=3, depth=1)
    symbols = torch.randint(30, (1, 12))
    changed = symbols.clone()
    changed[0, 4] = (changed[0, 4] + 1) % 30
    a, b = (in_segments(model, s, [4] * 3) for s in (symbols, changed))
    assert not torch.equal(a[0, 4:8], b[0, 4:8])
    assert torch.equal(a[0, 8:], b[0, 8:])  # symbol 4 is not among the last three before 8


def test_the_memory_length_is_what_it_is_now() -> None:
    model = strong()
    symbols = torch.randint(30, (2, 5))
    _, memory = model(symbols)
    assert memory.shape == (3, 2, 0, 16)
    model.memory_length = 8
    for expected in (5, 8, 8):
        _, memory = model(symbols, memory)
        assert memory.shape == (3, 2, expected, 16)
    model.memory_length = 2
    assert model(symbols, memory)[1].shape == (3, 2, 2, 16)


def test_the_future_is_hidden() -> None:
    model = strong(memory_length=4)
    symbols = torch.randint(30, (2, 12))
    _, memory = model(torch.randint(30, (2, 4)))
    before, _ = model(symbols, memory)
    for t in (1, 6, 11):
        changed = symbols.clone()
        changed[:, t] = (changed[:, t] + 1) % 30
        after, _ = model(changed, memory)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


def test_rows_of_a_batch_do_not_mix() -> None:
    model = strong(memory_length=4)
    first, second = torch.randint(30, (3, 4)), torch.randint(30, (3, 5))
    _, memory = model(first)
    together, _ = model(second, memory)
    alone, _ = model(second[1:2], memory[:, 1:2])
    torch.testing.assert_close(together[1:2], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("clusters", [{}, {"cutoffs": (50, 200), "div_val": 2}])
def test_untrained_it_knows_nothing(clusters: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = TransformerXL(1000, depth=2, d_model=64, num_heads=4, d_ff=96, **clusters)
    symbols = torch.randint(1000, (8, 65))
    loss, _ = model.loss(symbols[:, :-1], symbols[:, 1:])
    if clusters:  # the head's softmax knows 52 entries, and most symbols are in the last tail
        expected = sum(p * math.log(n) for p, n in ((1, 52), (0.15, 150), (0.8, 800)))
    else:
        expected = math.log(1000)
    assert loss.item() == pytest.approx(expected, abs=0.3)


@pytest.mark.parametrize("clusters", [{}, {"cutoffs": (5, 15), "div_val": 2}])
def test_the_loss_is_that_of_the_logits(clusters: dict[str, Any]) -> None:
    model = strong(**clusters)
    symbols = torch.randint(30, (2, 9))
    loss, memory = model.loss(symbols[:, :-1], symbols[:, 1:])
    logits, same = model(symbols[:, :-1])
    log_prob, _ = model.log_prob(symbols[:, :-1])
    assert torch.equal(memory, same)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(2, 8))
    torch.testing.assert_close(
        nn.functional.cross_entropy(logits.flatten(0, 1), symbols[:, 1:].flatten()), loss
    )
    expected = -log_prob.gather(2, symbols[:, 1:, None]).mean()
    torch.testing.assert_close(loss, expected)


def test_the_loss_is_the_mean_of_what_counts() -> None:
    model = strong()
    symbols, targets = torch.randint(30, (2, 9)), torch.randint(30, (2, 9))
    log_prob, _ = model.log_prob(symbols)
    targets[0, 3:] = -100
    expected = -torch.cat(
        [log_prob[0, :3].gather(1, targets[0, :3, None]), log_prob[1].gather(1, targets[1, :, None])]
    ).mean()
    torch.testing.assert_close(model.loss(symbols, targets)[0], expected)
    assert model.loss(symbols, torch.full_like(targets, -100))[0] == 0


def test_gradients_reach_every_parameter_but_not_the_memory() -> None:
    model = strong(memory_length=4, cutoffs=(5, 15), div_val=2, tie_projections=(False, True, True))
    _, memory = model(torch.randint(30, (2, 4)))
    assert not memory.requires_grad
    memory.requires_grad_()
    symbols = torch.arange(30).view(2, 15)
    loss, _ = model.loss(symbols, symbols.flip(0), memory)
    loss.backward()
    assert memory.grad is None
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_dropout_is_everywhere_in_training_and_nowhere_else() -> None:
    model = strong(dropout=0.3, dropatt=0.3)
    plain = strong()
    symbols = torch.randint(30, (2, 6))
    assert torch.equal(model(symbols)[0], plain(symbols)[0])
    model.train()
    assert not torch.equal(model(symbols)[0], model(symbols)[0])


def test_biases_can_be_those_of_all_layers() -> None:
    count = {tied: sum(p.numel() for p in strong(tie_biases=tied).parameters()) for tied in (True, False)}
    assert count[False] - count[True] == 2 * 2 * 16


def test_weights_start_as_in_the_original() -> None:
    torch.manual_seed(0)
    model = TransformerXL(256, depth=1, d_model=128, num_heads=2, d_ff=256)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name
            assert abs(parameter.mean().item()) < 0.005, name
        elif "norm" not in name:
            assert not parameter.any(), name


def test_distances_beyond_the_clamp_are_alike() -> None:
    model = strong(memory_length=40, depth=1)
    symbols = torch.randint(30, (1, 20))
    free, _ = model(symbols)
    model.clamp_length = 5
    clamped, _ = model(symbols)
    torch.testing.assert_close(clamped[:, :6], free[:, :6])
    assert not torch.allclose(clamped[:, 7:], free[:, 7:])


# ---- sparse -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "clusters", [{}, {"cutoffs": (10, 30), "div_val": 2, "tie_projections": (False, True, True)}]
)
def test_it_trains_sparse_with_exact_counts_and_tied_embeddings(clusters: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = TransformerXL(60, depth=2, d_model=32, num_heads=4, d_ff=48, memory_length=8, **clusters)
    total = sum(p.numel() for p in model.parameters())
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.8, 0.5, refresh_every=2, exchange_every=2), budget="model"
    )
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=0.02))
    symbols = (7 * torch.arange(2 * 65).view(2, 65)) % 60
    losses, memory = [], None
    for step in range(24):
        at = 8 * (step % 8)
        loss, memory = model.loss(symbols[:, at : at + 8], symbols[:, at + 1 : at + 9], memory)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.3
    assert parameters(model, sparse.weights).used == round(0.2 * total)
    for table, output in zip(model.embedding.tables, model.softmax.tables, strict=True):
        assert isinstance(table.weight, SparseWeight)
        assert table.weight is output.weight
    assert not any("tables" in name for name in sparse.left_dense)


def test_flops_are_those_of_the_shapes() -> None:
    model = TransformerXL(60, **SIZES, memory_length=6)
    symbols, memory = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(3, 2, 6, 16)
    sparse = topkast.sparsify(model, topkast.TopKAST(0.5, 0.5))
    flops = sparse.flops((symbols, memory))
    by_layer = {layer.name: layer.dense_forward for layer in flops.layers}
    assert by_layer["layers.0.attention.query"] == 2 * 8 * 16 * 16
    assert by_layer["layers.0.attention.key_value"] == 2 * 20 * 16 * 32  # memory too
    assert by_layer["layers.0.attention.position"] == 2 * 11 * 16 * 16  # once for the whole batch
    assert by_layer["embedding.tables.0"] == 2 * 8 * 16 * 60  # as the output layer that it is tied to


@pytest.mark.parametrize("engine", ["native", "masked", "csr"])
def test_a_sparse_tail_may_have_no_targets(engine: str) -> None:
    model = TransformerXL(60, **SIZES, cutoffs=(10, 30), div_val=2)
    topkast.sparsify(model, topkast.TopKAST(0.8, 0.5), engine=engine)
    symbols = torch.zeros(1, 4, dtype=torch.int64)
    loss, _ = model.loss(symbols, symbols)
    loss.backward()
    assert loss.isfinite()


def test_in_half_precision_it_is_nearly_the_same() -> None:
    model = strong(memory_length=4)
    first, second = torch.randint(30, (2, 2, 4))
    expected, _ = model.loss(second, second.flip(0), model(first)[1])
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = model.loss(second, second.flip(0), model(first)[1])
    assert loss.item() == pytest.approx(expected.item(), rel=0.1)
    double = model.double()
    torch.testing.assert_close(double.loss(second, second.flip(0), double(first)[1])[0].float(), expected)


def test_a_projection_that_goes_both_ways_stays_dense_and_says_so() -> None:
    model = TransformerXL(60, **SIZES, d_embed=8, tie_projections=True)
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5))
    reason = "its weight is also softmax.projections.0.weight"
    assert sparse.left_dense["embedding.projections.0"] == reason
    loss, _ = model.loss(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64))
    loss.backward()


def test_it_comes_to_life_from_the_meta_device() -> None:
    with torch.device("meta"):
        model = TransformerXL(60, **SIZES)
    topkast.sparsify(
        model,
        topkast.TopKAST(0.8, 0.5),
        reservoir="implicit",
        init=topkast.Normal(0.02),
        initialise=initialise,
    )
    loss, _ = model.loss(torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64))
    assert loss.item() == pytest.approx(math.log(60), abs=0.3)


# ---- what cannot be -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, r"`num_heads` must divide `d_model` \(16\), got 3"),
        ({"d_model": 15, "num_heads": 3}, r"`d_model` must be even \(.*\), got 15"),
        ({"depth": 0}, r"`depth` must be at least 1, got 0"),
        ({"d_ff": 0}, r"`d_ff` must be at least 1, got 0"),
        ({"d_embed": -4}, r"`d_embed` must be at least 1, got -4"),
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\), got 1.0"),
        ({"dropatt": -0.1}, r"`dropatt` must be in \[0, 1\), got -0.1"),
        ({"memory_length": -1}, r"`memory_length` must be at least 0, got -1"),
        ({"clamp_length": 0}, r"`clamp_length` must be at least 1, got 0"),
        ({"cutoffs": (40,)}, r"`cutoffs` must increase, .* below `num_symbols` \(30\), got \(40,\)"),
        ({"tie_embeddings": False, "tie_projections": True}, r"`tie_projections` needs tied embeddings"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerXL(30, **{**SIZES, **options})


def test_inputs_that_cannot_be() -> None:
    model = strong(memory_length=4)
    symbols = torch.randint(30, (2, 4))
    with pytest.raises(ValueError, match=r"`symbols` must be from 0 to 29, got 30"):
        model(torch.tensor([[1, 30]]))
    with pytest.raises(ValueError, match=r"`targets` must be from 0 to 29, got -1"):
        model.loss(symbols, symbols - symbols - 1)
    with pytest.raises(
        ValueError,
        match=r"`symbols` must be whole numbers of shape \(batch, length\), got torch.int64 of shape \(4,\)",
    ):
        model(symbols[0])
    with pytest.raises(ValueError, match=r"`symbols` must be whole numbers .* got torch.float32"):
        model(symbols.float())
    with pytest.raises(
        ValueError, match=r"`targets` must have the shape of `symbols` \(2, 4\), got \(2, 3\)"
    ):
        model.loss(symbols, symbols[:, 1:])
    _, memory = model(symbols)
    with pytest.raises(
        ValueError,
        match=r"`memory` must be of shape \(depth 3, batch 1, any length, d_model 16\), got \(3, 2, 4, 16\)",
    ):
        model(symbols[:1], memory)
    with pytest.raises(ValueError, match=r"`memory` must be of shape"):
        model(symbols, memory[0])
