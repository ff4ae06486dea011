"""`topkast.load`: the way from a run, or an export of one, back into Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import topkast
from topkast.convert.read_compressed import read_metadata
from topkast.data.vocabulary import Vocabulary
from topkast.models.network import Network
from topkast.train import job
from topkast.train.config import Config
from topkast.train.display import Quiet
from topkast.train.export_forms import export
from topkast.train.symbols import Bytes, Words
from topkast.train.trained import Trained

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = b"the quick brown fox jumps over the lazy dog. "


def run_of(folder: Path, model: str = "decoder", **method: object) -> Path:
    (folder / "text.txt").write_bytes(TEXT * 200)
    values = {
        "data": {"data": str(folder / "text.txt")},
        "model": {"model": model, "width": 16, "depth": 1, "heads": 2, "window": 8},
        "method": {"engine": "native", **method},
        "train": {"steps": 8, "batch": 4, "threads": 1},
        "run": {"reference": ["none"], "evaluate_every": 4, "checkpoint_every": 4},
    }
    assert job.start(Config().with_values(values), folder / "run", Quiet()).is_finished
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def small(run: Path) -> Path:
    export(topkast.load(run), "compressed", run.parent / "small.safetensors")
    return run.parent / "small.safetensors"


def losses_of(loaded: Trained, num_steps: int = 30) -> list[float]:
    """More training on a text, with a new optimizer."""
    assert loaded.sparse is not None
    windows = torch.tensor(loaded.encode(TEXT.decode() * 2)).unfold(0, 9, 3)
    optimizer = torch.optim.Adam(loaded.model.train().parameters(), lr=0.01)
    loaded.sparse.attach(optimizer)
    losses = []
    for _ in range(num_steps):
        loss = F.cross_entropy(loaded.model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_run_comes_back_with_its_options_and_its_symbols(run: Path) -> None:
    loaded = topkast.load(str(run))
    assert loaded.step == 8
    assert loaded.config.train.steps == 8
    assert not loaded.model.training
    assert isinstance(loaded.sparse, topkast.Handle)
    assert loaded.decode(loaded.encode("größer")) == "größer"
    assert loaded.decode(torch.tensor([104, 105])) == "hi"
    assert topkast.load(run, "step-00000004").step == 4
    engines = {layer.weight.engine for layer in topkast.load(run, engine="masked").sparse.layers.values()}  # pyright: ignore[reportOptionalMemberAccess]
    assert engines == {"masked"}


def test_loading_leaves_the_callers_random_numbers_alone(run: Path, small: Path) -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    topkast.load(run)
    topkast.load(small)
    assert torch.equal(torch.rand(2), wanted)


def test_more_training_lowers_the_loss_and_moves_the_sets(run: Path) -> None:
    loaded = topkast.load(run)
    assert loaded.sparse is not None
    before = {name: weight.indices.clone() for name, weight in loaded.sparse.weights.items()}
    losses = losses_of(loaded, 120)
    assert losses[-1] < 0.7 * losses[0]
    assert all(weight.steps == 128 for weight in loaded.sparse.weights.values())
    assert any(
        not torch.equal(weight.indices, before[name]) for name, weight in loaded.sparse.weights.items()
    )


def test_an_export_is_the_same_network_and_learns_with_its_sets(run: Path, small: Path) -> None:
    ours, theirs = topkast.load(run), topkast.load(small)
    x = torch.randint(256, (3, 8))
    with torch.no_grad():
        assert torch.equal(ours.model(x), theirs.model(x))
    assert (theirs.step, theirs.config, theirs.inputs) == (ours.step, ours.config, ours.inputs)
    assert theirs.quality == ours.quality
    assert ours.sparse is not None
    assert theirs.sparse is not None
    masks = {name: weight.forward_mask() for name, weight in theirs.sparse.weights.items()}
    for name, weight in ours.sparse.weights.items():
        assert torch.equal(masks[name], weight.forward_mask())
    losses = losses_of(theirs)
    assert losses[-1] < 0.8 * losses[0]
    for name, weight in theirs.sparse.weights.items():
        assert torch.equal(masks[name], weight.forward_mask())


@pytest.mark.parametrize("method", ["static", "dsr"])
def test_any_method_and_tied_layers_come_back(tmp_path: Path, method: str) -> None:
    ours = topkast.load(run_of(tmp_path, "transformer-xl", method=method, forward_sparsity=0.8))
    export(ours, "compressed", tmp_path / "small")
    theirs = topkast.load(tmp_path / "small")
    x = torch.randint(256, (2, 8))
    with torch.no_grad():
        torch.testing.assert_close(ours.model(x)[0], theirs.model(x)[0])
    assert ours.sparse is not None
    assert theirs.sparse is not None
    assert {n: w.counts.forward for n, w in theirs.sparse.weights.items()} == {
        n: w.counts.forward for n, w in ours.sparse.weights.items()
    }


def altered(small: Path, path: Path, **changes: str | None) -> Path:
    """A copy of an export with other metadata."""
    metadata = {**read_metadata(small), **changes}
    save_file(load_file(small), path, {k: v for k, v in metadata.items() if v is not None})
    return path


def test_an_older_export_loads_and_says_what_it_lacks(small: Path, tmp_path: Path) -> None:
    loaded = topkast.load(altered(small, tmp_path / "old", config=None, quality=None))
    assert loaded.config == Config()
    assert "exported by an older version" in loaded.notes[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": None}, "must have 'network'; export it with `topkast export`"),
        ({"network": '{"name": "gpt-9", "arguments": {}}'}, "there is no network 'gpt-9'"),
        ({"network": json.dumps({"name": "mlp", "arguments": {"sizes": [3, 3]}})}, "Missing key"),
        ({"config": "[train]\nstep = 3"}, "train.step is not an option"),
        ({"step": "many"}, "invalid literal"),
        ({"format": "other"}, "is no compressed network of topkast"),
    ],
)
def test_an_export_that_was_altered_is_named(
    small: Path, tmp_path: Path, changes: dict[str, str | None], message: str
) -> None:
    path = altered(small, tmp_path / "file", **changes)
    with pytest.raises(ValueError, match=message) as raised:
        topkast.load(path)
    assert str(path) in str(raised.value)


def test_what_is_no_run_and_a_checkpoint_of_a_file_are_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run folder"):
        topkast.load(tmp_path)
    with pytest.raises(ValueError, match="`checkpoint` is for runs, got 'best'"):
        topkast.load(small, "best")


def test_images_have_no_text(tmp_path: Path) -> None:
    values = {"data": {"task": "images"}, "model": {"hidden": [8]}, "run": {"reference": ["none"]}}
    job.start(Config().with_values({**values, "train": {"steps": 2}}), tmp_path / "run", Quiet())
    with pytest.raises(ValueError, match="takes images of shape .*: it has no text"):
        topkast.load(tmp_path / "run").encode("a")


def test_words_and_bytes_there_and_back() -> None:
    words = Words(Vocabulary(["<eos>", "the", "fox", "<unk>"]))
    assert words.encode("the fox\nthe cat") == [1, 2, 0, 1, 3]
    assert words.decode([1, 2, 0, 1, 3]) == "the fox\nthe <unk>"
    assert (words.encode(""), words.encode("\n")) == ([], [0])
    assert "".join(Bytes().pieces("é".encode()[:1])) == "�"
    assert list(Bytes().pieces("é".encode())) == ["", "é", ""]


def test_the_packages_import_stays_light() -> None:
    code = "import sys, topkast; print([m for m in sys.modules if m.startswith('topkast.train')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_description_in_an_export_builds_the_module(run: Path, small: Path) -> None:
    export(topkast.load(run), "safetensors", run.parent / "dense.safetensors")
    model = Network.from_json(read_metadata(small)["network"]).build()
    assert Network.from_json(json.loads(read_metadata(small)["network"])).build().state_dict().keys() == (
        model.state_dict().keys()
    )
    model.load_state_dict(load_file(run.parent / "dense.safetensors"))
