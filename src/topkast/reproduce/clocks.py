"""Experiments on the two clocks: A chosen at every step, B every hundred; not in the paper."""

from __future__ import annotations

from collections.abc import Sequence

from topkast.reproduce.claims import Claim, Test, beats
from topkast.reproduce.experiment import Experiment, Row
from topkast.reproduce.recipes import Workload, other, topkast
from topkast.reproduce.vision import sparsities

# (refresh, exchange): steps from one choice of A within B to the next, and from one of B to the next.
_OURS = "(1, 100)"
_CLOCKS = {"(1, 1)": (1, 1), _OURS: (1, 100), "(100, 100)": (100, 100)}
_FIXED = "fixed mask"
_PAIRS = ((0.9, 0.8), (0.98, 0.95))
_ABOUT = (
    "A refresh chooses A within B, and an exchange chooses B from all weights. Rows such as (1, 100) have "
    "the steps between two refreshes and between two exchanges. The paper's settings are (1, 1) and "
    "(100, 100)."
)


def _rows(workload: Workload, forward: float, backward: float, words: str, **more: object) -> list[Row]:
    """Top-KAST with each pair of clocks, and the fixed mask."""
    at = sparsities(forward, backward)
    rows = [
        Row(
            f"{at} {name}, {words}",
            topkast(workload, forward, backward, refresh_steps=refresh, exchange_steps=exchange, **more),
        )
        for name, (refresh, exchange) in _CLOCKS.items()
    ]
    return [*rows, Row(f"{at} {_FIXED}, {words}", other(workload, "static", forward, **more))]


def _against(rows: Sequence[Row], rival: str, margin: float = 0.0) -> Test:
    """Two clocks beat, or with a margin equal, the row that differs in nothing but the rival's clocks."""
    labels = [row.label for row in rows if _OURS in row.label]
    return beats(*((label, label.replace(_OURS, rival)) for label in labels), margin=margin)


def _claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    return (
        Claim(
            "A at every step with B every 100 is as good as both at every step (within 1 % or 1 point).",
            "ours",
            _against(rows, "(1, 1)", margin=1.0),
        ),
        Claim("A at every step with B every 100 beats both every 100.", "ours", _against(rows, "(100, 100)")),
        Claim("A at every step with B every 100 beats a fixed mask.", "ours", _against(rows, _FIXED)),
    )


_TEXT = [row for pair in _PAIRS for row in _rows("decoder", *pair, "AdamW")]
TEXT = Experiment(
    name="two-clocks",
    place="not in the paper",
    title="A at every step and B every 100, against one clock for both (text, AdamW)",
    about=f"{_ABOUT} The network is the decoder of `topkast train`, with all layers sparse. It reads the "
    "first 5 MB of enwik8 in batches of 8 × 128 bytes.",
    rows=tuple(_TEXT),
    claims=_claims(_TEXT),
    figure="dots",
)

_IMAGES = [
    row
    for pair in _PAIRS
    for variant, words in (("", "SGD"), ("adam", "Adam"))
    for row in _rows("images", *pair, words, variant=variant)
]
IMAGES = Experiment(
    name="two-clocks-images",
    place="not in the paper",
    title="A at every step and B every 100, against one clock for both (images, SGD and Adam)",
    about=_ABOUT,
    rows=tuple(_IMAGES),
    claims=_claims(_IMAGES),
    figure="dots",
)
