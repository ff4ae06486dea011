from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from topkast.bench.apart import why_not
from topkast.cli.main import main
from topkast.kernels.machine import cpu_features

SMALL = ["--tokens", "8", "--inputs", "32", "--outputs", "16", "--repeats", "1"]


pytestmark = pytest.mark.usefixtures("one_thread")


def test_linear_compares_every_engine_with_dense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *SMALL]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^multiply-adds in registers: \d+ GFLOP/s; with a load each: \d+$", out, re.MULTILINE)
    assert re.search(r"^sparsity +ideal +native +csr +masked +auto +of peak$", out, re.MULTILINE)
    assert re.findall(r"^(\d+/\d+ %) +([\d.]+×)(?: +[\d.]+×){4} +\d+%$", out, re.MULTILINE) == [
        ("80/50 %", "3.33×"),
        ("90/80 %", "7.50×"),
        ("95/90 %", "15.00×"),
        ("98/95 %", "33.33×"),
    ]
    assert re.search(r"^32 → 16, 8 tokens: (\d+%|below|never)", out, re.MULTILINE)


def test_figures_go_to_a_file_and_from_there_into_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, drawing = tmp_path / "figures.json", tmp_path / "plot.svg"
    assert main(["bench", *SMALL, "--equal", "--sparsities", "90", "--json", str(figures)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"against fastest peer$", out, re.MULTILINE)
    report = json.loads(figures.read_text())
    assert report["suite"] == "linear"
    assert report["options"]["pairs"] == [[0.9, 0.9]]
    shown = {row["contender"]: f"{row['ratio']:.2f}×" for row in report["rows"]}
    assert set(shown) >= {"dense", "native", "torch_csr"}
    assert re.search(rf"^90/90 % +10\.00× +{shown['native']} +{shown['torch_csr']} ", out, re.MULTILINE)
    assert main(["bench", "--from", str(figures), "--plot", str(drawing)]) == 0
    assert "<!-- topkast -->" in drawing.read_text()


def test_conv_times_every_layer_and_their_sum(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--batch", "1", "--repeats", "1", "--sparsities", "90/80", "--engines", "native"]
    assert main(["bench", "--suite", "conv", *arguments]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"stride [12], .*× \d+%$", out, re.MULTILINE)) == 10
    assert re.search(r"^sum of times +\d+\.\d\d×\nideal +7\.50×$", out, re.MULTILINE)


@pytest.mark.skipif("avx2" not in cpu_features(), reason="the CPU has one instruction set only")
def test_each_instruction_set_gets_a_run_and_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--engines", "native", "--sparsities", "90/80", "--isa", "portable,avx2"]
    assert main(["bench", *SMALL, *arguments, "--json", str(figures)]) == 0
    out = capfd.readouterr().out
    assert re.findall(r"threads, (\w+), float32", out) == ["portable", "avx2"]
    for isa in ("portable", "avx2"):
        report = json.loads((tmp_path / f"figures-{isa}.json").read_text())
        assert report["environment"]["isa"] == isa
        assert report["options"]["pairs"] == [[0.9, 0.8]]
        assert report["environment"]["peaks"]["registers"] > 0


def test_an_instruction_set_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--isa", "avx2,sse9"]) == 2
    assert (
        "--isa must be one or more of avx512, avx2, portable, with commas; got 'sse9'"
        in capsys.readouterr().err
    )
    assert main(["bench", "--isa", "avx2", "--plot", "x.svg"]) == 2
    assert "--plot draws one run: leave out --isa" in capsys.readouterr().err


def test_step_shows_the_share_of_refreshing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", "step", "--width", "32", "--depth", "1", "--tokens", "8"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"^9[05]/[89]0 % .*×(?:  +-?\d+\.\d%){3}$", out, re.MULTILINE)) == 2
    assert re.search(r"^Linear 256 → 256, 64 tokens, 90/80 %, .*auto: \w+: \d", out, re.MULTILINE)


def test_select_is_compared_with_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", "select", "--numel", "1000", "--repeats", "1"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^1,000 +(\d+%)( +[\d.]+×){3}$", out, re.MULTILINE)
    assert re.findall(r"^1,000 +(\d+)%", out, re.MULTILINE) == ["1", "10", "50"]


def test_memory_is_a_share_of_dense(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--inputs", "512", "--outputs", "1024", "--tokens", "4", "--sparsities", "98/95"]
    assert main(["bench", "--suite", "memory", *arguments, "--json", str(tmp_path / "a.json")]) == 0
    # Values, gradient and Adam's two moments follow |B|.
    assert re.search(r"^98/95 % +5\.0% ", capsys.readouterr().out, re.MULTILINE)
    dense, sparse = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert dense["bytes"]["total"] == 16 * 512 * 1024 + 4
    if why_not():
        pytest.skip(f"peak memory: {why_not()}")
    # Weight, gradient and two moments are there at the peak, and not much else.
    assert dense["bytes"]["total"] <= dense["peak"]["training"] < 3 * dense["bytes"]["total"]
    assert sparse["bytes"]["total"] <= sparse["peak"]["training"] < dense["peak"]["training"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "0"], r"--tokens must be at least 1, got 0"),
        (["--repeats", "-3"], r"--repeats must be at least 1, got -3"),
        (["--engines", "native,gpu"], r"--engines takes masked, csr, native, auto, got 'gpu'"),
        (["--inputs", "8"], r"--inputs and --outputs make one shape: give both or none"),
        (["--batch", "2"], r"--batch is for the suite conv or step, not for linear"),
        (["--suite", "conv", "--equal"], r"--equal is for the suite linear, not for conv"),
        (["--sparsities", "90/x"], r"--sparsities takes pairs in per cent such as 90/80,95/90, got '90/x'"),
        (["--sparsities", "100"], r"--sparsities takes pairs in per cent such as 90/80,95/90, got '100'"),
        (["--sparsities", "0.9/0.8"], r"--sparsities takes pairs in per cent such as 90/80,.*got '0.9/0.8'"),
        (["--sparsities", "80/90"], r"--sparsities: the backward sparsity is at most the forward .*'80/90'"),
        (["--equal", "--sparsities", "90/80"], r"peers have one set only: .* got 90/80 %"),
        (["--json", "no/such/folder/a.json"], r"--json: the folder \S+/no/such/folder does not exist"),
        (["--json", "."], r"--json takes a file, \. is a folder"),
        (["--plot", "a.txt"], r"--plot takes a file that ends in \.svg, \.png, \.pdf, got a\.txt"),
        (["--from", "a.json"], r"--from is for drawing what was measured before: give --plot with it"),
        (["--from", "no.json", "--plot", "a.svg"], r".*No such file or directory: 'no\.json'"),
        (["--suite", "step", "--width", "100"], r"--width of the suite step must be a multiple of 64"),
    ],
)
def test_bad_options_are_one_line_before_anything_is_measured(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert re.match(f"topkast bench: {message}", captured.err)
    assert captured.err.count("\n") == 1
    assert captured.out == ""
