"""ResNet-50 by distribution: exact totals, the published FLOPs, and tables in the docs that are up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("resnet50_flops", ROOT / "examples" / "resnet50_flops.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dense(example: Any) -> Any:
    return example.dense_resnet50()


def test_the_dense_network_costs_what_is_published(dense: Any) -> None:
    assert len(dense.layers) == 54
    assert dense.forward == 8_178_368_512
    assert f"{dense.forward:.1e}" == "8.2e+09"


@pytest.mark.parametrize("sparsity", [0.8, 0.9, 0.95, 0.98])
def test_erk_has_the_exact_total_and_favours_small_layers(example: Any, dense: Any, sparsity: float) -> None:
    counts = example.counts(dense, "erk", sparsity)
    numel = sum(c.numel for c in counts.values())
    assert numel == 25_502_912
    assert sum(c.forward for c in counts.values()) == round((1 - sparsity) * numel)
    in_proportion = {
        layer.name: counts[layer.name].forward / sum(layer.shape)
        for layer in dense.layers
        if counts[layer.name].forward < layer.numel
    }
    # |A| is ε·Σ dims, to the rounding of one element.
    assert max(in_proportion.values()) - min(in_proportion.values()) < 2 / 130


@pytest.mark.parametrize("distribution", ["uniform", "erk"])
def test_the_published_fractions_come_out_by_the_rules_they_were_counted_by(
    example: Any, dense: Any, distribution: str
) -> None:
    for sparsity, published in example.PUBLISHED[distribution].items():
        assert f"{example.as_rigl_counts(dense, distribution, sparsity):.2f}" == published
        ours = example.sparse_flops(dense, distribution, sparsity).forward_fraction
        assert ours == pytest.approx(float(published), abs=0.0073)


def test_the_tables_of_the_docs_are_up_to_date(example: Any, dense: Any) -> None:
    page = (ROOT / "docs" / "flops.md").read_text()
    assert example.fractions_table(dense) in page
    assert example.layers_table(dense) in page
