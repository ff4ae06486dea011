"""Suite `conv`: convolutions of ResNet-50, forward and backward, against dense."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch import nn

from topkast.bench.contenders import Case, Measurement, measure
from topkast.bench.ratios import PAIRS, Pair, Peaks, Say, Table, ideal, show_pair, sparsities
from topkast.bench.report import Report
from topkast.text import times

# Inputs, outputs, kernel, stride, height and width of the input.
RESNET50 = (
    (64, 64, 1, 1, 56),
    (64, 64, 3, 1, 56),
    (64, 256, 1, 1, 56),
    (256, 128, 1, 1, 56),
    (128, 128, 3, 2, 56),
    (128, 512, 1, 1, 28),
    (256, 256, 3, 1, 14),
    (1024, 256, 1, 1, 14),
    (512, 512, 3, 1, 7),
    (2048, 512, 1, 1, 7),
)


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        batch: Images.
        pairs: Forward and backward sparsities.
        engines: Of ours; one table each.
        repeats: Rounds per measurement.
    """

    batch: int = 16
    pairs: tuple[Pair, ...] = PAIRS
    engines: tuple[str, ...] = ("native",)
    repeats: int = 9


def run(settings: Settings, say: Say) -> Report:
    report = Report("conv", asdict(settings))
    say("forward + backward of ResNet-50's convolutions: how many times faster than dense (below 1: slower)")
    peaks = Peaks.measure() if "native" in settings.engines else None
    if peaks is not None:
        report.environment["peaks"] = asdict(peaks)
        say(f"{peaks}")
        say("beside each ratio of native: its FLOP/s, counted on A and B alone, as a share of the first")
    for engine in settings.engines:
        columns = [f"{show_pair(pair):>10}" for pair in settings.pairs]
        table = Table(f"{engine}, batch {settings.batch}", columns, 40)
        say("")
        say(table.header())
        totals = [(0.0, 0.0)] * len(settings.pairs)
        for layer in RESNET50:
            case = _case(settings.batch, *layer)
            results = [measure(case, pair, (engine,), repeats=settings.repeats) for pair in settings.pairs]
            totals = [_add(total, result, engine) for total, result in zip(totals, results, strict=True)]
            report.rows += [row for result in results for row in result.rows()]
            say(table.line(case.name, [_cell(result, engine, peaks) for result in results]))
        say(table.line("sum of times", [times(dense / sparse) for dense, sparse in totals]))
        say(table.line("ideal", [times(ideal(pair)) for pair in settings.pairs]))
        report.overall += [
            {
                **sparsities(pair),
                "contender": engine,
                "ratio": dense / sparse,
                "ideal": ideal(pair),
            }
            for pair, (dense, sparse) in zip(settings.pairs, totals, strict=True)
        ]
    return report


def _cell(result: Measurement, engine: str, peaks: Peaks | None) -> str:
    ratio = times(result.ratio(engine))
    if peaks is None or engine != "native":
        return ratio
    return f"{ratio} {result.rate(engine) / peaks.registers:.0%}"


def _case(batch: int, inputs: int, outputs: int, kernel: int, stride: int, size: int) -> Case:
    return Case(
        f"{inputs} → {outputs}, {kernel}×{kernel}, stride {stride}, {size}×{size}",
        lambda: nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        (batch, inputs, size, size),
        {"batch": batch, "inputs": inputs, "outputs": outputs, "kernel": kernel, "stride": stride}
        | {"size": size},
    )


def _add(total: tuple[float, float], result: Measurement, engine: str) -> tuple[float, float]:
    # The ratios are taken round by round; dense's median says how much a layer weighs.
    dense = result.timings["dense"].median
    return total[0] + dense, total[1] + dense / result.ratio(engine)
