"""Attention with unpacked projections against torch's own, for every argument."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import topkast
from topkast.nn import MultiheadAttention

MODULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True},
    "bias kv": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
    "bias kv and zero attention": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
    "other sizes": {"kdim": 6, "vdim": 10, "batch_first": True},
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("masks", ["none", "causal", "bool", "per head", "padding", "padding and causal"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_unpacked_attention_equals_torch(name: str, masks: str, need_weights: bool) -> None:
    options = MODULES[name]
    batch, heads, target, source = 2, 4, 5, 7
    original = nn.MultiheadAttention(8, heads, **options).double()
    for parameter in original.parameters():
        nn.init.normal_(parameter)
    unpacked = MultiheadAttention(original)
    q = torch.randn(batch, target, 8, dtype=torch.float64)
    k = torch.randn(batch, source, options.get("kdim", 8), dtype=torch.float64)
    v = torch.randn(batch, source, options.get("vdim", 8), dtype=torch.float64)
    if not options.get("batch_first"):
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    arguments: dict[str, Any] = {"need_weights": need_weights}
    if "causal" in masks:
        arguments["attn_mask"] = torch.full((target, source), float("-inf"), dtype=torch.float64).triu(2)
    if masks == "bool":
        arguments["attn_mask"] = torch.arange(source) > torch.arange(target)[:, None] + 1
    if masks == "per head":
        arguments["attn_mask"] = torch.randn(batch * heads, target, source, dtype=torch.float64)
    if "padding" in masks:
        padding = torch.zeros(batch, source, dtype=torch.float64)
        padding[1, 4:] = float("-inf")
        arguments["key_padding_mask"] = padding
    for average in (True, False):
        expected = original(q, k, v, average_attn_weights=average, **arguments)
        got = unpacked(q, k, v, average_attn_weights=average, **arguments)
        torch.testing.assert_close(got[0], expected[0], rtol=1e-10, atol=1e-10)
        if need_weights:
            torch.testing.assert_close(got[1], expected[1], rtol=1e-10, atol=1e-10)
        else:
            assert got[1] is None
    packed = unpacked.to_packed()
    for key, value in original.state_dict().items():
        assert torch.equal(packed.state_dict()[key], value)


def test_unbatched_input_and_causal_hint() -> None:
    original = nn.MultiheadAttention(8, 2).double().eval()
    unpacked = MultiheadAttention(original)
    x = torch.randn(5, 8, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    for need_weights, causal in itertools.product((True, False), (True, False)):
        options = {"attn_mask": mask, "is_causal": causal, "need_weights": need_weights}
        expected, got = original(x, x, x, **options), unpacked(x, x, x, **options)
        torch.testing.assert_close(got[0], expected[0])
        if need_weights:
            torch.testing.assert_close(got[1], expected[1])
    with pytest.raises(ValueError, match="`is_causal` is a hint about `attn_mask`"):
        unpacked(x, x, x, is_causal=True)


def test_dropout_acts_in_training_only() -> None:
    unpacked = MultiheadAttention(nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True))
    x = torch.randn(2, 5, 8)
    assert not torch.equal(unpacked(x, x, x)[0], unpacked(x, x, x)[0])
    unpacked.eval()
    assert torch.equal(unpacked(x, x, x)[0], unpacked(x, x, x)[0])


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_layers_work_sparse_in_training_and_evaluation(norm_first: bool, engine: str) -> None:
    """Torch's encoder has a fused path in evaluation that reads dense weights: it must not be taken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch explains why it does not nest tensors
        model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True, norm_first=norm_first).double()
    sparse = topkast.sparsify(model, topkast.TopKAST(0.6, 0.3), engine=engine)
    names = set(sparse.layers)
    assert {f"encoder.layers.0.self_attn.{p}" for p in ("q_proj", "k_proj", "v_proj", "out_proj")} <= names
    assert "decoder.layers.0.multihead_attn.q_proj" in names
    dense = topkast.densify(model)
    assert type(dense.encoder.layers[0].self_attn) is nn.MultiheadAttention
    source, target = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    for training in (True, False):
        model.train(training)
        dense.train(training)
        got = model(source, target, src_key_padding_mask=padding, memory_key_padding_mask=padding)
        expected = dense(source, target, src_key_padding_mask=padding, memory_key_padding_mask=padding)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_single_projections_can_stay_dense() -> None:
    model = nn.Sequential(nn.MultiheadAttention(8, 2))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.6, 0.3), skip=["0.out_proj", "0.v_proj"])
    assert list(sparse.layers) == ["0.q_proj", "0.k_proj"]
    assert isinstance(model[0].v_proj, nn.Linear)
    assert sparse.left_dense == {"0.v_proj": "skip: 0.v_proj", "0.out_proj": "skip: 0.out_proj"}


def test_a_skipped_attention_is_not_touched() -> None:
    model = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 8))
    attention = model[0]
    sparse = topkast.sparsify(model, topkast.TopKAST(0.6, 0.3), skip="0")
    assert model[0] is attention
    assert list(sparse.layers) == ["1"]
