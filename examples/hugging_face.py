"""Hugging Face's Trainer: a small GPT-2, always sparse, on the sources of Python's standard library.

    python examples/hugging_face.py

It is stopped half way and resumed from its checkpoint; needs `pip install 'topkast[huggingface]'`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import topkast
from topkast.data.plain_text import stdlib_text
from topkast.integrations.huggingface import TopKASTCallback, from_pretrained

WINDOW, STEPS = 64, 60


def windows() -> list[dict[str, Tensor]]:
    text = stdlib_text(limit=200_000)[0].long()
    rows = text[: len(text) // WINDOW * WINDOW].view(-1, WINDOW)
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(folder: Path) -> Trainer:
    torch.manual_seed(0)
    sizes = {"n_positions": WINDOW, "n_embd": 64, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, **sizes))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8, refresh_every=5), seed=0)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        logging_steps=STEPS // 6,
        save_steps=STEPS // 2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    callback = TopKASTCallback(sparse, penalty=1e-4)
    return Trainer(model, arguments, train_dataset=windows(), callbacks=[callback])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = trainer(folder)
        whole.train()
        resumed = trainer(folder)
        resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{STEPS // 2}"))
        sparse = from_pretrained(GPT2LMHeadModel, folder / f"checkpoint-{STEPS}")
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    print(sparse)
    print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}")
    states = whole.model.state_dict(), resumed.model.state_dict()
    equal = all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))
    print(f"resumed at step {STEPS // 2}: {'equal to the last bit' if equal else 'different'}")


if __name__ == "__main__":
    main()
