"""Contenders: modules that do the same work, each checked against plain torch, then timed in turns."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata

import torch
from torch import Tensor, nn

from topkast.bench.ratios import Pair, ideal, show_pair, sparsities
from topkast.bench.timing import Timing, time_in_turns
from topkast.convert import densify, sparsify
from topkast.methods import TopKAST
from topkast.nn.base import SparseLayer


class WrongResult(RuntimeError):
    """A contender computed something else than the reference: its time means nothing."""


@dataclass(frozen=True)
class Contender:
    """A layer to be timed.

    Attributes:
        name: For tables.
        module: Takes the input, gives the output.
        weight: The Parameter that holds its weight, in whatever form.
        spread: From a gradient of `weight` to the dense weight's shape, zero where there is none.
        engine: Says which engine of ours computes it; None for others.
        dtype: Of its input, of the gradient that comes back, and of its products.
    """

    name: str
    module: nn.Module
    weight: nn.Parameter
    spread: Callable[[Tensor], Tensor]
    engine: Callable[[], str] | None = None
    dtype: torch.dtype = torch.float32


class Autocast(nn.Module):
    """A layer under autocast to bfloat16: its parameters keep 32 bits."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x)


def in_bfloat16(contender: Contender) -> Contender:
    """The same layer under autocast."""
    return dataclasses.replace(
        contender,
        name=f"{contender.name}_bf16",
        module=Autocast(contender.module),
        dtype=torch.bfloat16,
    )


class Peer(ABC):
    """A library to compare with.

    Attributes:
        name: For tables, and its import name.
        needs: Names it must have: some libraries share their name with another project.
    """

    name: str
    needs: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Why it cannot be used here, or None."""
        if importlib.util.find_spec(self.name) is None:
            return "not installed"
        try:
            module = importlib.import_module(self.name)
        except Exception as error:  # whatever its compiled part does
            return f"cannot be imported: {error}"
        lacking = [name for name in self.needs if not hasattr(module, name)]
        if lacking:
            return f"the package of this name is another project (it has no {' and no '.join(lacking)})"
        return None

    def version(self) -> str:
        try:
            return metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return "unknown"

    @abstractmethod
    def build(self, alpha: nn.Module, pair: Pair) -> Contender:
        """Its counterpart of a Linear layer whose weight is zero outside A."""


@dataclass(frozen=True)
class Work:
    """What every contender has to do: an input, and the gradient that comes back from above."""

    x: Tensor
    upstream: Tensor

    @classmethod
    def of(cls, layer: nn.Module, shape: tuple[int, ...]) -> Work:
        x = torch.randn(shape, requires_grad=True)
        with torch.no_grad():
            return cls(x, torch.randn_like(layer(x)))

    def rounded(self, dtype: torch.dtype) -> Work:
        """The same in another dtype."""
        if dtype == self.x.dtype:
            return self
        return Work(self.x.detach().to(dtype).requires_grad_(), self.upstream.to(dtype))

    def run(self, module: nn.Module) -> tuple[Tensor, ...]:
        """Forward and backward: gradients of the input and of all parameters."""
        return torch.autograd.grad(module(self.x), (self.x, *module.parameters()), self.upstream)


@dataclass(frozen=True)
class Expected:
    """What the work must give, in float64. The weight gradient is dense, zero outside B."""

    output: Tensor
    input_grad: Tensor
    weight_grad: Tensor


def dense(layer: nn.Module) -> Contender:
    """The dense layer itself."""
    weight = layer.get_parameter("weight")
    return Contender("dense", layer, weight, lambda grad: grad)


def ours(layer: nn.Module, pair: Pair, engine: str) -> Contender:
    """A sparse copy of the layer, computed by one of our engines."""
    model = nn.Sequential(copy.deepcopy(layer))
    sparsify(model, TopKAST(*pair), engine=engine, seed=0)
    sparse = model[0]
    assert isinstance(sparse, SparseLayer)
    weight = sparse.weight

    def spread(grad: Tensor) -> Tensor:
        flat = grad.new_zeros(weight.numel()).index_copy_(0, weight.indices.long(), grad)
        return flat.view(weight.shape)

    return Contender(engine, model, weight.values, spread, weight.describe_engine)


def alpha_layer(layer: nn.Module, pair: Pair) -> tuple[nn.Module, Tensor]:
    """The layer with α for its weight (zeros outside A), and B as a dense mask."""
    model = nn.Sequential(copy.deepcopy(layer))
    sparsify(model, TopKAST(*pair), engine="masked", seed=0)
    sparse = model[0]
    assert isinstance(sparse, SparseLayer)
    plain = densify(model)
    assert isinstance(plain, nn.Sequential)
    return plain[0], sparse.backward_mask()


def expect(alpha: nn.Module, backward_mask: Tensor, work: Work) -> Expected:
    """The reference: plain torch on α in float64, its weight gradient cut down to B."""
    wide = copy.deepcopy(alpha).double()
    x = work.x.detach().double().requires_grad_()
    y = wide(x)
    weight = wide.get_parameter("weight")
    input_grad, weight_grad = torch.autograd.grad(y, (x, weight), work.upstream.double())
    return Expected(y.detach(), input_grad, weight_grad * backward_mask)


def check(contender: Contender, expected: Expected, work: Work, where: str) -> None:
    """Raises WrongResult unless output and gradients are as expected, up to rounding."""
    work = work.rounded(contender.dtype)
    y = contender.module(work.x)
    got = torch.autograd.grad(y, (work.x, contender.weight), work.upstream)
    who = f"{contender.name} at {where}"
    allowed = 1e-4 if contender.dtype == torch.float32 else 1e-2  # operands are rounded to 8 bits
    compare(f"{who}: output", y.detach(), expected.output, allowed)
    compare(f"{who}: input gradient", got[0], expected.input_grad, allowed)
    compare(f"{who}: weight gradient", contender.spread(got[1]), expected.weight_grad, allowed)


def compare(what: str, got: Tensor, expected: Tensor, allowed: float = 1e-4) -> None:
    """Raises WrongResult if an element is off by more than `allowed` of itself and of the largest element.

    Rounding grows with the terms of a sum and not with its result, which may be near zero: hence the largest
    element. A missing term is far above it: about 1/√n of a typical element for sums of n terms.
    """
    if got.shape != expected.shape:
        raise WrongResult(f"{what} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
    error = (got.to(expected.dtype) - expected).abs()
    bad = ~(error <= allowed * (expected.abs() + expected.abs().max()))  # so that NaN is bad
    if bad.any():
        worst = float(error.max())
        raise WrongResult(
            f"{what} is wrong in {int(bad.sum())} of {bad.numel()} elements, by up to {worst:.3g}"
        )


# Long enough for the threads of another OpenMP runtime to stop spinning, see `time_in_turns`.
_PAUSE_WITH_PEERS = 0.005


@dataclass(frozen=True)
class Case:
    """A dense layer and an input for it.

    Attributes:
        name: For tables.
        build: Makes the layer.
        shape: Of the input.
        sizes: What the name says, as numbers, for the JSON file.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """Times of all contenders of one case at one pair, "dense" among them.

    Attributes:
        case: What was measured.
        pair: At which sparsities.
        timings: By contender.
        engines: Which engine of ours computed a contender.
        left_out: Who was not timed and where → why.
        flops: Of dense, forward and backward.
    """

    case: Case
    pair: Pair
    timings: dict[str, Timing]
    engines: dict[str, str]
    left_out: dict[str, str]
    flops: int

    def rate(self, name: str) -> float:
        """FLOP/s that are needed: those of A and B, or all for dense."""
        needed = self.flops if name.startswith("dense") else self.flops / ideal(self.pair)
        return needed / self.timings[name].median

    def ratio(self, name: str) -> float:
        """How many times faster than dense."""
        return self.timings["dense"].ratio_to(self.timings[name])

    def rows(self) -> list[dict[str, object]]:
        """One record per contender."""
        return [
            {
                "case": self.case.name,
                **self.case.sizes,
                **sparsities(self.pair),
                "contender": name,
                "engine": self.engines.get(name),
                **timing.as_record(),
                "ratio": self.ratio(name),
                "ideal": ideal(self.pair),
                "flops_per_second": self.rate(name),
            }
            for name, timing in self.timings.items()
        ]


def measure(
    case: Case,
    pair: Pair,
    engines: Sequence[str],
    peers: Sequence[Peer] = (),
    *,
    repeats: int,
    has_bfloat16: bool = False,
) -> Measurement:
    """Checks and times dense, our engines, and the peers (which need both sparsities to be equal).

    Raises:
        WrongResult: One of our engines is wrong. A peer that is wrong, or fails, is left out with the reason:
            it must not cost the figures of the others.
    """
    torch.manual_seed(0)
    layer = case.build()
    work = Work.of(layer, case.shape)
    where = f"{case.name}, {show_pair(pair)}"
    alpha, backward_mask = alpha_layer(layer, pair)
    expected = expect(alpha, backward_mask, work)
    field_of: dict[str, Contender] = {"dense": dense(layer)}
    for engine in engines:
        contender = ours(layer, pair, engine)
        check(contender, expected, work, where)
        field_of[engine] = contender
    if has_bfloat16:
        for name in ("dense", *engines):
            contender = in_bfloat16(field_of[name])
            if name != "dense":
                check(contender, expected, work, where)
            field_of[contender.name] = contender
    left_out: dict[str, str] = {}
    for peer in peers:
        try:
            contender = peer.build(alpha, pair)
            check(contender, expected, work, where)
            field_of[peer.name] = contender
        except Exception as error:  # whatever another library raises
            left_out[f"{peer.name} at {where}"] = str(error) or type(error).__name__
    runs = {name: partial(work.rounded(c.dtype).run, c.module) for name, c in field_of.items()}
    timings = time_in_turns(runs, repeats, pause=_PAUSE_WITH_PEERS if peers else 0.0)
    chosen = {name: c.engine() for name, c in field_of.items() if c.engine is not None}
    weight = layer.get_parameter("weight")
    flops = (
        3 * 2 * work.upstream.numel() // weight.shape[0] * weight.numel()
    )  # three products, multiply and add
    return Measurement(case, pair, timings, chosen, left_out, flops)
