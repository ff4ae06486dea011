"""Suite `inference`: a trained network's forward pass, our kernels against dense torch and onnxruntime.

For one row at a time, as who answers single requests has it, and for 64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from topkast.bench.contenders import WrongResult, compare
from topkast.bench.ratios import PAIRS, Pair, Say, Table, show_pair, sparsities
from topkast.bench.report import Report
from topkast.bench.timing import Timing, time_in_turns
from topkast.convert import densify, sparsify
from topkast.convert.onnx import check_onnx, to_onnx
from topkast.kernels import native
from topkast.methods import TopKAST
from topkast.text import times

ROWS = (1, 64)
# Long enough for OpenMP's threads to stop spinning; onnxruntime has threads of its own.
_PAUSE = 0.005
_COLUMNS = ("ideal", "native", "csr", "onnxruntime", "native against onnxruntime")


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        rows: How many rows the input has, one case for each.
        width: Inputs and outputs of the network; within it is four times as wide.
        depth: Hidden layers.
        pairs: Forward and backward sparsities.
        repeats: Rounds per measurement.
    """

    rows: tuple[int, ...] = ROWS
    width: int = 1024
    depth: int = 2
    pairs: tuple[Pair, ...] = PAIRS
    repeats: int = 30


def run(settings: Settings, say: Say) -> Report:
    report = Report("inference", asdict(settings))
    reason = missing_onnx()
    if reason is not None:
        report.left_out["onnxruntime"] = reason
    say("forward pass without gradients: how many times faster than dense torch (below 1: slower)")
    say("(ideal: 1/(1 - s) by FLOPs; onnxruntime computes the zeros too)")
    for rows in settings.rows:
        name = f"perceptron {_shape(settings)}, {rows} {'row' if rows == 1 else 'rows'}"
        say(f"\n{name}")
        table = Table("sparsity", _COLUMNS)
        say(table.header())
        for pair in settings.pairs:
            timings = _measure(settings, rows, pair, report.left_out)
            report.rows += _records(name, rows, pair, timings)
            say(table.line(show_pair(pair), _cells(pair, timings)))
    for who, why in report.left_out.items():
        say(f"left out: {who}: {why}")
    return report


def _shape(settings: Settings) -> str:
    return " → ".join(str(size) for size in _sizes(settings))


def _sizes(settings: Settings) -> list[int]:
    return [settings.width, *[4 * settings.width] * settings.depth, settings.width]


def perceptron(sizes: list[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _measure(settings: Settings, rows: int, pair: Pair, left_out: dict[str, str]) -> dict[str, Timing]:
    """Checks every contender against α in float64, then times them in turns."""
    torch.manual_seed(0)
    base, x = perceptron(_sizes(settings)).eval(), torch.randn(rows, settings.width)
    where = f"{rows} rows, {show_pair(pair)}"
    field: dict[str, Callable[[], Tensor]] = {"dense": lambda: base(x)}
    for engine in ("native", "csr"):
        if engine == "native" and native.why_missing() is not None:
            left_out["native"] = str(native.why_missing())
            continue
        field[engine] = _ours(base, pair, engine, x)
    alpha = _alpha(base, pair)
    if missing_onnx() is None:
        field["onnxruntime"] = Session(alpha, x).run
    with torch.inference_mode():
        expected = alpha.double()(x.double())
        for name in [name for name in field if name != "dense"]:
            try:
                compare(f"{name} at {where}: output", field[name](), expected)
            except WrongResult as error:
                if name != "onnxruntime":
                    raise
                left_out[f"{name} at {where}"] = str(error)
                del field[name]
        return time_in_turns(field, settings.repeats, pause=_PAUSE)


def _ours(base: nn.Module, pair: Pair, engine: str, x: Tensor) -> Callable[[], Tensor]:
    model = copy.deepcopy(base)
    sparsify(model, TopKAST(*pair), engine=engine, seed=0)
    model.eval()
    return lambda: model(x)


def _alpha(base: nn.Module, pair: Pair) -> nn.Module:
    """The network in plain torch, with zeros outside A."""
    model = copy.deepcopy(base)
    sparsify(model, TopKAST(*pair), engine="masked", seed=0)
    return densify(model).eval()


def _records(name: str, rows: int, pair: Pair, timings: dict[str, Timing]) -> list[dict[str, object]]:
    return [
        {
            "case": name,
            "tokens": rows,
            **sparsities(pair),
            "contender": contender,
            **timing.as_record(),
            "ratio": timings["dense"].ratio_to(timing),
            "ideal": 1 / (1 - pair[0]),
        }
        for contender, timing in timings.items()
    ]


def _cells(pair: Pair, timings: dict[str, Timing]) -> list[str]:
    cells = {name: times(timings["dense"].ratio_to(timing)) for name, timing in timings.items()}
    cells["ideal"] = times(1 / (1 - pair[0]))
    if "native" in timings and "onnxruntime" in timings:
        cells[_COLUMNS[-1]] = times(timings["onnxruntime"].ratio_to(timings["native"]))
    return [cells.get(column, "-") for column in _COLUMNS]


def missing_onnx() -> str | None:
    """Why onnxruntime cannot take part, or None if it can."""
    try:
        check_onnx()
        import onnxruntime  # noqa: F401
    except ImportError as error:
        return f"{error}; pip install 'topkast[onnx]' installs all of it"
    return None


class Session:
    """A network in onnxruntime, with as many threads as torch has.

    Args:
        model: In plain torch.
        x: Its input; `run` computes on it.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Its threads would spin for tens of milliseconds after a run, on the cores of whoever is timed next
        # (23 ms in place of 1.2 for ours); without spinning onnxruntime itself loses at most 5 %.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        content = to_onnx(model, x)
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._given = {"input": x.numpy()}

    def run(self) -> Tensor:
        (y,) = self._session.run(None, self._given)
        return torch.from_numpy(y)
