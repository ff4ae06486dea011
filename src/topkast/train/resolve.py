"""From options to the things they name: the task, the method, the network, the optimizer, its schedule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from topkast.convert import Handle, sparsify
from topkast.convert.origin import Init
from topkast.core.distribution import nearest
from topkast.core.initial import Initial, Normal, Scaled, parts_of
from topkast.data.datasets import DATA_SETS
from topkast.methods.base import Method
from topkast.methods.named import OPTIONS, Choice, named_method, settings_of
from topkast.methods.topkast import UNDER_ADAM
from topkast.models.network import Network
from topkast.models.simple import EMBEDDING_STD
from topkast.models.transformer_xl import INITIAL_STD, initialise
from topkast.nn.base import SparseLayer
from topkast.nn.find import find, wanted_groups
from topkast.train.config import Config, section_of
from topkast.train.extension import check_extensions, first_length, length_at
from topkast.train.image_tasks import PHOTO_MODELS, ImageTask, PhotoTask
from topkast.train.options import rules, set_values
from topkast.train.sections import ModelOptions
from topkast.train.task import Task
from topkast.train.text_tasks import RecurrentTask, TextTask


def resolve(config: Config, task: Task) -> Config:
    """The configuration with everything filled in that follows from the task and the optimizer."""
    check_extensions(config)
    check_device(config.train.device)
    config = with_defaults(config)
    steps = config.train.steps or task.steps
    sizes = task.sizes()
    batch = sizes.pop("batch")
    lr = task.lr if config.train.lr is None else config.train.lr
    values: dict[str, dict[str, Any]] = {
        "method": _settings(config, steps),
        "model": {**sizes, "model": task.network().name},
        "train": {
            "steps": steps,
            "lr": lr,
            **_adam_settings(config),
            "batch": batch,
            "threads": config.train.threads or torch.get_num_threads(),
        },
        "run": {
            "evaluate_every": config.run.evaluate_every or max(1, min(50, steps // 8)),
            "checkpoint_every": config.run.checkpoint_every or max(1, min(100, steps // 4)),
        },
    }
    return config.with_values(values)


def check_device(name: str) -> None:
    """Raises ValueError if nothing can be trained on a device of this name."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"train.device must be a device of torch such as cpu, cuda or cuda:1, got {name!r}"
        ) from None
    if device.type == "cpu":
        return
    backend: Any = getattr(torch, device.type, None)
    has_any = hasattr(backend, "is_available") and backend.is_available()
    if not has_any or (device.index or 0) >= backend.device_count():
        raise ValueError(
            f"train.device {name!r} is not there: torch {torch.__version__} finds no such device on this "
            "machine; leave it out to train on the CPU"
        )


# λ of the paper's penalty, where it is part of the gradient.
_PENALTY = 1e-4
# The factor of the complexity of gates.
_GATES = {"l0": 1e-5, "variational-dropout": 1e-5}
# The power p of lr·density⁻ᵖ under Adam (docs/method.md).
ADAM_RATE = 0.75


def with_defaults(config: Config) -> Config:
    """With what suits the optimizer, where nothing else is said.

    A sparse network takes lr·density⁻ᵖ under Adam, and Top-KAST has other settings there than the paper's
    letter. A decoder's weights outside of B are not stored.
    """
    options, is_adam = config.method, config.train.optimizer in ("adam", "adamw")
    train: dict[str, Any] = {}
    if config.train.sparse_rate is None:
        train["sparse_rate"] = ADAM_RATE if is_adam else "same"
    if config.train.whole_rate is None:
        train["whole_rate"] = is_adam
    method: dict[str, Any] = {}
    if options.reservoir is None:
        can_draw = options.method == "topkast" and _kind(config) is TextTask
        method["reservoir"] = "implicit" if can_draw else "stored"
    if options.method == "topkast":
        suited = UNDER_ADAM if is_adam and not options.letter else {}
        is_decoupled = bool(suited) and options.penalty_power == 2
        form = options.penalty_form or ("decoupled" if is_decoupled else "gradient")
        method["penalty_form"] = form
        if options.penalty is None:
            method["penalty"] = UNDER_ADAM["decay"] if form == "decoupled" else _PENALTY
        if options.exploration_rate is None and suited:
            method["exploration_rate"] = suited["exploration_rate"]
    if options.method in _GATES and options.penalty is None:
        method["penalty"] = _GATES[options.method]
    return config.with_values({"method": method, "train": train})


def _settings(config: Config, steps: int) -> dict[str, Any]:
    """Those of the method, so that what a run has written does not depend on defaults."""
    config = config.with_values({"train": {"steps": steps}})
    method = make_method(config)
    return {} if method is None else settings_of(config.method.method, _choice(config), method)


def _choice(config: Config) -> Choice:
    said = {name: getattr(config.method, name) for name in OPTIONS}
    return Choice(**said, steps=first_length(config), decay=_decay(config))


def make_method(config: Config) -> Method | None:
    """The method; None for a dense network.

    Raises:
        ValueError: Settings that the method does not have, or a schedule longer than the run.
    """
    config = with_defaults(config)
    options = config.method
    if options.method == "dense":
        return None
    method = named_method(options.method, _choice(config))
    assert config.train.steps is not None
    method.check_run(config.train.steps)
    return method


def _decay(config: Config) -> float | None:
    """λ, where the method applies the penalty itself."""
    options = config.method
    if options.method != "topkast" or options.penalty_form != "decoupled":
        return None
    if options.penalty_power != 2:
        raise ValueError(
            "method.penalty_power must be 2 with penalty_form 'decoupled', which takes a share of θ off each "
            f"weight, got {options.penalty_power}; leave it out, or use penalty_form 'gradient'"
        )
    return options.penalty


def make_optimizer(config: Config, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    options = config.train
    assert options.lr is not None
    settings = _adam_settings(config)
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum)
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=options.lr, betas=(_BETA1, settings["beta2"]), eps=settings["eps"])


# What torch's own Adam does.
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


def _adam_settings(config: Config) -> dict[str, float]:
    """β₂ and ε; nothing for an optimizer without them.

    Raises:
        ValueError: They are given for another optimizer, or β₂ is 1.
    """
    options = config.train
    given = {"beta2": options.beta2, "eps": options.eps}
    if options.optimizer == "sgd":
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"train.{name} is for adam and adamw, got {value!r} with sgd: leave it out")
        return {}
    if options.beta2 == 1:
        raise ValueError("train.beta2 must be below 1, got 1.0: Adam would never see a second moment")
    usual = {"beta2": _BETA2, "eps": _EPS}
    return {name: usual[name] if value is None else value for name, value in given.items()}


def make_schedule(config: Config, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    """A warm-up, then the rate as it is, along a line or half a cosine to zero, or in drops to a tenth."""
    lr = config.train.lr
    assert lr is not None
    warmup = max(1, round(config.train.warmup * first_length(config)))
    start = None if config.train.lr_start is None or lr == 0 else config.train.lr_start / lr
    drops = config.train.drops
    shapes: dict[str, Callable[[int, int], float]] = {
        "constant": lambda _step, _steps: 1.0,
        "linear": lambda step, steps: 1.0 - _share(step, warmup, steps),
        "cosine": lambda step, steps: 0.5 * (1 + math.cos(math.pi * _share(step, warmup, steps))),
        "drops": lambda step, steps: 0.1 ** sum(step >= share * steps for share in drops),
    }
    shape = shapes[config.train.schedule]

    def factor(step: int) -> float:
        if step >= warmup:
            return shape(step, length_at(config, step))
        return (step + 1) / warmup if start is None else start + (1 - start) * step / warmup

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def _share(step: int, warmup: int, steps: int) -> float:
    """How far a step is from the end of the warm-up to the last step."""
    return (step - warmup) / max(1, steps - warmup)


def dense_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of a dense network: weight decay for matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


_MODELS = {
    "text": ("decoder", "transformer-xl"),
    "images": ("mlp", "resnet9", "resnet20", "resnet18", "resnet50"),
}


def make_task(config: Config, *, is_unread: bool = False) -> Task:
    """The task, with its data read; a published set may stay unread for a forecast.

    Raises:
        ValueError: An option that this task does not have, or data that cannot be used.
        OSError: Data that cannot be read.
    """
    kind = _kind(config)
    fields = {f.name for f in dataclasses.fields(kind)}
    options = {**dict(set_values(config.model)), **_shared(config)}
    if kind in (TextTask, RecurrentTask):
        options.pop("model", None)
    for name in options:
        if name not in fields:
            takes = [option for option in rules(ModelOptions) if option in fields]
            what = config.model.model or config.data.task
            raise ValueError(
                f"{section_of(name)}.{name} is not taken by {what}; "
                f"of the network it takes {nearest(name, takes)}"
            )
    data = None if config.data.data is None else Path(config.data.data)
    if is_unread and config.data.dataset is not None:
        options["is_unread"] = True
    return kind(data=data, limit=config.data.limit, **options)  # pyright: ignore[reportCallIssue]


def _kind(config: Config) -> type[TextTask | RecurrentTask | ImageTask | PhotoTask]:
    """Which task the options are about."""
    task, model, dataset = config.data.task, config.model.model, config.data.dataset
    known = [name for name, data_set in DATA_SETS.items() if data_set.task == task]
    if dataset is not None and dataset not in known:
        raise ValueError(f"data.dataset must be one of {', '.join(known)} for {task}, got {dataset!r}")
    models = PHOTO_MODELS if dataset == "imagenet" else _MODELS[task]
    if model is not None and model not in models:
        raise ValueError(
            f"model.model must be one of {', '.join(models)} for {dataset or task}, got {model!r}"
        )
    if task == "text":
        is_recurrent = model == "transformer-xl" or (model is None and dataset is not None)
        return RecurrentTask if is_recurrent else TextTask
    return PhotoTask if dataset == "imagenet" else ImageTask


def _shared(config: Config) -> dict[str, Any]:
    """Options outside of [model] that tasks take, as far as they were chosen."""
    train = config.train
    chosen = {
        "dataset": config.data.dataset,
        "test_limit": config.data.test_limit,
        "validation": config.data.validation,
        "shuffled_labels": config.data.shuffled_labels,
        "batch": train.batch,
        "augment": train.augment,
        "label_smoothing": train.label_smoothing,
    }
    shared = {name: value for name, value in chosen.items() if value is not None}
    return shared if _kind(config) is TextTask else {**shared, "seed": train.seed}


def build(config: Config, network: Network, method: Method | None) -> tuple[nn.Module, Handle | None]:
    """The network and the handle to its sparse weights; None for a dense one.

    What is random comes from torch's global generator, which has to be seeded before.
    """
    options = config.method
    is_implicit = method is not None and options.reservoir == "implicit"
    with torch.device("meta" if is_implicit else "cpu"):
        model = network.build()
    if method is None:
        return model, None
    start: dict[str, Any] = {"init": _starts(config, model, _drawn(network) if is_implicit else {})}
    if is_implicit and network.name == "transformer-xl":
        start["initialise"] = partial(initialise, std=_initial_std(network))
    sparse = sparsify(
        model,
        method,
        **start,
        skip=list(options.skip) or None,
        keep_dense=options.keep_dense,
        distribution=options.distribution,
        budget="model" if options.budget == "model" else "layers",
        reservoir="implicit" if is_implicit else "stored",
        engine=options.engine,
        seed=config.train.seed,
    )
    if is_implicit and network.name == "transformer-xl":  # whose biases start at zero
        for layer in model.modules():
            if isinstance(layer, SparseLayer) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model, sparse


def _drawn(network: Network) -> dict[str, Initial]:
    """What layers are drawn from, by name or for all (`*`), where that is not what torch draws them from."""
    if network.name == "transformer-xl":
        return {"*": Normal(_initial_std(network))}
    if network.name == "decoder":
        return {"embedding": Normal(network.arguments.get("embedding_std", EMBEDDING_STD))}
    return {}


def _initial_std(network: Network) -> float:
    return network.arguments.get("initial_std", INITIAL_STD)


def _starts(config: Config, model: nn.Module, own: Mapping[str, Initial]) -> Init | None:
    """How each layer starts. Embeddings keep their own start: a row is looked up, and has no fan-in.

    Args:
        config: Says how the others start.
        model: Before it is sparse.
        own: See `_drawn`.
    """
    options = config.method
    groups = wanted_groups(find(model), list(options.skip) or None, options.keep_dense)
    own = {name: how for name, how in own.items() if name == "*" or name in {g.name for g in groups}}
    if options.init is None:
        return own or None
    wanted, by = parts_of(options.init)
    usual = own.get("*")
    how = Scaled(wanted or usual, by) if by is not None else wanted or usual or "own"
    embeddings = [g.name for g in groups if any(isinstance(m.layer, nn.Embedding) for m in g.members)]
    if len(embeddings) == len(groups):
        raise ValueError(f"method.init {options.init!r} is for sparse layers but embeddings: there is none")
    return {"*": how, **{name: own.get(name, usual or "own") for name in embeddings}}
