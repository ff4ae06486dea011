"""The `Handle`: what a user holds of a sparse model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from topkast.convert.attach import innermost
from topkast.convert.drive import Driver
from topkast.core.implicit import ImplicitReservoir
from topkast.core.local import keep_local
from topkast.core.penalty import add_gradients, check_power, penalty
from topkast.core.ranks import Group
from topkast.core.rates import Rate, check_lr, factor_of, factors_of, mean_density
from topkast.core.weight import SparseWeight
from topkast.cost.accounting import Flops
from topkast.cost.flops import Example, flops, run_flops
from topkast.cost.memory import Memory, memory
from topkast.cost.parameters import LayerStats, Stats, layer_stats, layer_table
from topkast.methods.base import Method, grows_by_gradient
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
        self._driver = Driver(model, method, self.weights)

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
            floor = self.method.floor(weight.grid)
            if floor is not None:
                try:
                    for step in self.method.turns():
                        floor.check(self.method.sizes(step, weight.target))
                except ValueError as error:
                    raise ValueError(f"layer {layer!r}: {error}") from None

    # ---- training ---------------------------------------------------------------------------------

    def attach(
        self, optimizer: torch.optim.Optimizer, *, process_group: Group = None
    ) -> torch.optim.Optimizer:
        """Lets the optimizer's steps drive the refreshes, and its state follow the weights.

        Several optimizers may be attached, each for the layers whose values it holds; each drives the
        schedule of its own. Attaching one twice changes nothing; parameter groups that are added later, or
        taken away, count from the next step on. A wrapper such as Accelerate's, Lookahead or SAM is attached
        together with the optimizer within: what it keeps by slot follows too.

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
        self._driver.attach(optimizer, process_group)
        return optimizer

    def detach(self, optimizer: torch.optim.Optimizer) -> None:
        """The opposite of `attach`: the optimizer's steps no longer refresh anything."""
        self._driver.detach(optimizer)

    @property
    def expects_penalty(self) -> bool:
        """Whether to remind of the penalty at the first refresh, if it was never asked for."""
        return self._driver.reminders.expects_penalty

    @expects_penalty.setter
    def expects_penalty(self, expects: bool) -> None:
        self._driver.reminders.expects_penalty = expects

    def penalty(self, power: int = 2) -> Tensor:
        """The paper's exploration penalty over all sparse weights, to be scaled by λ and added to the loss.

        ½·Σ_A θ² + (1/2D)·Σ_{B∖A} θ², or to the letter of the paper's formula with ``power=1``:
        Σ_A |θ| + (1/D)·Σ_{B∖A} |θ|. D is each layer's own density.

        `L0` and `VariationalDropout` have a complexity of their own in its place, which knows no `power`.
        """
        check_power(power)
        self.expects_penalty = False
        factor = self.method.penalty_factor
        terms = [factor(weight.steps + 1) * penalty(weight, power) for weight in self.weights.values()]
        return torch.stack([term.to(terms[0]) for term in terms]).sum()

    @torch.no_grad()
    def add_penalty_gradient(
        self, coefficient: float, power: int = 2, *, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Adds coefficient·∇penalty to the gradients, for loops whose loss is out of reach.

        Called once per step, before clipping, it has the effect of ``coefficient * penalty()`` in the loss.
        With an `optimizer`, only for the weights that it was attached for.
        """
        check_power(power)
        self.expects_penalty = False
        only = None if optimizer is None else innermost(optimizer)
        for name, weight in self.weights.items():
            if weight.values.requires_grad and (only is None or self._driver.optimizer_of(name) is only):
                factor = self.method.penalty_factor(weight.steps + 1)
                add_gradients(weight, factor * coefficient, power)

    def refresh(self, *, without_optimizer: bool = False) -> None:
        """Chooses A and B anew in every layer, now, whatever the schedule says: an exchange.

        Frozen layers (``requires_grad=False``) are left alone. Where several ranks train the model, all of
        them call it.

        Args:
            without_optimizer: Says that no optimizer keeps state for layers that are trained without an
                attached one, such as plain SGD, so that nothing has to follow the weights.

        Raises:
            RuntimeError: The method grows by the gradient of an optimizer step, which is not known now; or a
                layer was trained by an optimizer that is not attached.
        """
        if grows_by_gradient(self.method):
            raise RuntimeError(
                f"{type(self.method).__name__} grows by the dense gradient of the step after which it is "
                "due: it refreshes by its schedule, not by hand"
            )
        trained = [name for name in self.weights if self._driver.reminders.has_trained(name)]
        if trained and not without_optimizer:
            raise RuntimeError(
                f"layer {trained[0]!r} was trained without an attached optimizer: the optimizer's state "
                "(momentum, moments) would stay behind and belong to other weights. Call "
                "`handle.attach(optimizer)` before training, or `refresh(without_optimizer=True)` if it "
                "keeps no state"
            )
        explored = {name: weight.explores for name, weight in self.weights.items()}
        self._driver.exchange(self.weights, explored, compared=self.weights)

    def param_groups(
        self,
        weight_decay: float | None = None,
        *,
        values_weight_decay: float = 0.0,
        lr: float | None = None,
        rate: Rate = "same",
        whole: bool = False,
        factors: Mapping[str, float] | None = None,
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: weight decay and learning rate of dense and of sparse ones.

        The optimizer's decay acts on all of B, A and B∖A alike, on top of the penalty, so by default it is
        off for the sparse values and `weight_decay` is for the dense rest. What a method learns for every
        weight, such as a gate, is a group of its own without decay, at the dense network's rate.

        A sparse layer of density D has the learning rate lr·D⁻ᵖ. The dense rest has lr, or, if the rule is
        for the `whole` network, that of the mean density. Layers of equal rate share a group. A scheduler
        that scales the rate of each group, as most do, keeps these ratios.

        Args:
            weight_decay: Of the dense rest. By default that of the optimizer.
            values_weight_decay: Of the sparse values.
            lr: The learning rate that the dense network would have. Without it groups have none of their
                own, and all train with that of the optimizer.
            rate: How a sparse layer's follows from it: "same" (p = 0), "sqrt" (p = ½), "inverse" (p = 1), or
                the power p. D is the forward density that the distribution gave the layer.
            whole: Whether the rule is for the dense rest too (biases, norms, layers that stay dense), with
                the density of all sparse layers together.
            factors: Sparse layers, by name, glob or containing module, that have lr times this factor
                instead, such as ``{"embedding": 1.0}``. The last that matches counts.

        Raises:
            TypeError: `lr`, `rate` or a factor is no number.
            ValueError: One of them is negative or unknown, a pattern matches no sparse layer, or a rule is
                given without `lr`.
        """
        learned = [p for w in self.weights.values() if w.companion is not None for p in w.companion.learned()]
        ours = {id(p) for p in (*learned, *(weight.values for weight in self.weights.values()))}
        rest = [p for p in self.model.parameters() if id(p) not in ours]
        groups: list[dict[str, Any]] = []
        for factor, values in self._by_factor(lr, rate, factors or {}).items():
            group: dict[str, Any] = {"params": values, "weight_decay": values_weight_decay}
            groups.append(group if lr is None else {**group, "lr": lr * factor})
        if learned:
            gates: dict[str, Any] = {"params": learned, "weight_decay": 0.0}
            groups.append(gates if lr is None else {**gates, "lr": lr})
        if not rest:
            return groups
        counts = [weight.target for weight in self.weights.values()]
        dense: dict[str, Any] = {"weight_decay": weight_decay, "lr": lr}
        if lr is not None and whole:
            dense["lr"] = lr * factor_of(mean_density(counts), rate)
        return [{"params": rest, **{k: v for k, v in dense.items() if v is not None}}, *groups]

    def _by_factor(
        self, lr: float | None, rate: Rate, factors: Mapping[str, float]
    ) -> dict[float, list[Tensor]]:
        """The sparse values by what their learning rate is multiplied with, in order of the layers."""
        if lr is None and (factors or rate != "same"):
            raise ValueError(
                f"`rate` ({rate!r}) and `factors` need `lr`, the learning rate of the dense network, which "
                "they multiply: give it to `param_groups` rather than to the optimizer"
            )
        if lr is not None:
            check_lr(lr)
        aliases = {
            first: [name for name, layer in self.layers.items() if layer.weight is weight]
            for first, weight in self.weights.items()
        }
        densities = {name: weight.target.forward_density for name, weight in self.weights.items()}
        groups: dict[float, list[Tensor]] = {}
        for name, factor in factors_of(densities, rate, factors, aliases).items():
            groups.setdefault(factor, []).append(self.weights[name].values)
        return groups

    def follow(self, copy: nn.Module | Iterable[Tensor]) -> None:
        """Keeps a copy of the model in step with it, such as a `torch.optim.swa_utils.AveragedModel`.

        An average is kept by slot, and slots change their meaning at a refresh: from now on the copy's sets
        move together with the model's, and each average stays with its weight.

        Args:
            copy: A copy of the model; or a list of tensors, one for each of its parameters (or of those that
                are trained), such as `shadow_params` of torch_ema.

        Raises:
            ValueError: The copy's sparse layers are not those of the model, or its sets differ.
        """
        self._driver.followers.add(copy, list(self.model.parameters()))

    @torch.no_grad()
    def materialise(self) -> None:
        """Turns implicit reservoirs into stored ones; training goes on exactly as it would have.

        Afterwards a layer's C takes the memory of a dense weight. For small models, and for comparing.
        """
        for weight in self.weights.values():
            if isinstance(weight.reservoir, ImplicitReservoir):
                stored = weight.reservoir.materialise(weight.indices, weight.noted_active(), weight.values)
                weight.reservoir = stored.to(weight.device)

    # ---- looking at it ------------------------------------------------------------------------------

    def stats(self) -> dict[str, LayerStats]:
        """Per sparse weight: sizes, densities, how A changed, share of C ever used, bytes; `print` it."""
        return Stats({name: layer_stats(weight) for name, weight in self.weights.items()})

    def memory(self) -> Memory:
        """Bytes held now, by layer and part, beside the dense model's with the same optimizer; a table.

        Gradients and optimizer state are there once a step has been taken, Plans once a product has run.
        """
        optimizers = {name: self._driver.optimizer_of(name) for name in self.weights}
        attached = {id(o): o for o in optimizers.values() if o is not None}
        return memory(self.model, self.weights, optimizers, list(attached.values()))

    def flops(self, example: Example, *, steps: int | None = None) -> Flops:
        """FLOPs of a step at the present sets, by layer and pass, beside the dense model's; a table.

        The model is left as it is, and nothing is computed: see `cost.flops`.

        Args:
            example: What the model is called with in a step: a tensor, a tuple of positional arguments, or a
                mapping of keyword arguments.
            steps: If given, the whole run of the method instead, from step 1 to this one.
        """
        if steps is None:
            return flops(self.model, self.weights, example)
        return run_flops(self.model, self.weights, self.method, example, steps)

    def __str__(self) -> str:
        return layer_table(self.layers, self.weights, self.left_dense, self._fallbacks, self.model)

    def __repr__(self) -> str:
        a, b, n = (
            sum(getattr(w.counts, size) for w in self.weights.values())
            for size in ("forward", "backward", "numel")
        )
        return f"<topkast.Handle: {len(self.weights)} sparse weights, |A| {a:,}, |B| {b:,} of {n:,}>"

    def __getstate__(self) -> dict[str, Any]:
        # Hooks belong to one optimizer object: an unpickled handle is to be attached anew.
        return {**self.__dict__, "_driver": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._driver = Driver(self.model, self.method, self.weights)

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        """A copy for the copied model. Optimizers that were copied with it before are attached to it."""
        twin = Handle.__new__(Handle)
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        twin.expects_penalty = self.expects_penalty
        self._driver.attach_copies(twin._driver, memo)
        return twin
