"""What is written of experiments: a table and figure each, and one page of all with their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topkast.report.drawings import Drawing, save
from topkast.report.page import render
from topkast.report.words import listed
from topkast.reproduce import figures, tables
from topkast.reproduce.claims import FAILS, FAILS_ONCE, HOLDS, HOLDS_ONCE, NOISE, OPEN, Verdict
from topkast.reproduce.experiment import Findings
from topkast.store.files import replace

# Verdicts in order, of one claim and of several.
_WORDS = {
    HOLDS: ("holds", "hold"),
    FAILS: ("does not hold", "do not hold"),
    NOISE: ("is within noise", "are within noise"),
    HOLDS_ONCE: ("holds for one seed", "hold for one seed"),
    FAILS_ONCE: ("does not hold for one seed", "do not hold for one seed"),
    OPEN: ("could not be judged", "could not be judged"),
}


def write(all_findings: Sequence[Findings], folder: Path, command: str) -> Path:
    """Writes ``NAME.md``, ``NAME.csv`` and the figure of each experiment, and ``index.html`` of all.

    Args:
        all_findings: In the paper's order, at one scale.
        folder: Where to; it is made if it is not there.
        command: What makes the page again.

    Returns:
        The page.

    Raises:
        ImportError: matplotlib is missing.
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {f.experiment.name: drawing(f) for f in figures.drawable(all_findings)}
    save(drawings.values(), folder)
    for findings in all_findings:
        name = findings.experiment.name
        replace(folder / f"{name}.md", tables.markdown(findings).encode())
        replace(folder / f"{name}.csv", tables.comma_separated(findings).encode())
    scale = all_findings[0].scale
    content = {
        "title": f"The Top-KAST paper, reproduced at scale “{scale.name}”",
        "sentence": tally(all_findings),
        "about": f"{scale.about[0].upper()}{scale.about[1:]}.",
        "verdict_header": ["claim", "in the paper", "verdict", "numbers"],
        "verdicts": [_cells(v) for f in all_findings for v in f.verdicts],
        "experiments": [_content(f, drawings.get(f.experiment.name)) for f in all_findings],
        "commands": command,
        "source": folder,
        "figures": folder,
    }
    return render("reproduce.html", content, folder / "index.html")


def drawing(findings: Findings) -> Drawing:
    """The figure of an experiment, with its caption."""
    experiment = findings.experiment
    spread = "" if len(findings.seeds) == 1 else f" Spread and dots are {len(findings.seeds)} seeds."
    return Drawing(
        experiment.name, experiment.title, f"Like {experiment.place}.{spread}", figures.draw(findings)
    )


def tally(all_findings: Sequence[Findings]) -> str:
    """How many claims hold, in a sentence."""
    counts = Counter(v.verdict for f in all_findings for v in f.verdicts)
    parts = [
        f"{counts[kind]} {one if counts[kind] == 1 else many}"
        for kind, (one, many) in _WORDS.items()
        if counts[kind]
    ]
    return f"Of {sum(counts.values())} claims {listed(parts)}." if parts else "There is no claim here."


def _cells(verdict: Verdict) -> tuple[str, ...]:
    return (verdict.claim.words, verdict.claim.place, verdict.verdict, verdict.numbers)


def _content(findings: Findings, picture: Drawing | None) -> dict[str, Any]:
    experiment = findings.experiment
    return {
        "title": f"{experiment.place}: {experiment.title}",
        "about": experiment.about,
        "drawings": [] if picture is None else [picture],
        "header": tables.header(findings),
        "rows": tables.rows(findings),
        "verdicts": [_cells(v) for v in findings.verdicts],
        "note": "" if findings.is_whole else "Not all of its runs are finished.",
    }
