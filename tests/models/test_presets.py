"""Presets hold what the paper says: the parameters of its tables, dense and sparse, and its learning rates."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import topkast
from topkast.core.sets import Counts
from topkast.cost.forecast import survey
from topkast.data.datasets import DATA_SETS
from topkast.models import PRESETS, TransformerXL, preset
from topkast.models.network import CATALOGUE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "networks.md"
# Millions as printed in the paper's tables, by sparsity; exactly what counting gives when it is rounded to as many digits.
PRINTED = {
    "enwik8-paper": {0.0: "277", 0.8: "55", 0.9: "27.7"},
    "enwik8-paper-small": {0.0: "69", 0.8: "14", 0.9: "7"},
    "wikitext103-paper": {0.0: "285", 0.8: "57", 0.9: "28.5", 0.95: "14.3"},
    "wikitext103-paper-small": {0.0: "94"},
    "imagenet-paper": {0.0: "25.6"},
    "cifar10-hour": {0.0: "0.27"},
}


@functools.cache
def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return preset(name).build()


@functools.cache
def counted(name: str, sparsity: float) -> int:
    """Of all parameters for language models, as the paper counts; of layers' weights for the others."""
    chosen, model = preset(name), on_meta(name)
    if not sparsity:
        return sum(p.numel() for p in model.parameters())
    budget = "model" if chosen.model == "transformer-xl" else "layers"
    found = survey(model, topkast.TopKAST(sparsity, sparsity), keep_dense=chosen.keep_dense, budget=budget)
    return sum(c.forward for c in found.counts.values()) + sum(t.numel for t in found.rest)


def in_millions(number: int, digits: str) -> str:
    decimals = len(digits.partition(".")[2])
    return f"{number / 1e6:.{decimals}f}"


@pytest.mark.parametrize(("name", "printed"), PRINTED.items())
def test_parameters_are_those_of_the_papers_tables(name: str, printed: dict[float, str]) -> None:
    for sparsity, digits in printed.items():
        assert in_millions(counted(name, sparsity), digits) == digits


def test_the_table_in_the_docs_is_what_counting_gives() -> None:
    seen = set()
    for cells in re.findall(r"^\| (`.*)\|$", PAGE.read_text(), re.MULTILINE):
        names, _, *numbers, _ = map(str.strip, cells.split("|"))
        for name in re.findall(r"`(.+?)`", names):
            assert [f"{counted(name, s):,}" for s in (0, 0.8, 0.9, 0.95)] == numbers, name
            seen.add(name)
    assert seen == set(PRESETS)


@pytest.mark.parametrize("name", ["enwik8-paper", "enwik8-paper-small", "wikitext103-paper"])
@pytest.mark.parametrize("sparsity", [0.8, 0.9, 0.95])
def test_a_sparse_model_has_exactly_its_share(name: str, sparsity: float) -> None:
    assert counted(name, sparsity) == round((1 - sparsity) * counted(name, 0))


def test_readings_that_counting_rules_out() -> None:
    """What docs/networks.md says of the paper's two-sided places."""

    def count(name: str, **sizes: object) -> int:
        changed = dataclasses.replace(preset(name), sizes={**preset(name).sizes, **sizes})
        with torch.device("meta"):
            return sum(p.numel() for p in changed.build().parameters())

    # An embedding of 512 at width 1024: 278, 56 and 27.8 M in place of the printed 277, 55 and 27.7.
    assert count("enwik8-paper", d_embed=512, tie_projections=True) == 277_678_336
    # 16 layers, as the text has it.
    assert count("wikitext103-paper", depth=16) == 257_919_818
    # All projections tied, only the head's, none; all tables apart.
    assert count("wikitext103-paper", tie_projections=True) == 284_156_746
    assert count("wikitext103-paper", tie_projections=(True, False, False, False)) == 284_500_810
    assert count("wikitext103-paper", tie_projections=False) == 285_549_386
    assert count("wikitext103-paper", tie_projections=False, tie_embeddings=False) == 322_473_146
    # 95 % of the small model is 3.5 M; the printed 1.4 M would be 98 %.
    assert counted("enwik8-paper-small", 0.95) == 3_471_834
    assert counted("enwik8-paper-small", 0.98) == 1_388_733


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_network_with_data(name: str) -> None:
    chosen = preset(name)
    assert chosen.data in DATA_SETS
    assert chosen.model in CATALOGUE
    model = on_meta(name)
    with torch.device("meta"):
        if isinstance(model, TransformerXL):
            assert chosen.window is not None
            assert model.memory_length == chosen.train_memory <= chosen.eval_memory
            symbols = torch.empty(2, 16, dtype=torch.int64)
            logits, memory = model(symbols)
            assert logits.shape == (2, 16, chosen.sizes["num_symbols"])
            assert memory.shape[2] == 16
        else:
            size = 32 if chosen.data == "cifar-10" else 224
            assert model(torch.empty(2, 3, size, size)).shape == (2, chosen.sizes["num_classes"])


def test_learning_rates_of_the_language_models() -> None:
    chosen = preset("enwik8-paper")
    rate = [chosen.schedule.at(step, chosen.steps) for step in (0, 2000, 4000, 202_000, 399_999)]
    assert rate == pytest.approx([1e-7, 1.0005e-4, 2e-4, 1e-4, 0], abs=1e-10)
    assert chosen.clip == 0.25


def test_learning_rates_of_imagenet() -> None:
    chosen = preset("imagenet-paper")
    epoch = 1_281_167 / 4096
    rates = {
        e: chosen.schedule.at(round(e * epoch), chosen.steps)
        for e in (0, 2.5, 5, 29, 31, 69, 71, 89, 91, 102)
    }
    assert list(rates.values()) == pytest.approx(
        [0, 0.8, 1.6, 1.6, 0.16, 0.16, 0.016, 0.016, 0.0016, 0.0016], rel=2e-3
    )
    assert chosen.steps / epoch == pytest.approx(102.3, abs=0.1)


def test_the_first_and_last_layer_of_resnet50_stay_dense_or_not() -> None:
    for name, dense in (("imagenet-paper", 2), ("imagenet-paper-all-sparse", 0)):
        chosen = preset(name)
        found = survey(on_meta(name), topkast.TopKAST(0.8, 0.5), keep_dense=chosen.keep_dense)
        assert len(found.weights) == 54 - dense
        assert all(isinstance(c, Counts) for c in found.counts.values())


@pytest.mark.parametrize(
    "name", [name for name in PRESETS if name.startswith("cifar10") or name == "enwik8-minutes"]
)
def test_small_ones_run(name: str) -> None:
    chosen = preset(name)
    model = chosen.build()
    if isinstance(model, TransformerXL):
        symbols = torch.randint(256, (1, 8))
        loss, _ = model.loss(symbols, symbols)
    else:
        loss = model(torch.randn(2, 3, 32, 32)).square().mean()
    loss.backward()
    assert loss.isfinite()


def test_a_name_that_is_none_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"`preset` must be one of 'enwik8-paper', .*, got 'enwik8-papr'"):
        preset("enwik8-papr")
    with pytest.raises(ValueError, match=r"'imagenet-paper'.*, got '\?'"):
        preset("?")
