"""Forward passes without gradients: dense torch, our engines and onnxruntime on the same network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from topkast.bench.contenders import WrongResult, compare
from topkast.bench.ratios import Pair, sparsities
from topkast.bench.timing import Timing, time_in_turns
from topkast.convert import densify, sparsify
from topkast.convert.onnx import check_onnx, to_onnx
from topkast.kernels import native
from topkast.methods import TopKAST

# Long enough for OpenMP's threads to stop spinning; onnxruntime has threads of its own.
_PAUSE = 0.005


def measure_forward(
    base: nn.Module,
    x: Tensor,
    pair: Pair,
    *,
    contenders: Sequence[str],
    where: str,
    repeats: int,
    left_out: dict[str, str],
) -> dict[str, Timing]:
    """Checks every contender against α in float64, then times them in turns.

    Args:
        base: The dense network.
        x: Its input.
        pair: The sparsities.
        contenders: Beside "dense": "native", "csr", "onnxruntime".
        where: Names the case in errors.
        repeats: Rounds.
        left_out: Who is not timed, and why, is added here.

    Raises:
        WrongResult: One of our engines is wrong.
    """
    field: dict[str, Callable[[], Tensor]] = {"dense": lambda: base(x)}
    for engine in (name for name in contenders if name != "onnxruntime"):
        if engine == "native" and native.why_missing() is not None:
            left_out["native"] = str(native.why_missing())
            continue
        field[engine] = _ours(base, pair, engine, x)
    alpha = _alpha(base, pair)
    if "onnxruntime" in contenders and (reason := missing_onnx()) is not None:
        left_out["onnxruntime"] = reason
    elif "onnxruntime" in contenders:
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
        return time_in_turns(field, repeats, pause=_PAUSE if "onnxruntime" in field else 0.0)


def forward_records(
    case: str, sizes: dict[str, int], pair: Pair, timings: dict[str, Timing]
) -> list[dict[str, object]]:
    """What reports keep of these timings; the ideal is by FLOPs."""
    return [
        {
            "case": case,
            **sizes,
            **sparsities(pair),
            "contender": contender,
            **timing.as_record(),
            "ratio": timings["dense"].ratio_to(timing),
            "ideal": 1 / (1 - pair[0]),
        }
        for contender, timing in timings.items()
    ]


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
