"""Suite `linear`: a Linear layer's forward and backward pass, our engines and the peers against dense."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import geometric_mean

from torch import nn

from topkast.bench.contenders import Case, Measurement, measure
from topkast.bench.peers import PEERS, Peer, find_peers
from topkast.bench.ratios import PAIRS, Pair, Peaks, Say, Table, break_even, ideal, show_pair, sparsities
from topkast.bench.report import Report
from topkast.text import times

SHAPES = ((1024, 1024), (1024, 4096), (4096, 1024))
# Sparsities, forward and backward alike, between which the break-even is looked for.
BREAK_EVEN_GRID = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_VERSUS = "against fastest peer"
_MEAN = "geometric mean"
_OF_PEAK = "of peak"


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        tokens: Rows of the input.
        shapes: Inputs and outputs of each layer.
        pairs: Forward and backward sparsities.
        engines: Of ours.
        has_peers: Whether the peers run beside us, which need equal sparsities.
        repeats: Rounds per measurement.
        precision: "bfloat16" runs dense and our engines under autocast besides.
    """

    tokens: int = 2048
    shapes: tuple[tuple[int, int], ...] = SHAPES
    pairs: tuple[Pair, ...] = PAIRS
    engines: tuple[str, ...] = ("native", "csr", "masked", "auto")
    has_peers: bool = False
    repeats: int = 9
    precision: str = "float32"

    def __post_init__(self) -> None:
        uneven = [show_pair(pair) for pair in self.pairs if pair[0] != pair[1]]
        if self.has_peers and uneven:
            raise ValueError(f"peers have one set only: forward and backward must be equal, got {uneven[0]}")


def run(settings: Settings, say: Say) -> Report:
    report = Report("linear", asdict(settings))
    peers: list[Peer] = []
    if settings.has_peers:
        peers, report.left_out = find_peers()
    has_bfloat16 = settings.precision == "bfloat16"
    halves = [f"{name}_bf16" for name in ("dense", *settings.engines)] if has_bfloat16 else []
    columns = [*settings.engines, *halves, *(peer.name for peer in peers)]
    peaks = Peaks.measure() if "native" in columns else None
    shares = [] if peaks is None else [_OF_PEAK]
    table = Table("sparsity", ["ideal", *columns, *shares, *([_VERSUS] if peers else [])])
    measured: dict[Pair, list[Measurement]] = {pair: [] for pair in settings.pairs}
    say("forward + backward of a Linear layer: how many times faster than dense (below 1: slower)")
    if peaks is not None:
        report.environment["peaks"] = asdict(peaks)
        say(f"{peaks}")
        say("of peak: the FLOP/s of native, counted on A and B alone, as a share of the first")
    for shape in settings.shapes:
        case = _case(settings.tokens, *shape)
        say(f"\nLinear {case.name}")
        say(table.header())
        for pair in settings.pairs:
            result = measure(
                case, pair, settings.engines, peers, repeats=settings.repeats, has_bfloat16=has_bfloat16
            )
            measured[pair].append(result)
            report.rows += result.rows()
            report.left_out |= result.left_out
            ratios = {name: result.ratio(name) for name in columns if name in result.timings}
            cells = _cells(report, case.name, pair, ratios)
            if peaks is not None:
                cells[_OF_PEAK] = f"{result.rate('native') / peaks.registers:.0%}"
            say(table.line(show_pair(pair), [cells.get(column, "-") for column in table.columns]))
    _overall(settings, report, measured, table, say)
    if "native" in settings.engines:
        _break_even(settings, report, say)
    for name, reason in report.left_out.items():
        say(f"left out: {name}: {reason}")
    return report


def _case(tokens: int, inputs: int, outputs: int) -> Case:
    sizes = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
    name = f"{inputs} → {outputs}, {tokens} tokens"
    return Case(name, lambda: nn.Linear(inputs, outputs), (tokens, inputs), sizes)


def _cells(report: Report, case: str, pair: Pair, ratios: dict[str, float]) -> dict[str, str]:
    """A line of the table, by column; native against the fastest peer is recorded as well."""
    cells = {name: times(ratio) for name, ratio in ratios.items()} | {"ideal": times(ideal(pair))}
    present = {peer.name: ratios[peer.name] for peer in PEERS if peer.name in ratios}
    if present and "native" in ratios:
        fastest = max(present, key=lambda name: present[name])
        versus = ratios["native"] / present[fastest]
        cells[_VERSUS] = f"{times(versus)} {fastest}"
        report.versus_peers.append(
            {
                "case": case,
                **sparsities(pair),
                "contender": "native",
                "fastest_peer": fastest,
                "ratio": versus,
            }
        )
    return cells


def _overall(
    settings: Settings, report: Report, measured: dict[Pair, list[Measurement]], table: Table, say: Say
) -> None:
    """The geometric mean over the shapes, for contenders that were measured on all of them."""
    several = len(settings.shapes) > 1
    if several:
        say(f"\n{_MEAN} of {len(settings.shapes)} shapes")
        say(table.header())
    for pair, results in measured.items():
        everywhere = [name for name in table.columns if all(name in result.timings for result in results)]
        ratios = {name: geometric_mean(result.ratio(name) for result in results) for name in everywhere}
        report.overall += [
            {
                **sparsities(pair),
                "contender": name,
                "ratio": ratio,
                "ideal": ideal(pair),
            }
            for name, ratio in ratios.items()
        ]
        if several:
            cells = _cells(report, _MEAN, pair, ratios)
            say(table.line(show_pair(pair), [cells.get(column, "-") for column in table.columns]))


def _break_even(settings: Settings, report: Report, say: Say) -> None:
    """Native against dense over a coarse grid, per shape and for their mean."""
    say("\nbreak-even of native, backward sparsity like forward")

    def record(name: str, ratios: list[float], rows: list[dict[str, object]]) -> None:
        found = break_even(BREAK_EVEN_GRID, ratios)
        say(f"{name}: {found}")
        report.break_even.append(
            {
                "case": name,
                "contender": "native",
                "sparsity": found.sparsity,
                "always": found.always,
                "sparsities": list(BREAK_EVEN_GRID),
                "ratios": ratios,
                "rows": rows,
            }
        )

    curves: list[list[float]] = []
    for shape in settings.shapes:
        case = _case(settings.tokens, *shape)
        results = [measure(case, (s, s), ("native",), repeats=settings.repeats) for s in BREAK_EVEN_GRID]
        curves.append([result.ratio("native") for result in results])
        record(case.name, curves[-1], [row for result in results for row in result.rows()])
    if len(curves) > 1:
        record(_MEAN, [geometric_mean(column) for column in zip(*curves, strict=True)], [])
