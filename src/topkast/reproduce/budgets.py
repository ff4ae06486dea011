"""What users decide by: sparse networks against dense ones that cost as much, on images and on text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from topkast.report.groups import Group
from topkast.reproduce.claims import Claim, Difference, Groups, Test, envelope, shared_seeds
from topkast.reproduce.experiment import Experiment, Row
from topkast.reproduce.recipes import Workload, other, topkast
from topkast.reproduce.vision import sparsities

PAIRS = ((0.8, 0.6), (0.9, 0.8), (0.95, 0.9), (0.98, 0.95))
# Narrower dense networks, by the name of their variant; each scale says how narrow they are.
LADDER = ("narrower 1", "narrower 2", "narrower 3", "narrower 4", "narrower 5")


def _flops(found: Group) -> float:
    return statistics.fmean(run.last.flops for run in found.runs.values())


BUDGETS: Mapping[str, Callable[[Group], float]] = {
    "parameters": lambda found: found.parameters,
    "FLOPs": _flops,
    "time": lambda found: found.seconds,
    "bytes": lambda found: found.bytes,
}
"""What a network costs: what it uses at the end, and what all of its training takes."""


def at_equal(budget: str, ours: str, dense: Sequence[str]) -> Test:
    """Ours beats the best that as much buys with dense networks, between two widths along a line."""

    def test(groups: Groups) -> list[Difference]:
        mine, ladder, cost = groups[ours], [groups[name] for name in dense], BUDGETS[budget]
        spent = cost(mine)
        values = []
        for seed in shared_seeds(mine, *ladder):
            points = [(math.log(cost(one)), one.sign * one.qualities[seed]) for one in ladder]
            values.append(mine.sign * mine.qualities[seed] - envelope(points, math.log(spent)))
        share = spent / cost(ladder[0])
        words = f"{ours} over dense ({100 * share:.3g} % of the widest one's {budget})"
        return [Difference(words, tuple(values), unit=mine.unit)]

    return test


_WORDS = {
    "parameters": "as many parameters",
    "FLOPs": "as many FLOPs",
    "time": "as much time",
    "bytes": "as many bytes in training",
}


def _equal(name: str, workload: Workload, what: str) -> Experiment:
    dense = ("dense", *(f"dense, {variant}" for variant in LADDER))
    ours = {pair: f"Top-KAST {sparsities(*pair)}" for pair in PAIRS}
    drawn = (("reservoir", "implicit"),)
    return Experiment(
        name=name,
        place="not in the paper",
        title=f"Against dense networks that cost as much ({what})",
        about="Dense networks of six widths make a line, on which the dense network of a cost is found. "
        "Costs are the parameters in use, and the FLOPs, the time and the bytes of training. Times are those "
        "of this machine, with one core for each run if two run at once. Weights outside of B are not "
        "stored.",
        rows=(
            Row("dense", other(workload, "dense")),
            *(Row(f"dense, {v}", other(workload, "dense", variant=v)) for v in LADDER),
            *(Row(label, topkast(workload, *pair, options=drawn)) for pair, label in ours.items()),
        ),
        claims=tuple(
            Claim(
                f"{100 * pair[0]:g} % sparsity is better than a dense network with {words}.",
                "ours",
                at_equal(budget, ours[pair], dense),
            )
            for pair in PAIRS
            for budget, words in _WORDS.items()
        ),
        figure="budgets",
    )


IMAGES = _equal("equal-images", "images", "images")
TEXT = _equal("equal-text", "bytes", "text")
