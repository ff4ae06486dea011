"""The paper's experiments on language: enwik8 (Figure 3c), WikiText-103, the small Transformer."""

from __future__ import annotations

import itertools

from topkast.reproduce.claims import Claim, beats
from topkast.reproduce.experiment import Experiment, Row
from topkast.reproduce.recipes import Workload, other, topkast
from topkast.reproduce.vision import sparsities


def _row(workload: Workload, forward: float, backward: float) -> Row:
    return Row(f"Top-KAST {sparsities(forward, backward)}", topkast(workload, forward, backward))


ENWIK8 = Experiment(
    name="enwik8",
    place="Table 2 and Figure 3c",
    title="enwik8: bits per character at several forward and backward sparsities",
    about="Sparsity is counted over all parameters, as in the paper. Comparable means within 2 %.",
    rows=(
        Row("dense", other("bytes", "dense")),
        *(_row("bytes", f, b) for f, b in ((0.8, 0.0), (0.8, 0.6), (0.8, 0.8), (0.9, 0.6), (0.9, 0.8))),
    ),
    claims=(
        Claim(
            "80 % sparsity with a dense backward pass is comparable with dense.",
            "section 4, Table 2",
            beats(("Top-KAST 80/0", "dense"), margin=2.0),
        ),
        Claim(
            "A lower backward sparsity is better at 80 %.",
            "section 4, Table 2",
            beats(("Top-KAST 80/0", "Top-KAST 80/80")),
        ),
        Claim(
            "80/80 is better than 90/60.",
            "section 4, Table 2",
            beats(("Top-KAST 80/80", "Top-KAST 90/60")),
        ),
    ),
    figure="pairs",
)

_SPARSER = ("Top-KAST 80/0", "Top-KAST 80/60", "Top-KAST 90/80", "Top-KAST 95/90")
WIKITEXT = Experiment(
    name="wikitext-103",
    place="Table 3",
    title="WikiText: perplexity by sparsity, and a smaller dense model",
    about="At tiny and small scale the words are those of WikiText-2, and the smaller dense model has 0.38 "
    "of the width. Without WikiText, we measure bits per byte on the text that comes with Python. Word "
    "frequencies alone give a perplexity of about 1,212 (7.1 nats).",
    rows=(
        Row("dense", other("words", "dense")),
        Row("dense, smaller", other("words", "dense", variant="smaller")),
        *(_row("words", f, b) for f, b in ((0.8, 0.0), (0.8, 0.6), (0.9, 0.8), (0.95, 0.9))),
    ),
    claims=(
        Claim(
            "80 % sparsity costs little quality (here: within 2 %).",
            "section 4, Table 3",
            beats(("Top-KAST 80/0", "dense"), margin=2.0),
        ),
        Claim(
            "Quality falls as sparsity grows.",
            "section 4, Table 3",
            beats(*itertools.pairwise(_SPARSER)),
        ),
        Claim(
            "The sparse model is better than a smaller dense one with more parameters.",
            "section 4, Table 3",
            beats(("Top-KAST 80/0", "dense, smaller"), ("Top-KAST 80/60", "dense, smaller")),
        ),
    ),
    figure="dots",
)

SMALL_TRANSFORMER = Experiment(
    name="small-transformer",
    place="appendix A, table",
    title="enwik8, the smaller Transformer: Top-KAST against pruning",
    about="At tiny and small scale the network is that of Table 2. Competitive means within 4 %; the paper's "
    "largest gap is 3.8 %.",
    rows=(
        Row("dense", other("small-bytes", "dense")),
        *(
            r
            for f, b in ((0.8, 0.6), (0.9, 0.8), (0.95, 0.9))
            for r in (
                Row(f"pruning {100 * f:g}", other("small-bytes", "pruning", f)),
                _row("small-bytes", f, 0.0),
                _row("small-bytes", f, b),
            )
        ),
    ),
    claims=(
        Claim(
            "Pruning slightly outperforms Top-KAST with a dense backward pass.",
            "appendix A",
            beats(*((f"pruning {s}", f"Top-KAST {s}/0") for s in (80, 90, 95))),
        ),
        Claim(
            "Top-KAST with a sparse backward pass is competitive with pruning.",
            "appendix A",
            beats(
                ("Top-KAST 80/60", "pruning 80"),
                ("Top-KAST 90/80", "pruning 90"),
                ("Top-KAST 95/90", "pruning 95"),
                margin=4.0,
            ),
        ),
    ),
    figure="dots",
)
