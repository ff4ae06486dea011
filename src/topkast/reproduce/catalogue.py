"""Every table and figure, in the paper's order; and what the paper does not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topkast.core.distribution import nearest
from topkast.methods.named import METHODS
from topkast.reproduce import budgets, clocks, language, vision
from topkast.reproduce.claims import Claim, beats
from topkast.reproduce.experiment import Experiment, Row
from topkast.reproduce.recipes import other, topkast
from topkast.reproduce.vision import W, row

_LAMBDAS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)

PENALTY = Experiment(
    name="penalty",
    place="not in the paper (section 2.3 has the penalty)",
    title="How much the penalty λ matters (90/80)",
    about="λ is the strength of the penalty on large weights. The paper gives one value, the weight decay of "
    "1e-4 on ImageNet.",
    rows=tuple(Row(f"λ = {value:g}", topkast(W, 0.9, 0.8, penalty=value)) for value in _LAMBDAS),
    claims=(Claim("The penalty helps (λ = 1e-4 over none).", "section 2.3", beats(("λ = 0.0001", "λ = 0"))),),
    figure="dots",
)

READING = Experiment(
    name="penalty-reading",
    place="not in the paper (section 2.3 says L2 and writes |θ|)",
    title="The penalty read as θ² and as |θ| (90/80)",
    about="The paper calls the penalty L2 but writes |θ|. The same λ means different things in the two "
    "readings, so each is shown with three values.",
    rows=tuple(
        Row(f"{words}, λ = {value:g}", topkast(W, 0.9, 0.8, penalty=value, penalty_power=power))
        for power, words in ((2, "θ²"), (1, "|θ|"))
        for value in (1e-5, 1e-4, 1e-3)
    ),
    claims=(
        Claim(
            "At λ = 1e-4 the two readings are comparable (within 1 point).",
            "ours",
            beats(("|θ|, λ = 0.0001", "θ², λ = 0.0001"), margin=1.0),
        ),
    ),
    figure="dots",
)

EXPLORATION = Experiment(
    name="exploration-size",
    place="not in the paper",
    title="How large the exploration set should be, at 90 % forward sparsity",
    about="The exploration set is B∖A: weights that are trained but not used yet. Top-KAST 90/80 explores "
    "10 % of all weights, and 90/90 explores none.",
    rows=tuple(row(0.9, backward) for backward in (0.9, 0.85, 0.8, 0.5, 0.0)),
    claims=(
        Claim(
            "Training twice as many weights as are used beats training those alone.",
            "ours",
            beats(("Top-KAST 90/80", "Top-KAST 90/90")),
        ),
    ),
    figure="dots",
)

OPTIMIZER = Experiment(
    name="optimizer",
    place="not in the paper",
    title="SGD with momentum, and Adam (90 %)",
    about="Top-KAST has the paper's form with SGD, and the settings that we advise with Adam.",
    rows=tuple(
        Row(f"{METHODS[recipe.method].title}, {words}", recipe)
        for variant, words in (("", "SGD"), ("adam", "Adam"))
        for recipe in (
            other(W, "dense", variant=variant),
            other(W, "static", 0.9, variant=variant),
            other(W, "rigl", 0.9, variant=variant),
            topkast(W, 0.9, 0.8, variant=variant),
        )
    ),
    claims=(
        Claim(
            "Top-KAST beats a fixed mask with either optimizer.",
            "ours",
            beats(("Top-KAST, SGD", "static, SGD"), ("Top-KAST, Adam", "static, Adam")),
        ),
    ),
    figure="dots",
)


EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        vision.FIGURE_2A,
        vision.FIGURE_2B,
        vision.FIGURE_2C,
        vision.TABLE_1,
        vision.FIGURE_3A,
        vision.FIGURE_3B,
        language.ENWIK8,
        language.WIKITEXT,
        language.SMALL_TRANSFORMER,
        vision.ALL_SPARSE,
        vision.REFRESH_INTERVAL,
        vision.CONVOLUTIONS,
        PENALTY,
        EXPLORATION,
        READING,
        OPTIMIZER,
        clocks.TEXT,
        clocks.IMAGES,
        budgets.IMAGES,
        budgets.TEXT,
    )
}


def choose(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names; "all" is all of them.

    Raises:
        ValueError: A name that is not there.
    """
    if "all" in names:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(f"{name!r}: there is {nearest(name, EXPERIMENTS)}; see --list")
    return [experiment for name, experiment in EXPERIMENTS.items() if name in names]
