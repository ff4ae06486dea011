"""Whole set-ups by name: a network with its sizes, its data, and how it is trained.

Those with "paper" in their name are the experiments of the Top-KAST paper (appendices A and B); where it says
two things, docs/networks.md says which one was taken and why. The others are networks of these kinds in sizes
that two processor cores train in minutes or in an hour.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from topkast.models.network import Network


@dataclass(frozen=True)
class Schedule:
    """The learning rate: a ramp to `peak`, then along half a cosine to zero, or in drops.

    Attributes:
        peak: The highest rate.
        start: That of the first step.
        warmup: Steps from `start` to `peak`, along a line.
        shape: "cosine" or "drops".
        drops: Steps at which the rate is multiplied by `factor`.
        factor: See `drops`.
    """

    peak: float
    start: float = 0.0
    warmup: int = 0
    shape: Literal["cosine", "drops"] = "cosine"
    drops: tuple[int, ...] = ()
    factor: float = 0.1

    def at(self, step: int, steps: int) -> float:
        """The rate of step 0, 1, …, steps - 1 of a run of so many."""
        if step < self.warmup:
            return self.start + (self.peak - self.start) * step / self.warmup
        if self.shape == "drops":
            return self.peak * self.factor ** sum(step >= drop for drop in self.drops)
        share = (step - self.warmup) / max(1, steps - self.warmup)
        return self.peak * 0.5 * (1 + math.cos(math.pi * share))


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A network and how it is trained.

    Attributes:
        model: "transformer-xl", "resnet50" or "resnet20".
        sizes: What the network is made with.
        data: The data set.
        batch: Sequences or images per step.
        steps: Of a run.
        schedule: Of the learning rate.
        optimizer: "adam", or "momentum" for SGD with it.
        clip: Global norm that gradients are clipped to, if they are.
        weight_decay: Of the optimizer.
        label_smoothing: Of the loss.
        window: Symbols of a sequence that is trained on at once.
        train_memory: Symbols remembered in training.
        eval_memory: Symbols remembered in evaluation.
        dropout: Of everything that has one.
        keep_dense: Layers that stay dense, as `topkast.sparsify` takes them.
        not_in_paper: Which of these the paper does not give, and we chose.
    """

    model: str
    sizes: Mapping[str, Any]
    data: str
    batch: int
    steps: int
    schedule: Schedule
    optimizer: Literal["adam", "momentum"]
    clip: float | None = None
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    window: int | None = None
    train_memory: int = 0
    eval_memory: int = 0
    dropout: float = 0.0
    keep_dense: tuple[str, ...] = ()
    not_in_paper: tuple[str, ...] = field(default=(), compare=False)

    def build(self) -> nn.Module:
        """The network, freshly initialised, with the memory of training."""
        arguments = dict(self.sizes)
        if self.model == "transformer-xl":
            drops = dict.fromkeys(("dropout", "dropatt"), self.dropout)
            arguments |= {"memory_length": self.train_memory, **drops}
        return Network(self.model, arguments).build()


def preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        ValueError: There is none.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4) or list(PRESETS)
        raise ValueError(f"`preset` must be one of {', '.join(map(repr, near))}, …, got {name!r}")
    return PRESETS[name]


# ---- language: appendix A -----------------------------------------------------------------------------

_WARM_COSINE = Schedule(peak=2e-4, start=1e-7, warmup=4000)


def _bytes(depth: int, d_model: int, num_heads: int) -> dict[str, Any]:
    """Sizes for bytes. One pair u, v for all layers is what Dai et al. have for enwik8."""
    sizes = {"depth": depth, "d_model": d_model, "num_heads": num_heads, "d_ff": 3 * d_model}
    return {"num_symbols": 256, **sizes, "tie_biases": True}


def _enwik8(d_model: int) -> Preset:
    """Batch, steps and dropout (the paper has 0.05 to 0.2) are those of Dai et al."""
    return Preset(
        model="transformer-xl",
        sizes=_bytes(depth=24, d_model=d_model, num_heads=8),
        data="enwik8",
        batch=64,
        steps=400_000,
        schedule=_WARM_COSINE,
        optimizer="adam",
        clip=0.25,
        window=768,
        train_memory=2304,
        eval_memory=5000,
        dropout=0.15,
        not_in_paper=("batch", "steps", "optimizer", "dropout"),
    )


def _wikitext103(depth: int) -> Preset:
    """Batch and dropout (the paper has 0.05 to 0.2) are those of Dai et al., steps as many as for enwik8."""
    return Preset(
        model="transformer-xl",
        sizes={
            "num_symbols": 267_735,
            "depth": depth,
            "d_model": 1024,
            "num_heads": 16,
            "d_ff": 4096,
            "cutoffs": (20_000, 40_000, 200_000),
            "div_val": 4,
            # "Tie head only": what counting leaves of its readings, see docs/networks.md.
            "tie_projections": (False, True, True, True),
        },
        data="wikitext-103",
        batch=128,
        steps=400_000,
        schedule=_WARM_COSINE,
        optimizer="adam",
        clip=0.25,
        window=512,
        train_memory=768,
        eval_memory=2000,
        dropout=0.2,
        not_in_paper=("batch", "steps", "optimizer", "dropout"),
    )


def _small_text(depth: int, width: int, steps: int, peak: float) -> Preset:
    """Segments of 8·128 bytes: enough for sparse products to be fast, few enough for a step in a second."""
    return Preset(
        model="transformer-xl",
        sizes=_bytes(depth=depth, d_model=width, num_heads=width // 64),
        data="enwik8",
        batch=8,
        steps=steps,
        schedule=Schedule(peak=peak, start=1e-7, warmup=steps // 10),
        optimizer="adam",
        clip=0.25,
        window=128,
        train_memory=128,
        eval_memory=512,
    )


# ---- images: appendix B -------------------------------------------------------------------------------


def _epochs(number: int) -> int:
    """Steps of so many epochs over ImageNet's 1,281,167 training images, 4096 at a time."""
    return round(number * 1_281_167 / 4096)


def _imagenet(keep_dense: tuple[str, ...]) -> Preset:
    drops = tuple(_epochs(n) for n in (30, 70, 90))
    return Preset(
        model="resnet50",
        sizes={"num_classes": 1000},
        data="imagenet",
        batch=4096,
        steps=32_000,
        schedule=Schedule(peak=1.6, warmup=_epochs(5), shape="drops", drops=drops),
        optimizer="momentum",
        weight_decay=1e-4,
        label_smoothing=0.1,  # as in Gale et al. 2019, whose set-up it is
        keep_dense=keep_dense,
        not_in_paper=("optimizer", "label_smoothing"),
    )


def _cifar10(steps: int) -> Preset:
    return Preset(
        model="resnet20",
        sizes={"num_classes": 10},
        data="cifar-10",
        batch=128,
        steps=steps,
        schedule=Schedule(peak=0.1, warmup=steps // 20),
        optimizer="momentum",
        weight_decay=1e-4,
        keep_dense=("first", "last"),
    )


PRESETS: Mapping[str, Preset] = {
    "enwik8-paper": _enwik8(1024),
    "enwik8-paper-small": _enwik8(512),
    "wikitext103-paper": _wikitext103(18),
    "wikitext103-paper-small": _wikitext103(4),
    "imagenet-paper": _imagenet(("first", "last")),
    "imagenet-paper-all-sparse": _imagenet(()),
    "enwik8-minutes": _small_text(depth=6, width=256, steps=800, peak=1e-3),
    "enwik8-hour": _small_text(depth=8, width=384, steps=3000, peak=6e-4),
    "cifar10-minutes": _cifar10(600),
    "cifar10-hour": _cifar10(6000),
}
