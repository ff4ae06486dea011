"""`TopKASTCallback`: what Lightning's `Trainer` has to be told about a sparse model."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        f"topkast.integrations.lightning needs lightning ({error}): pip install 'topkast[lightning]'"
    ) from error

from torch.optim import Optimizer

from topkast.convert import Handle
from topkast.core.local import keep_local
from topkast.integrations import check_penalty, figures


class TopKASTCallback(Callback):
    """Attaches the module's optimizers, adds the penalty, and logs.

    Optimizers are attached when fitting starts, before a checkpoint's states are loaded into them. The
    penalty's gradient is added once per optimizer step, after the last backward pass of the step and before
    clipping, so that it has the effect of a term of the loss, whatever the number of accumulated batches.

    Args:
        sparse: What `topkast.sparsify` gave for the LightningModule, or for a part of it.
        penalty: λ, the coefficient of the penalty. 0 if the module's `training_step` has it in its loss.
        power: See `Handle.penalty`.
        log: Whether to log densities and changes, with the step's other metrics.
    """

    def __init__(self, sparse: Handle, *, penalty: float = 0.0, power: int = 2, log: bool = True) -> None:
        check_penalty(penalty, power)
        self.sparse = sparse
        self.penalty, self.power, self._logs = penalty, power, log
        self._attached: list[Optimizer] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        keep_local(pl_module)  # before DistributedDataParallel wraps it

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._let_go()
        if all(module is not self.sparse.model for module in pl_module.modules()):
            raise ValueError("the LightningModule does not contain the model of this callback's handle")
        values = {id(weight.values) for weight in self.sparse.weights.values()}
        for optimizer in trainer.optimizers:
            if any(id(p) in values for group in optimizer.param_groups for p in group["params"]):
                self.sparse.attach(optimizer)
                self._attached.append(optimizer)
        if not self._attached:
            raise ValueError(
                "no optimizer of the LightningModule holds the values of a sparse layer; call "
                "topkast.sparsify before the Trainer asks for optimizers: in `__init__`, for example"
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Of the optimizers of a run, also of one that ended with an error."""
        for optimizer in self._attached:
            self.sparse.detach(optimizer)
        self._attached = []

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        if self.penalty:
            scaled = self.penalty * _loss_scale(trainer, optimizer)
            self.sparse.add_penalty_gradient(scaled, self.power, optimizer=optimizer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        every = max(
            1, getattr(trainer, "log_every_n_steps", 1)
        )  # which the Trainer sets, but does not declare
        if self._logs and trainer.global_step % every == 0:
            pl_module.log_dict(figures(self.sparse))


def _loss_scale(trainer: Trainer, optimizer: Optimizer) -> float:
    """By what gradients are still scaled: fused optimizers divide by it themselves, with "16-mixed"."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
        return 1.0
    return scaler.get_scale()
