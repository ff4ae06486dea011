from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from topkast.cli.main import main
from topkast.cli.plan import _bytes
from topkast.methods.named import METHODS
from topkast.models.network import CATALOGUE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plan.md"


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def row(out: str, label: str) -> list[str]:
    """The cells of a line, without the spaces between numbers and units."""
    (line,) = re.findall(rf"^{re.escape(label)}  +(.*)$", out, re.MULTILINE)
    return [cell.replace(" ", "") for cell in re.split(r"  +", line)]


def test_resnet50_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    out = plan(capsys, "resnet50", "--batch", "1", "--keep-dense", "first", "--optimizer", "momentum")
    assert row(out, "parameters in use")[0] == "25,557,032"
    assert row(out, "forward") == ["8.178G", "1.03G", "12.6%"]  # as docs/flops.md has it
    assert row(out, "values") == ["102MB", "20.39MB", "20.0%"]
    assert "dense: conv (keep_dense: first layer)" in out


def test_workers_links_and_memory_add_their_sections(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("mlp", "--sizes", "1000,1000", "--optimizer", "sgd")
    alone = plan(capsys, *sizes)
    assert "workers" not in alone.replace("per worker", "")
    out = plan(capsys, *sizes, "--workers", "2", "--link", "0.001", "--memory", "8.008MB")
    assert row(out, "sent per step, 2 workers") == ["4.004MB", "804kB", "20.1%"]
    assert row(out, "at 0.001 Gbit/s") == ["32s", "6.43s", "20.1%"]
    # 8 bytes a parameter: the dense model itself fits.
    assert row(out, "parameters that fit 8.008 MB")[0] == "1,001,000"
    assert "Sets are chosen by each worker and not sent." in out.replace("\n", " ")
    assert "by default sends" not in out
    out = plan(capsys, *sizes, "--workers", "2", "--method", "rigl", "--steps", "400").replace("\n", " ")
    assert "RigL adds up the dense gradient of the steps it grows by: 4 MB more." in out
    out = plan(capsys, "resnet20", "--workers", "2").replace("\n", " ")
    # 19 norms with a mean, a variance and a count each.
    buffers = 4 * 2 * (16 * 7 + 32 * 6 + 64 * 6) + 19 * 8
    assert f"before each forward pass: {buffers / 1000:.4g} kB more." in out


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", CATALOGUE)
def test_every_model_with_every_method_in_100_columns(
    model: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = plan(
        capsys,
        model,
        "--method",
        method,
        "--steps",
        "400",
        "--workers",
        "1000",
        "--link",
        "12.5",
        "--memory",
        "1.5TB",
    )
    assert max(len(line) for line in out.splitlines()) <= 100
    assert re.search(r"^FLOPs of the run +[\d.]+ [TGPE] ", out, re.MULTILINE)
    refused = "it cannot run with several workers today" in out.replace("\n", " ")
    assert refused == (method in ("snfs", "str", "dsr"))


def test_a_network_beyond_any_machine_takes_no_memory_to_plan(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--width", "32768", "--depth", "80", "--heads", "64", "--vocabulary", "50000")
    out = plan(
        capsys, "decoder", *sizes, "--forward-sparsity", "0.99", "--reservoir", "implicit", "--batch", "1"
    )
    assert row(out, "parameters in use")[0].startswith("1,03")  # 10¹² of them
    assert "a run in which 0.05 of C has been in B" in out


def test_the_implicit_reservoir_follows_the_share(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("mlp", "--sizes", "1000,1000", "--reservoir", "implicit")
    none, few, many = (plan(capsys, *sizes, "--returned", share) for share in ("0", "0.05", "0.5"))
    assert row(none, "reservoir") == ["56B"]
    assert row(few, "reservoir") == ["480.1kB"]  # 12 bytes for 0.05 of 0.8 million
    assert row(many, "reservoir") == [
        "1.85MB"
    ]  # 4 bytes for 0.5 of 0.8 million, and 2 bits for each of a million


def test_a_method_that_forgets_has_no_reservoir(capsys: pytest.CaptureFixture[str]) -> None:
    out = plan(capsys, "mlp", "--method", "set")
    assert "SET 90/90 % sparse, uniform; adam; no reservoir" in out
    assert not re.search("^reservoir", out, re.MULTILINE)


def test_the_old_name_of_refresh_every_still_works(capsys: pytest.CaptureFixture[str]) -> None:
    rigl = ("mlp", "--method", "rigl", "--steps", "1000")
    shown = [plan(capsys, *rigl, flag, "10") for flag in ("--refresh-every", "--update-every")]
    assert shown[0] == shown[1] != plan(capsys, *rigl)


def test_pruning_says_what_its_bytes_are(capsys: pytest.CaptureFixture[str]) -> None:
    out = plan(capsys, "mlp", "--method", "pruning", "--begin", "10", "--t-end", "50", "--refresh-every", "5")
    assert row(out, "values")[2] == "100.0%"
    assert row(out, "forward")[2] == "10.0%"
    assert "change their sizes by a schedule" in out.replace("\n", " ")


def test_annealing_is_planned_at_its_largest(capsys: pytest.CaptureFixture[str]) -> None:
    steps = ("--steps", "1000", "--anneal", "linear", "--anneal-until", "0.5", "--exchange-every", "1")
    out = plan(capsys, "mlp", *steps, "--anneal-from", "0.45", "--workers", "2")
    assert row(out, "values")[2] == "60.0%"  # B starts half the way to its 80 %
    assert row(out, "forward")[2] == "10.0%"
    assert "change their sizes by a schedule" in out.replace("\n", " ")
    assert "cannot run with several workers" not in out.replace("\n", " ")


def test_figures_go_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.json"
    out = plan(
        capsys,
        "mlp",
        "--workers",
        "4",
        "--link",
        "10",
        "--memory",
        "1GB",
        "--steps",
        "10",
        "--json",
        str(target),
    )
    figures = json.loads(target.read_text())
    assert f"{figures['parameters']['sparse']:,}" == row(out, "parameters in use")[1]
    total = figures["bytes"]["total"]
    assert total["sparse"] == sum(sum(figures["bytes"][kind].values()) for kind in ("sparse", "rest"))
    gradients = figures["bytes"]["dense"]["gradient"] + figures["bytes"]["rest"]["gradient"]
    assert figures["sent_per_step"]["dense"] == 1.5 * gradients
    assert figures["flops_of_run"]["total"]["dense"] == 10 * figures["flops_per_step"]["total"]["dense"]
    assert figures["layers"]["0"] == {"numel": 784 * 512, "forward": 40141, "backward": 80282}
    assert figures["largest"]["sparse"] > figures["largest"]["dense"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GB", 16 * 10**9),
        ("1.5 TB", 1.5e12),
        ("512MiB", 2**29),
        ("2gib", 2**31),
        ("100", 100),
        ("8k", 8000),
    ],
)
def test_sizes_of_memory(text: str, size: float) -> None:
    assert _bytes(text) == size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet"], r"MODEL must be one of 'resnet9', 'resnet50'.*, got 'resnet'"),
        (["mlp", "--method", "rigle"], r"--method must be one of 'rigl'.*, got 'rigle'"),
        (["mlp", "--forward-sparsity", "1.2"], r"--forward-sparsity must be in \[0, 1\), got 1.2"),
        (["mlp", "--backward-sparsity", "0.95"], r"--backward-sparsity must not exceed `forward_sparsity` \(0.9\)"),
        (["mlp", "--method", "set", "--backward-sparsity", "0.8"], r"set has no --backward-sparsity \(got 0.8\): it takes"),
        (["mlp", "--method", "dense", "--forward-sparsity", "0.8"], r"dense has no --forward-sparsity .* takes no settings"),
        (["mlp", "--method", "snfs"], r"the method has a schedule: give `steps`, or the step `t_end` at which it ends"),
        (["mlp", "--method", "rigl", "--steps", "400", "--t-end", "500"], r"the schedule of RigL ends at step 500, beyond the run of 400"),
        (["mlp", "--method", "rigl", "--steps", "100"], r"`t_end` must be after the first update"),
        (["mlp", "--memory", "lots"], r"--memory takes a size such as 16GB, 1.5TB or 512MiB, got 'lots'"),
        (["mlp", "--memory", "16XB"], r"--memory takes a size"),
        (["mlp", "--memory", "0GB"], r"--memory must be at least one byte, got 0"),
        (["mlp", "--workers", "0"], r"`workers` must be at least 1, got 0"),
        (["mlp", "--link", "0"], r"`link` must be a speed above 0 in Gbit/s, got 0.0"),
        (["mlp", "--link", "nan"], r"`link` must be a speed above 0"),
        (["mlp", "--batch", "0"], r"--batch must be at least 1, got 0"),
        (["mlp", "--steps", "-1"], r"--steps must be at least 1, got -1"),
        (["mlp", "--width", "8"], r"--width is no size of mlp: it takes --sizes"),
        (["resnet50", "--sizes", "8,8"], r"--sizes is no size of resnet50: it takes --width, --classes, --image-size"),
        (["mlp", "--sizes", "8,x"], r"--sizes takes whole numbers with commas such as 784,512,10, got '8,x'"),
        (["mlp", "--sizes", "8"], r"`sizes` must be inputs and outputs at least, got \(8,\)"),
        (["mlp", "--sizes", "8,0"], r"`sizes` must be at least 1, got 0"),
        (["decoder", "--width", "10"], r"`heads` must divide --width \(10\), got 8"),
        (["mlp", "--optimizer", "adm"], r"--optimizer must be one of 'adam'.*, got 'adm'"),
        (["mlp", "--reservoir", "no"], r"--reservoir must be 'stored' or 'implicit', got 'no'"),
        (["mlp", "--returned", "0.1"], r"--returned is for --reservoir implicit"),
        (["mlp", "--reservoir", "implicit", "--returned", "2"], r"`returned` is the share of C"),
        (["mlp", "--distribution", "flat"], r"--distribution must be one of 'uniform', 'er', 'erk'"),
        (["mlp", "--budget", "all"], r"--budget must be 'layers' or 'model', got 'all'"),
        (["mlp", "--keep-dense", "middle"], r"--keep-dense takes 'first', 'last', 'embeddings', got 'middle'"),
        (["mlp", "--sizes", "8,8", "--keep-dense", "first"], r"no layer is left to make sparse"),
        (["mlp", "--distribution", "erk", "--forward-sparsity", "0.999999"], r"the sparsity leaves 1 elements .* for 3 sparse"),
        (["mlp", "--json", "no/such/folder/a.json"], r"--json: the folder \S+/no/such/folder does not exist"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert re.match(f"topkast plan: {message}", captured.err)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_the_examples_of_the_docs_print_what_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(
        r"^```\n\$ topkast (plan .*?)\n\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert examples
    for command, expected in examples:
        assert plan(capsys, *shlex.split(command.replace("\\\n", " "))[1:]) == expected
