from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from topkast.bench import forward
from topkast.bench.contenders import WrongResult
from topkast.bench.profile import PARTS
from topkast.bench.suites import dlmc, inference, linear, select, step
from topkast.bench.suites.step import decoder
from topkast.core.select import top_k, top_k_portable
from topkast.kernels.engines import ENGINES
from topkast.methods import TopKAST


def quiet(_line: str) -> None:
    pass


def test_the_linear_suite_records_every_figure_it_shows() -> None:
    settings = linear.Settings(
        tokens=4, shapes=((16, 8), (8, 16)), pairs=((0.9, 0.8),), engines=("masked", "csr"), repeats=1
    )
    lines: list[str] = []
    report = linear.run(settings, lines.append)
    assert [(row["case"], row["contender"]) for row in report.rows] == [
        (case, name)
        for case in ("16 → 8, 4 tokens", "8 → 16, 4 tokens")
        for name in ("dense", "masked", "csr")
    ]
    for row in report.rows:
        dense = next(r for r in report.rows if r["case"] == row["case"] and r["contender"] == "dense")
        assert row["ratio"] == pytest.approx(dense["seconds"] / row["seconds"])
        assert row["seconds_low"] <= row["seconds"] <= row["seconds_high"]
        assert row["ideal"] == pytest.approx(7.5)
    first, second = (row["ratio"] for row in report.rows if row["contender"] == "csr")
    (mean,) = (row["ratio"] for row in report.overall if row["contender"] == "csr")
    assert mean == pytest.approx((first * second) ** 0.5)
    assert any(f"{mean:.2f}×" in line for line in lines)
    assert report.break_even == [], "which is native's"


def test_native_is_compared_with_the_fastest_peer() -> None:
    settings = linear.Settings(
        tokens=4, shapes=((16, 8),), pairs=((0.9, 0.9),), engines=("native",), has_peers=True, repeats=1
    )
    report = linear.run(settings, quiet)
    ratios = {row["contender"]: row["ratio"] for row in report.rows}
    (versus,) = report.versus_peers
    peers = {name: ratio for name, ratio in ratios.items() if name not in ("dense", "native")}
    assert versus["fastest_peer"] == max(peers, key=lambda name: peers[name])
    assert versus["ratio"] == pytest.approx(ratios["native"] / max(peers.values()))
    (found,) = report.break_even
    assert len(found["ratios"]) == len(found["sparsities"]) == 6
    assert [row["ratio"] for row in found["rows"] if row["contender"] == "native"] == found["ratios"]


def test_peers_need_equal_sparsities() -> None:
    with pytest.raises(ValueError, match="forward and backward must be equal, got 90/80 %"):
        linear.Settings(pairs=((0.8, 0.8), (0.9, 0.8)), has_peers=True)


CONTENDERS = ["dense", "never", "(1, 1)", "(1, 100)", "(100, 100)"]


def test_the_step_suite_shows_what_a_refresh_costs() -> None:
    settings = step.Settings(width=32, depth=1, tokens=16, pairs=((0.9, 0.8),), repeats=1)
    report = step.run(settings, quiet)
    rows = {row["contender"]: row for row in report.rows if row["case"].startswith("decoder")}
    assert list(rows) == CONTENDERS
    chosen = {n: row["refresh_share"] * row["seconds"] for n, row in rows.items() if n.startswith("(")}
    assert chosen["(1, 1)"] > chosen["(1, 100)"] > chosen["(100, 100)"] > 0
    assert chosen["(100, 100)"] == pytest.approx(chosen["(1, 1)"] / 100)
    assert rows["(100, 100)"]["seconds"] == pytest.approx(rows["never"]["seconds"] + chosen["(100, 100)"])
    assert rows["dense"]["refresh_share"] is rows["never"]["refresh_share"] is None
    assert report.rows[-1]["case"] == "Linear 256 → 256, 64 tokens"


def test_a_trainer_times_what_follows_the_optimizer() -> None:
    subject = decoder(32, 1, 16)
    often = step.Trainer(subject, subject.model(), TopKAST(0.9, 0.8, refresh_every=1, exchange_every=1))
    dense = step.Trainer(subject, subject.model(), None)
    for one in (often, dense):
        for _ in range(5):
            one.step()
    assert len(often.after) == len(dense.after) == 5
    assert min(often.after) > max(dense.after) > 0


@pytest.mark.slow  # ResNet-50 takes ten seconds
@pytest.mark.parametrize(
    ("settings", "start"),
    [
        (step.Settings("transformer-xl", width=32, depth=1, tokens=16, pairs=((0.9, 0.8),), repeats=1), "Transformer-XL, width 32"),
        (step.Settings("resnet50", batch=4, side=64, pairs=((0.9, 0.8),), repeats=1), "ResNet-50, 4 images of 64 px"),
    ],
)  # fmt: skip
def test_the_step_suite_times_the_papers_networks(settings: step.Settings, start: str) -> None:
    rows = [row for row in step.run(settings, quiet).rows if row["case"].startswith(start)]
    assert [row["contender"] for row in rows] == CONTENDERS


def trainer() -> step.Trainer:
    subject = decoder(32, 1, 16)
    return step.Trainer(subject, subject.model(), TopKAST(0.9, 0.8))


@pytest.fixture
def wrong_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the weight gradients of every engine one per cent too large."""

    def spoil() -> None:
        for engine in ENGINES.values():
            grads = engine.linear_grads

            def wrong(*args: Any, _grads: Any = grads, **options: Any) -> Any:
                x, values, bias = _grads(*args, **options)
                return x, None if values is None else 1.01 * values, bias

            monkeypatch.setattr(engine, "linear_grads", wrong)

    return spoil


def test_a_wrong_gradient_in_a_model_is_found(wrong_engine: Callable[[], None]) -> None:
    subject = trainer()
    step.check_gradients(subject, "here")
    wrong_engine()
    with pytest.raises(WrongResult, match=r"sparse here: gradient of blocks.0.qkv.weight.values is wrong"):
        step.check_gradients(subject, "here")


def test_sets_that_are_not_the_largest_are_found() -> None:
    subject = trainer()
    step.check_sets(subject, ("A", "B"))
    assert subject.handle is not None
    weight = subject.handle.weights["head"]
    with torch.no_grad():
        weight.values.mul_(-1)
        step.check_sets(subject, ("A", "B"))  # by magnitude nothing has changed
        weight.values[0] = 0.0
    with pytest.raises(WrongResult, match="of layer head is not the"):
        step.check_sets(subject, ("A", "B"))


def test_a_selection_that_gives_ties_to_the_larger_position_is_found() -> None:
    numbers = torch.tensor([1.0, -2.0, 2.0, -1.0, 1.0])
    for right in (top_k, top_k_portable):
        select.check(right, numbers, 3)

    def last_ties(x: torch.Tensor, k: int) -> torch.Tensor:
        return (x.numel() - 1 - top_k(x.flip(0), k)).flip(0)

    with pytest.raises(WrongResult, match="Top-K of 5 numbers, k = 3"):
        select.check(last_ties, numbers, 3)


def test_wrong_sizes_of_the_step_suite_are_refused() -> None:
    with pytest.raises(ValueError, match="--tokens of the suite step must be a multiple of 128, got 200"):
        step.Settings(tokens=200)
    with pytest.raises(ValueError, match="--width of the suite step must be a multiple of 64, got 100"):
        step.Settings(width=100)


def test_a_wrong_engine_of_ours_stops_the_suite(wrong_engine: Callable[[], None]) -> None:
    wrong_engine()
    settings = linear.Settings(tokens=4, shapes=((16, 8),), engines=("masked",), repeats=1)
    with pytest.raises(WrongResult, match=r"masked at 16 → 8, 4 tokens, 80/50 %: weight gradient is wrong"):
        linear.run(settings, quiet)


def test_a_profile_has_every_part_and_adds_up(capfd) -> None:
    lines: list[str] = []
    report = step.run(
        step.Settings(width=64, depth=1, tokens=128, pairs=((0.9, 0.8),), repeats=1, profile=True),
        lines.append,
    )
    parts = [row for row in report.rows if "part" in row]
    assert {row["contender"] for row in parts} == {"dense", "90/80 %"}
    by_part = {row["part"]: row["seconds"] for row in parts if row["contender"] == "90/80 %"}
    assert set(by_part) == set(PARTS)
    assert by_part["sparse products"] > 0
    assert next(row["seconds"] for row in parts if row["part"] == "sparse products") == 0  # the dense one's
    assert all(seconds >= 0 for seconds in by_part.values())
    assert capfd.readouterr().err == ""  # torch's profiler announces itself otherwise


def test_the_inference_suite_times_every_contender_on_one_row_and_many() -> None:
    settings = inference.Settings(rows=(1, 5), width=16, depth=1, pairs=((0.9, 0.8),), repeats=2)
    lines: list[str] = []
    report = inference.run(settings, lines.append)
    assert [(row["tokens"], row["contender"]) for row in report.rows] == [
        (rows, name) for rows in (1, 5) for name in ("dense", "native", "csr", "onnxruntime")
    ]
    assert report.left_out == {}
    assert {row["case"] for row in report.rows} == {
        "perceptron 16 → 64 → 16, 1 row",
        "perceptron 16 → 64 → 16, 5 rows",
    }
    assert all(row["ideal"] == pytest.approx(10) for row in report.rows)
    assert any("10.00×" in line for line in lines)


def test_inference_is_not_timed_if_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = inference.Settings(rows=(2,), width=16, depth=1, pairs=((0.9, 0.8),), repeats=1)
    right = type(ENGINES["native"]).linear_alone

    def wrong(*args: Any, **options: Any) -> torch.Tensor:
        return right(*args, **options) * 1.01

    monkeypatch.setattr(forward, "missing_onnx", lambda: "not here")
    with monkeypatch.context() as patch:
        patch.setattr(type(ENGINES["native"]), "linear_alone", wrong)
        with pytest.raises(WrongResult, match=r"native at 2 rows, 90/80 %: output is wrong"):
            inference.run(settings, quiet)
    report = inference.run(settings, quiet)
    assert report.left_out == {"onnxruntime": "not here"}
    assert "onnxruntime" not in {row["contender"] for row in report.rows}


def test_the_dlmc_suite_times_every_shape_and_says_both_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlmc, "SHAPES", (("wide", 16, 64), ("tall", 64, 16)))
    settings = dlmc.Settings(tokens=8, pairs=((0.6, 0.6), (0.9, 0.9)), repeats=2)
    lines: list[str] = []
    report = dlmc.run(settings, lines.append)
    assert [(row["case"], row["forward_sparsity"], row["contender"]) for row in report.rows] == [
        (case, sparsity, name)
        for case in ("wide", "tall")
        for sparsity in (0.6, 0.9)
        for name in ("dense", "native", "csr")
    ]
    ours = [float(str(row["ratio"])) for row in report.rows if row["contender"] == "native"]
    (mean,) = (
        row["ratio"]
        for row in report.overall
        if row["contender"] == "native" and row["forward_sparsity"] == 0.9
    )
    assert mean == pytest.approx((ours[1] * ours[3]) ** 0.5)
    assert any(f"arithmetic mean of all {sum(ours) / 4:.2f}×" in line for line in lines)
    assert report.left_out == {}
