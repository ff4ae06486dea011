"""The paper's networks in training: segments that continue one another, images, presets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from store.raw_record import read_lines
from topkast.cli.main import main
from topkast.data.segments import evaluation_segments
from topkast.methods import TopKAST
from topkast.models import PRESETS
from topkast.models.transformer_xl import TransformerXL
from topkast.train import job, text_tasks, trained
from topkast.train.config import Config
from topkast.train.display import Quiet
from topkast.train.image_tasks import ImageTask, PhotoTask
from topkast.train.preset_options import WEIGHT_SPARSE, preset_values
from topkast.train.resolve import build, make_method, make_optimizer, make_schedule, make_task, resolve
from topkast.train.sampling import generate
from topkast.train.text_tasks import RecurrentTask, Text
from topkast.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"width": 16, "depth": 2, "heads": 2, "window": 8, "memory": 8, "batch": 2}


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 40)
    return path


def recurrent(path: Path, **train: Any) -> Config:
    sizes = {name: size for name, size in SIZES.items() if name != "batch"}
    values = {
        "data": {"data": str(path)},
        "model": {"model": "transformer-xl", "dropout": 0.1, **sizes},
        "method": {"engine": "masked"},
        "train": {"steps": 14, "batch": 2, "threads": 1, **train},
        "run": {"reference": ["none"], "evaluate_every": 4, "checkpoint_every": 3},
    }
    return Config().with_values(values)


def qualities(run: Path) -> list[tuple[int, float, float]]:
    lines = read_lines(run / "metrics.jsonl")
    return [(line["step"], line["loss"], line["quality"]) for line in lines if line["event"] == "progress"]


# ---- segments and memory --------------------------------------------------------------------------------


def test_a_transformer_xl_goes_on_with_what_it_remembers(text_file: Path, tmp_path: Path) -> None:
    job.start(recurrent(text_file), tmp_path / "whole", Quiet())
    job.start(recurrent(text_file, minutes=0.0), tmp_path / "run", Quiet())
    for _ in range(100):  # a step at a time
        if job.resume(tmp_path / "run", Quiet()).is_finished:
            break
    assert qualities(tmp_path / "run") == qualities(tmp_path / "whole")
    assert len(qualities(tmp_path / "whole")) == 4
    network = trained.load(tmp_path / "whole").network
    assert (network.name, network.arguments["memory_length"]) == ("transformer-xl", 8)


def test_memory_goes_from_step_to_step_and_is_dropped_where_streams_begin(text_file: Path) -> None:
    task = RecurrentTask(data=text_file, **SIZES)
    torch.manual_seed(0)
    model = task.network().build().double()
    assert isinstance(model, TransformerXL)
    steps = task.segments.steps_per_epoch
    generator = torch.Generator()
    losses = [task.loss(model, step, generator).item() for step in range(steps + 1)]
    memory, expected = None, []
    for step in range(steps + 1):
        segment = task.segments.at(step)
        loss, memory = model.loss(segment.inputs, segment.targets, None if step in (0, steps) else memory)
        expected.append(loss.item())
    assert losses == expected
    state = task.state_dict()
    again = task.loss(model, steps + 1, generator).item()
    task.load_state_dict(state)
    assert task.loss(model, steps + 1, generator).item() == again


@pytest.mark.parametrize(
    "forged", ["x", 3, [1.0], torch.zeros(4), torch.zeros(2, 2, 8, 3), torch.zeros(1, 1, 1, 1).long()]
)
def test_a_memory_of_another_form_is_refused_when_it_is_loaded(forged: Any, text_file: Path) -> None:
    task = RecurrentTask(data=text_file, **SIZES)
    with pytest.raises(ValueError, match="`remembered` must (be a tensor of four dimensions|have shape)"):
        task.load_state_dict({"remembered": forged})


def test_quality_is_taken_with_the_long_memory(text_file: Path) -> None:
    task = RecurrentTask(data=text_file, **SIZES, eval_memory=24)
    torch.manual_seed(0)
    model = task.network().build().eval()
    assert isinstance(model, TransformerXL)
    reached = task.quality(model, whole=True)
    assert model.memory_length == 8
    model.memory_length = 24
    total, memory = 0.0, None
    with torch.no_grad():
        for segment in evaluation_segments(task.text.test, 1, 8):
            loss, memory = model.loss(segment.inputs, segment.targets, memory)
            total += loss.item() * segment.num_targets
    assert reached == pytest.approx(total / (len(task.text.test) - 1) / math.log(2))


def test_words_have_a_perplexity_and_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("<eos>", "the", "<unk>", "fox")
    ids = torch.tensor([1, 3, 0] * 200, dtype=torch.int32)
    monkeypatch.setattr(
        text_tasks, "named_text", lambda *_: Text("words", ids, ids[:90], ids[:60], len(words), words)
    )
    config = recurrent(tmp_path).with_values(
        {"data": {"dataset": "wikitext-2"}, "model": {"cutoffs": [2], "div_val": 2}}
    )
    job.start(config, tmp_path / "run", Quiet())
    assert 1 < qualities(tmp_path / "run")[-1][2] < 5
    assert (tmp_path / "run" / "vocabulary.txt").read_text() == "<eos>\nthe\n<unk>\nfox\n"
    assert main(["generate", str(tmp_path / "run"), "--prompt", "the cat", "--length", "6"]) == 0
    assert set(capsys.readouterr().out.removeprefix("the cat").split()) <= set(words)
    (tmp_path / "run" / "vocabulary.txt").write_text("x\n")
    assert main(["generate", str(tmp_path / "run")]) == 2
    assert "vocabulary.txt cannot be used: the first word must be <eos>" in capsys.readouterr().err


def test_what_is_remembered_gives_the_same_text_as_looking_at_all_of_it() -> None:
    torch.manual_seed(0)
    model = TransformerXL(30, depth=2, d_model=16, num_heads=2, d_ff=32).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8)  # an untrained network is sure of nothing
    prompt = [1, 2, 3, 4, 5]
    drawn = list(generate(model, prompt, window=2, memory=100, length=10, temperature=0))
    model.memory_length = 0
    text = list(prompt)
    for _ in range(10):
        with torch.no_grad():
            text.append(int(model(torch.tensor([text]))[0][0, -1].argmax()))
    assert drawn == text[5:]


# ---- images ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, of light and of dark noise, in train and val."""
    image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
    folder = tmp_path_factory.mktemp("photographs")
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 8), ("val", 4)):
        for label, name in enumerate(("dark", "light")):
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = (128 * label + 100 * torch.rand(40, 50, 3, generator=generator)).byte()
                image.fromarray(pixels.numpy()).save(folder / part / name / f"{i}.png")
    return folder


def test_a_residual_network_learns_images(photographs: Path, tmp_path: Path) -> None:
    values = {
        "data": {"task": "images", "data": str(photographs)},
        "model": {"model": "resnet20", "depth": 8, "width": 4, "side": 16},
        "method": {"engine": "masked", "keep_dense": ["first", "last"], "forward_sparsity": 0.5},
        "train": {"steps": 30, "batch": 4, "threads": 1, "lr": 0.01, "label_smoothing": 0.1},
        "run": {"reference": ["none"]},
    }
    job.start(Config().with_values(values), tmp_path / "run", Quiet())
    assert qualities(tmp_path / "run")[-1][2] == 100
    assert main(["eval", str(tmp_path / "run")]) == 0


def test_photographs_are_a_function_of_the_step(photographs: Path) -> None:
    task = PhotoTask(data=photographs, model="resnet18", width=4, side=32, batch=4)
    torch.manual_seed(0)
    model = task.network().build().eval()
    generator = torch.Generator()
    with torch.no_grad():
        losses = [task.loss(model, step, generator).item() for step in range(6)]
        again = PhotoTask(data=photographs, model="resnet18", width=4, side=32, batch=4)
        assert [again.loss(model, step, generator).item() for step in (3, 4, 1, 2)] == [
            losses[i] for i in (3, 4, 1, 2)
        ]
        assert len(set(losses)) == 6
        assert 0 <= task.quality(model) == task.quality(model, whole=True) <= 100


def test_a_residual_network_wants_colours() -> None:
    with pytest.raises(
        ValueError, match="takes images of 3 channels, these have 1; use --model resnet9 or mlp"
    ):
        ImageTask(model="resnet20").network()


def test_a_resnet9_takes_grey_images() -> None:
    task = ImageTask(model="resnet9", width=2)
    assert task.network().arguments["channels"] == 1
    assert task.network().build()(task.example()).shape == (64, 10)


def test_validation_images_are_the_last_that_would_be_trained_on() -> None:
    whole, part = ImageTask(limit=300), ImageTask(limit=300, validation=100)
    assert torch.equal(part.held_out[1], _labels(whole)[200:])
    assert torch.equal(_labels(part), _labels(whole)[:200])
    assert len(whole.held_out[1]) > 100, "all test images"


def _labels(task: ImageTask) -> torch.Tensor:
    return task.batches.part[1]


def test_validation_must_leave_a_batch() -> None:
    with pytest.raises(
        ValueError, match="data.validation must leave a batch of 64 of the 100 training images, got 40"
    ):
        ImageTask(limit=100, validation=40)


def test_shuffled_labels_are_those_of_other_images() -> None:
    usual, shuffled, again = ImageTask(), ImageTask(shuffled_labels=True), ImageTask(shuffled_labels=True)
    assert not torch.equal(_labels(usual), _labels(shuffled))
    assert torch.equal(_labels(shuffled), _labels(again))
    assert torch.equal(_labels(usual).bincount(), _labels(shuffled).bincount())
    assert torch.equal(usual.held_out[1], shuffled.held_out[1])


def test_a_transformer_xl_starts_as_it_is_told() -> None:
    for start, std in ((None, 0.02), (0.08, 0.08)):
        values = {"data": {"task": "text"}, "model": {"model": "transformer-xl", "width": 64, "depth": 1}}
        if start is not None:
            values["model"]["initial_std"] = start
        config = Config().with_values(values)
        task = make_task(config)
        torch.manual_seed(0)
        model = task.network().build()
        assert float(model.layers[0].attention.query.weight.detach().std()) == pytest.approx(std, rel=0.1)
        drawn = config.with_values({"method": {"reservoir": "implicit"}})
        resolved = resolve(drawn, task)
        model, _ = build(resolved, task.network(), make_method(resolved))
        weight = model.layers[0].attention.query.weight
        assert float(weight.theta().std()) == pytest.approx(std, rel=0.1)


# ---- presets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_as_options(name: str) -> None:
    preset = PRESETS[name]
    config = Config().with_values(preset_values(name))
    task = make_task(config, is_unread=True)
    config = resolve(config, task)
    with torch.device("meta"):
        ours, theirs = task.network().build(), preset.build()
    assert {n: p.shape for n, p in ours.named_parameters()} == {
        n: p.shape for n, p in theirs.named_parameters()
    }
    assert (config.train.batch, config.train.steps) == (preset.batch, preset.steps)
    again = Config().with_values(preset_values(name))
    assert resolve(again, make_task(config, is_unread=True)) == config
    optimizer = make_optimizer(config, [{"params": [torch.nn.Parameter(torch.zeros(1))]}])
    schedule = make_schedule(config, optimizer)
    for step in (0, 1, preset.schedule.warmup, preset.steps // 2, preset.steps - 1):
        factor = schedule.lr_lambdas[0](step)
        expected = preset.schedule.at(step, preset.steps)
        assert config.train.lr * factor == pytest.approx(expected, rel=1e-3), step


@pytest.mark.parametrize("name", WEIGHT_SPARSE)
def test_weight_sparse_presets_fit_their_floors_and_keep_what_they_say(name: str) -> None:
    config = Config().with_values(preset_values(name)).with_values({"train": {"steps": 20}})
    config = resolve(config, task := make_task(config))
    method = make_method(config)
    assert isinstance(method, TopKAST)
    model, sparse = build(config, task.network(), method)  # which would refuse a floor above the budget
    assert sparse is not None
    assert len(sparse.weights) == 10, "embedding, head and all layers of two blocks"
    assert method.min_fan_in >= 1
    assert config.method.reservoir == "implicit"
    start = sum(w.counts.forward for w in sparse.weights.values()) / sum(
        w.numel() for w in sparse.weights.values()
    )
    final = 1 - config.method.forward_sparsity
    assert start == pytest.approx(10 * final, rel=0.01), "ten times as many weights at first"
    optimizer = make_optimizer(config, [{"params": list(model.parameters())}])
    assert optimizer.defaults["betas"] == (0.9, 0.95)


def test_a_wrong_preset_is_answered_with_those_that_are_like_it() -> None:
    with pytest.raises(ValueError, match="--preset must be one of 'weight-sparse', .*got 'weight-spars'"):
        preset_values("weight-spars")


def test_a_preset_of_any_size_is_forecast_without_its_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TOPKAST_DATA", raising=False)
    sparsities = ["--forward-sparsity", "0.8", "--backward-sparsity", "0.6"]
    assert main(["train", "--preset", "enwik8-paper", *sparsities, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "transformer-xl, 277,285,120 parameters" in out
    assert "no step was tried: the data is not here" in out
    assert main(["train", "--preset", "imagenet-paper", "--dry-run"]) == 0
    assert "resnet50, 25,557,032 parameters" in capsys.readouterr().out
    assert main(["train", "--preset", "enwik8-paper"]) == 2
    assert "enwik8 and TOPKAST_DATA is not set to a folder of data sets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "enwik9"], "--preset must be one of 'enwik8-"),
        (
            ["--model", "resnet20"],
            "--model must be one of decoder, transformer-xl for text, got 'resnet20'",
        ),
        (
            ["images", "--dataset", "enwik8"],
            "--dataset must be one of fashion-mnist, cifar-10, imagenet for images",
        ),
        (["--model", "decoder", "--dataset", "wikitext-2"], "wikitext-2 has words, for a transformer-xl"),
        (["--memory", "8"], "--memory is not taken by text; of the network it takes"),
        (["images", "--memory", "8"], "--memory is not taken by images"),
        (["--augment"], "--augment is not taken by text"),
        (["images", "--schedule", "drops", "--drops", "2"], "--drops must be at most 1"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments, "--dry-run"]) == 2
    assert message in capsys.readouterr().err


def test_the_rate_drops_to_a_tenth() -> None:
    config = Config().with_values(
        {"train": {"steps": 100, "lr": 1.0, "schedule": "drops", "drops": [0.5, 0.9], "warmup": 0.1}}
    )
    schedule = make_schedule(
        config, make_optimizer(config, [{"params": [torch.nn.Parameter(torch.zeros(1))]}])
    )
    rates = [schedule.lr_lambdas[0](step) for step in (0, 9, 10, 49, 50, 89, 90)]
    assert rates == pytest.approx([0.1, 1, 1, 1, 0.1, 0.1, 0.01])


def _spread(config: Config) -> dict[str, float]:
    """Parameter → standard deviation at the start."""
    config = resolve(config, task := make_task(config))
    torch.manual_seed(0)
    model, _ = build(config, task.network(), make_method(config))
    return {name: float(p.detach().std()) for name, p in model.named_parameters()}


@pytest.mark.parametrize("init", [None, "lecun_normal", "keep_variance"])
@pytest.mark.parametrize("keep_dense", [[], ["embeddings"]])
@pytest.mark.parametrize("model", ["decoder", "transformer-xl"])
def test_a_drawn_network_starts_as_a_stored_one(
    model: str, keep_dense: list[str], init: str | None, text_file: Path
) -> None:
    values: dict[str, Any] = {
        "data": {"data": str(text_file)},
        "model": {"model": model, "width": 64, "depth": 2, "heads": 2, "window": 32},
        "method": {"keep_dense": keep_dense, **({} if init is None else {"init": init})},
    }
    config = Config().with_values(values)
    stored, drawn = (
        _spread(config.with_values({"method": {"reservoir": reservoir}}))
        for reservoir in ("stored", "implicit")
    )
    assert drawn == pytest.approx(stored, rel=0.2, abs=1e-3)


@pytest.mark.parametrize("reservoir", ["stored", "implicit"])
def test_an_embedding_starts_with_the_spread_that_is_asked_for(reservoir: str, text_file: Path) -> None:
    sizes = {"model": "decoder", "width": 64, "depth": 1, "heads": 2, "window": 32}
    config = Config().with_values(
        {"data": {"data": str(text_file)}, "model": sizes, "method": {"reservoir": reservoir}}
    )
    usual, wide = (_spread(config.with_values({"model": {"embedding_std": std}})) for std in (0.02, 0.5))
    changed = {name for name in usual if wide[name] != usual[name]}
    assert changed == {"embedding.weight.values"}
    assert wide["embedding.weight.values"] == pytest.approx(25 * usual["embedding.weight.values"], rel=1e-4)


def test_an_implicit_transformer_xl_starts_as_a_stored_one(text_file: Path) -> None:
    config = recurrent(text_file).with_values({"method": {"reservoir": "implicit"}})
    task = make_task(config)
    config = resolve(config, task)
    trainer = Trainer(config, task, job.make_method(config))
    assert trainer.sparse is not None
    largest = max(float(weight.values.detach().abs().max()) for weight in trainer.sparse.weights.values())
    assert 0.04 < largest < 0.15
    assert trainer.take_step() < 1.1 * math.log(256)
