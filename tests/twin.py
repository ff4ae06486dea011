"""The dense twin: Top-KAST written straight from the paper's equations, with nothing of the library in it.

θ is dense, A and B are dense masks, the gradient is the dense ∇_α L, the penalty's gradient is written out,
and the optimizers are their textbook formulas. Slow and obvious; everything else is compared with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

State = dict[str, Tensor]
# (θ, gradient, state, t) -> new θ; the state is updated in the dictionary. t counts from 1.
Rule = Callable[[Tensor, Tensor, State, int], Tensor]


def sgd(lr: float, momentum: float, nesterov: bool) -> Rule:
    def rule(theta: Tensor, g: Tensor, s: State, t: int) -> Tensor:
        s["momentum_buffer"] = momentum * s["momentum_buffer"] + g
        step = g + momentum * s["momentum_buffer"] if nesterov else s["momentum_buffer"]
        return theta - lr * step

    return rule


def adam(lr: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, decay: float = 0.0) -> Rule:
    def rule(theta: Tensor, g: Tensor, s: State, t: int) -> Tensor:
        theta = theta * (1 - lr * decay)
        s["exp_avg"] = b1 * s["exp_avg"] + (1 - b1) * g
        s["exp_avg_sq"] = b2 * s["exp_avg_sq"] + (1 - b2) * g**2
        m, v = s["exp_avg"] / (1 - b1**t), s["exp_avg_sq"] / (1 - b2**t)
        return theta - lr * m / (v.sqrt() + eps)

    return rule


def rmsprop(lr: float, alpha: float, momentum: float, eps: float = 1e-8) -> Rule:
    def rule(theta: Tensor, g: Tensor, s: State, t: int) -> Tensor:
        s["square_avg"] = alpha * s["square_avg"] + (1 - alpha) * g**2
        s["momentum_buffer"] = momentum * s["momentum_buffer"] + g / (s["square_avg"].sqrt() + eps)
        return theta - lr * s["momentum_buffer"]

    return rule


def adagrad(lr: float, lr_decay: float, eps: float = 1e-10) -> Rule:
    def rule(theta: Tensor, g: Tensor, s: State, t: int) -> Tensor:
        s["sum"] = s["sum"] + g**2
        return theta - lr / (1 + (t - 1) * lr_decay) * g / (s["sum"].sqrt() + eps)

    return rule


def nadam(lr: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, psi: float = 4e-3) -> Rule:
    def mu(t: int) -> float:
        return b1 * (1 - 0.5 * 0.96 ** (t * psi))

    def rule(theta: Tensor, g: Tensor, s: State, t: int) -> Tensor:
        product = float(np.prod([mu(i) for i in range(1, t + 1)]))
        s["exp_avg"] = b1 * s["exp_avg"] + (1 - b1) * g
        s["exp_avg_sq"] = b2 * s["exp_avg_sq"] + (1 - b2) * g**2
        denominator = (s["exp_avg_sq"] / (1 - b2**t)).sqrt() + eps
        theta = theta - lr * (1 - mu(t)) / (1 - product) * g / denominator
        return theta - lr * mu(t + 1) / (1 - product * mu(t + 1)) * s["exp_avg"] / denominator

    return rule


@dataclass
class Optimizer:
    rule: Rule
    initial: dict[str, float]  # state name -> what it starts at


def top_k(theta: Tensor, k: int) -> Tensor:
    """The mask of the k largest |θ|, ties to the smaller position, by sorting."""
    flat = theta.detach().abs().flatten().numpy()
    order = np.lexsort((np.arange(flat.size), -flat))
    mask = torch.zeros(flat.size, dtype=torch.bool)
    mask[torch.from_numpy(order[:k].copy())] = True
    return mask.view(theta.shape)


def kept(theta: Tensor, per_row: int, per_column: int) -> Tensor:
    """The mask F: of each row (output) its largest |θ|, and of each column (input) likewise."""
    mask = torch.zeros_like(theta, dtype=torch.bool)
    for row in range(theta.shape[0]):
        mask[row] |= top_k(theta[row], per_row)
    for column in range(theta.shape[1]):
        mask[:, column] |= top_k(theta[:, column], per_column)
    return mask


def floored(theta: Tensor, k: int, per_row: int, per_column: int) -> tuple[Tensor, Tensor]:
    """F ∪ TopK of the others with k - |F|, as a mask, and F."""
    f = kept(theta, per_row, per_column)
    others = torch.where(f, -1.0, theta.abs()) + 1.0
    return f | top_k(others, k - int(f.sum())), f


@dataclass
class Entry:
    """One dense parameter with its sets. Biases have A = B = everything and no penalty.

    `pool` is TopK(θ, D+M) at the last exchange, within which A is chosen; `b` is what is updated: the pool,
    or A once exploration is over.
    """

    theta: Tensor
    a: Tensor
    b: Tensor
    pool: Tensor
    num_a: int = 0
    num_b: int = 0
    state: State = field(default_factory=dict)

    @property
    def density(self) -> float:
        return self.num_a / self.theta.numel()


class Twin:
    """Trains `model` (dense, never changed) with Top-KAST on the parameters named in `sparse`."""

    def __init__(
        self,
        model: nn.Module,
        sparse: list[str],
        forward_sparsity: float,
        backward_sparsity: float,
        refresh_every: int,
        exchange_every: int,
        optimizer: Optimizer,
        strength: float,
        explore_until: int | None = None,
        exploration_rate: float = 1.0,
        exploration_warmup: int = 0,
        decay: float = 0.0,
        hysteresis: float = 1.0,
        min_fan_in: int = 0,
        min_fan_out: int = 0,
        lr: float = 0.0,
        schedule: Callable[[int], tuple[float, float]] | None = None,
        ends: tuple[int, ...] = (),
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.exploration_rate, self.exploration_warmup = exploration_rate, exploration_warmup
        self.decay, self.hysteresis, self.lr = decay, hysteresis, lr
        self.floors = (min_fan_in, min_fan_out)
        self.refresh_every, self.exchange_every = refresh_every, exchange_every
        self.strength, self.explore_until = strength, explore_until
        self.schedule, self.ends = schedule, ends
        self.step_count = self.num_early = 0
        self.entries: dict[str, Entry] = {}
        for name, parameter in model.named_parameters():
            theta = parameter.detach().clone()
            everything = torch.ones_like(theta, dtype=torch.bool)
            entry = Entry(theta, everything, everything, everything)
            entry.state = {k: torch.full_like(theta, v) for k, v in optimizer.initial.items()}
            if name in sparse:
                entry.num_a = max(1, round((1 - forward_sparsity) * theta.numel()))
                entry.num_b = max(entry.num_a, round((1 - backward_sparsity) * theta.numel()))
            self.entries[name] = entry
        self._choose_sets()

    def _sparse(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.num_a]

    def _choose_sets(self) -> None:
        """After step t: an exchange every N_B steps, else a refresh every N_A."""
        for entry in self._sparse():
            if self.step_count % self.exchange_every == 0 or self.step_count in self.ends:
                self._resize(entry)
                self._exchange(entry)
            elif self.step_count % self.refresh_every == 0:
                self._refresh(entry)

    def _resize(self, entry: Entry) -> None:
        """D and D+M of the step, if they have a schedule."""
        if self.schedule is not None:
            forward, backward = self.schedule(self.step_count)
            entry.num_a = max(1, round((1 - forward) * entry.theta.numel()))
            entry.num_b = max(entry.num_a, round((1 - backward) * entry.theta.numel()))

    def _exchange(self, entry: Entry) -> None:
        """A = TopK(s·θ, D), pool = TopK(s·θ, D+M); with floors F ∪ TopK of the others, both."""
        size = self._size(entry)
        entry.pool, _ = floored(size, entry.num_b, *self.floors)
        self._take(entry, floored(size, entry.num_a, *self.floors)[0])

    def _size(self, entry: Entry) -> Tensor:
        """s·|θ|: those in A count for more, once there is an A."""
        size = entry.theta.abs()
        return torch.where(entry.a, self.hysteresis * size, size) if self.step_count else size

    def _refresh(self, entry: Entry) -> None:
        """A = the largest of the pool; if one of C is as large as the least of A∖F, an exchange instead."""
        size = self._size(entry)
        a, f = floored(torch.where(entry.pool, size, -1.0) + 1.0, entry.num_a, *self.floors)
        free = size[a & ~f]
        if not entry.pool.all() and free.numel() and free.min() <= size[~entry.pool].max():
            self.num_early += 1
            self._exchange(entry)
        else:
            self._take(entry, a)

    def _take(self, entry: Entry, a: Tensor) -> None:
        """What is updated is the pool, or A once exploration is over; who is not in it forgets."""
        over = self.explore_until is not None and self.step_count >= self.explore_until
        old_b = entry.b
        entry.a, entry.b = a, a if over else entry.pool
        keep = old_b & entry.b
        for name, initial in self.optimizer.initial.items():
            fresh = torch.full_like(entry.theta, initial)
            entry.state[name] = torch.where(keep, entry.state[name], fresh)

    def step(self, loss_of: Callable[[Callable[..., Tensor]], Tensor]) -> float:
        if self.explore_until is not None and self.step_count == self.explore_until:
            for entry in self.entries.values():
                if entry.num_a:
                    entry.b = entry.a
        alpha = {n: (e.theta * e.a).requires_grad_() for n, e in self.entries.items()}
        loss = loss_of(lambda *args: functional_call(self.model, alpha, args))
        gradients = torch.autograd.grad(loss, list(alpha.values()))
        warmup = self.exploration_warmup
        factor = self.exploration_rate * (min(1.0, self.step_count / warmup) if warmup else 1.0)
        self.step_count += 1
        for entry, gradient in zip(self.entries.values(), gradients, strict=True):
            if entry.num_a:
                penalty = torch.where(entry.a, entry.theta, entry.theta / entry.density)
                gradient = gradient + self.strength * penalty
            old = {name: tensor.clone() for name, tensor in entry.state.items()}
            updated = self.optimizer.rule(entry.theta, gradient, entry.state, self.step_count)
            shortened = entry.theta + factor * (updated - entry.theta)
            entry.theta = torch.where(entry.a, updated, torch.where(entry.b, shortened, entry.theta))
            if entry.num_a:
                size = torch.where(entry.a, 1.0, torch.where(entry.b, 1 / entry.density, 0.0))
                entry.theta = entry.theta - self.lr * self.decay * size * entry.theta
            entry.state = {n: torch.where(entry.b, s, old[n]) for n, s in entry.state.items()}
        self._choose_sets()
        return float(loss.detach())
