"""Lightning: handwritten digits by a sparse convolutional network, in bf16, clipped.

    python examples/lightning_module.py

Needs `pip install 'topkast[lightning]'` and scikit-learn for the images.
"""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import topkast
from topkast.data.images import digits
from topkast.integrations.lightning import TopKASTCallback


class Digits(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
        self.sparse = topkast.sparsify(
            self.net, topkast.TopKAST(0.9, 0.8, refresh_every=10), keep_dense=("first", "last"), seed=0
        )

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def loaders() -> tuple[DataLoader, DataLoader]:
    train, held_out = (TensorDataset(images.unsqueeze(1), labels) for images, labels in digits())
    return DataLoader(train, batch_size=50, shuffle=True), DataLoader(held_out, batch_size=len(held_out))


def main() -> None:
    module = Digits()
    trainer = L.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        max_epochs=4,
        callbacks=[TopKASTCallback(module.sparse, penalty=1e-4)],
        log_every_n_steps=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, *loaders())
    print(module.sparse)
    accuracy, changed = (float(trainer.callback_metrics[name]) for name in ("accuracy", "topkast/changed"))
    print(f"{accuracy:.1%} of held-out digits; A changed by {changed:.2%} of all weights")


if __name__ == "__main__":
    main()
