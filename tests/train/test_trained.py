"""Trained networks outside their runs: loaded, exported, evaluated, writing text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from store.raw_record import read_lines
from topkast.cli.main import main
from topkast.convert import read_compressed
from topkast.models.network import Network
from topkast.store import checkpoint
from topkast.train import job, trained
from topkast.train.config import Config
from topkast.train.display import Quiet
from topkast.train.export_forms import export
from topkast.train.sampling import generate

pytestmark = pytest.mark.usefixtures("one_thread")


def run_of(out: Path, task: str, method: str = "topkast") -> Path:
    text = {"width": 16, "depth": 1, "heads": 2, "window": 8}
    values = {
        "data": {"task": task, "data": None if task == "images" else str(out.parent / "text.txt")},
        "model": text if task == "text" else {"hidden": [16]},
        "method": {"method": method, "engine": "native" if method == "topkast" else "auto"},
        "train": {"steps": 12, "batch": 4, "threads": 1},
        "run": {"reference": ["none"], "evaluate_every": 4, "checkpoint_every": 4, "keep": 9},
    }
    if values["data"]["data"] is None:
        del values["data"]["data"]
    (out.parent / "text.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    assert job.start(Config().with_values(values), out, Quiet()).is_finished
    return out


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("text") / "run", "text")


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("images") / "run", "images")


@pytest.fixture
def copy(text_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(text_run, tmp_path / "copy"))


def test_the_last_and_the_best_and_a_named_checkpoint(text_run: Path) -> None:
    last = trained.load(text_run)
    assert (last.step, last.model.training) == (12, False)
    qualities = {
        line["step"]: line["quality"]
        for line in read_lines(text_run / "metrics.jsonl")
        if line["event"] == "progress"
    }
    best = trained.load(text_run, "best")
    assert best.step == min(qualities, key=lambda step: qualities[step])
    assert trained.load(text_run, "step-00000004").quality == qualities[4]
    with pytest.raises(ValueError, match="must be last, best or one of 'step-0000000[48]'"):
        trained.load(text_run, "step-00000005")


def test_a_network_needs_no_data_and_another_engine_gives_the_same(text_run: Path, copy: Path) -> None:
    data = text_run.parent / "text.txt"
    data.rename(data.with_suffix(".away"))
    try:
        ours, theirs = trained.load(copy), trained.load(copy, engine="masked")
    finally:
        data.with_suffix(".away").rename(data)
    x = torch.randint(256, (3, 8))
    with torch.no_grad():
        torch.testing.assert_close(ours.model(x), theirs.model(x))
        torch.testing.assert_close(ours.model(x), ours.dense()(x))


def test_damage_is_named(copy: Path) -> None:
    newest = checkpoint.found(copy)[0]
    (newest / "state.json").write_bytes(b"{}")
    loaded = trained.load(copy)
    assert loaded.step == 8
    assert "step-00000012 is damaged and passed over" in loaded.notes[0]
    with pytest.raises(ValueError, match="choose another with --checkpoint"):
        trained.load(copy, "step-00000012")
    (copy / "model.json").write_text(
        json.dumps({"network": {"name": "gpt-9", "arguments": {}}, "inputs": {}})
    )
    with pytest.raises(
        ValueError, match="model.json does not describe a network: there is no network 'gpt-9'"
    ):
        trained.load(copy)
    with pytest.raises(ValueError, match="is not a run folder"):
        trained.load(copy.parent)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "by its `name` and `arguments`"),
        ("mlp", "must be JSON"),
        ({"name": "mlp", "arguments": {"width": 3}}, "a mlp is made with sizes"),
        ({"name": "mlp", "arguments": {"sizes": [[3], 4]}}, "must be a number, a word or a list of them"),
        ({"name": "mlp", "arguments": [1]}, "a mlp is made with sizes, got"),
    ],
)
def test_a_networks_description_is_checked(content: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Network.from_json(content)


def test_forms_hold_the_same_network(text_run: Path, tmp_path: Path) -> None:
    network = trained.load(text_run)
    expected = network.dense().state_dict()
    for form in ("safetensors", "state_dict", "compressed"):
        export(network, form, tmp_path / form)
    loaded = torch.load(tmp_path / "state_dict", weights_only=True)
    with safe_open(tmp_path / "safetensors", "pt") as file:
        dense = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = Network.from_json(json.loads(file.metadata()["network"]))
    small = read_compressed.read(tmp_path / "compressed")
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor)
        assert torch.equal(dense[name], tensor)
        np.testing.assert_array_equal(small[name], tensor.numpy())
    described.build().load_state_dict(dense)
    with pytest.raises(FileNotFoundError, match="which is no folder"):
        export(network, "safetensors", tmp_path / "nowhere" / "file")


def test_onnx_gives_the_same_outputs_for_other_batches_and_lengths(text_run: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    network = trained.load(text_run)
    assert "onnxruntime's outputs are torch's" in export(network, "onnx", tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    for shape in [(1, 8), (3, 5)]:
        x = torch.randint(256, shape)
        with torch.no_grad():
            np.testing.assert_allclose(
                session.run(None, {"input": x.numpy()})[0], network.model(x).numpy(), atol=1e-4
            )


def test_a_dense_run_has_no_compressed_form(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "text", "dense")
    with pytest.raises(ValueError, match="the run is dense"):
        export(trained.load(run), "compressed", tmp_path / "file")


def test_text_comes_from_the_likeliest_symbols() -> None:
    class Next(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[1] <= 4
            return 20.0 * torch.nn.functional.one_hot((x + 1) % 256, 256)

    assert bytes(generate(Next(), b"ab", window=4, length=6, temperature=0)) == b"cdefgh"
    assert bytes(generate(Next(), b"a", window=4, length=3, top=1, seed=3)) == b"bcd"
    drawn = [
        bytes(generate(Next(), b"a", window=4, length=20, temperature=9.0, seed=seed)) for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    for wrong in ({"temperature": -1.0}, {"temperature": float("nan")}, {"top": 0}, {"length": -1}):
        with pytest.raises(ValueError, match="must be"):
            generate(Next(), b"a", window=4, **{"length": 1, **wrong})
    with pytest.raises(ValueError, match="at least one symbol"):
        generate(Next(), b"", window=4, length=1)


def test_commands(
    text_run: Path, image_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(text_run), "--prompt", "the ", "--length", "5", "--threads", "1"]) == 0
    assert capsys.readouterr().out.startswith("the ")
    assert main(["eval", str(text_run)]) == 0
    out = capsys.readouterr().out
    recorded, whole = (float(line.split(": ")[1].split()[0]) for line in out.splitlines()[1:3])
    assert abs(recorded - whole) < 1
    assert "bytes per second" in out
    assert main(["eval", str(image_run)]) == 0
    assert (
        f"accuracy: {trained.load(image_run).quality:.1f}\N{NO-BREAK SPACE}% over all of it"
        in capsys.readouterr().out
    )
    out_file = tmp_path / "small.safetensors"
    assert main(["export", str(image_run), "--format", "compressed", "--out", str(out_file)]) == 0
    assert capsys.readouterr().out.startswith(f"{out_file}: compressed")
    assert main(["generate", str(image_run)]) == 2
    assert "is a run of images: it writes no text" in capsys.readouterr().err
    assert main(["eval", str(image_run), "--data", str(tmp_path)]) == 2
    assert main(["generate", str(text_run), "--threads", "0"]) == 2
    assert "--threads must be at least 1" in capsys.readouterr().err
    assert main(["info"]) == 0
    assert "compiled for" in capsys.readouterr().out
