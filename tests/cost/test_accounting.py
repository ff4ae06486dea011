"""FLOPs are dense cost times density, by layer and pass, for a step and for a run."""

from __future__ import annotations

import time

import pytest

import topkast
from topkast.core.sets import Counts
from topkast.cost.accounting import Flops, LayerFlops, over_run
from topkast.cost.parameters import Parameters


def layer(name: str = "fc", **densities: float) -> LayerFlops:
    return LayerFlops(name, (4, 5), 400, 400, 400, **densities)


def test_each_pass_has_its_density() -> None:
    sparse = layer(forward_density=0.25, weight_grad_density=0.5)
    assert (sparse.forward, sparse.input_grad, sparse.weight_grad) == (100, 100, 200)
    assert (sparse.total, sparse.dense_total, sparse.numel) == (400, 1200, 20)


def test_totals_are_sums_and_other_products_stay_dense() -> None:
    first = LayerFlops("first", (4, 5), 400, 0, 400, 0.5, 0.5)
    flops = Flops((first, layer(forward_density=0.25, weight_grad_density=0.5)), 10, 20)
    assert flops.forward == 10 + 200 + 100
    assert flops.input_grad == 20 + 0 + 100
    assert flops.weight_grad == 200 + 200
    assert flops.total == flops.forward + flops.input_grad + flops.weight_grad
    assert flops.dense_forward == 810
    assert flops.dense_total == 30 + 800 + 1200
    assert flops.forward_fraction == 310 / 810
    assert flops.training_fraction == 830 / 2030


def test_shares_of_elements_are_exact_to_the_flop() -> None:
    numel, tokens = 7919 * 104729, 2**20
    dense = 2 * tokens * numel
    for count in (1, 12345, numel // 3, numel - 1):
        assert LayerFlops("x", (numel,), dense, 0, 0, count / numel).forward == 2 * tokens * count


def test_a_run_adds_up_its_steps() -> None:
    def rigl(step: int, counts: Counts) -> tuple[float, float]:
        return counts.forward_density, 1.0 if step % 10 == 0 else counts.backward_density

    step = Flops((layer(), layer("dense")), other_forward=7, other_backward=9)
    run = over_run(step, rigl, {"fc": Counts(20, 4, 4)}, 100)
    sparse, dense = run.layers
    assert (sparse.forward, sparse.input_grad) == (100 * 80, 100 * 80)
    assert sparse.weight_grad == 90 * 80 + 10 * 400
    assert dense.total == dense.dense_total == 100 * 1200
    assert (run.other_forward, run.other_backward) == (700, 900)
    assert run.dense_total == 100 * step.dense_total


def test_a_run_of_one_step_is_that_step() -> None:
    method, counts = topkast.TopKAST(0.8, 0.5), Counts(20, 4, 10)
    step = Flops((layer(),))
    assert over_run(step, method.densities, {"fc": counts}, 1) == step.at({"fc": (0.2, 0.5)})


def test_exploration_that_ends_makes_the_rest_of_the_run_cheaper() -> None:
    method = topkast.TopKAST(0.8, 0.5, explore_until=30)
    run = over_run(Flops((layer(),)), method.densities, {"fc": Counts(20, 4, 10)}, 100)
    assert run.weight_grad == 30 * 200 + 70 * 80


def test_a_long_run_of_a_large_network_is_quick() -> None:
    counts = {str(i): Counts(1000, 100, 200) for i in range(60)}
    step = Flops(tuple(layer(name) for name in counts))
    start = time.process_time()
    run = over_run(step, topkast.TopKAST(0.9, 0.8).densities, counts, 100_000)
    assert time.process_time() - start < 5
    assert run.forward_fraction == pytest.approx(0.1, abs=1e-15)


def test_dense_cost_of_a_run_is_exact_beyond_the_digits_of_a_float() -> None:
    odd = 10**15 + 1
    run = over_run(Flops((LayerFlops("x", (3,), odd, 0, 0),)), lambda *_: (1.0, 1.0), {}, 10**4 + 1)
    assert run.forward == run.dense_forward == odd * (10**4 + 1)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="`num_steps` must be at least 1, got 0"):
        over_run(Flops((layer(),)), lambda *_: (1.0, 1.0), {}, 0)
    with pytest.raises(ValueError, match="'fd', which is no layer"):
        Flops((layer(),)).at({"fd": (0.5, 0.5)})


def test_it_prints_as_a_table() -> None:
    flops = Flops((layer(forward_density=0.25, weight_grad_density=0.5),), 10, 20)
    lines = str(flops).splitlines()
    assert lines[0].split() == [
        "layer", "shape", "D", "D+M", "forward", "input", "grad", "weight", "grad", "total", "dense", "share",
    ]  # fmt: skip
    assert lines[2].split() == [
        "fc",
        "4×5",
        "25.00%",
        "50.00%",
        "100",
        "100",
        "200",
        "400",
        "1.2",
        "k",
        "33.33%",
    ]
    assert lines[-1].split() == ["all", "110", "120", "200", "430", "1.23", "k", "34.96%"]


def test_parameters_in_use_are_the_forward_sets_and_the_dense_rest() -> None:
    parameters = Parameters(sparse=20, sparse_numel=100, rest=10)
    assert (parameters.used, parameters.dense) == (30, 110)
    assert parameters.fraction == 30 / 110
