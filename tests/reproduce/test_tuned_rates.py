"""Rates of rows: kept in a file, found on validation data, by the library's rule where nobody has looked."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from topkast.reproduce import calibration, tuned_rates, tuning
from topkast.reproduce.catalogue import EXPERIMENTS
from topkast.reproduce.experiment import Experiment, Row
from topkast.reproduce.farm import Harvest
from topkast.reproduce.recipes import other, topkast
from topkast.reproduce.scales import SCALES, TINY, by_rule
from topkast.reproduce.tuned_rates import Rate

TABLE = Experiment(
    name="a",
    rows=(
        Row("dense", other("images", "dense")),
        Row("ours", topkast("images", 0.9, 0.8)),
        Row("ours, random", topkast("images", 0.9, 0.8, exploration="random")),
        Row("ours, explores more", topkast("images", 0.9, 0.5)),
        Row("sparser", topkast("images", 0.98, 0.95)),
    ),
)


@pytest.fixture
def _fashion(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the published data were here; nothing is read."""
    monkeypatch.setattr("topkast.reproduce.scales.find_dataset", lambda name: Path(name))


def test_a_file_of_rates_gives_back_what_was_written(tmp_path: Path) -> None:
    found = {"b": Rate(0.1, 88.0, {"0.1": 88.0, "0.2": None}), "a": Rate(0.2, 1.0, {})}
    tuned_rates.write(tmp_path / "rates.json", found)
    assert tuned_rates.read(tmp_path / "rates.json") == found
    assert list(tuned_rates.read(tmp_path / "rates.json")) == ["a", "b"]
    assert tuned_rates.read(tmp_path / "missing.json") == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": {"lr": 1}}'])
def test_another_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match="x.json is not a file of rates"):
        tuned_rates.read(tmp_path / "x.json")


def test_every_kept_rate_is_the_best_of_those_that_were_tried() -> None:
    for name, rate in tuned_rates.known().items():
        qualities = [q for q in rate.tried.values() if q is not None]
        assert rate.tried[f"{rate.lr:g}"] == rate.quality, name
        best = min if " on enwik8" in name or " on wikitext" in name else max
        assert rate.quality == best(qualities), name
        assert len(rate.tried) >= 3, name


def test_every_kept_rate_belongs_to_a_row() -> None:
    wanted = {
        scale.rate_key(row.recipe, scale.of(row.recipe, is_forecast=True))
        for scale in SCALES.values()
        for experiment in EXPERIMENTS.values()
        for row in experiment.rows
    }
    assert set(tuned_rates.known()) <= wanted


@pytest.mark.usefixtures("_fashion")
def test_rows_share_a_rate_by_network_method_and_forward_sparsity() -> None:
    found = calibration.recipes_by_key([TABLE], TINY)
    assert list(found) == [
        "tiny: images on fashion-mnist: dense",
        "tiny: images on fashion-mnist: topkast 90",
        "tiny: images on fashion-mnist: topkast 98",
    ]
    assert found["tiny: images on fashion-mnist: topkast 98"].backward == pytest.approx(0.96)


@pytest.mark.usefixtures("_fashion")
def test_a_row_takes_the_rate_that_was_found_and_else_that_of_the_rule(monkeypatch) -> None:
    name = "tiny: images on fashion-mnist: topkast 90"
    monkeypatch.setattr(tuned_rates, "known", lambda: {name: Rate(0.3, 88.0, {})})
    assert TINY.config(topkast("images", 0.9, 0.8), 0).train.lr == 0.3
    assert TINY.config(topkast("images", 0.9, 0.8, lr=0.5), 0).train.lr == 0.5
    assert TINY.config(topkast("images", 0.98, 0.95), 0).train.lr == 0.1, "with SGD all have the dense rate"
    text = TINY.config(topkast("bytes", 0.9, 0.8), 0, is_forecast=True).train
    assert text.lr == pytest.approx(4e-3 * 0.1**-0.75, rel=1e-3)
    assert text.sparse_rate == "same"


@pytest.mark.usefixtures("_fashion")
def test_the_search_goes_on_past_an_end_and_looks_at_validation_data_alone(
    monkeypatch, tmp_path: Path
) -> None:
    base = TINY.of(TABLE.rows[0].recipe)
    dense, best = by_rule(TABLE.rows[0].recipe, base), {}
    told = []

    class Here:
        """A place whose run is as good as its rate is near to a target."""

        def __init__(self, config) -> None:
            self.config, self.run = config, config

        def prepare(self, config) -> None:
            told.append(config)

        def result(self) -> object:
            return {}

    class Run:
        def __init__(self, config) -> None:
            target = 4 * dense if config.method.method == "dense" else dense
            self.higher_is_better, self.quality_name = True, "accuracy, %"
            self.last = dataclasses.make_dataclass("Last", ["quality"])(
                -abs(math.log(config.train.lr / target))
            )

    monkeypatch.setattr(calibration, "place", lambda out, config, label: Here(config))
    monkeypatch.setattr(tuning, "read_run", Run)
    monkeypatch.setattr(calibration, "run_all", lambda places, **_: Harvest())
    known = {"tiny: images on fashion-mnist: topkast 98": Rate(1.0, 1.0, {})}
    calibration.find_rates(
        [TABLE], TINY, tmp_path, known, jobs=1, say=lambda _: None, keep=lambda found: best.update(found)
    )
    assert best["tiny: images on fashion-mnist: dense"].lr == pytest.approx(4 * dense)
    assert len(best["tiny: images on fashion-mnist: dense"].tried) == 5
    assert best["tiny: images on fashion-mnist: topkast 90"].lr == pytest.approx(dense)
    assert len(best["tiny: images on fashion-mnist: topkast 90"].tried) == 3
    assert best["tiny: images on fashion-mnist: topkast 98"].lr == 1.0, "it was known"
    assert all(config.data.validation == 6000 for config in told)
    assert len(told) == 8
