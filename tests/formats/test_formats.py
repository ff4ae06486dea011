"""Files that earlier versions have written: a checkpoint, a run folder, a compressed network.

`0.1.0/` was written by the first version that published these formats, with engine `masked` and one thread. Each
must load exactly, and training must go on as it did. Across machines numbers agree to rounding only, which is why
what follows the loading is compared with a tolerance; on the machine that wrote them it is the same to the bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import topkast
from topkast.convert.read_compressed import read
from topkast.train.config import read_config

OLD = Path(__file__).with_name("0.1.0")


@pytest.mark.usefixtures("one_thread")
def test_a_checkpoint_of_a_loop_loads_and_goes_on() -> None:
    saved = torch.load(OLD / "checkpoint.pt", weights_only=True)
    expected = json.loads((OLD / "checkpoint.json").read_text())
    model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 4))
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.8, 0.5, refresh_every=2, exchange_every=2), engine="masked"
    )
    optimizer = sparse.attach(torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0))
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    for name, tensor in saved["model"].items():
        assert torch.equal(model.state_dict()[name], tensor), name
    losses = []
    for step in range(5, 10):
        x = torch.randn(16, 10, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - 1).square().mean() + 1e-3 * sparse.penalty()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == pytest.approx(expected["losses"], rel=1e-5)
    sets = {name: weight.indices[weight.active].tolist() for name, weight in sparse.weights.items()}
    assert sets == expected["sets"]


def test_a_checkpoint_of_other_sets_is_still_refused() -> None:
    saved = torch.load(OLD / "checkpoint.pt", weights_only=True)
    model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 4))
    sparse = topkast.sparsify(
        model, topkast.TopKAST(0.8, 0.5, refresh_every=2, exchange_every=2), engine="masked"
    )
    optimizer = sparse.attach(torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0))
    optimizer.load_state_dict(saved["optimizer"])
    model(torch.randn(16, 10)).square().mean().backward()
    with pytest.raises(RuntimeError, match="saved with other sets than layer '0' has now"):
        optimizer.step()


# What an event says that depends on the clock or the machine.
TIMED = ("seconds", "seconds_per_step", "bytes", "peak_rss", "curve")


def test_a_run_folder_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from topkast.cli.main import main

    shutil.copytree(OLD / "run", tmp_path / "run")
    shutil.copy(OLD / "text.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    before = [json.loads(line) for line in (OLD / "run" / "metrics.jsonl").read_text().splitlines()]
    assert main(["train", "--resume", "run", "--no-report", "--quiet"]) == 0
    after = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [event["event"] for event in after] == [event["event"] for event in before]
    for old, new in zip(before, after, strict=True):
        _assert_close(*({k: v for k, v in event.items() if k not in TIMED} for event in (new, old)))
    assert (tmp_path / "run" / "checkpoints" / "step-00000012").is_dir()


def _assert_close(new: Any, old: Any) -> None:
    """The same keys in the same order, numbers of the same kind: the same bytes, but for rounding."""
    assert type(new) is type(old)
    if isinstance(old, dict):
        assert list(new) == list(old)
        for key in old:
            _assert_close(new[key], old[key])
    elif isinstance(old, list):
        for mine, theirs in zip(new, old, strict=True):
            _assert_close(mine, theirs)
    elif isinstance(old, float):
        assert new == pytest.approx(old, rel=1e-4, abs=1e-7)
    else:
        assert new == old


def test_the_page_on_the_format_describes_the_files() -> None:
    """Its manifest is the one kept here, and what it says of digests holds."""
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    folder = OLD / "run" / "checkpoints" / "step-00000006"
    text = (folder / "manifest.json").read_text()
    assert text in page
    manifest = json.loads(text)
    digest = manifest.pop("digest")
    assert hashlib.sha256((json.dumps(manifest, indent=1) + "\n").encode()).hexdigest() == digest
    for name, entry in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert entry == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    tensors = load_file(folder / "tensors.safetensors")
    skeleton = json.loads((folder / "state.json").read_text())
    assert [key for key, _ in skeleton["dict"]] == ["step", "parts", "generators", "rng", "kept"]
    assert all(name in page for name in os.listdir(OLD / "run"))
    assert "snapshot/parts/model/state/head.bias" in tensors


def test_a_compressed_network_is_read() -> None:
    """Dense or not, by numpy alone: the same numbers, and the sparsity that the run had."""
    dense = read(OLD / "model.safetensors")
    sparse = read(OLD / "model.safetensors", dense=False)
    assert dense["embedding.weight"].shape == (256, 16)
    assert np.count_nonzero(dense["embedding.weight"]) == 410
    for name, entry in sparse.items():
        if isinstance(entry, tuple):
            values, columns, _, shape = entry
            assert dense[name].shape == shape
            assert np.array_equal(dense[name][dense[name] != 0], values)
            assert len(columns) == len(values)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("folder", ["pretrained", "pretrained-global"])
def test_a_pretrained_folder_loads_and_goes_on_with_one_clock(folder: str) -> None:
    """Five steps were taken before it was saved, and seven after; the second is scope="global"."""
    transformers = pytest.importorskip("transformers")
    from topkast.integrations.huggingface import from_pretrained

    expected = json.loads((OLD / "pretrained.json").read_text())[folder]
    prompt = torch.randint(16, (2, 8), generator=torch.Generator().manual_seed(0))
    sparse = from_pretrained(transformers.GPT2LMHeadModel, OLD / folder)
    assert sparse.method.exchange_every == sparse.method.refresh_every == 2
    assert sparse.model(prompt).logits[0, -1].tolist() == pytest.approx(expected["logits"], abs=1e-5)
    sparse.model.train()
    optimizer = sparse.attach(torch.optim.SGD(sparse.model.parameters(), lr=0.1))
    for step in range(5, 12):
        x = torch.randint(16, (4, 8), generator=torch.Generator().manual_seed(step))
        (sparse.model(input_ids=x, labels=x).loss + 1e-4 * sparse.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()
    sparse.model.eval()
    assert sparse.model(prompt).logits[0, -1].tolist() == pytest.approx(expected["later"], abs=1e-4)


def test_a_pickle_without_what_came_later_goes_on_with_one_clock() -> None:
    model = nn.Sequential(nn.Linear(10, 24))
    method = topkast.TopKAST(0.8, 0.5, refresh_every=3, exchange_every=3)
    weight = topkast.sparsify(model, method).weights["0"]
    older = weight.__getstate__()
    older["_buffers"] = {
        k: v for k, v in older["_buffers"].items() if k not in ("exchanged", "early", "noted")
    }
    weight.__setstate__(older)
    settings = {k: v for k, v in vars(method).items() if k not in ("exchange_every", "_course")}
    again = object.__new__(topkast.TopKAST)
    again.__setstate__(settings)
    assert again == method
    sparse = topkast.Handle(model, again)
    assert sparse.stats()["0"].exchanged == 0
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(4):
        model(torch.randn(3, 10)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_run_of_a_comparison_that_was_not_begun_means_what_it_meant() -> None:
    config = read_config(OLD / "comparison.toml")
    assert (config.method.refresh_every, config.method.exchange_every) == (1, 1)
    assert (config.method.penalty_form, config.method.exploration_rate) == ("gradient", 1.0)
    assert (config.train.sparse_rate, config.train.whole_rate) == ("same", False)


def test_a_configuration_written_by_hand_takes_the_defaults_of_now(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[train]\nsteps = 5\n")
    config = read_config(tmp_path / "own.toml")
    assert (config.method.exchange_every, config.train.sparse_rate) == (None, None)
    (tmp_path / "written.toml").write_text(config.to_toml())
    assert read_config(tmp_path / "written.toml") == config
