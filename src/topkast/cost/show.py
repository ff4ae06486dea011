"""A forecast as people read it, beside the dense model's figures, and as data."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from topkast.cost.accounting import Flops
from topkast.cost.forecast import Forecast, ring_bytes, seconds, why_alone
from topkast.cost.memory import PARTS
from topkast.methods.base import Method, grows_by_gradient
from topkast.text import BYTES, COUNTS, aligned, scaled

WIDTH = 100
_LIMIT = 999.95  # what rounds to 1000 has the next unit
_PASSES = ("forward", "input_grad", "weight_grad")
_LABELS = {"weight": "values", "plan": "Plan"}
_Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Machines:
    """What a model is to be trained on.

    Attributes:
        workers: How many train it together, each on its own part of the batch.
        link: What each can send, in Gbit/s, if it is known.
        memory: Bytes of each, if they are known.
    """

    workers: int = 1
    link: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"`workers` must be at least 1, got {self.workers}")
        if self.link is not None and not 0 < self.link < float("inf"):
            raise ValueError(f"`link` must be a speed above 0 in Gbit/s, got {self.link!r}")
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"`memory` must be at least one byte, got {self.memory}")


def table(forecast: Forecast, machines: Machines) -> str:
    """Parameters, FLOPs, bytes, traffic and the largest model, a section each."""
    sections = [_parameters(forecast), _flops(forecast), _bytes(forecast)]
    if machines.workers > 1:
        sections.append(_traffic(forecast, machines))
    if machines.memory is not None:
        sections.append(_largest(forecast, machines.memory))
    header = ("", "dense", "sparse", "share")
    lines = iter(aligned([header, *(row for section in sections for row in section)]))
    head = next(lines)
    blocks = ["\n".join(next(lines).rstrip() for _ in section) for section in sections]
    return f"\n{'─' * len(head)}\n".join([head, *blocks])


def notes(forecast: Forecast, method: Method, machines: Machines, returned: float | None) -> list[str]:
    """What the figures assume, and what stands in the way; `returned` is None for a stored reservoir."""
    name = type(method).__name__
    said = [
        "Activations, the model's own buffers, and what a product or a refresh needs for a moment are not in "
        "the bytes. The Plan is that of the native engine, for elements placed at random."
    ]
    if returned is not None and method.fetches:
        said.append(f"The implicit reservoir is that of a run in which {returned:.3g} of C has been in B.")
    if method.resizes and method.plans_sizes:
        said.append(
            f"The sets of {name} change their sizes by a schedule: bytes and traffic are those of the "
            "largest, FLOPs of a step those of the end."
        )
    if method.learns_sparsity:
        said.append(f"{name} learns how sparse it becomes: everything is counted as dense as it starts.")
    if machines.workers > 1:
        said.append(
            "Sent is what a ring all-reduce of the gradients takes. Sets are chosen by each worker and not "
            "sent." + _sent_besides(forecast, method, machines)
        )
    reason = why_alone(method)
    if reason is not None and machines.workers > 1:
        said.append(f"{name} {reason}: it cannot run with several workers today, `Handle.attach` refuses it.")
    return [textwrap.fill(note, WIDTH) for note in said]


def _sent_besides(forecast: Forecast, method: Method, machines: Machines) -> str:
    said = ""
    if grows_by_gradient(method):
        dense = bytes_text(ring_bytes(forecast.dense["gradient"], machines.workers))
        said += f" {type(method).__name__} adds up the dense gradient of the steps it grows by: {dense} more."
    if forecast.buffer_bytes:
        said += (
            " DistributedDataParallel by default sends the model's own buffers round before each forward "
            f"pass: {bytes_text(forecast.buffer_bytes)} more."
        )
    return said


def data(forecast: Forecast, machines: Machines) -> dict[str, Any]:
    """The same figures, for a file."""
    sent = [
        ring_bytes(gradients, machines.workers)
        for gradients in (forecast.dense_gradient_bytes, forecast.sparse_gradient_bytes)
    ]
    largest = None if machines.memory is None else _pair(*forecast.largest(machines.memory))
    link = machines.link
    return {
        "machines": asdict(machines),
        "parameters": _pair(forecast.parameters.dense, forecast.parameters.used),
        "flops_per_step": _flops_data(forecast.step),
        "flops_of_run": None if forecast.run is None else _flops_data(forecast.run),
        "bytes": {
            "sparse": forecast.sparse,
            "dense": forecast.dense,
            "rest": forecast.rest,
            "total": _pair(forecast.dense_bytes, forecast.sparse_bytes),
        },
        "sent_per_step": _pair(*sent),
        "seconds_per_step": None if link is None else _pair(*(seconds(s, link) for s in sent)),
        "buffer_bytes": forecast.buffer_bytes,
        "largest": largest,
        "layers": {name: asdict(counts) for name, counts in forecast.survey.counts.items()},
        "left_dense": forecast.survey.left_dense,
    }


def bytes_text(count: float) -> str:
    """With four digits and a decimal unit."""
    return scaled(count, BYTES, limit=_LIMIT)


# ---- sections -----------------------------------------------------------------------------------------


def _parameters(forecast: Forecast) -> list[_Row]:
    p = forecast.parameters
    in_b = sum(c.backward for c in forecast.survey.counts.values())
    return [
        ("parameters in use", f"{p.dense:,}", f"{p.used:,}", _share(p.used, p.dense)),
        ("parameters trained", f"{p.dense:,}", f"{in_b + p.rest:,}", _share(in_b + p.rest, p.dense)),
    ]


def _flops(forecast: Forecast) -> list[_Row]:
    step, dense = forecast.step, _as_dense(forecast.step)
    rows = [
        _row(name.replace("_grad", " gradient"), getattr(dense, name), getattr(step, name), _count)
        for name in _PASSES
    ]
    rows.append(_row("FLOPs of a step", dense.total, step.total, _count))
    if forecast.run is not None:
        rows.append(_row("FLOPs of the run", forecast.run.dense_total, forecast.run.total, _count))
    return rows


def _bytes(forecast: Forecast) -> list[_Row]:
    rows = [
        _row(_LABELS.get(part, part), forecast.dense[part], forecast.sparse[part], bytes_text)
        for part in PARTS
        if forecast.dense[part] or forecast.sparse[part]
    ]
    rest = sum(forecast.rest.values())
    rows.append(_row("dense rest, all of it", rest, rest, bytes_text))
    rows.append(_row("bytes per worker", forecast.dense_bytes, forecast.sparse_bytes, bytes_text))
    return rows


def _traffic(forecast: Forecast, machines: Machines) -> list[_Row]:
    gradients = (forecast.dense_gradient_bytes, forecast.sparse_gradient_bytes)
    dense, sparse = (ring_bytes(g, machines.workers) for g in gradients)
    rows = [_row(f"sent per step, {machines.workers} workers", dense, sparse, bytes_text)]
    if machines.link is not None:
        slow, fast = seconds(dense, machines.link), seconds(sparse, machines.link)
        rows.append(_row(f"at {machines.link:g} Gbit/s", slow, fast, lambda s: f"{s:.3g} s"))
    return rows


def _largest(forecast: Forecast, memory: int) -> list[_Row]:
    dense, sparse = forecast.largest(memory)
    ratio = f"{sparse / dense:.2f}×" if dense else ""
    return [(f"parameters that fit {bytes_text(memory)}", f"{dense:,}", f"{sparse:,}", ratio)]


def _row(label: str, dense: float, sparse: float, text: Any) -> _Row:
    return label, text(dense) if dense else "", text(sparse) if sparse else "", _share(sparse, dense)


def _as_dense(flops: Flops) -> Flops:
    return flops.at({layer.name: (1.0, 1.0) for layer in flops.layers})


def _flops_data(flops: Flops) -> dict[str, Any]:
    dense = _as_dense(flops)
    return {name: _pair(getattr(dense, name), getattr(flops, name)) for name in (*_PASSES, "total")}


def _pair(dense: float, sparse: float) -> dict[str, float]:
    return {"dense": dense, "sparse": sparse}


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _count(count: float) -> str:
    return scaled(count, COUNTS, limit=_LIMIT)
