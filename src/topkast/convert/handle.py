"""The `Handle`: what a user holds of a sparse model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from topkast.convert.attach import Attachment, innermost
from topkast.convert.flops import Example, flops, run_flops
from topkast.convert.memory import Memory, memory
from topkast.convert.stats import LayerStats, layer_stats, table
from topkast.core import agreement, optimizer_state
from topkast.core.accounting import Flops
from topkast.core.implicit import ImplicitReservoir
from topkast.core.local import keep_local, why_sharded
from topkast.core.moment import Moment
from topkast.core.penalty import check_power, penalty, penalty_gradient
from topkast.core.ranks import Group, Ranks, check_alone, together
from topkast.core.refresh import check_finite, move
from topkast.core.select import generator_for
from topkast.core.sets import Sets
from topkast.core.weight import SparseWeight
from topkast.methods.base import Method, acts_after_steps, grows_by_gradient
from topkast.nn.base import SparseLayer


class Handle:
    """Drives the sparse layers of one model: penalty, refreshes, statistics.

    `topkast.sparsify` returns one. `Handle(model, method)` makes another for a model that is sparse
    already, such as a copy or one that was unpickled.

    Attributes:
        model: The sparse model.
        method: Which sets, and when.
        layers: Name → sparse layer, in module order.
        weights: Name → sparse weight. Tied layers share one, which goes by the first layer's name.
        left_dense: Name → why a layer with a weight matrix was left dense.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        *,
        left_dense: dict[str, str] | None = None,
        fallbacks: dict[str, str] | None = None,
    ) -> None:
        self.model = model
        self.method = method
        self.layers: dict[str, SparseLayer] = {
            name: m for name, m in model.named_modules() if isinstance(m, SparseLayer)
        }
        if not self.layers:
            raise ValueError("the model has no sparse layer: use `topkast.sparsify`")
        self.weights: dict[str, SparseWeight] = {}
        for name, layer in self.layers.items():
            if all(layer.weight is not other for other in self.weights.values()):
                self.weights[name] = layer.weight
        self._check_weights()
        keep_local(model)
        self.left_dense = left_dense or {}
        self._fallbacks = fallbacks or {}
        self._attachments: list[Attachment] = []
        self._followers: dict[str, list[SparseWeight]] = {name: [] for name in self.weights}
        self._group: Group = None

    def _check_weights(self) -> None:
        """Raises ValueError if the weights were made for a method that this one cannot take over from."""
        name, wanted = type(self.method).__name__, self.method.companion_type
        for layer, weight in self.weights.items():
            lacks = wanted is not None and not isinstance(weight.companion, wanted)
            if lacks or (self.method.resizes and not weight.is_resizable):
                what = f"keeps no {wanted.__name__} beside it" if lacks and wanted else "keeps its size"
                raise ValueError(
                    f"layer {layer!r} was made sparse for another method: it {what}, which {name} needs; "
                    "`topkast.densify` the model and sparsify it with this method"
                )

    # ---- training ---------------------------------------------------------------------------------

    def attach(
        self, optimizer: torch.optim.Optimizer, *, process_group: Group = None
    ) -> torch.optim.Optimizer:
        """Lets the optimizer's steps drive the refreshes, and its state follow the weights.

        Several optimizers may be attached, each for the layers whose values it holds; each drives the
        schedule of its own. Attaching one twice changes nothing. Of a wrapper such as Accelerate's, the
        optimizer within is attached.

        Args:
            optimizer: Created from the parameters of the sparse model.
            process_group: The ranks that train this model together, as DistributedDataParallel takes it: all
                of them by default. "alone" if each process trains a model of its own.

        Returns:
            What it was given.

        Raises:
            ValueError: The optimizer holds none of the values (created before `sparsify`?), a layer's values
                belong to another attached optimizer, or that one's ranks are others.
            TypeError: The optimizer does not work element by element (Adafactor, LBFGS, Muon, …), or values
                were split between ranks (FSDP).
            RuntimeError: The method cannot be trained by several ranks.
        """
        given, optimizer = optimizer, innermost(optimizer)
        if any(a.optimizer is optimizer for a in self._attachments):
            return given
        for name, weight in self.weights.items():
            _check_whole(name, weight)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        weights = {n: w for n, w in self.weights.items() if id(w.values) in held}
        if not weights:
            raise ValueError(
                f"the optimizer ({type(optimizer).__name__}) holds the values of no sparse layer; "
                "create it from `model.parameters()` or `handle.param_groups()` after sparsify, "
                "which makes new Parameters"
            )
        optimizer_state.check_kind(optimizer)
        for name in weights:
            if self._optimizer_of(name) is not None:
                raise ValueError(
                    f"the values of layer {name!r} belong to an optimizer that is attached already; "
                    "`handle.detach(optimizer)` lets go of it"
                )
        if self._attachments and process_group is not self._group:
            raise ValueError("all optimizers of a model have the same ranks: give the same `process_group`")
        self._check_method(weights, together(process_group))
        self._group = process_group
        self._attachments.append(Attachment(optimizer, weights, self._before_first, self._after_step))
        for weight in weights.values():
            weight.settle()
            weight.wants_gradient = self.method.wants_gradient if grows_by_gradient(self.method) else None
        return given

    def _check_method(self, weights: dict[str, SparseWeight], ranks: Ranks | None) -> None:
        """Raises if the method cannot be driven by an optimizer of these weights, or by these ranks."""
        name = type(self.method).__name__
        if self.method.is_global and len(weights) < len(self.weights):
            missing = next(n for n in self.weights if n not in weights)
            raise ValueError(
                f"{name} moves budgets between layers, so that one optimizer must hold the values of all "
                f"of them; those of layer {missing!r} are not among its parameters"
            )
        if self.method.resizes:
            check_alone(f"{name} changes the sizes of the sets", ranks)

    def detach(self, optimizer: torch.optim.Optimizer) -> None:
        """The opposite of `attach`: the optimizer's steps no longer refresh anything."""
        optimizer = innermost(optimizer)
        for attachment in self._attachments:
            if attachment.optimizer is optimizer:
                attachment.detach()
                for weight in attachment.weights.values():
                    weight.wants_gradient = weight.tape = None
                self._attachments.remove(attachment)
                return
        raise ValueError("the optimizer is not attached")

    def penalty(self, power: int = 2) -> Tensor:
        """The paper's exploration penalty over all sparse weights, to be scaled by λ and added to the loss.

        ½·Σ_A θ² + (1/2D)·Σ_{B∖A} θ², or to the letter of the paper's formula with ``power=1``:
        Σ_A |θ| + (1/D)·Σ_{B∖A} |θ|. D is each layer's own density.
        """
        check_power(power)
        terms = [penalty(weight, power) for weight in self.weights.values()]
        return torch.stack([term.to(terms[0]) for term in terms]).sum()

    @torch.no_grad()
    def add_penalty_gradient(
        self, coefficient: float, power: int = 2, *, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Adds coefficient·∇penalty to the gradients of the values, for loops whose loss is out of reach.

        Called once per step, before clipping, it has the effect of ``coefficient * penalty()`` in the loss.
        With an `optimizer`, only for the weights that it was attached for.
        """
        check_power(power)
        only = None if optimizer is None else innermost(optimizer)
        for name, weight in self.weights.items():
            if weight.values.requires_grad and (only is None or self._optimizer_of(name) is only):
                gradient = penalty_gradient(weight, power)
                if weight.values.grad is None:
                    weight.values.grad = torch.zeros_like(weight.values)
                weight.values.grad.add_(gradient, alpha=coefficient)

    def refresh(self) -> None:
        """Chooses A and B anew in every layer, now, whatever the schedule says.

        Where several ranks train the model, all of them call it.

        Raises:
            RuntimeError: The method grows by the gradient of an optimizer step, which is not known now.
        """
        if grows_by_gradient(self.method):
            raise RuntimeError(
                f"{type(self.method).__name__} grows by the dense gradient of the step after which it is "
                "due: it refreshes by its schedule, not by hand"
            )
        self._refresh(list(self.weights), {name: w.explores for name, w in self.weights.items()})

    def param_groups(self, weight_decay: float, *, values_weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer with a decay of its own, such as AdamW.

        The optimizer's decay acts on all of B, A and B∖A alike, on top of the penalty, so by default it is
        off for the sparse values and `weight_decay` is for the dense rest.
        """
        values = [weight.values for weight in self.weights.values()]
        ours = {id(p) for p in values}
        rest = [p for p in self.model.parameters() if id(p) not in ours]
        groups: list[dict[str, Any]] = [{"params": values, "weight_decay": values_weight_decay}]
        return [{"params": rest, "weight_decay": weight_decay}, *groups] if rest else groups

    def follow(self, copy: nn.Module) -> None:
        """Keeps a copy of the model in step with it, such as a `torch.optim.swa_utils.AveragedModel`.

        An average is kept by slot, and slots change their meaning at a refresh: from now on the copy's sets
        move together with the model's, and each average stays with its weight.

        Raises:
            ValueError: The copy's sparse layers are not those of the model, or its sets differ.
        """
        theirs: dict[int, SparseWeight] = {}
        found = [m.weight for m in copy.modules() if isinstance(m, SparseLayer)]
        for weight in found:
            theirs.setdefault(id(weight), weight)
        if len(theirs) != len(self.weights):
            raise ValueError(f"the copy has {len(theirs)} sparse weights, the model has {len(self.weights)}")
        pairs = list(zip(self.weights.items(), theirs.values(), strict=True))
        for (name, mine), weight in pairs:
            if weight is mine:
                raise ValueError("this is the model itself, not a copy of it")
            if not torch.equal(weight.indices.to(mine.indices), mine.indices):
                raise ValueError(
                    f"the sets of layer {name!r} differ between the copy and the model; "
                    "copy the model anew and follow it before the next refresh"
                )
        for (name, _), weight in pairs:
            weight.settle()
            self._followers[name].append(weight)

    @torch.no_grad()
    def materialise(self) -> None:
        """Turns implicit reservoirs into stored ones; training goes on exactly as it would have.

        Afterwards a layer's C takes the memory of a dense weight. For small models, and for comparing.
        """
        for weight in self.weights.values():
            if isinstance(weight.reservoir, ImplicitReservoir):
                stored = weight.reservoir.materialise(weight.indices, weight.active, weight.values)
                weight.reservoir = stored.to(weight.device)

    def _before_first(self, attachment: Attachment) -> None:
        """Before the first step, and the first after a state was loaded: all is in its place by then."""
        for name, weight in attachment.weights.items():
            _check_whole(name, weight)
        ranks = together(self._group)
        if ranks is not None:
            self._check_method(attachment.weights, ranks)  # they may have come together since
            agreement.compare_all(attachment.weights, ranks)
            agreement.share_choices(attachment.weights, ranks)

    def _after_step(self, attachment: Attachment, explored: dict[str, bool]) -> None:
        ranks = together(self._group)
        if ranks is not None and grows_by_gradient(self.method):
            asked = {n: w for n, w in attachment.weights.items() if self.method.wants_gradient(w.steps)}
            if asked:
                agreement.join_tapes(asked, ranks)
        if acts_after_steps(self.method):
            for weight in attachment.weights.values():
                self.method.after_step(weight, attachment.lr_of(weight))
        due = [n for n, w in attachment.weights.items() if self.method.is_due(w.steps)]
        if due:
            self._refresh(due, explored)
        for weight in attachment.weights.values():
            weight.tape = None

    @torch.no_grad()
    def _refresh(self, names: list[str], explored: dict[str, bool]) -> None:
        """Checks everything first: an error leaves all layers as they are."""
        for name in names:
            check_finite(self.weights[name])
            self._check_averages(name)
        for name, sets in self._choose(names):
            w = self.weights[name]
            slots = move(w, sets, explored=explored[name])
            optimizer = self._optimizer_of(name)
            if optimizer is not None:
                optimizer_state.carry(optimizer, w.values, slots)
            for follower in self._followers[name]:
                move(follower, sets.to(follower.device), explored=follower.explores)
        ranks = together(self._group)
        if ranks is not None:
            moved = {name: self.weights[name] for name in names}
            agreement.compare_sets(moved, ranks)
            agreement.share_choices(moved, ranks)

    def _choose(self, names: list[str]) -> Iterable[tuple[str, Sets]]:
        if self.method.is_global:
            return self.method.choose_together({name: self._moment(name) for name in names}).items()
        # One by one: with a stored reservoir a moment has θ as large as the dense weight. What can fail is
        # done for all before anything changes.
        chosen = ((name, self._choose_one(self._moment(name))) for name in names)
        return list(chosen) if grows_by_gradient(self.method) else chosen

    def _choose_one(self, moment: Moment) -> Sets:
        try:
            return self.method.choose(moment)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"layer {moment.name!r}: {error} at step {moment.step}; the sets were not changed. "
                "Go back to a checkpoint with a smaller learning rate"
            ) from None

    def _moment(self, name: str) -> Moment:
        w = self.weights[name]
        return Moment(
            w.full_theta(),
            w.target,
            generator_for(int(w.key), w.steps),
            w.steps,
            lambda: Sets(w.indices.long(), w.active.clone()),
            w.tape,
            w.companion,
            name,
        )

    def _check_averages(self, name: str) -> None:
        if self.weights[name].slot_averages():
            raise RuntimeError(
                f"a copy of layer {name!r} has been written to since it was copied, as an AveragedModel or "
                "another average does: it is kept by slot, and this refresh would mix different weights. "
                "Call `handle.follow(copy)` right after making the copy; if the copy is trained on its own, "
                "attach its optimizer to a `topkast.Handle` of it"
            )

    def _optimizer_of(self, name: str) -> torch.optim.Optimizer | None:
        return next((a.optimizer for a in self._attachments if name in a.weights), None)

    # ---- looking at it ------------------------------------------------------------------------------

    def stats(self) -> dict[str, LayerStats]:
        """Per sparse weight: sizes, densities, how A changed, share of C ever used, bytes."""
        return {name: layer_stats(weight) for name, weight in self.weights.items()}

    def memory(self) -> Memory:
        """Bytes held now, by layer and part, beside the dense model's with the same optimizer; a table.

        Gradients and optimizer state are there once a step has been taken, Plans once a product has run.
        """
        optimizers = {name: self._optimizer_of(name) for name in self.weights}
        return memory(self.model, self.weights, optimizers, [a.optimizer for a in self._attachments])

    def flops(self, example: Example, *, steps: int | None = None) -> Flops:
        """FLOPs of a step at the present sets, by layer and pass, beside the dense model's; a table.

        The model is left as it is, and nothing is computed: see `convert.flops`.

        Args:
            example: What the model is called with in a step: a tensor, a tuple of positional arguments, or a
                mapping of keyword arguments.
            steps: If given, the whole run of the method instead, from step 1 to this one.
        """
        if steps is None:
            return flops(self.model, self.weights, example)
        return run_flops(self.model, self.weights, self.method, example, steps)

    def __str__(self) -> str:
        return table(self.layers, self.weights, self.left_dense, self._fallbacks, self.model)

    def __repr__(self) -> str:
        a, b, n = (
            sum(getattr(w.counts, size) for w in self.weights.values())
            for size in ("forward", "backward", "numel")
        )
        return f"<topkast.Handle: {len(self.weights)} sparse weights, |A| {a:,}, |B| {b:,} of {n:,}>"

    def __getstate__(self) -> dict[str, Any]:
        # Hooks belong to one optimizer object: a copied or unpickled handle is to be attached anew.
        names = self._followers
        own = {"_attachments": [], "_followers": {name: [] for name in names}, "_group": None}
        return {**self.__dict__, **own}


def _check_whole(name: str, weight: SparseWeight) -> None:
    """Raises TypeError if the values of a weight are not all here: slots would mean nothing."""
    reason = why_sharded(weight)
    if reason is not None:
        raise TypeError(
            f"the values of layer {name!r} were split between ranks: it {reason}. A refresh moves elements "
            "anywhere in it, so that every rank needs all of it: use DistributedDataParallel, or shard only "
            "modules without sparse layers"
        )
