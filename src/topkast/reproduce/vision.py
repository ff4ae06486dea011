"""The paper's experiments on ImageNet: Figure 2, Table 1, Figures 3a and 3b, and two of the appendix."""

from __future__ import annotations

from collections.abc import Sequence

from topkast.methods.named import METHODS
from topkast.report.groups import Group
from topkast.reproduce.claims import Claim, Difference, Groups, Test, at_equal_flops, beats
from topkast.reproduce.experiment import Experiment, Row
from topkast.reproduce.recipes import Workload, other, topkast

W: Workload = "images"
# What counts as comparable: points of accuracy.
_EQUAL = 1.0


def sparsities(forward: float, backward: float) -> str:
    """Such as "90/80"."""
    return f"{100 * forward:g}/{100 * backward:g}"


def row(forward: float, backward: float, suffix: str = "", **more: object) -> Row:
    """A row of Top-KAST."""
    return Row(f"Top-KAST {sparsities(forward, backward)}{suffix}", topkast(W, forward, backward, **more))


def rivals(forward: float, methods: Sequence[str] = ("static", "set", "rigl", "pruning")) -> list[Row]:
    """Rows of other methods at one sparsity."""
    return [Row(f"{METHODS[name].title} {100 * forward:g}", other(W, name, forward)) for name in methods]


_DENSE = Row("dense", other(W, "dense"))
_FRONTIER = ("Top-KAST 80/80", "Top-KAST 80/50", "Top-KAST 80/0", "Top-KAST 80/80, 2×", "Top-KAST 80/50, 2×")
FIGURE_2A = Experiment(
    name="figure-2a",
    place="Figure 2a",
    title="Accuracy against the FLOPs of training, at 80 % forward sparsity",
    about="FLOPs are those of the whole training run, as a share of a dense run of the usual length. “2×” "
    f"marks runs of twice that length. Comparable means within {_EQUAL:g} point of accuracy.",
    rows=(
        _DENSE,
        *rivals(0.8),
        *(row(0.8, backward) for backward in (0.8, 0.5, 0.0)),
        *(row(0.8, backward, ", 2×", length=2.0) for backward in (0.8, 0.5)),
    ),
    claims=(
        Claim(
            "Top-KAST is comparable with pruning at equal FLOPs.",
            "section 3, Figure 2a",
            at_equal_flops(_FRONTIER, "pruning 80", _EQUAL),
        ),
        Claim(
            "Top-KAST is comparable with RigL per FLOP.",
            "section 3, “Comparing RigL and Top-KAST”",
            at_equal_flops(_FRONTIER, "RigL 80", _EQUAL),
        ),
        Claim(
            "Top-KAST (80/50) outperforms the always-sparse SET and static masks.",
            "section 3, Figure 2a",
            beats(("Top-KAST 80/50", "SET 80"), ("Top-KAST 80/50", "static 80")),
        ),
        Claim(
            "A longer run makes Top-KAST better.",
            "Figure 2a",
            beats(("Top-KAST 80/50, 2×", "Top-KAST 80/50"), ("Top-KAST 80/80, 2×", "Top-KAST 80/80")),
        ),
    ),
    figure="flops",
)

FIGURE_2B = Experiment(
    name="figure-2b",
    place="Figure 2b",
    title="Accuracy against mean backward sparsity, at 80, 90 and 95 % forward sparsity",
    about="The backward sparsity is the mean over all steps of a run. RigL computes dense gradients at some "
    "steps, and pruning starts dense: both lower the mean.",
    rows=(
        _DENSE,
        *(r for s in (0.8, 0.9, 0.95) for r in rivals(s)),
        *(row(0.8, backward) for backward in (0.8, 0.5, 0.0)),
        *(row(0.9, backward) for backward in (0.9, 0.8, 0.5)),
        *(row(0.95, backward) for backward in (0.95, 0.9, 0.5)),
    ),
    claims=(
        Claim(
            "A lower backward sparsity makes Top-KAST better.",
            "section 3, Figure 2b",
            beats(
                ("Top-KAST 80/50", "Top-KAST 80/80"),
                ("Top-KAST 90/80", "Top-KAST 90/90"),
                ("Top-KAST 95/90", "Top-KAST 95/95"),
            ),
        ),
        Claim(
            "Top-KAST outperforms SET and static masks at 90 and 95 % as well.",
            "section 3, Figure 2b",
            beats(
                *(
                    (f"Top-KAST {ours}", f"{rival} {s}")
                    for ours, s in (("90/80", 90), ("95/90", 95))
                    for rival in ("SET", "static")
                )
            ),
        ),
    ),
    figure="backward",
)

FIGURE_2C = Experiment(
    name="figure-2c",
    place="Figure 2c",
    title="Top-KAST and RigL at 98 and 99 % sparsity",
    about="The rows of Top-KAST differ in backward sparsity, down to 90 %.",
    rows=(
        *rivals(0.98, ("static", "rigl")),
        *(row(0.98, backward) for backward in (0.97, 0.95, 0.9)),
        *rivals(0.99, ("static", "rigl")),
        *(row(0.99, backward) for backward in (0.98, 0.95, 0.9)),
    ),
    claims=(
        Claim(
            "Top-KAST surpasses RigL at 98 and 99 %.",
            "section 3, Figure 2c",
            beats(("Top-KAST 98/95", "RigL 98"), ("Top-KAST 99/95", "RigL 99")),
        ),
        Claim(
            "A slightly lower backward sparsity greatly helps at 98 and 99 %.",
            "section 3, “Comparing RigL and Top-KAST”",
            beats(("Top-KAST 98/95", "Top-KAST 98/97"), ("Top-KAST 99/95", "Top-KAST 99/98")),
        ),
    ),
    figure="high_sparsity",
)

_T = {0: 0.0, 5000: 5 / 32, 16000: 0.5, 32000: None}


def _stopped(t: int) -> Row:
    return row(0.9, 0.0, f" (t = {t})", stop=_T[t])


TABLE_1 = Experiment(
    name="table-1",
    place="Table 1",
    title="Random exploration, and stopping exploration at step t of 32,000",
    about="Exploration trains the weights of B∖A, which the network does not use yet. It stops at step t, "
    "scaled with the length of our runs; with t = 32000 it never stops. “Random” rows choose B∖A at random "
    "and not by magnitude.",
    rows=(
        row(0.9, 0.8),
        row(0.9, 0.8, " (random)", exploration="random"),
        row(0.95, 0.9),
        row(0.95, 0.9, " (random)", exploration="random"),
        *(_stopped(t) for t in _T),
    ),
    claims=(
        Claim(
            "Without exploration (t = 0) Top-KAST is much worse; a sixth of the run with it already helps.",
            "section 3.1, Table 1",
            beats(
                ("Top-KAST 90/0 (t = 5000)", "Top-KAST 90/0 (t = 0)"),
                ("Top-KAST 90/0 (t = 32000)", "Top-KAST 90/0 (t = 0)"),
            ),
        ),
        Claim(
            "Exploring for half of the run recovers most of the benefit (within "
            f"{_EQUAL:g} point of never stopping).",
            "section 3.1, Table 1",
            beats(("Top-KAST 90/0 (t = 16000)", "Top-KAST 90/0 (t = 32000)"), margin=_EQUAL),
        ),
        Claim(
            "Random exploration is better at 90 %.",
            "section 3.1, Table 1",
            beats(("Top-KAST 90/80 (random)", "Top-KAST 90/80")),
        ),
        Claim(
            "Random exploration is worse at 95 %.",
            "section 3.1, Table 1",
            beats(("Top-KAST 95/90", "Top-KAST 95/90 (random)")),
        ),
    ),
    figure="dots",
)

# ---- Figure 3: the masks ------------------------------------------------------------------------------

_MASKED = Row("Top-KAST 80/50", topkast(W, 0.8, 0.5, masks=True))


def mask_series(found: Group, seed: int) -> list[float]:
    """Mean over layers of the share of units that change from one comparison of masks to the next."""
    return [sum(m["layers"].values()) / len(m["layers"]) for m in found.results[seed]["masks"]]


def _settles(groups: Groups) -> list[Difference]:
    found = groups[_MASKED.label]
    series = [mask_series(found, seed) for seed in found.results]
    values = tuple(100 * (s[0] - s[-1]) for s in series if len(s) > 1)
    return [Difference("change of the mask at the first comparison minus the last", values, unit="points")]


def activated(found: Group, seed: int, at: int = -1) -> float:
    """Share of the initial C that has been in A by a record of the run: mean over layers, per cent."""
    layers = found.runs[seed].points[at].layers.values()
    shares = [layer.activated for layer in layers if layer.activated == layer.activated]
    return 100 * sum(shares) / max(1, len(shares))


def _stays_small(groups: Groups) -> list[Difference]:
    found = groups[_MASKED.label]
    values = tuple(10.0 - activated(found, seed) for seed in found.runs)
    return [Difference("10 % minus the share of C ever used", values, unit="points")]


def _comes_early(groups: Groups) -> list[Difference]:
    found = groups[_MASKED.label]
    values = []
    for seed, run in found.runs.items():
        half = next(i for i, point in enumerate(run.points) if 2 * point.step >= run.steps)
        values.append(2 * activated(found, seed, half) - activated(found, seed))
    return [Difference("use of C in the first half minus the second", tuple(values), unit="points")]


FIGURE_3A = Experiment(
    name="figure-3a",
    place="Figure 3a",
    title="How the mask changes over time (80/50)",
    about="The mask is A, the weights that the network uses. The figure shows the share of weights that "
    "enter or leave A between two moments, 5,000 of the paper's 32,000 steps apart. The line is the mean "
    "over layers; the band reaches from the smallest to the largest.",
    rows=(_MASKED,),
    claims=(Claim("The mask stabilises over time.", "section 3.1, Figure 3a", _settles),),
    figure="mask_change",
)
FIGURE_3B = Experiment(
    name="figure-3b",
    place="Figure 3b",
    title="How much of the reservoir is ever used (80/50)",
    about="The reservoir C has the weights that are neither used nor trained. The figure shows the share of "
    "the first C that has been in A since. “Small” means below 10 %; the paper has about 5 %.",
    rows=(_MASKED,),
    claims=(
        Claim("Only a small part of C is ever used.", "section 3.1, Figure 3b", _stays_small),
        Claim("Most of that use comes early.", "section 3.1, Figure 3b", _comes_early),
    ),
    figure="reservoir_use",
)

# ---- the appendix -------------------------------------------------------------------------------------

_PAIRS = ((0.8, 0.5), (0.9, 0.8), (0.95, 0.9))


def _ends(forward: float, backward: float, variant: str) -> Row:
    words = {"ends-dense": "first and last dense", "all-sparse": "all sparse"}[variant]
    recipe = topkast(W, forward, backward, variant=variant)
    return Row(f"{sparsities(forward, backward)}, {words}", recipe)


ALL_SPARSE = Experiment(
    name="all-sparse",
    place="appendix B, figure",
    title="All layers sparse, against first and last dense",
    about="The paper draws this figure without a claim; the claim is ours.",
    at_scale={
        "tiny": "The first layer of the MLP has three quarters of all weights, so keeping it dense changes a "
        "lot. In the other tables of this scale only the last layer is dense."
    },
    rows=tuple(_ends(f, b, v) for f, b in _PAIRS for v in ("ends-dense", "all-sparse")),
    claims=(
        Claim(
            "Sparse first and last layers cost some accuracy.",
            "ours",
            beats(*((_ends(f, b, "ends-dense").label, _ends(f, b, "all-sparse").label) for f, b in _PAIRS)),
        ),
    ),
    figure="dots",
)


def _interval(forward: float, backward: float, words: str, **more: object) -> Row:
    return Row(f"{sparsities(forward, backward)}, {words}", topkast(W, forward, backward, **more))


_CLOCKS = "A every step, B every 100"


def _as_good(words: str) -> Test:
    pairs = ((f"{sparsities(f, b)}, {words}", f"{sparsities(f, b)}, N = 1") for f, b in _PAIRS)
    return beats(*pairs, margin=_EQUAL)


REFRESH_INTERVAL = Experiment(
    name="refresh-interval",
    place="appendix C, table",
    title="Choosing A and B at every step, every N steps, and A more often than B",
    about="The paper's N = 100 is 1/320 of its run. “N = 100 (scaled)” is 1/320 of our run, but at least 2 "
    "steps; “N = 100” is 100 steps. The last row of each block is our default, with two clocks. As good "
    f"means within {_EQUAL:g} point.",
    rows=tuple(
        r
        for f, b in _PAIRS
        for r in (
            _interval(f, b, "N = 1", refresh_steps=1),
            _interval(f, b, "N = 100 (scaled)", refresh=100),
            _interval(f, b, "N = 100", refresh_steps=100),
            _interval(f, b, _CLOCKS),
        )
    ),
    claims=(
        Claim(
            "Refreshing every 1/320 of the run is as good as at every step.",
            "appendix C",
            _as_good("N = 100 (scaled)"),
        ),
        Claim("Refreshing every 100 steps is as good as at every step.", "appendix C", _as_good("N = 100")),
        Claim(
            "A at every step with B every 100 is as good as both at every step.", "ours", _as_good(_CLOCKS)
        ),
    ),
    figure="dots",
)

# ---- convolutions -------------------------------------------------------------------------------------

P: Workload = "pictures"


def _picture_row(name: str, forward: float) -> Row:
    return Row(f"{METHODS[name].title} {100 * forward:g}", other(P, name, forward))


CONVOLUTIONS = Experiment(
    name="convolutions",
    place="section 3, with a convolutional network",
    title="Convolutions: every method at 90 and 98 %",
    about="The claims of Figure 2, on a network whose weights are those of 3×3 convolutions (ResNet-9).",
    rows=(
        Row("dense", other(P, "dense")),
        *(_picture_row(name, 0.9) for name in ("static", "set", "rigl", "pruning")),
        Row("Top-KAST 90/80", topkast(P, 0.9, 0.8)),
        *(_picture_row(name, 0.98) for name in ("static", "rigl")),
        Row("Top-KAST 98/95", topkast(P, 0.98, 0.95)),
    ),
    claims=(
        Claim(
            "Top-KAST outperforms SET and static masks at 90 %.",
            "section 3, Figure 2b",
            beats(("Top-KAST 90/80", "SET 90"), ("Top-KAST 90/80", "static 90")),
        ),
        Claim(
            "Top-KAST is comparable with pruning at 90 %.",
            "section 3, Figure 2b",
            beats(("Top-KAST 90/80", "pruning 90"), margin=_EQUAL),
        ),
        Claim(
            "Top-KAST surpasses RigL at 98 %.", "section 3, Figure 2c", beats(("Top-KAST 98/95", "RigL 98"))
        ),
    ),
    figure="dots",
)
