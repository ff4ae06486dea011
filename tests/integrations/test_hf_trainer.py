"""Hugging Face's Trainer and Accelerate drive a sparse model as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from small_models import gpt2, llama
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer, TrainingArguments

import topkast
from topkast.integrations.huggingface import TopKASTCallback, from_pretrained

METHOD = topkast.TopKAST(0.9, 0.8, refresh_every=5, exchange_every=5)
Windows = list[dict[str, Tensor]]


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    given = {"max_steps": 20, "per_device_train_batch_size": 8, "learning_rate": 3e-3, "logging_steps": 5}
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "seed": 0}
    return TrainingArguments(output_dir=str(folder), **{**given, **quiet, **options})


def trainer_of(
    folder: Path, windows: Windows, *, penalty: float = 1e-4, engine: str = "native", **options: Any
) -> tuple[Trainer, topkast.Handle]:
    torch.manual_seed(0)
    model = gpt2()
    sparse = topkast.sparsify(model, METHOD, engine=engine, seed=0)
    callback = TopKASTCallback(sparse, penalty=penalty)
    return Trainer(model, arguments(folder, **options), train_dataset=windows, callbacks=[callback]), sparse


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    model = {f"model.{name}": t.clone() for name, t in trainer.model.state_dict().items()}
    optimizer = trainer.optimizer.state_dict()["state"]
    flat = {f"{i}.{part}": t.clone() for i, parts in optimizer.items() for part, t in parts.items()}
    return model | flat


def test_a_small_gpt2_learns_real_text_always_sparse(tmp_path: Path, windows: Windows) -> None:
    trainer, sparse = trainer_of(tmp_path, windows, max_steps=80, learning_rate=1e-2)
    outside: list[bool] = []

    def look(*_: Any) -> None:
        for weight in sparse.weights.values():
            c = weight.counts
            is_exact = int(weight.active.sum()) == c.forward and weight.values.numel() == c.backward
            outside.append(
                is_exact and (weight.values.grad is None or weight.values.grad.shape == (c.backward,))
            )

    trainer.create_optimizer()
    trainer.optimizer.register_step_post_hook(look)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] > 4.5
    assert losses[-1] < 3.4  # of ln 256 = 5.5
    assert len(outside) == 80 * len(sparse.weights)
    assert all(outside)
    for stats in sparse.stats().values():
        assert stats.step == 80
        assert stats.forward == max(1, round(0.1 * stats.numel))
        assert stats.backward == max(1, round(0.2 * stats.numel))
    moments = {
        t.numel() for s in trainer.optimizer.state_dict()["state"].values() for t in s.values() if t.ndim
    }
    assert not moments & {s.numel for s in sparse.stats().values()}, "an optimizer state is of dense size"


def test_what_is_logged(tmp_path: Path, windows: Windows) -> None:
    trainer, sparse = trainer_of(tmp_path, windows, max_steps=5)
    trainer.train()
    entry = trainer.state.log_history[0]
    total = sum(s.numel for s in sparse.stats().values())
    assert entry["topkast/forward_density"] == sum(s.forward for s in sparse.stats().values()) / total
    assert entry["topkast/changed"] > 0
    assert 0 < entry["topkast/reservoir_used"] < 0.5


@pytest.mark.parametrize("options", [{}, {"bf16": True}], ids=["float32", "bf16"])
def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(
    tmp_path: Path, windows: Windows, options: dict[str, Any]
) -> None:
    """Dropout, clipping, accumulation, a schedule and refreshes included."""
    common = {
        "max_steps": 14,
        "gradient_accumulation_steps": 2,
        "warmup_steps": 3,
        "max_grad_norm": 0.5,
        "logging_steps": 7,
        **options,
    }
    whole, _ = trainer_of(tmp_path / "whole", windows, **common)
    whole.train()
    saving = {**common, "save_strategy": "steps", "save_steps": 7}
    first, _ = trainer_of(tmp_path / "parts", windows, **saving)
    first.train()
    torch.manual_seed(99)  # whatever is not restored is different
    model = gpt2()
    sparse = topkast.sparsify(model, METHOD, engine="native", seed=5)
    callback = TopKASTCallback(sparse, penalty=1e-4)
    second = Trainer(
        model, arguments(tmp_path / "parts", **saving), train_dataset=windows, callbacks=[callback]
    )
    second.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-7"))
    expected, found = state_of(whole), state_of(second)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (whole, second)]
    assert losses[0] == losses[1]


def by_hand(windows: Windows, *, penalty: float, accumulate: int, clip: float, steps: int) -> topkast.Handle:
    """The same loop, with the penalty in the loss."""
    torch.manual_seed(0)
    model = gpt2(dropout=0.0)
    sparse = topkast.sparsify(model, METHOD, engine="native", seed=0)
    optimizer = sparse.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    rows = iter(windows)
    for _ in range(steps):
        for _ in range(accumulate):
            batch = torch.stack([next(rows)["input_ids"] for _ in range(4)])
            loss = model(input_ids=batch, labels=batch).loss
            (loss / accumulate + penalty * sparse.penalty() / accumulate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return sparse


class InOrder(Trainer):
    """Without shuffling, so that a loop by hand sees the same."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return None


@pytest.mark.parametrize(("accumulate", "clip"), [(1, 100.0), (2, 0.5)])
@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_the_penalty_is_as_if_it_were_in_the_loss(
    tmp_path: Path, windows: Windows, accumulate: int, clip: float, penalty: float
) -> None:
    expected = by_hand(windows, penalty=penalty, accumulate=accumulate, clip=clip, steps=6)
    torch.manual_seed(0)
    model = gpt2(dropout=0.0)
    sparse = topkast.sparsify(model, METHOD, engine="native", seed=0)
    options = {"max_steps": 6, "per_device_train_batch_size": 4, "gradient_accumulation_steps": accumulate}
    more = {"max_grad_norm": clip, "optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant"}
    callback = TopKASTCallback(sparse, penalty=penalty)
    InOrder(
        model, arguments(tmp_path, **options, **more), train_dataset=windows, callbacks=[callback]
    ).train()
    for name, weight in sparse.weights.items():
        theirs = expected.weights[name]
        assert torch.equal(weight.indices, theirs.indices)
        torch.testing.assert_close(weight.values, theirs.values, rtol=1e-4, atol=1e-6)


def test_a_model_that_is_not_the_handles_is_refused(tmp_path: Path, windows: Windows) -> None:
    _, sparse = trainer_of(tmp_path, windows)
    other = gpt2()
    topkast.sparsify(other, METHOD)
    trainer = Trainer(other, arguments(tmp_path), train_dataset=windows, callbacks=[TopKASTCallback(sparse)])
    with pytest.raises(ValueError, match="the Trainer's model is not the one"):
        trainer.train()


def test_an_optimizer_that_mixes_elements_is_refused(tmp_path: Path, windows: Windows) -> None:
    trainer, _ = trainer_of(tmp_path, windows, optim="adafactor")
    with pytest.raises(TypeError, match="Adafactor"):
        trainer.train()


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_bad_penalties_are_refused(tmp_path: Path, windows: Windows, bad: float) -> None:
    with pytest.raises(ValueError, match="`penalty` must be a number ≥ 0"):
        trainer_of(tmp_path, windows, penalty=bad)


def test_training_again_goes_on_with_the_same_model(tmp_path: Path, windows: Windows) -> None:
    trainer, sparse = trainer_of(tmp_path, windows, max_steps=2)
    trainer.train()
    trainer.train()
    assert {w.steps for w in sparse.weights.values()} == {4}
    sparse.attach(torch.optim.SGD(sparse.model.parameters(), lr=0.1))  # nobody else holds the values


def test_a_trainer_checkpoint_is_a_folder_to_load_from(tmp_path: Path, windows: Windows) -> None:
    trainer, sparse = trainer_of(tmp_path, windows, max_steps=6, save_strategy="steps", save_steps=6)
    trainer.train()
    again = from_pretrained(type(sparse.model), tmp_path / "checkpoint-6")
    for name, tensor in sparse.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name


def test_the_trainer_compiles_a_sparse_model_as_one_graph(tmp_path: Path, windows: Windows) -> None:
    def train(**options: Any) -> topkast.Handle:
        torch.manual_seed(0)
        model = llama()
        sparse = topkast.sparsify(model, METHOD, engine="native", seed=0)
        callback = TopKASTCallback(sparse, penalty=1e-4)
        given = arguments(tmp_path, max_steps=6, gradient_accumulation_steps=2, **options)
        Trainer(model, given, train_dataset=windows, callbacks=[callback]).train()
        return sparse

    expected = train()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        sparse = train(torch_compile=True, torch_compile_backend="aot_eager")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for name, weight in sparse.weights.items():
        assert torch.equal(weight.indices, expected.weights[name].indices)
        torch.testing.assert_close(weight.values, expected.weights[name].values, rtol=1e-3, atol=1e-4)
    torch._dynamo.reset()


def accelerated(
    windows: Windows, folder: Path, *, steps: int, save_at: int | None, load: bool
) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = gpt2(dropout=0.0)  # skipping batches draws random numbers
    sparse = topkast.sparsify(model, METHOD, engine="native", seed=7 if load else 0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = torch.utils.data.DataLoader(windows, batch_size=4)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader
    )
    sparse.attach(optimizer)  # as Accelerate wraps it
    step = 0
    if load:
        accelerator.load_state(str(folder))
        loader, step = accelerator.skip_first_batches(loader, 2 * save_at), save_at
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss + 1e-4 * sparse.penalty())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                step += 1
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients and step == save_at and not load:
            accelerator.save_state(str(folder))
        if step == steps:
            break
    assert {w.steps for w in sparse.weights.values()} == {steps}
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_accelerate_steps_saves_and_resumes(tmp_path: Path, windows: Windows) -> None:
    whole = accelerated(windows, tmp_path, steps=12, save_at=6, load=False)
    resumed = accelerated(windows, tmp_path, steps=12, save_at=6, load=True)
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


def test_every_kind_of_model_trains(
    make_model: Callable[[], PreTrainedModel], tmp_path: Path, windows: Windows
) -> None:
    model = make_model()
    sparse = topkast.sparsify(model, METHOD)
    assert not sparse.left_dense
    callback = TopKASTCallback(sparse, penalty=1e-4)
    Trainer(model, arguments(tmp_path, max_steps=12), train_dataset=windows, callbacks=[callback]).train()
    assert {w.steps for w in sparse.weights.values()} == {12}
    embeddings = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = model.config.tie_word_embeddings
    assert (embeddings[0].weight is embeddings[1].weight) == is_tied
    assert len(sparse.layers) - len(sparse.weights) == int(is_tied)
