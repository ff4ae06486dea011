"""Recipes, and what they are at the size of a machine: the configuration of every run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from topkast.core.distribution import nearest
from topkast.data.datasets import find_dataset
from topkast.methods.named import METHODS
from topkast.train.config import Config, section_of
from topkast.train.preset_options import preset_values

Values = Mapping[str, Mapping[str, Any]]

# The paper's ImageNet runs have so many steps; its t and N are counted in them.
PAPER_STEPS = 32_000
_ALL = 100


@dataclass(frozen=True)
class Scale:
    """A size.

    Attributes:
        name: On the command line.
        about: In a line.
        seeds: How many runs each row has, unless said otherwise.
        workloads: What each is: options by section, in order of preference with the data set that they
            need (None if it comes along), so that the tiny scale runs on any machine.
        variants: (workload, name of the variant) → options that differ.
        updates: How often methods like SET, RigL and pruning choose sets in a run; None is as published.
    """

    name: str
    about: str
    seeds: int
    workloads: Mapping[str, tuple[tuple[str | None, Values], ...]]
    variants: Mapping[tuple[str, str], Values]
    updates: int | None

    def with_steps(self, steps: int) -> Scale:
        """The same with runs of another length, for a trial."""
        changed: Values = {"train": {"steps": steps}}
        workloads = {
            name: tuple((dataset, _with(values, changed)) for dataset, values in choices)
            for name, choices in self.workloads.items()
        }
        return dataclasses.replace(self, workloads=workloads)

    def base(self, workload: str) -> Config:
        """The workload's options, on the first of its data sets that is here.

        Raises:
            FileNotFoundError: None is; the message says where to get it.
        """
        missing: list[str] = []
        for dataset, values in self.workloads[workload]:
            try:
                if dataset is not None:
                    find_dataset(dataset)
            except FileNotFoundError as error:
                missing.append(str(error))
                continue
            return Config().with_values(values)
        raise FileNotFoundError(f"`{workload}` at scale {self.name}: " + "; ".join(missing))

    def forecast_base(self, workload: str) -> Config:
        """The same, for a forecast: if no data set is here, the first."""
        try:
            return self.base(workload)
        except FileNotFoundError:
            return Config().with_values(self.workloads[workload][0][1])

    def config(self, recipe: Recipe, seed: int, *, is_forecast: bool = False) -> Config:
        """All options of one run."""
        base = self.forecast_base(recipe.workload) if is_forecast else self.base(recipe.workload)
        if recipe.variant:
            base = base.with_values(self.variants[recipe.workload, recipe.variant])
        usual = base.train.steps
        assert usual is not None
        steps = round(usual * recipe.length)
        told = base.with_values(
            {
                "method": {**self._method(recipe, steps), **_penalty(recipe)},
                "train": {"steps": steps, "seed": seed, **_rate(recipe)},
                "run": _record(recipe, steps),
            }
        )
        return told.with_values(recipe.values())

    def _method(self, recipe: Recipe, steps: int) -> dict[str, Any]:
        values = {
            "method": recipe.method,
            "forward_sparsity": recipe.forward,
            "backward_sparsity": recipe.backward,
            "exploration": recipe.exploration,
            **self._clocks(recipe, steps),
            "t_end": None if recipe.stop is None else round(recipe.stop * steps),
        }
        return {name: value for name, value in values.items() if value is not None}

    def _clocks(self, recipe: Recipe, steps: int) -> dict[str, Any]:
        """The paper has one for both sets, which is at every step unless a recipe says otherwise."""
        every = self._every(recipe, steps)
        if recipe.method == "topkast":
            refresh = every or 1
            return {"refresh_every": refresh, "exchange_every": recipe.exchange_steps or refresh}
        return {"refresh_every": every}

    def _every(self, recipe: Recipe, steps: int) -> int | None:
        if recipe.refresh_steps is not None:
            return recipe.refresh_steps
        if recipe.refresh is not None:
            return max(2, round(recipe.refresh * steps / PAPER_STEPS))
        if self.updates is not None and METHODS[recipe.method].is_occasional:
            return math.ceil(steps / self.updates)
        return None


def _rate(recipe: Recipe) -> dict[str, Any]:
    """One for all of the network, dense or sparse."""
    same = {"sparse_rate": "same", "whole_rate": False}
    return same if recipe.lr is None else {**same, "lr": recipe.lr}


def _penalty(recipe: Recipe) -> dict[str, Any]:
    """As the paper has it, whatever the optimizer is."""
    penalty = 1e-4 if recipe.penalty is None else recipe.penalty
    return {"letter": True, "penalty": penalty, "penalty_power": recipe.penalty_power}


def _record(recipe: Recipe, steps: int) -> dict[str, Any]:
    """Eight evaluations; masks are compared from checkpoints 5,000 of the paper's 32,000 steps apart, and an
    interruption, which writes one more, must not push one of them out.
    """
    values: dict[str, Any] = {"reference": ["none"], "evaluate_every": max(1, steps // 8), "keep": 1}
    if recipe.masks:
        return {**values, "checkpoint_every": max(1, steps * 5000 // PAPER_STEPS), "keep": _ALL}
    return {**values, "checkpoint_every": max(1, steps // 4)}


# ---- tiny: minutes on two cores -----------------------------------------------------------------------

_MLP: Values = {
    "data": {"task": "images"},
    "model": {"model": "mlp", "hidden": [256, 256]},
    # The paper keeps first and last layer dense. Here the first has most of the weights: only the last is.
    # `auto` measures, and may choose otherwise in another run: native is the same to the last bit.
    "method": {"keep_dense": ["last"], "engine": "native"},
    "train": {
        "batch": 128, "steps": 800, "optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-4, "clip": 0.0,
    },
}  # fmt: skip
_TINY_XL: Values = {
    "data": {"task": "text", "test_limit": 100_000},
    "model": {
        "model": "transformer-xl", "width": 128, "depth": 2, "heads": 2, "inner": 384, "window": 64,
        "memory": 64, "eval_memory": 256,
    },
    "method": {"budget": "model", "engine": "native"},
    "train": {"batch": 8, "steps": 800, "optimizer": "adam", "lr": 2e-3, "warmup": 0.1, "clip": 0.25},
}  # fmt: skip
# WikiText-2 has 33,278 words: with clusters a loss is computed on a few thousand of them.
_TINY_WORDS: Values = {
    "data": {"dataset": "wikitext-2", "test_limit": 50_000},
    "model": {"cutoffs": [2000, 8000]},
    "train": {"steps": 320},
}


def _with(*parts: Values) -> Values:
    """Options put together, by section; later ones win."""
    sections = {name for part in parts for name in part}
    return {
        name: {key: value for part in parts for key, value in part.get(name, {}).items()} for name in sections
    }


# Of every scale. The one of the first two that a scale has anyway is the same run.
_VARIANTS: Mapping[tuple[str, str], Values] = {
    ("images", "ends-dense"): {"method": {"keep_dense": ["first", "last"]}},
    ("images", "all-sparse"): {"method": {"keep_dense": []}},
    ("images", "adam"): {"train": {"optimizer": "adam", "lr": 2e-3}},
}
_ENWIK8: Values = {"data": {"dataset": "enwik8"}}
# Not the paper's: the network of `topkast train text` on the first 5 MB of enwik8, with AdamW.
_DECODER: Values = {
    "data": {"task": "text", "limit": 4_500_000},
    "model": {"model": "decoder", "width": 256, "window": 128, "embedding_std": 0.02},
    "method": {"engine": "native", "reservoir": "stored"},
    "train": {"batch": 8, "steps": 400, "optimizer": "adamw", "lr": 4e-3},
}
_LONG: Values = {"train": {"steps": 2000}}


def _decoder(more: Values) -> tuple[tuple[str | None, Values], ...]:
    return ("enwik8", _with(_DECODER, _ENWIK8, more)), (None, _with(_DECODER, more))


_TINY_BYTES = (("enwik8", _with(_TINY_XL, _ENWIK8)), (None, _TINY_XL))
TINY = Scale(
    name="tiny",
    about="an MLP on Fashion-MNIST (or scikit-learn's digits), and a Transformer-XL of width 128 on enwik8 "
    "(or the text that comes with Python) and on WikiText-2; about an hour on two cores",
    seeds=3,
    workloads={
        "images": (("fashion-mnist", _with(_MLP, {"data": {"dataset": "fashion-mnist"}})), (None, _MLP)),
        "bytes": _TINY_BYTES,
        "small-bytes": _TINY_BYTES,
        "words": (("wikitext-2", _with(_TINY_XL, _TINY_WORDS)), (None, _TINY_XL)),
        "decoder": _decoder({}),
    },
    variants={
        **_VARIANTS,
        ("words", "smaller"): {"model": {"width": 48, "heads": 1, "inner": 144}},
    },
    updates=80,
)

# ---- small: an hour or a few --------------------------------------------------------------------------

_CIFAR = _with(preset_values("cifar10-minutes"), {"train": {"steps": 640, "batch": 64}})
_SMALL_BYTES = (
    ("enwik8", _with(preset_values("enwik8-minutes"), {"data": {"test_limit": 500_000}})),
)  # fmt: skip
_SMALL_WORDS: Values = {
    "data": {"dataset": "wikitext-2", "test_limit": 100_000},
    "model": {"cutoffs": [2000, 8000]},
}
SMALL = Scale(
    name="small",
    about="ResNet-20 on CIFAR-10 and a Transformer-XL of width 256 on enwik8 and WikiText-2; some hours",
    seeds=3,
    workloads={
        "images": (("cifar-10", _CIFAR),),
        "bytes": _SMALL_BYTES,
        "small-bytes": _SMALL_BYTES,
        "words": (("wikitext-2", _with(_SMALL_BYTES[0][1], _SMALL_WORDS)),),
        "decoder": _decoder(_LONG),
    },
    variants={
        **_VARIANTS,
        ("words", "smaller"): {"model": {"width": 96, "heads": 2, "inner": 288}},
    },
    updates=64,
)

# ---- paper: as published ------------------------------------------------------------------------------

PAPER = Scale(
    name="paper",
    about="ResNet-50 on ImageNet, Transformer-XL of 277 M and 69 M on enwik8, of 285 M on WikiText-103",
    seeds=1,
    workloads={
        "images": (("imagenet", preset_values("imagenet-paper")),),
        "bytes": (("enwik8", preset_values("enwik8-paper")),),
        "small-bytes": (("enwik8", preset_values("enwik8-paper-small")),),
        "words": (("wikitext-103", preset_values("wikitext103-paper")),),
        "decoder": _decoder(_LONG),
    },
    variants={
        **_VARIANTS,
        ("words", "smaller"): {"model": {"depth": 4}},
    },
    updates=None,
)

SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (TINY, SMALL, PAPER)}


def scale(name: str) -> Scale:
    """The scale of that name.

    Raises:
        ValueError: There is none.
    """
    if name not in SCALES:
        raise ValueError(f"--scale must be one of {nearest(name, SCALES)}, got {name!r}")
    return SCALES[name]


Workload = Literal["images", "bytes", "small-bytes", "words", "decoder", "given"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained and how; times are shares of the run, so that every scale can have its own steps.

    Attributes:
        workload: Which network and data. The paper's ImageNet, enwik8 with the large and with the small
            Transformer, and WikiText-103 have their counterpart in each scale. "decoder" is a small
            GPT-style network on enwik8, the same in each but for its steps. "given" is that of a
            configuration.
        method: By name.
        forward: Forward sparsity; None for dense.
        backward: Backward sparsity of Top-KAST.
        length: Of the run, in multiples of the usual one.
        stop: Share of the run after which B∖A is not updated any more (the paper's t).
        exploration: How B∖A is chosen; None is by magnitude.
        refresh: N in steps of the paper's 32,000, scaled with the run; None is every step.
        refresh_steps: N as it is; overrides `refresh`.
        exchange_steps: Steps from one exchange to the next; None is N, one clock for A and B as in the paper.
        lr: Learning rate; None is that of the scale.
        penalty: λ; None is 1e-4.
        penalty_power: 2 for θ², 1 for |θ|.
        variant: Of the network or its training, as the scale describes it, such as "ends-dense".
        masks: Whether the masks of 5/32 of the run apart are compared.
        options: More of the run's options, by name.
    """

    workload: Workload = "given"
    method: str = "topkast"
    forward: float | None = None
    backward: float | None = None
    length: float = 1.0
    stop: float | None = None
    exploration: Literal["random"] | None = None
    refresh: int | None = None
    refresh_steps: int | None = None
    exchange_steps: int | None = None
    lr: float | None = None
    penalty: float | None = None
    penalty_power: int = 2
    variant: str = ""
    masks: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def values(self) -> dict[str, dict[str, Any]]:
        """`options` by section.

        Raises:
            ValueError: There is no option of a name.
        """
        found: dict[str, dict[str, Any]] = {}
        for name, value in self.options:
            found.setdefault(section_of(name), {})[name] = value
        return found

    def without_exploration(self) -> Recipe:
        """The same with B = A, if it is Top-KAST: a control, by which claims on exploration must fail."""
        if self.method != "topkast":
            return self
        return dataclasses.replace(self, backward=self.forward, exploration=None)


def topkast(workload: Workload, forward: float, backward: float, **more: object) -> Recipe:
    """Top-KAST at these sparsities."""
    return Recipe(workload=workload, forward=forward, backward=backward, **more)  # pyright: ignore[reportArgumentType]


def other(workload: Workload, method: str, forward: float | None = None, **more: object) -> Recipe:
    """Another method, with B = A or as it has it."""
    return Recipe(workload=workload, method=method, forward=forward, **more)  # pyright: ignore[reportArgumentType]
