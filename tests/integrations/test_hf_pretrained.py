"""Sparse models of Hugging Face in folders: the round trip, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import gpt2, llama
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

import topkast
from topkast.integrations.huggingface import from_pretrained, save_pretrained

METHOD = topkast.TopKAST(0.9, 0.8, refresh_every=3, exchange_every=3)
IDS = torch.arange(40).view(2, 20)


def trained(model: PreTrainedModel, method: topkast.Method = METHOD, **options: Any) -> topkast.Handle:
    """After a few steps and refreshes, with A and B not where they began."""
    sparse = topkast.sparsify(model, method, engine="native", seed=0, **options)
    optimizer = sparse.attach(torch.optim.Adam(model.parameters(), lr=1e-2))
    for _ in range(7):
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    sparse.detach(optimizer)
    return sparse


def assert_equal(a: nn.Module, b: nn.Module) -> None:
    mine, theirs = a.state_dict(), b.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


METHODS = [
    METHOD,
    topkast.TopKAST(0.9, 0.8, explore_until=4, exploration="random"),
    topkast.RigL(0.9, t_end=100, update_every=3),
    topkast.STR(),
]


def test_every_kind_of_model_comes_back(make_model: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    sparse = trained(make_model())
    save_pretrained(sparse, tmp_path)
    again = from_pretrained(type(sparse.model), tmp_path)
    assert again.method == sparse.method
    assert list(again.layers) == list(sparse.layers)
    assert list(again.weights) == list(sparse.weights)
    assert_equal(again.model, sparse.model)
    sparse.model.eval()
    assert torch.equal(again.model(input_ids=IDS).logits, sparse.model(input_ids=IDS).logits)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_training_goes_on_where_it_was(method: topkast.Method, tmp_path: Path) -> None:
    sparse = trained(gpt2(dropout=0.0), method, keep_dense="embeddings", distribution="erk")
    save_pretrained(sparse, tmp_path)
    again = from_pretrained(AutoModelForCausalLM, tmp_path)
    for handle in (sparse, again):
        optimizer = handle.attach(torch.optim.SGD(handle.model.parameters(), lr=0.1))
        for _ in range(7):
            handle.model(input_ids=IDS, labels=IDS).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_equal(again.model, sparse.model)


def test_implicit_reservoirs_come_back_without_a_dense_model(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = llama()
    options = {"reservoir": "implicit", "init": topkast.Normal(0.02), "initialise": model._init_weights}
    sparse = trained(model, **options)
    save_pretrained(sparse, tmp_path)
    again = from_pretrained(type(model), tmp_path)
    assert_equal(again.model, sparse.model)
    sparse.model.eval()
    logits = again.model(input_ids=IDS).logits
    assert torch.equal(logits, sparse.model(input_ids=IDS).logits)  # rotary positions are not in the state
    for handle in (sparse, again):
        handle.refresh()
    assert_equal(again.model, sparse.model)


def test_half_precision_stays(tmp_path: Path) -> None:
    model = gpt2().to(torch.bfloat16)
    save_pretrained(topkast.sparsify(model, METHOD), tmp_path)
    again = from_pretrained(GPT2LMHeadModel, tmp_path)
    assert {w.dtype for w in again.weights.values()} == {torch.bfloat16}
    assert_equal(again.model, model)


def test_the_dense_copy_needs_no_topkast(make_model: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    sparse = trained(make_model())
    model = sparse.model.eval()
    topkast.densify(model).save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(plain(input_ids=IDS).logits, model(input_ids=IDS).logits, rtol=1e-4, atol=1e-5)
    tied = [plain.get_input_embeddings().weight, plain.get_output_embeddings().weight]
    assert (tied[0] is tied[1]) == model.config.tie_word_embeddings


def test_biases_that_are_tied_stay_tied_in_the_dense_copy() -> None:
    from small_models import bert

    model = bert()
    topkast.sparsify(model, METHOD)
    for network in (model, topkast.densify(model)):
        head = network.cls.predictions
        assert head.decoder.bias is head.bias


# ---- what is refused ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_pretrained(trained(gpt2()), tmp_path)
    return tmp_path


def alter_tensor(name: str, change: Callable[[torch.Tensor], Any]) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        (key,) = (k for k in tensors if k.endswith(name))
        tensors[key] = change(tensors[key])
        save_file({k: t for k, t in tensors.items() if t is not None}, folder / "model.safetensors")

    return alter


def alter_recipe(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        data = json.loads((folder / "topkast.json").read_text())
        (folder / "topkast.json").write_text(json.dumps(change(data) or data))

    return alter


def entry(data: Any) -> Any:
    return data["weights"]["transformer.wte"]


C_FC = "h.0.mlp.c_fc.weight."
BAD = {
    "a position outside": (alter_tensor(C_FC + "indices", lambda t: t.index_fill(0, torch.tensor([t.numel() - 1]), 2**30)), "c_fc"),
    "a negative position": (alter_tensor(C_FC + "indices", lambda t: t.index_fill(0, torch.tensor([0]), -1)), "c_fc"),
    "positions out of order": (alter_tensor(C_FC + "indices", lambda t: t.flip(0)), "c_fc"),
    "another |A|": (alter_tensor(C_FC + "active", lambda t: ~t), r"\|A\| must be"),
    "another |B|": (alter_tensor(C_FC + "values", lambda t: t[:-1].clone()), r"\|B\| must be"),
    "part of a state": (alter_tensor(C_FC + "indices", lambda t: None), "lacks .*c_fc.weight.indices"),
    "no bias": (alter_tensor("h.0.mlp.c_fc.bias", lambda t: None), "lacks .*c_fc.bias"),
    "another engine number": (alter_tensor(C_FC + "choices", lambda t: t.fill_(9)), "choices must name engines"),
    "not a file of tensors": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "not a safetensors file"),
    "not JSON": (lambda f: (f / "topkast.json").write_text("{"), "topkast.json cannot be read"),
    "deep JSON": (lambda f: (f / "topkast.json").write_text("[" * 100_000), "topkast.json cannot be read"),
    "not a recipe": (alter_recipe(lambda d: [1]), "this is no recipe"),
    "another version": (alter_recipe(lambda d: d.update(version=2)), "this is no recipe"),
    "an unknown method": (alter_recipe(lambda d: d["method"].update(name="__import__")), "the recipe's method is '__import__'"),
    "a setting too many": (alter_recipe(lambda d: d["method"]["settings"].update(x=1)), r"does not take: \['x'\]"),
    "a bad setting": (alter_recipe(lambda d: d["method"]["settings"].update(forward_sparsity="1")), "forward_sparsity|cannot be made"),
    "another sparsity": (alter_recipe(lambda d: entry(d).update(forward=1)), r"\|A\| must be 1, got 819"),
    "impossible sizes": (alter_recipe(lambda d: entry(d).update(forward=10**9)), "1 ≤ |A| ≤ |B| ≤ n"),
    "another shape": (alter_recipe(lambda d: entry(d).update(shape=[9999, 9999])), "it is of another model"),
    "an unknown layer": (alter_recipe(lambda d: d["weights"].update(x={**entry(d), "layers": ["x"]})), "has a layer 'x'"),
    "a weight untied": (alter_recipe(lambda d: entry(d).update(layers=["transformer.wte"])), "transformer.wte"),
    "an unknown engine": (alter_recipe(lambda d: entry(d).update(engine="cuda")), "`engine` must be one of"),
    "a bad distribution": (alter_recipe(lambda d: entry(d).update(initial={"kind": "x"})), "bad initial distribution"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_altered_files_are_refused(folder: Path, what: str) -> None:
    alter, message = BAD[what]
    alter(folder)
    with pytest.raises(ValueError, match=message):
        from_pretrained(GPT2LMHeadModel, folder)


@pytest.mark.parametrize("name", ["topkast.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing: a sparse model has"):
        from_pretrained(GPT2LMHeadModel, folder)


def test_another_config_is_refused(folder: Path) -> None:
    GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2).save_pretrained(folder)
    with pytest.raises(ValueError, match="it is of another model"):
        from_pretrained(GPT2LMHeadModel, folder)


def test_only_models_of_transformers_are_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(TypeError, match=r"must be a transformers.PreTrainedModel, got Sequential"):
        save_pretrained(topkast.sparsify(model, METHOD), tmp_path)


def test_a_method_of_ones_own_cannot_be_written(tmp_path: Path) -> None:
    class Mine(topkast.Static):
        pass

    sparse = topkast.sparsify(gpt2(), Mine(0.9))
    with pytest.raises(ValueError, match="Mine is not a method of topkast"):
        save_pretrained(sparse, tmp_path)
