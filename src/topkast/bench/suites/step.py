"""Suite `step`: a whole training step of a network with its optimizer, and what choosing sets costs of it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.bench.contenders import Case, WrongResult, compare, measure
from topkast.bench.profile import PARTS, profile_step
from topkast.bench.ratios import Pair, Say, Table, ideal, show_pair, sparsities
from topkast.bench.report import Report
from topkast.bench.timing import Timing, time_in_turns
from topkast.convert import Handle, densify, sparsify
from topkast.core.select import top_k_portable
from topkast.methods import TopKAST
from topkast.models import Decoder, TransformerXL, resnet50
from topkast.text import times

STEP_PAIRS: tuple[Pair, ...] = ((0.9, 0.8), (0.95, 0.9))
MODELS = ("decoder", "transformer-xl", "resnet50")
_NEVER = 10**9
# How often A and B are chosen; the second is the default, the others are the paper's two.
_CLOCKS = ("(1, 1)", "(1, 100)", "(100, 100)")
_COLUMNS = ("ideal", "never", *_CLOCKS, *(f"share {clocks}" for clocks in _CLOCKS))


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        model: One of `MODELS`.
        width: Of the decoder or the Transformer-XL.
        depth: Its blocks.
        tokens: Per step, in windows of 128, or in segments of 512 with as many remembered.
        batch: Images of ResNet-50.
        side: Their pixels.
        pairs: Forward and backward sparsities.
        repeats: Rounds per measurement.
        profile: Whether to say where the time of each step goes.
    """

    model: str = "decoder"
    width: int = 1024
    depth: int = 2
    tokens: int = 1024
    batch: int = 8
    side: int = 224
    pairs: tuple[Pair, ...] = STEP_PAIRS
    repeats: int = 9
    profile: bool = False

    def __post_init__(self) -> None:
        for option, value, unit in (("--tokens", self.tokens, WINDOW), ("--width", self.width, HEAD)):
            if value > unit and value % unit:
                raise ValueError(f"{option} of the suite step must be a multiple of {unit}, got {value}")

    def subject(self) -> Subject:
        """The network that is timed."""
        if self.model == "resnet50":
            return residual(self.batch, self.side)
        make = transformer_xl if self.model == "transformer-xl" else decoder
        return make(self.width, self.depth, self.tokens)


class Trainer:
    """One model with its optimizer and its batch: `step` is an ordinary training step.

    Args:
        subject: What is trained.
        model: Made sparse here if there is a method.
        method: None trains dense.

    Attributes:
        after: Of each step, the seconds that topkast took when the optimizer was done.
    """

    def __init__(self, subject: Subject, model: nn.Module, method: TopKAST | None) -> None:
        self.subject, self.model = subject, model
        self.handle: Handle | None = None
        if method is not None:
            self.handle = sparsify(model, method, seed=0, keep_dense=subject.keep_dense)
        self.optimizer = subject.optimizer(model.parameters())
        self.after: list[float] = []
        # Hooks run in the order of their registration: the two readings of the clock enclose topkast's.
        self.optimizer.register_step_post_hook(lambda *_: self.after.append(-time.perf_counter()))
        if self.handle is not None:
            self.handle.attach(self.optimizer)
        self.optimizer.register_step_post_hook(lambda *_: self._stop())

    def _stop(self) -> None:
        self.after[-1] += time.perf_counter()

    def loss(self, model: nn.Module) -> Tensor:
        return self.subject.loss(model)

    def objective(self) -> Tensor:
        loss = self.loss(self.model)
        if self.handle is None or self.handle.method.applies_penalty:
            return loss
        return loss + 1e-4 * self.handle.penalty()

    def step(self) -> None:
        self.objective().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def run(settings: Settings, say: Say) -> Report:
    report = Report("step", asdict(settings))
    torch.manual_seed(0)
    subject = settings.subject()
    name = subject.name
    say("a training step with its optimizer: how many times faster than dense, by how often A and B are")
    say("chosen; and the share of the step that this takes")
    say("(ideal: of the sparse layers alone, without attention, norms and optimizer)\n")
    table = Table(name, _COLUMNS, max(44, len(name)))
    say(table.header())
    for pair in settings.pairs:
        timings, chosen = _measure(subject, pair, settings.repeats)
        dense = timings["dense"]
        shares = {n: chosen[n].ratio_to(timings[n]) if n in chosen else None for n in timings}
        report.rows += [
            {
                "case": name,
                **sparsities(pair),
                "contender": contender,
                **timing.as_record(),
                "ratio": dense.ratio_to(timing),
                "ideal": ideal(pair),
                "refresh_share": shares[contender],
            }
            for contender, timing in timings.items()
        ]
        ratios = [times(dense.ratio_to(timings[n])) for n in ("never", *_CLOCKS)]
        cells = [times(ideal(pair)), *ratios, *(f"{shares[n]:.1%}" for n in _CLOCKS)]
        say(table.line(show_pair(pair), cells))
    if settings.profile:
        _profile(subject, settings.pairs, report, say)
    _small_layer(settings, report, say)
    return report


def _profile(subject: Subject, pairs: tuple[Pair, ...], report: Report, say: Say) -> None:
    """Parts of a step in per cent of the dense step, and choosing A at every step as one of them."""
    torch.manual_seed(0)
    base = subject.model()
    columns: dict[str, dict[str, float]] = {}
    for name, pair in {"dense": None, **{show_pair(pair): pair for pair in pairs}}.items():
        kinds = {"plain": None if pair is None else subject.method(pair, refresh_every=_NEVER)}
        if pair is not None:
            kinds["every"] = subject.method(pair, refresh_every=1, exchange_every=_NEVER)
        trainers = {kind: Trainer(subject, copy.deepcopy(base), method) for kind, method in kinds.items()}
        timings = time_in_turns({kind: trainer.step for kind, trainer in trainers.items()}, 5)
        parts = profile_step(trainers["plain"].objective, trainers["plain"].optimizer)
        if pair is not None:
            parts["refresh"] = max(0.0, timings["every"].median - timings["plain"].median)
        columns[name] = parts
        report.rows += [
            {"case": subject.name, "contender": name, "part": p, "seconds": s} for p, s in parts.items()
        ]
    whole = sum(columns["dense"].values())
    table = Table("where a step's time goes, % of the dense step", tuple(columns), 44)
    say("\n" + table.header())
    for part in PARTS:
        say(table.line(part, [f"{100 * found[part] / whole:.1f}" for found in columns.values()]))


def _measure(subject: Subject, pair: Pair, repeats: int) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Times of a dense step, and of sparse ones by how often A and B are chosen; and of choosing alone.

    Three are measured: never, A at every step, both at every step. An exchange is the difference of the last
    to the others, with the new Plan that the next forward pass makes; spread over a hundred steps it gives
    the rest. A refresh is all done when the optimizer's step ends, so it is timed there: as a difference of
    whole steps it would drown in their noise.
    """
    torch.manual_seed(0)
    base = subject.model()
    methods = {
        "dense": None,
        "never": subject.method(pair, refresh_every=_NEVER),
        "A": subject.method(pair, refresh_every=1, exchange_every=_NEVER),
        "(1, 1)": subject.method(pair, refresh_every=1, exchange_every=1),
    }
    trainers = {name: Trainer(subject, copy.deepcopy(base), method) for name, method in methods.items()}
    check_gradients(trainers["never"], f"{subject.name}, {show_pair(pair)}")
    timings = time_in_turns({name: t.step for name, t in trainers.items()}, repeats)
    check_sets(trainers["A"], ("A",))
    check_sets(trainers["(1, 1)"], ("A", "B"))
    never, a, both = (timings[name].rounds for name in ("never", "A", "(1, 1)"))
    exchange = [max(0.0, y - x) for x, y in zip(a, both, strict=True)]
    after = [t.after[-repeats:] for t in (trainers["A"], trainers["never"])]
    refresh = [max(0.0, y - x) for y, x in zip(*after, strict=True)]
    chosen = {
        "(1, 1)": Timing.of([r + e for r, e in zip(refresh, exchange, strict=True)]),
        "(1, 100)": Timing.of([r + e / 100 for r, e in zip(refresh, exchange, strict=True)]),
        "(100, 100)": Timing.of([(r + e) / 100 for r, e in zip(refresh, exchange, strict=True)]),
    }
    timings["(1, 100)"] = Timing.of([x + e / 100 for x, e in zip(a, exchange, strict=True)])
    timings["(100, 100)"] = Timing.of(
        [x + c for x, c in zip(never, chosen["(100, 100)"].rounds, strict=True)]
    )
    del timings["A"]
    return timings, chosen


def check_gradients(trainer: Trainer, where: str) -> None:
    """Raises WrongResult unless loss and all gradients are those of the densified model in float64."""
    assert trainer.handle is not None
    dense, sparse = densify(trainer.model).double(), trainer.model
    if trainer.subject.is_sensitive:
        sparse = copy.deepcopy(sparse).double()
    sparse_loss, dense_loss = trainer.loss(sparse), trainer.loss(dense)
    compare(f"sparse {where}: loss", sparse_loss.detach(), dense_loss.detach())
    sparse_loss.backward()
    dense_loss.backward()
    weights = {f"{name}.weight.values": w for name, w in trainer.handle.weights.items()}
    for name, parameter in sparse.named_parameters():
        expected = dense.get_parameter(name.removesuffix(".values")).grad
        assert parameter.grad is not None
        assert expected is not None
        if name in weights:
            expected = expected.flatten()[weights[name].indices.long()]
        compare(f"sparse {where}: gradient of {name}", parameter.grad, expected)
    sparse.zero_grad()


def check_sets(trainer: Trainer, chosen: tuple[str, ...]) -> None:
    """Raises WrongResult unless these sets of every layer are the largest of its θ, as many as said."""
    assert trainer.handle is not None
    for name, weight in trainer.handle.weights.items():
        theta, indices = weight.theta().flatten(), weight.indices.long()
        for which, got, k in (
            ("A", indices[weight.active], weight.counts.forward),
            ("B", indices, weight.counts.backward),
        ):
            if which in chosen and not torch.equal(got, top_k_portable(theta, k)):
                raise WrongResult(f"set {which} of layer {name} is not the {k} largest of θ after a refresh")


def _small_layer(settings: Settings, report: Report, say: Say) -> None:
    """A layer too small to gain much: under `auto` it should not lose either."""
    sizes = {"tokens": 64, "inputs": 256, "outputs": 256}
    case = Case("Linear 256 → 256, 64 tokens", lambda: nn.Linear(256, 256), (64, 256), sizes)
    result = measure(case, (0.9, 0.8), ("auto",), repeats=20 * settings.repeats)
    report.rows += result.rows()
    chosen = result.engines["auto"]
    say(f"\n{case.name}, 90/80 %, forward + backward, {chosen}: {times(result.ratio('auto'))}")


NUM_SYMBOLS = 256
WINDOW = 128
HEAD = 64
_SEGMENT = 512


@dataclass(frozen=True)
class Subject:
    """A network in training.

    Attributes:
        name: For tables.
        model: Makes it, dense.
        loss: On one batch, always the same.
        optimizer: As the paper's experiments have it.
        keep_dense: Layers that stay dense, as for `topkast.sparsify`.
        is_sensitive: Whether float32 is too coarse for gradients to be compared element by element: at its
            start ResNet-50 turns rounding into differences of a tenth, dense and sparse alike, and queries
            of attention get gradients that are small differences of large numbers. Then they are compared in
            float64.
    """

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Any], Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    keep_dense: tuple[str, ...] = ()
    is_sensitive: bool = False

    def method(self, pair: Pair, **clocks: Any) -> TopKAST:
        """Top-KAST as it suits the optimizer: what `topkast train` does by default."""
        make = TopKAST.under_adam if self.optimizer is _adam else TopKAST
        return make(*pair, **clocks)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-4)


def decoder(width: int, depth: int, tokens: int) -> Subject:
    """A GPT-style decoder on windows of 128 symbols."""
    window = min(WINDOW, tokens)
    symbols = torch.randint(NUM_SYMBOLS, (tokens // window, window + 1))

    def loss(model: nn.Module) -> Tensor:
        logits = model(symbols[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), symbols[:, 1:].flatten())

    return Subject(
        f"decoder, width {width}, depth {depth}, {tokens} tokens",
        lambda: Decoder(NUM_SYMBOLS, width, depth, max(1, width // HEAD), window),
        loss,
        _adam,
    )


def transformer_xl(width: int, depth: int, tokens: int) -> Subject:
    """A Transformer-XL with d_ff = 4·width on segments of 512 symbols, with as many remembered."""
    segment = min(_SEGMENT, tokens)
    symbols = torch.randint(NUM_SYMBOLS, (tokens // segment, segment + 1))
    memory = torch.randn(depth, tokens // segment, segment, width)

    def loss(model: TransformerXL) -> Tensor:
        dtype = next(model.parameters()).dtype
        return model.loss(symbols[:, :-1], symbols[:, 1:], memory.to(dtype))[0]

    heads = max(1, width // HEAD)
    return Subject(
        f"Transformer-XL, width {width}, depth {depth}, {tokens} tokens and as many remembered",
        lambda: TransformerXL(
            NUM_SYMBOLS, depth=depth, d_model=width, num_heads=heads, d_ff=4 * width, memory_length=segment
        ),
        loss,
        _adam,
        is_sensitive=True,
    )


def residual(batch: int, side: int) -> Subject:
    """ResNet-50 on random images, with the paper's first and last layer dense."""
    images, labels = torch.randn(batch, 3, side, side), torch.randint(1000, (batch,))

    def loss(model: nn.Module) -> Tensor:
        dtype = next(model.parameters()).dtype
        return F.cross_entropy(model(images.to(dtype)), labels)

    return Subject(
        f"ResNet-50, {batch} images of {side} px",
        resnet50,
        loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        ("first", "last"),
        is_sensitive=True,
    )
