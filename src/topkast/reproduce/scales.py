"""Recipes, and what they are at the size of a machine: the configuration of every run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topkast.core.distribution import nearest
from topkast.core.rates import factor_of
from topkast.data.datasets import find_dataset
from topkast.methods.named import METHODS
from topkast.reproduce import tuned_rates
from topkast.reproduce.claims import Bar
from topkast.reproduce.recipes import Recipe
from topkast.train.config import Config
from topkast.train.preset_options import preset_values
from topkast.train.resolve import ADAM_RATE

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
        bars: Workload → what its dense network must reach, or no comparison counts.
        validation: Workload → training images that are held out where its rates are looked for. Texts have a
            part of their own for that.
    """

    name: str
    about: str
    seeds: int
    workloads: Mapping[str, tuple[tuple[str | None, Values], ...]]
    variants: Mapping[tuple[str, str], Values]
    bars: Mapping[str, Bar]
    validation: Mapping[str, int]

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

    def config(self, recipe: Recipe, seed: int, *, is_forecast: bool = False) -> Config:
        """All options of one run; in a forecast on the first data set, whether it is here or not."""
        base = self.of(recipe, is_forecast=is_forecast)
        usual = base.train.steps
        assert usual is not None
        steps = round(usual * recipe.length)
        told = base.with_values(
            {
                "method": {**self._method(recipe, steps), **_penalty(recipe, base)},
                "train": {"steps": steps, "seed": seed, **self._rate(recipe, base)},
                "run": _record(recipe, steps),
            }
        )
        return told.with_values(recipe.values())

    def of(self, recipe: Recipe, *, is_forecast: bool = False) -> Config:
        """The network, data and training of a recipe, before its method is chosen."""
        first = Config().with_values(self.workloads[recipe.workload][0][1])
        base = first if is_forecast else self.base(recipe.workload)
        return base.with_values(self.variants[recipe.workload, recipe.variant]) if recipe.variant else base

    def rate_key(self, recipe: Recipe, base: Config) -> str:
        """Under which name the rate of a recipe is kept."""
        network = f"{recipe.workload} ({recipe.variant})" if recipe.variant else recipe.workload
        data = base.data.dataset or f"own {base.data.task}"
        return tuned_rates.key(self.name, network, data, recipe.method, recipe.forward)

    def expected(self, recipe: Recipe, *, is_forecast: bool = False) -> tuned_rates.Rate | None:
        """What the search for its rate has found, if there was one."""
        return tuned_rates.known().get(self.rate_key(recipe, self.of(recipe, is_forecast=is_forecast)))

    def _rate(self, recipe: Recipe, base: Config) -> dict[str, Any]:
        """One for all of the network: as given, as found, or by the library's rule."""
        found = tuned_rates.known().get(self.rate_key(recipe, base))
        lr = recipe.lr or (by_rule(recipe, base) if found is None else found.lr)
        return {"sparse_rate": "same", "whole_rate": False, "lr": float(f"{lr * recipe.rate_factor:.6g}")}

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
        """Two clocks as by default, or one for both sets as in the paper if a recipe says how often."""
        every = self._every(recipe, steps)
        if recipe.method == "topkast" and every is not None:
            return {"refresh_every": every, "exchange_every": recipe.exchange_steps or every}
        return {"refresh_every": every}

    def _every(self, recipe: Recipe, steps: int) -> int | None:
        if recipe.refresh_steps is not None:
            return recipe.refresh_steps
        if recipe.refresh is not None:
            return max(2, round(recipe.refresh * steps / PAPER_STEPS))
        if METHODS[recipe.method].is_occasional:  # every 100 steps, as published, but 24 times in a short run
            return max(1, min(100, steps // 24))
        return None


def is_adam(config: Config) -> bool:
    return config.train.optimizer in ("adam", "adamw")


def by_rule(recipe: Recipe, base: Config) -> float:
    """lr·density⁻ᵖ with the power that the library has for the optimizer; of A's density."""
    assert base.train.lr is not None
    power = ADAM_RATE if is_adam(base) else 0.0
    return base.train.lr * factor_of(1 - (recipe.forward or 0.0), power)


def _penalty(recipe: Recipe, base: Config) -> dict[str, Any]:
    """What the library has for the optimizer, or the paper's letter."""
    if is_adam(base) and not recipe.letter and recipe.penalty is None and recipe.penalty_power == 2:
        return {}
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
    "train": {"batch": 128, "steps": 2400, "optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-4, "clip": 0.0},
}
_RESNET9: Values = {
    "data": {"task": "images"},
    "model": {"model": "resnet9"},
    # The network's own start, drawn by name: an implicit reservoir has the same.
    "method": {"keep_dense": ["first", "last"], "engine": "native", "init": "kaiming_normal"},
    "train": {
        "batch": 64, "optimizer": "sgd", "lr": 0.2, "weight_decay": 5e-4, "clip": 0.0, "schedule": "linear",
        "warmup": 0.2, "label_smoothing": 0.1,
    },
}  # fmt: skip
_XL: Values = {
    "data": {"task": "text"},
    "model": {"model": "transformer-xl", "initial_std": 0.08},
    "method": {"budget": "model", "engine": "native"},
    "train": {"batch": 8, "optimizer": "adam", "lr": 4e-3, "warmup": 0.05, "clip": 1.0},
}


def _with(*parts: Values) -> Values:
    """Options put together, by section; later ones win."""
    sections = {name for part in parts for name in part}
    return {
        name: {key: value for part in parts for key, value in part.get(name, {}).items()} for name in sections
    }


def _sized(width: int, heads: int, inner: int) -> Values:
    return {"model": {"width": width, "heads": heads, "inner": inner}}


def _ladder(workload: str, sizes: Sequence[Values]) -> dict[tuple[str, str], Values]:
    """The narrower dense networks of `budgets`."""
    return {(workload, f"narrower {i}"): size for i, size in enumerate(sizes, 1)}


# What the frequencies of symbols alone give: bits per byte of enwik8, perplexity of WikiText-2.
_FREQUENCIES = 5.05, 1212.0


def _text_bars(bits: float, perplexity: float) -> dict[str, Bar]:
    """Two thirds of what a long run gains over frequencies, given what it ends with."""
    most = _FREQUENCIES[0] - 2 / 3 * (_FREQUENCIES[0] - bits)
    words = _FREQUENCIES[1] ** (1 / 3) * perplexity ** (2 / 3)
    why = "two thirds of what a long run gains over frequencies"
    by_bytes = Bar("bits per byte", float(f"{most:.2f}"), why)
    return {
        **dict.fromkeys(("bytes", "small-bytes", "decoder"), by_bytes),
        "words": Bar("perplexity", float(f"{words:.0f}"), why),
    }


# Of every scale. The one of the first two that a scale has anyway is the same run.
_VARIANTS: Mapping[tuple[str, str], Values] = {
    ("images", "ends-dense"): {"method": {"keep_dense": ["first", "last"]}},
    ("images", "all-sparse"): {"method": {"keep_dense": []}},
}
_FASHION: Values = {"data": {"dataset": "fashion-mnist"}}
_ENWIK8: Values = {"data": {"dataset": "enwik8"}}
# Not the paper's: the network of `topkast train text` on the first 5 MB of enwik8, with AdamW.
_DECODER: Values = {
    "data": {"task": "text", "limit": 4_500_000},
    "model": {"model": "decoder", "width": 256, "window": 128},
    "method": {"engine": "native"},
    "train": {"batch": 8, "steps": 400, "optimizer": "adamw", "lr": 2e-3},
}
_LONG: Values = {"train": {"steps": 2000}}


def _decoder(more: Values) -> tuple[tuple[str | None, Values], ...]:
    return ("enwik8", _with(_DECODER, _ENWIK8, more)), (None, _with(_DECODER, more))


_TINY_XL = _with(
    _XL,
    _sized(128, 2, 384),
    {
        "data": {"test_limit": 100_000},
        "model": {"depth": 2, "window": 64, "memory": 64, "eval_memory": 256},
        "train": {"steps": 1600},
    },
)
# WikiText-2 has 33,278 words: with clusters a loss is computed on a few thousand of them.
_TINY_WORDS: Values = {
    "data": {"dataset": "wikitext-2", "test_limit": 50_000},
    "model": {"cutoffs": [2000, 8000]},
    "train": {"steps": 400},
}
_TINY_BYTES = (("enwik8", _with(_TINY_XL, _ENWIK8)), (None, _TINY_XL))
_TINY_PICTURES = _with(_RESNET9, {"model": {"width": 16}, "train": {"steps": 600}})
TINY = Scale(
    name="tiny",
    about="an MLP and a ResNet-9 on Fashion-MNIST (or scikit-learn's digits), a Transformer-XL of width 128 "
    "on enwik8 (or the text that comes with Python) and on WikiText-2; an hour and a half on two cores",
    seeds=3,
    workloads={
        "images": (("fashion-mnist", _with(_MLP, _FASHION)), (None, _MLP)),
        "pictures": (("fashion-mnist", _with(_TINY_PICTURES, _FASHION)), (None, _TINY_PICTURES)),
        "bytes": _TINY_BYTES,
        "small-bytes": _TINY_BYTES,
        "words": (("wikitext-2", _with(_TINY_XL, _TINY_WORDS)), (None, _TINY_XL)),
        "decoder": _decoder({}),
    },
    variants={
        **_VARIANTS,
        ("images", "adam"): {"train": {"optimizer": "adam", "lr": 2e-3}},
        ("words", "smaller"): _sized(48, 1, 144),
        **_ladder("images", [{"model": {"hidden": [width, width]}} for width in (128, 64, 32, 16, 8)]),
        **_ladder("bytes", [_sized(w, h, 3 * w) for w, h in ((96, 2), (64, 1), (40, 1), (24, 1), (16, 1))]),
    },
    bars={
        "images": Bar("points", 87.0, "more than a linear classifier's 84"),
        "pictures": Bar("points", 88.0, "more than the MLP"),
        **_text_bars(2.3, 250),
    },
    validation={"images": 6000, "pictures": 6000},
)

# ---- small: an hour or a few --------------------------------------------------------------------------

_CIFAR = _with(_RESNET9, {"data": {"dataset": "cifar-10"}, "model": {"width": 32}, "train": {"steps": 2340}})
_SMALL_XL = _with(
    _XL,
    _sized(256, 4, 768),
    {
        "data": {"test_limit": 500_000},
        "model": {"depth": 4, "window": 64, "memory": 64, "eval_memory": 256},
        "train": {"steps": 3000},
    },
)
_SMALL_BYTES = (("enwik8", _with(_SMALL_XL, _ENWIK8)),)
_SMALL_WORDS: Values = {
    "data": {"dataset": "wikitext-2", "test_limit": 100_000},
    "model": {"cutoffs": [2000, 8000]},
    "train": {"steps": 1500},
}
SMALL = Scale(
    name="small",
    about="ResNet-9 on CIFAR-10 and a Transformer-XL of width 256 on enwik8 and WikiText-2; some hours",
    seeds=3,
    workloads={
        "images": (("cifar-10", _CIFAR),),
        "pictures": (("cifar-10", _CIFAR),),
        "bytes": _SMALL_BYTES,
        "small-bytes": _SMALL_BYTES,
        "words": (("wikitext-2", _with(_SMALL_XL, _SMALL_WORDS)),),
        "decoder": _decoder(_LONG),
    },
    variants={
        **_VARIANTS,
        ("images", "adam"): {"train": {"optimizer": "adam", "lr": 2e-3}},
        ("words", "smaller"): _sized(96, 2, 288),
        **_ladder("images", [{"model": {"width": width}} for width in (22, 16, 11, 8, 5)]),
        **_ladder("bytes", [_sized(w, h, 3 * w) for w, h in ((192, 3), (128, 2), (88, 2), (64, 1), (40, 1))]),
    },
    bars={
        **dict.fromkeys(("images", "pictures"), Bar("points", 80.0, "what it reaches in five minutes")),
        **_text_bars(2.0, 150),
    },
    validation={"images": 3000, "pictures": 3000},
)

# ---- paper: as published ------------------------------------------------------------------------------

PAPER = Scale(
    name="paper",
    about="ResNet-50 on ImageNet, Transformer-XL of 277 M and 69 M on enwik8, of 285 M on WikiText-103",
    seeds=1,
    workloads={
        "images": (("imagenet", preset_values("imagenet-paper")),),
        "pictures": (("imagenet", preset_values("imagenet-paper")),),
        "bytes": (("enwik8", preset_values("enwik8-paper")),),
        "small-bytes": (("enwik8", preset_values("enwik8-paper-small")),),
        "words": (("wikitext-103", preset_values("wikitext103-paper")),),
        "decoder": _decoder(_LONG),
    },
    variants={
        **_VARIANTS,
        ("images", "adam"): {"train": {"optimizer": "adam", "lr": 2e-3}},
        ("words", "smaller"): {"model": {"depth": 4}},
        **_ladder("images", [{"model": {"width": width}} for width in (44, 32, 22, 16, 10)]),
        **_ladder("bytes", [_sized(w, 8, 3 * w) for w in (768, 512, 352, 256, 160)]),
    },
    bars={},
    validation={},
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
