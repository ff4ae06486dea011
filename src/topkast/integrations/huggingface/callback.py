"""`TopKASTCallback`: what `transformers.Trainer` has to be told about a sparse model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from topkast.convert import Handle
from topkast.core.penalty import add_gradients
from topkast.core.weight import SparseWeight
from topkast.integrations import check_penalty, figures
from topkast.integrations.huggingface.pretrained import save_recipe


class TopKASTCallback(TrainerCallback):
    """Attaches the Trainer's optimizer, adds the penalty, logs, and completes checkpoints.

    The Trainer makes its own optimizer and its own loss. The optimizer is attached when training begins,
    after a checkpoint was loaded. A callback cannot change the loss, so the penalty's gradient is added where
    the loss would have put it: to the gradient of the values, once per optimizer step, when the first
    backward pass of the step arrives there. It is therefore clipped with all the rest, does not depend on the
    number of accumulation steps, and is not in the loss that is logged.

    Args:
        sparse: What `topkast.sparsify` gave for the model that is trained.
        penalty: λ, the coefficient of the penalty.
        power: See `Handle.penalty`.
    """

    def __init__(self, sparse: Handle, *, penalty: float = 0.0, power: int = 2) -> None:
        check_penalty(penalty, power)
        self.sparse = sparse
        self.penalty, self.power = penalty, power
        self._optimizer: Any = None
        self._waiting: set[str] = set()  # weights that have not got this step's penalty yet
        self._hooks: list[Any] = []

    # ---- the whole run ----------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._let_go()
        model = kwargs["model"]
        if model is not self.sparse.model and all(m is not self.sparse.model for m in model.modules()):
            raise ValueError("the Trainer's model is not the one that this callback's handle was made for")
        self._optimizer = kwargs["optimizer"]
        self.sparse.attach(self._optimizer)
        if self.penalty:
            self._hooks = [
                w.values.register_post_accumulate_grad_hook(self._hook(name, w))
                for name, w in self.sparse.weights.items()
                if w.values.requires_grad
            ]

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Of the optimizer and hooks of a run, also of one that ended with an error."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._waiting = [], set()
        if self._optimizer is not None:
            self.sparse.detach(self._optimizer)
            self._optimizer = None

    # ---- the penalty ------------------------------------------------------------------------------

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._waiting = set(self.sparse.weights) if self._hooks else set()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """For weights that no backward pass of this step has reached."""
        for name in list(self._waiting):
            weight = self.sparse.weights[name]
            if weight.values.requires_grad:
                self._add(name, weight)

    def _hook(self, name: str, weight: SparseWeight) -> Any:
        def add(_values: Tensor) -> None:
            if name in self._waiting:
                self._add(name, weight)

        return add

    @torch.no_grad()
    def _add(self, name: str, weight: SparseWeight) -> None:
        self._waiting.discard(name)
        factor = self.sparse.method.penalty_factor(weight.steps + 1)
        add_gradients(weight, self._loss_scale() * self.penalty * factor, self.power)

    def _loss_scale(self) -> float:
        """With fp16 gradients are scaled until they are clipped or stepped with."""
        scaler = getattr(self._optimizer, "scaler", None)
        return scaler.get_scale() if scaler is not None and scaler.is_enabled() else 1.0

    # ---- what is written --------------------------------------------------------------------------

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        numbers = figures(self.sparse)
        kwargs["logs"].update(numbers)
        if state.log_history:
            state.log_history[-1].update(numbers)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Adds the recipe to the checkpoint, so that `from_pretrained` can read it as well."""
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            save_recipe(self.sparse, folder)
