"""`Config`: all of a run's options, from presets, from a TOML file and from flags, and back to TOML."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topkast.core.distribution import nearest
from topkast.core.rates import POWERS
from topkast.data.datasets import DATA_SETS
from topkast.kernels import engines
from topkast.methods.named import METHODS
from topkast.train.options import checked, option, rules, set_values

FORMAT = 1
TASKS = ("text", "images")
DATASETS = tuple(DATA_SETS)
MODELS = ("decoder", "transformer-xl", "mlp", "resnet20", "resnet18", "resnet50")
ENGINES = ("auto", *reversed(engines.ENGINES))


@dataclass(frozen=True)
class DataOptions:
    """What is learned."""

    task: str = option(str, "text", "text or images", choices=TASKS)
    data: str | None = option(
        str,
        None,
        "file or folder; by default what comes with Python (text) or scikit-learn (images)",
        metavar="PATH",
    )
    dataset: str | None = option(
        str, None, "a published one: " + ", ".join(DATASETS), choices=DATASETS, metavar="NAME"
    )
    limit: int | None = option(
        int, None, "bytes, words or images of training data to use", least=1, metavar="N"
    )
    test_limit: int | None = option(
        int, None, "bytes or words that a test at the end reads (xl; all of them)", least=2, metavar="N"
    )


@dataclass(frozen=True)
class ModelOptions:
    """The network. Each takes some of these; another one is answered with those it takes."""

    model: str | None = option(
        str, None, "decoder, transformer-xl (text); mlp, resnet20, resnet18, resnet50 (images)",
        choices=MODELS, metavar="NAME",
    )  # fmt: skip
    width: int | None = option(
        int, None, "of the residual stream (text) or the first stage (resnet)", least=1, metavar="N"
    )
    depth: int | None = option(int, None, "blocks (text), or 6n + 2 layers (resnet20)", least=1, metavar="N")
    heads: int | None = option(int, None, "of attention (text)", least=1, metavar="N")
    inner: int | None = option(int, None, "width inside feed-forward parts (xl)", least=1, metavar="N")
    window: int | None = option(int, None, "symbols that are seen at once (text)", least=2, metavar="N")
    active_share: float | None = option(
        float, None, "share of the largest activations that are kept (decoder; 1)", least=0, most=1,
        metavar="S",
    )  # fmt: skip
    memory: int | None = option(int, None, "symbols remembered in training (xl)", least=0, metavar="N")
    eval_memory: int | None = option(int, None, "symbols remembered in evaluation (xl)", least=0, metavar="N")
    dropout: float | None = option(float, None, "share dropped (xl)", least=0, most=1, metavar="P")
    cutoffs: tuple[int, ...] | None = option(
        int, None, "of the adaptive embedding (xl)", least=1, many=True, metavar="N,N"
    )
    div_val: int | None = option(int, None, "how much narrower each cluster is (xl)", least=1, metavar="N")
    hidden: tuple[int, ...] | None = option(
        int, None, "sizes of the hidden layers (mlp)", least=1, many=True, metavar="N,N"
    )
    side: int | None = option(int, None, "pixels that image files are brought to", least=1, metavar="N")


@dataclass(frozen=True)
class MethodOptions:
    """How it is sparse."""

    method: str = option(str, "topkast", ", ".join(METHODS), choices=METHODS, metavar="NAME")
    forward_sparsity: float | None = option(float, None, "share of zeros (0.9)", least=0, metavar="S")
    backward_sparsity: float | None = option(
        float,
        None,
        "of the backward set; by default it has twice the elements (topkast)",
        least=0,
        metavar="S",
    )
    refresh_every: int | None = option(
        int, None, "steps from one choice of sets to the next; of A within B (1) for topkast",
        least=1, metavar="N",
    )  # fmt: skip
    exchange_every: int | None = option(
        int, None, "steps from one choice of B from all weights to the next (100; topkast)",
        least=1, metavar="N",
    )  # fmt: skip
    begin: int | None = option(int, None, "step at which pruning begins", least=0, metavar="T")
    t_end: int | None = option(
        int, None, "step at which the method's schedule, or exploration, ends", least=0, metavar="T"
    )
    exploration: str | None = option(
        str, None, "how B∖A is chosen: magnitude or random (topkast)", choices=("magnitude", "random"),
    )  # fmt: skip
    exploration_rate: float | None = option(
        float,
        None,
        "factor on the steps of B∖A (0.1 for adam and adamw, else 1; topkast)",
        least=0,
        most=1,
        metavar="F",
    )
    exploration_warmup: int | None = option(
        int, None, "steps in which that factor rises from 0 (0; topkast)", least=0, metavar="N"
    )
    hysteresis: float | None = option(
        float, None, "how many times as large as one of A a challenger must be (1; topkast)",
        least=1, metavar="F",
    )  # fmt: skip
    min_fan_in: int | None = option(
        int, None, "weights of A that each output of a layer keeps (0; topkast)", least=0, metavar="N"
    )
    min_fan_out: int | None = option(
        int, None, "weights of A that each input of a layer keeps (0; topkast)", least=0, metavar="N"
    )
    anneal: str | None = option(
        str, None, "go from dense to the sparsities along: linear, cubic or cosine (topkast)",
        choices=("linear", "cubic", "cosine"), metavar="FORM",
    )  # fmt: skip
    anneal_from: float | None = option(
        float, None, "the forward sparsity it starts at (0; topkast)", least=0, most=1, metavar="S"
    )
    anneal_until: float | None = option(
        float,
        None,
        "share of the run in which it gets there (0.75; topkast)",
        least=0,
        most=1,
        metavar="SHARE",
    )
    distribution: str = option(str, "uniform", "uniform, er or erk", choices=("uniform", "er", "erk"))
    budget: str = option(
        str, "layers", "layers (sparsities are those of each) or model (of all parameters together)",
        choices=("layers", "model"),
    )  # fmt: skip
    keep_dense: tuple[str, ...] = option(
        str, (), "first, last, embeddings", many=True, choices=("first", "last", "embeddings"), metavar="LIST"
    )
    skip: tuple[str, ...] = option(
        str, (), "layers to leave dense: names or globs", many=True, metavar="LIST"
    )
    reservoir: str | None = option(
        str, None, "stored, or implicit: weights outside of B are drawn again (topkast with a decoder)",
        choices=("stored", "implicit"),
    )  # fmt: skip
    init: str | None = option(
        str, None, "how sparse layers but embeddings start, such as lecun_normal or keep_variance (as torch)",
        metavar="NAME",
    )  # fmt: skip
    engine: str = option(str, "auto", "auto, native, csr or masked", choices=ENGINES)
    letter: bool = option(bool, False, "the paper's letter under adam and adamw too (topkast)")
    penalty: float | None = option(
        float, None, "λ of the exploration penalty (0.3 where it is decoupled, else 0.0001)",
        least=0, metavar="λ",
    )  # fmt: skip
    penalty_form: str | None = option(
        str, None, "decoupled from the gradient, as AdamW's decay (adam, adamw), or gradient (topkast)",
        choices=("gradient", "decoupled"),
    )  # fmt: skip
    penalty_power: int = option(int, 2, "its reading: 2 for θ², 1 for |θ|", least=1, most=2, metavar="P")


@dataclass(frozen=True)
class TrainOptions:
    """How it is trained."""

    steps: int | None = option(int, None, "optimizer steps (a minute's worth)", least=1, metavar="N")
    minutes: float | None = option(
        float, None, "stop after this time, with a checkpoint", least=0, metavar="M"
    )
    batch: int | None = option(int, None, "windows or images per step", least=1, metavar="N")
    optimizer: str = option(str, "adamw", "adamw, adam or sgd", choices=("adamw", "adam", "sgd"))
    lr: float | None = option(float, None, "learning rate", least=0, metavar="η")
    lr_start: float | None = option(
        float, None, "that of the first step of the warm-up", least=0, metavar="η"
    )
    sparse_rate: float | str | None = option(
        float, None,
        "learning rate of sparse layers: same (sgd), sqrt, inverse, or p of lr·density⁻ᵖ (0.75 for adam/w)",
        words=tuple(POWERS), least=0, metavar="P",
    )  # fmt: skip
    whole_rate: bool | None = option(
        bool, None, "that rule for what is dense in a sparse network too (adam and adamw do)"
    )
    same_rate: tuple[str, ...] = option(
        str, (), "sparse layers that keep the dense rate: names or globs", many=True, metavar="LIST"
    )
    momentum: float = option(float, 0.9, "of sgd", least=0, most=1)
    beta2: float | None = option(
        float, None, "β₂ of adam and adamw, below 1 (0.999)", least=0, most=1, metavar="β"
    )
    eps: float | None = option(float, None, "ε of adam and adamw (1e-8)", least=0, metavar="ε")
    weight_decay: float = option(float, 0.0, "for what is dense; sparse weights have the penalty", least=0)
    schedule: str = option(
        str, "cosine", "cosine, linear, drops or constant", choices=("cosine", "linear", "drops", "constant")
    )
    drops: tuple[float, ...] = option(
        float, (0.3, 0.6, 0.8), "shares of the run at which the rate is divided by 10 (schedule drops)",
        least=0, most=1, many=True, metavar="S,S",
    )  # fmt: skip
    warmup: float = option(
        float, 0.05, "share of the steps in which the learning rate rises", least=0, most=1
    )
    clip: float = option(float, 1.0, "norm that gradients are clipped to; 0 for none", least=0)
    clip_rms: float = option(float, 0.0, "root mean square they are clipped to; 0 for none", least=0)
    label_smoothing: float | None = option(
        float, None, "share of the target spread over all classes (images)", least=0, most=1, metavar="S"
    )
    augment: bool | None = option(bool, None, "shift and mirror images (resnets do)")
    precision: str = option(str, "float32", "float32 or bfloat16 (autocast)", choices=("float32", "bfloat16"))
    seed: int = option(int, 0, "decides everything random", least=0, most=2**62)
    threads: int | None = option(int, None, "of the processor (all)", least=1, metavar="N")


@dataclass(frozen=True)
class RunOptions:
    """What is kept and shown."""

    reference: tuple[str, ...] = option(
        str, ("static", "dense", "small"),
        "trained beside it: static, dense, small (dense with as many parameters), or none", many=True,
        choices=("static", "dense", "small", "none"), metavar="LIST",
    )  # fmt: skip
    evaluate_every: int | None = option(int, None, "steps between evaluations (50)", least=1, metavar="N")
    checkpoint_every: int | None = option(int, None, "steps between checkpoints (100)", least=1, metavar="N")
    keep: int = option(int, 2, "checkpoints that are kept, besides the best", least=1, metavar="N")
    tensorboard: bool = option(bool, False, "write RUN/tensorboard as well")


@dataclass(frozen=True)
class Config:
    """All options of a run, by section."""

    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    method: MethodOptions = field(default_factory=MethodOptions)
    train: TrainOptions = field(default_factory=TrainOptions)
    run: RunOptions = field(default_factory=RunOptions)

    def with_values(self, values: Mapping[str, Mapping[str, Any]]) -> Config:
        """A copy with some options changed, by section.

        Raises:
            ValueError: A section or an option that is not there, or a bad value.
        """
        changed = {}
        for name, options in values.items():
            if name not in SECTIONS:
                raise ValueError(f"[{name}] is not a section; there are {nearest(name, SECTIONS)}")
            if not isinstance(options, Mapping):
                raise ValueError(f"{name} must be a section such as [{name}], got {options!r}")
            changed[name] = dataclasses.replace(getattr(self, name), **checked(SECTIONS[name], options, name))
        return dataclasses.replace(self, **changed)

    def to_toml(self) -> str:
        """The configuration as a file that gives it back."""
        lines = [f"format = {FORMAT}"]
        for name in SECTIONS:
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in set_values(getattr(self, name))]
        return "\n".join(lines) + "\n"


SECTIONS: dict[str, type] = {
    "data": DataOptions,
    "model": ModelOptions,
    "method": MethodOptions,
    "train": TrainOptions,
    "run": RunOptions,
}

# Of what `to_toml` writes for every run: the first line, what each section must have for a run to go on, and
# the last line, so that a file that was cut anywhere lacks one of them.
_ALWAYS_WRITTEN = (
    "format", "data.task", "model.model", "method.method", "train.steps", "train.batch", "train.lr",
    "train.threads", "run.evaluate_every", "run.checkpoint_every", "run.tensorboard",
)  # fmt: skip
# What runs did before these were options, whatever a new run does by default.
_BEFORE: dict[str, dict[str, Any]] = {
    "method": {"penalty_form": "gradient", "reservoir": "stored"},
    "train": {"sparse_rate": "same", "whole_rate": False},
}
_WAY_OUT = "put the file back from a copy, or start a new run: checkpoints do not hold the options"


def section_of(option_name: str) -> str:
    """The section that has an option; names are unique over all of them.

    Raises:
        ValueError: None has.
    """
    known = {option: name for name, section in SECTIONS.items() for option in rules(section)}
    if option_name not in known:
        raise ValueError(f"{option_name!r} is not an option; there are {nearest(option_name, known)}")
    return known[option_name]


def read_config(path: Path, base: Config | None = None) -> Config:
    """A configuration from a TOML file; what it does not say is as in `base`.

    Raises:
        ValueError: Not TOML, of another format, or with something that is not an option.
        OSError: It cannot be read.
    """
    return _config(path, _parse(path), base)


def read_run_config(path: Path) -> Config:
    """The configuration that a run has written into its folder: one with everything filled in.

    Raises:
        ValueError: It is missing, empty or cut; or see `read_config`.
    """
    try:
        values = _parse(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; {_WAY_OUT}") from None
    except ValueError as error:
        raise ValueError(f"{error}; {_WAY_OUT}") from None
    config = _config(path, values, Config().with_values(_BEFORE))  # first: a wrong name or value says more
    missing = [name for name in _ALWAYS_WRITTEN if not _has(values, name)]
    if missing:
        state = "is empty" if not values else "was cut or altered"
        raise ValueError(f"{path} {state}: it lacks {', '.join(missing)}; {_WAY_OUT}")
    return _as_it_was(config)


def _as_it_was(config: Config) -> Config:
    """What a run of an older version did where its file does not say, whatever is the default now.

    Version 0.1 had one clock: A and B were chosen together, at every step by default.
    """
    options = config.method
    if options.method != "topkast":
        return config
    every = options.refresh_every or 1
    before = {
        "refresh_every": every,
        "exchange_every": every,
        "exploration_rate": 1.0,
        "exploration_warmup": 0,
        "hysteresis": 1.0,
        "min_fan_in": 0,
        "min_fan_out": 0,
    }
    missing = {name: value for name, value in before.items() if getattr(options, name) is None}
    return config.with_values({"method": missing})


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None


def _config(path: Path, values: Mapping[str, Any], base: Config | None = None) -> Config:
    version = values.get("format", FORMAT)
    if type(version) is not int or version != FORMAT:
        raise ValueError(f"{path} has format {version!r}, this version of topkast reads format {FORMAT}")
    try:
        return (base or Config()).with_values({k: v for k, v in values.items() if k != "format"})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _has(values: Mapping[str, Any], name: str) -> bool:
    section, _, key = name.rpartition(".")
    return key in (values.get(section, {}) if section else values)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
