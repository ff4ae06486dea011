"""The sections of a run's options: every option with its default, its rule and its help."""

from __future__ import annotations

from dataclasses import dataclass

from topkast.core.rates import POWERS
from topkast.data.datasets import DATA_SETS
from topkast.kernels import engines
from topkast.methods.named import METHODS
from topkast.train.options import option

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
    patience: int | None = option(
        int, None, "stop after so many evaluations without a better quality", least=1, metavar="N"
    )
    extended: tuple[int, ...] | None = option(
        int, None, "of each extension, the step at which it was made and the steps before it",
        least=1, many=True, metavar="N,N",
    )  # fmt: skip
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
    track: tuple[str, ...] | None = option(
        str, None, "show the record in: tensorboard, wandb", many=True, choices=("tensorboard", "wandb"),
        metavar="LIST",
    )  # fmt: skip
    weights_from: str | None = option(str, None, "run whose weights it starts from", metavar="RUN")
    tensorboard: bool = option(bool, False, "the same as --track tensorboard")


SECTIONS: dict[str, type] = {
    "data": DataOptions,
    "model": ModelOptions,
    "method": MethodOptions,
    "train": TrainOptions,
    "run": RunOptions,
}
