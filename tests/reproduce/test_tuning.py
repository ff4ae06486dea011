"""`topkast tune`: the search goes past an end, is the same for all, and is not run twice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from topkast.cli.main import main
from topkast.reproduce import farm
from topkast.reproduce.contest import contender
from topkast.reproduce.tuning import Tuned
from topkast.reproduce.worker import work


def searched(quality: Callable[[int], float], most: int, *, higher: bool = False) -> Tuned:
    """The powers that a search tries whose runs have this quality."""
    one = Tuned(contender("dense"), higher_is_better=higher)
    one.found = {power: {0: quality(power)} for power in (-1, 0, 1)}
    while (power := one.next(0, most)) is not None:
        one.found[power] = {0: quality(power)}
    return one


def test_a_search_goes_on_past_the_end_that_is_best() -> None:
    up = searched(lambda power: (power - 3) ** 2, most=9)
    assert (up.best(0), sorted(up.found)) == (3, [-1, 0, 1, 2, 3, 4])
    down = searched(lambda power: -abs(power + 2), most=9, higher=True)
    assert (down.best(0), sorted(down.found)) == (-2, [-3, -2, -1, 0, 1])
    assert up.is_inside(0)
    assert down.is_inside(0)


def test_a_search_ends_when_it_has_tried_enough() -> None:
    one = searched(lambda power: -power, most=5)
    assert sorted(one.found) == [-1, 0, 1, 2, 3]
    assert not one.is_inside(0)


def test_runs_that_fail_are_worst() -> None:
    one = searched(lambda power: math.nan if power > 0 else -power, most=9)
    assert one.best(0) == 0
    assert one.is_inside(0)
    none = searched(lambda _: math.nan, most=9)
    assert sorted(none.found) == [-1, 0, 1]


class _InThisProcess:
    """In place of a process: works at once."""

    def __init__(self, command: list[str], **_: object) -> None:
        self.returncode = work(Path(command[3]))

    def poll(self) -> int:
        return self.returncode


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., int]]:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(farm.subprocess, "Popen", _InThisProcess)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    small = ["--task", "images", "--hidden", "8", "--steps", "4", "--out", str(tmp_path / "tune")]
    yield lambda *words: main(["tune", *words, *small])
    torch.set_num_threads(before)


def test_rates_are_found_written_and_kept(tune, tmp_path: Path, capsys) -> None:
    contenders = ("dense", "topkast:0.9/0.8,exploration_rate=0.1")
    assert tune(*contenders, "--most", "3", "--seeds", "0,1", "--lr", "0.01", "--factor", "4") == 0
    said = capsys.readouterr().out
    assert "lr 0.0025, seed 0" in said
    assert "lr 0.04, seed 0" in said
    assert said.count("seed 1") == 2  # at the best rates alone
    found = json.loads((tmp_path / "tune/tune.json").read_bytes())
    assert [one["contender"] for one in found] == ["dense", "topkast-0.9-0.8-exploration_rate=0.1"]
    for one in found:
        assert set(one["rates"]) == {"0.0025", "0.01", "0.04"}
        assert set(one["rates"][f"{one['best']:g}"]) == {"0", "1"}
    assert (tmp_path / "tune/tune.svg").stat().st_size > 1000
    # The same again, with one more: what is there is not run again.
    assert tune(*contenders, "static:0.9", "--most", "3", "--lr", "0.01", "--factor", "4") == 0
    said = capsys.readouterr().out
    assert "[3 of 3," in said
    assert "dense, lr" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dense", "dense"], "each contender can be given once only"),
        (["dense,lr=0.1"], "the rate is what is looked for"),
        (["dense,width"], "what follows a comma must be OPTION=VALUE"),
        (["dense,seed=1"], "what follows a comma must be OPTION=VALUE"),
        (["topkast:0.9,hysterese=2"], "'hysterese' is not an option; there are"),
        (["topkast:0.9,hysteresis=much"], "hysteresis must be a number, got 'much'"),
        (["static:0.9,hysteresis=2"], "static-0.9-hysteresis=2.0: "),
        (["dense", "--factor", "1"], "--factor must be above 1"),
        (["dense", "--most", "2"], "--most must be at least 3"),
        (["dense", "--lr", "0"], "--lr must be above 0"),
        (["dense", "--jobs", "0"], "--jobs must be at least 1"),
    ],
)
def test_what_cannot_be_searched_is_refused(tune, words: list[str], message: str, capsys) -> None:
    assert tune(*words) == 2
    assert message in capsys.readouterr().err
