"""Lightning's Trainer drives a sparse model: precision, clipping, accumulation, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import topkast
from topkast.integrations.lightning import TopKASTCallback

METHOD = topkast.TopKAST(0.8, 0.5, refresh_every=3, exchange_every=3)

pytestmark = [
    # Lightning's advice about loaders and devices, and what it still calls in torch.
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*Trainer will use only.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty.*"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`.*"),  # ModelCheckpoint, not ours
]


class Module(L.LightningModule):
    def __init__(self, seed: int = 0, method: topkast.Method = METHOD, penalty: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        self.sparse = topkast.sparsify(self.net, method, engine="native", seed=seed)
        self.penalty = penalty

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = F.cross_entropy(self.net(batch[0]).float(), batch[1])
        self.log("loss", loss)
        return loss + self.penalty * self.sparse.penalty()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


def data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 12, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=8)


def trainer(folder: Path, *callbacks: L.Callback, **options: Any) -> L.Trainer:
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "log_every_n_steps": 1,
    }
    common = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "enable_checkpointing": False}
    return L.Trainer(default_root_dir=folder, callbacks=list(callbacks), **{**quiet, **common, **options})


def fit(folder: Path, module: Module, penalty: float = 0.0, **options: Any) -> L.Trainer:
    fitting = trainer(folder, TopKASTCallback(module.sparse, penalty=penalty), **options)
    torch.manual_seed(1)
    fitting.fit(module, data())
    return fitting


def test_it_trains_always_sparse_and_logs(tmp_path: Path) -> None:
    module = Module()
    fitting = fit(tmp_path, module, penalty=1e-4)
    assert {w.steps for w in module.sparse.weights.values()} == {16}
    for weight in module.sparse.weights.values():
        assert int(weight.active.sum()) == round(0.2 * weight.numel())
        assert weight.values.numel() == round(0.5 * weight.numel())
    total = sum(w.numel() for w in module.sparse.weights.values())
    logged = fitting.logged_metrics
    assert float(logged["topkast/forward_density"]) == pytest.approx(
        sum(w.counts.forward for w in module.sparse.weights.values()) / total
    )
    assert float(logged["loss"]) < 1.2


OPTIONS: list[dict[str, Any]] = [
    {},
    {"gradient_clip_val": 0.1},
    {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2, "precision": "bf16-mixed"},
    {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(o) or "plain")
def test_the_penalty_is_as_if_it_were_in_the_loss(tmp_path: Path, options: dict[str, Any]) -> None:
    in_loss, by_callback = Module(penalty=0.3), Module()
    fit(tmp_path, in_loss, **options)
    fit(tmp_path, by_callback, penalty=0.3, **options)
    none = Module()
    fit(tmp_path, none, **options)
    for name, weight in by_callback.sparse.weights.items():
        theirs = in_loss.sparse.weights[name]
        assert torch.equal(weight.indices, theirs.indices)
        torch.testing.assert_close(weight.values, theirs.values, rtol=1e-3, atol=1e-5)
        without = none.sparse.weights[name].values
        assert not torch.allclose(weight.values, without, rtol=1e-2), "the penalty does nothing"


@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed"}], ids=["32", "bf16-mixed"])
def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    class Seeded(L.Callback):
        """Dropout by step: Lightning does not restore random numbers."""

        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            torch.manual_seed(trainer.global_step)

    common = {"gradient_clip_val": 0.5, "max_epochs": 4, **options}
    whole, half, resumed = Module(), Module(), Module(seed=9)
    trainer(tmp_path, TopKASTCallback(whole.sparse, penalty=1e-3), Seeded(), **common).fit(whole, data())
    saving = L.pytorch.callbacks.ModelCheckpoint(tmp_path, filename="half")
    both = (TopKASTCallback(half.sparse, penalty=1e-3), Seeded(), saving)
    trainer(tmp_path, *both, **{**common, "max_epochs": 2, "enable_checkpointing": True}).fit(half, data())
    second = trainer(tmp_path, TopKASTCallback(resumed.sparse, penalty=1e-3), Seeded(), **common)
    second.fit(resumed, data(), ckpt_path=tmp_path / "half.ckpt")
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    assert {w.steps for w in resumed.sparse.weights.values()} == {32}


def test_a_checkpoint_with_other_sets_than_its_optimizer_is_refused(tmp_path: Path) -> None:
    module = Module()
    saving = L.pytorch.callbacks.ModelCheckpoint(tmp_path, filename="good")
    trainer(tmp_path, TopKASTCallback(module.sparse), saving, enable_checkpointing=True).fit(module, data())
    checkpoint = torch.load(tmp_path / "good.ckpt", weights_only=False)
    other = Module(seed=3)
    checkpoint["state_dict"] = other.state_dict()
    torch.save(checkpoint, tmp_path / "mixed.ckpt")
    again = Module()
    resuming = trainer(tmp_path, TopKASTCallback(again.sparse), max_epochs=3)
    with pytest.raises(RuntimeError, match="saved with other sets than layer '0' has now"):
        resuming.fit(again, data(), ckpt_path=tmp_path / "mixed.ckpt", weights_only=False)


def test_steps_that_a_grad_scaler_skips_do_not_refresh(tmp_path: Path) -> None:
    class Overflows(Module):
        def training_step(self, batch: list[Tensor], i: int) -> Tensor:
            return super().training_step(batch, i) * (float("inf") if i == 2 else 1.0)

    module = Overflows()
    plugin = L.pytorch.plugins.precision.MixedPrecision(
        "16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=4.0)
    )
    fit(tmp_path, module, penalty=1e-3, plugins=[plugin], max_epochs=1)
    assert {w.steps for w in module.sparse.weights.values()} == {7}
    for weight in module.sparse.weights.values():
        assert torch.isfinite(weight.values).all()


def test_each_of_two_optimizers_gets_its_own_penalty(tmp_path: Path) -> None:
    class Two(Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: list[Tensor], _: int) -> None:
            self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]) * 0.0)
            for optimizer in self.optimizers():
                optimizer.step()
            for optimizer in self.optimizers():
                optimizer.zero_grad()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.net[i].parameters(), lr=0.1) for i in (0, 3)]

    module = Two()
    weights = module.sparse.weights
    scale = {n: torch.where(w.active, 1.0, 1 / w.counts.forward_density) for n, w in weights.items()}
    expected = {n: w.values.detach() * (1 - 0.1 * 0.01 * scale[n]) for n, w in weights.items()}
    fit(tmp_path, module, penalty=0.01, max_epochs=1, limit_train_batches=1)
    for name, weight in weights.items():
        torch.testing.assert_close(weight.values.detach(), expected[name])


def test_a_handle_of_another_model_is_refused(tmp_path: Path) -> None:
    fitting = trainer(tmp_path, TopKASTCallback(Module().sparse))
    with pytest.raises(ValueError, match="does not contain the model of this callback's handle"):
        fitting.fit(Module(), data())


def test_optimizers_made_of_other_parameters_are_refused(tmp_path: Path) -> None:
    class Stale(Module):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)

    module = Stale()
    with pytest.raises(ValueError, match="no optimizer of the LightningModule holds the values"):
        trainer(tmp_path, TopKASTCallback(module.sparse)).fit(module, data())
