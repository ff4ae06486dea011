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
MODELS = ("decoder", "transformer-xl", "mlp", "resnet9", "resnet20", "resnet18", "resnet50")
ENGINES = ("auto", *reversed(engines.ENGINES))


@dataclass(frozen=True)
class DataOptions:
    """What is learned."""

    task: str = option(str, "text", "text or images", choices=TASKS)
    data: str | None = option(
        str,
        None,
        "file or folder to learn from (text: Python's own sources; images: scikit-learn's digits)",
        metavar="PATH",
    )
    dataset: str | None = option(
        str, None, "a published data set: " + ", ".join(DATASETS), choices=DATASETS, metavar="NAME"
    )
    limit: int | None = option(
        int, None, "use only so many bytes, words or images for training", least=1, metavar="N"
    )
    validation: int | None = option(
        int, None, "hold out the last N training images in place of the test images (small images)",
        least=1, metavar="N",
    )  # fmt: skip
    shuffled_labels: bool | None = option(
        bool, None, "give the training images each other's labels: a control (small images)"
    )
    test_limit: int | None = option(
        int, None, "test on so many bytes or words at the end (xl; all of them)", least=2, metavar="N"
    )


@dataclass(frozen=True)
class ModelOptions:
    """The network. Each takes some of these; another one is answered with those it takes."""

    model: str | None = option(
        str, None, "decoder, transformer-xl (text); mlp, resnet9, resnet20, resnet18, resnet50 (images)",
        choices=MODELS, metavar="NAME",
    )  # fmt: skip
    width: int | None = option(
        int, None, "width of the residual stream (text) or of the first stage (resnet)", least=1, metavar="N"
    )
    depth: int | None = option(
        int, None, "number of blocks (text), or of layers, 6n + 2 (resnet20)", least=1, metavar="N"
    )
    heads: int | None = option(int, None, "number of attention heads (text)", least=1, metavar="N")
    inner: int | None = option(int, None, "width inside the feed-forward parts (xl)", least=1, metavar="N")
    window: int | None = option(int, None, "symbols the network sees at once (text)", least=2, metavar="N")
    active_share: float | None = option(
        float, None, "keep this share of the activations, the largest (decoder; 1)", least=0, most=1,
        metavar="S",
    )  # fmt: skip
    embedding_std: float | None = option(
        float, None, "standard deviation of the embedding at the start (decoder; 0.1)", least=0, metavar="S"
    )
    initial_std: float | None = option(
        float, None, "standard deviation of all weights at the start (xl; 0.02)", least=0, metavar="S"
    )
    memory: int | None = option(int, None, "symbols to remember in training (xl)", least=0, metavar="N")
    eval_memory: int | None = option(
        int, None, "symbols to remember in evaluation (xl)", least=0, metavar="N"
    )
    dropout: float | None = option(
        float, None, "share of activations to drop in training (xl)", least=0, most=1, metavar="P"
    )
    cutoffs: tuple[int, ...] | None = option(
        int,
        None,
        "vocabulary ranks at which the adaptive embedding gets narrower (xl)",
        least=1,
        many=True,
        metavar="N,N",
    )
    div_val: int | None = option(
        int, None, "factor by which it gets narrower at each cutoff (xl)", least=1, metavar="N"
    )
    hidden: tuple[int, ...] | None = option(
        int, None, "sizes of the hidden layers (mlp)", least=1, many=True, metavar="N,N"
    )
    side: int | None = option(int, None, "resize image files to this many pixels", least=1, metavar="N")


@dataclass(frozen=True)
class MethodOptions:
    """How it is sparse."""

    method: str = option(str, "topkast", ", ".join(METHODS), choices=METHODS, metavar="NAME")
    forward_sparsity: float | None = option(
        float, None, "share of weights that the forward pass leaves out (0.9)", least=0, metavar="S"
    )
    backward_sparsity: float | None = option(
        float,
        None,
        "share that the backward pass leaves out (topkast; by default it uses twice the weights)",
        least=0,
        metavar="S",
    )
    refresh_every: int | None = option(
        int, None, "choose the sets every N steps; for topkast, A within B (1)",
        least=1, metavar="N",
    )  # fmt: skip
    exchange_every: int | None = option(
        int, None, "choose B from all weights every N steps (100; topkast)",
        least=1, metavar="N",
    )  # fmt: skip
    penalty_warmup: int | None = option(
        int, None, "raise the penalty from 0 over the first N steps (0; l0, variational-dropout)",
        least=0, metavar="N",
    )  # fmt: skip
    begin: int | None = option(int, None, "begin to prune at this step (pruning)", least=0, metavar="T")
    t_end: int | None = option(
        int, None, "end the method's schedule, exploration or noise at this step", least=0, metavar="T"
    )
    exploration: str | None = option(
        str, None, "choose B∖A by: magnitude or random (topkast)", choices=("magnitude", "random"),
    )  # fmt: skip
    exploration_rate: float | None = option(
        float,
        None,
        "multiply the steps of B∖A by this (topkast; 0.1 for adam and adamw, else 1)",
        least=0,
        most=1,
        metavar="F",
    )
    exploration_warmup: int | None = option(
        int, None, "raise that factor from 0 over the first N steps (0; topkast)", least=0, metavar="N"
    )
    hysteresis: float | None = option(
        float, None, "a weight enters A only if it is F times as large as one that leaves (1; topkast)",
        least=1, metavar="F",
    )  # fmt: skip
    min_fan_in: int | None = option(
        int,
        None,
        "keep at least N weights of A for each output of a layer (0; topkast)",
        least=0,
        metavar="N",
    )
    min_fan_out: int | None = option(
        int, None, "keep at least N weights of A for each input of a layer (0; topkast)", least=0, metavar="N"
    )
    anneal: str | None = option(
        str, None, "start denser and get sparse along a curve: linear, cubic or cosine (topkast)",
        choices=("linear", "cubic", "cosine"), metavar="FORM",
    )  # fmt: skip
    anneal_from: float | None = option(
        float, None, "forward sparsity at the start of that curve (0; topkast)", least=0, most=1, metavar="S"
    )
    anneal_until: float | None = option(
        float,
        None,
        "share of the run after which the curve ends (0.75; topkast)",
        least=0,
        most=1,
        metavar="SHARE",
    )
    distribution: str = option(
        str,
        "uniform",
        "how sparsity is spread over layers: uniform, er or erk",
        choices=("uniform", "er", "erk"),
    )
    budget: str = option(
        str, "layers", "the sparsity is that of: layers (of each one) or model (all together)",
        choices=("layers", "model"),
    )  # fmt: skip
    keep_dense: tuple[str, ...] = option(
        str,
        (),
        "layers that stay dense: first, last, embeddings",
        many=True,
        choices=("first", "last", "embeddings"),
        metavar="LIST",
    )
    skip: tuple[str, ...] = option(
        str, (), "leave layers of these names or globs dense", many=True, metavar="LIST"
    )
    reservoir: str | None = option(
        str, None, "stored, or implicit: draw weights outside B again (topkast; implicit for a decoder)",
        choices=("stored", "implicit"),
    )  # fmt: skip
    init: str | None = option(
        str, None, "how sparse layers start, such as lecun_normal or keep_variance (as in torch)",
        metavar="NAME",
    )  # fmt: skip
    engine: str = option(str, "auto", "kernels to use: auto, native, csr or masked", choices=ENGINES)
    letter: bool = option(bool, False, "follow the paper's letter under adam and adamw too (topkast)")
    penalty: float | None = option(
        float, None, "factor of the penalty (topkast: decoupled 0.3, else 0.0001; l0 and the like: 0.00001)",
        least=0, metavar="λ",
    )  # fmt: skip
    penalty_form: str | None = option(
        str, None, "decoupled, like AdamW's decay (adam, adamw), or gradient: part of the loss (topkast)",
        choices=("gradient", "decoupled"),
    )  # fmt: skip
    penalty_power: int = option(int, 2, "power of θ in the penalty: 2 or 1", least=1, most=2, metavar="P")


@dataclass(frozen=True)
class TrainOptions:
    """How it is trained."""

    steps: int | None = option(
        int, None, "number of optimizer steps (about a minute's worth)", least=1, metavar="N"
    )
    minutes: float | None = option(
        float, None, "stop after this time, with a checkpoint", least=0, metavar="M"
    )
    batch: int | None = option(int, None, "number of windows or images per step", least=1, metavar="N")
    optimizer: str = option(str, "adamw", "optimizer: adamw, adam or sgd", choices=("adamw", "adam", "sgd"))
    lr: float | None = option(float, None, "learning rate of the dense network", least=0, metavar="η")
    lr_start: float | None = option(
        float, None, "learning rate of the first step of the warm-up", least=0, metavar="η"
    )
    sparse_rate: float | str | None = option(
        float, None,
        "sparse layers learn with lr·density⁻ᵖ: p, or same (sgd), sqrt, inverse (adam, adamw: 0.75)",
        words=tuple(POWERS), least=0, metavar="P",
    )  # fmt: skip
    whole_rate: bool | None = option(
        bool, None, "use that rule for biases and other dense parts too (adam and adamw do)"
    )
    same_rate: tuple[str, ...] = option(
        str, (), "sparse layers of these names or globs keep the dense rate", many=True, metavar="LIST"
    )
    momentum: float = option(float, 0.9, "momentum of sgd", least=0, most=1)
    beta2: float | None = option(
        float, None, "β₂ of adam and adamw, below 1 (0.999)", least=0, most=1, metavar="β"
    )
    eps: float | None = option(float, None, "ε of adam and adamw (1e-8)", least=0, metavar="ε")
    weight_decay: float = option(
        float, 0.0, "weight decay of what is dense; sparse weights have the penalty", least=0
    )
    schedule: str = option(
        str,
        "cosine",
        "learning rate over time: cosine, linear, drops or constant",
        choices=("cosine", "linear", "drops", "constant"),
    )
    drops: tuple[float, ...] = option(
        float, (0.3, 0.6, 0.8), "divide the rate by 10 at these shares of the run (schedule drops)",
        least=0, most=1, many=True, metavar="S,S",
    )  # fmt: skip
    warmup: float = option(
        float, 0.05, "share of the steps in which the learning rate rises to its full value", least=0, most=1
    )
    clip: float = option(float, 1.0, "clip the gradients' norm to this; 0 for never", least=0)
    clip_rms: float = option(float, 0.0, "clip their root mean square to this; 0 for never", least=0)
    label_smoothing: float | None = option(
        float, None, "spread this share of the target over all classes (images)", least=0, most=1, metavar="S"
    )
    augment: bool | None = option(bool, None, "shift and mirror images (resnets do)")
    precision: str = option(
        str, "float32", "compute in float32 or bfloat16 (autocast)", choices=("float32", "bfloat16")
    )
    patience: int | None = option(
        int, None, "stop after N evaluations in a row without a better quality", least=1, metavar="N"
    )
    extended: tuple[int, ...] | None = option(
        int, None, "of each extension, the step at which it was made and the steps before it",
        least=1, many=True, metavar="N,N",
    )  # fmt: skip
    seed: int = option(int, 0, "seed of everything random", least=0, most=2**62)
    threads: int | None = option(int, None, "number of processor threads (all)", least=1, metavar="N")
    device: str = option(
        str, "cpu", "device to compute on; the fast kernels are for the cpu, others are no faster than dense",
        metavar="NAME",
    )  # fmt: skip


@dataclass(frozen=True)
class RunOptions:
    """What is kept and shown."""

    reference: tuple[str, ...] = option(
        str, ("static", "dense", "small"),
        "networks to train beside it: static, dense, small (dense, as many parameters) or none", many=True,
        choices=("static", "dense", "small", "none"), metavar="LIST",
    )  # fmt: skip
    evaluate_every: int | None = option(int, None, "evaluate every N steps (50)", least=1, metavar="N")
    checkpoint_every: int | None = option(
        int, None, "write a checkpoint every N steps (100)", least=1, metavar="N"
    )
    keep: int = option(int, 2, "number of checkpoints to keep, besides the best", least=1, metavar="N")
    track: tuple[str, ...] | None = option(
        str, None, "also log to: tensorboard, wandb", many=True, choices=("tensorboard", "wandb"),
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
