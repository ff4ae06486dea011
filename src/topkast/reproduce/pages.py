"""What is written of experiments: tables, figures and a page of all; `docs/results.md` of all scales."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topkast.report.drawings import Drawing, save
from topkast.report.page import render
from topkast.reproduce import figures, tables
from topkast.reproduce.claims import (
    FAILS,
    FAILS_ONCE,
    HOLDS,
    HOLDS_ONCE,
    NOISE,
    NOT_LEARNED,
    OPEN,
    Verdict,
)
from topkast.reproduce.experiment import Experiment, Findings
from topkast.reproduce.tuned_rates import known
from topkast.store.files import replace
from topkast.text import duration, listed

# Verdicts in order, of one claim and of several.
_WORDS = {
    HOLDS: ("holds", "hold"),
    FAILS: ("does not hold", "do not hold"),
    NOISE: ("is within noise", "are within noise"),
    HOLDS_ONCE: ("holds for one seed", "hold for one seed"),
    FAILS_ONCE: ("does not hold for one seed", "do not hold for one seed"),
    OPEN: ("could not be judged", "could not be judged"),
}


def write_pages(all_findings: Sequence[Findings], folder: Path, command: str) -> Path:
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
        "sentence": verdict_counts(all_findings),
        "about": f"{_upper(scale.about)}.",
        "glossary": GLOSSARY,
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
    experiment, seeds = findings.experiment, len(findings.seeds)
    place = (
        f"{_upper(experiment.place)}." if experiment.place.startswith("not ") else f"Like {experiment.place}."
    )
    spread = "" if seeds == 1 else f" The spread and small dots show {seeds} seeds."
    return Drawing(experiment.name, experiment.title, place + spread, figures.draw(findings))


def verdict_counts(all_findings: Sequence[Findings]) -> str:
    """How many claims hold, in a sentence; in another how many are about networks that have not learned."""
    counts = Counter(v.verdict for f in all_findings for v in f.verdicts)
    left_out = counts.pop(NOT_LEARNED, 0)
    parts = [
        f"{counts[kind]} {one if counts[kind] == 1 else many}"
        for kind, (one, many) in _WORDS.items()
        if counts[kind]
    ]
    sentences = [f"Of {counted(counts.total(), 'claim')} {listed(parts)}."] if parts else []
    if left_out:
        more = f"{left_out} more" if parts else counted(left_out, "claim")
        rest = "is not counted: its" if left_out == 1 else "are not counted: their"
        sentences.append(f"{more} {rest} networks have not learned.")
    return " ".join(sentences) or "There is no claim here."


def _cells(verdict: Verdict) -> tuple[str, ...]:
    return (verdict.claim.words, verdict.claim.place, verdict.verdict, verdict.numbers)


def _content(findings: Findings, picture: Drawing | None) -> dict[str, Any]:
    experiment = findings.experiment
    return {
        "title": _heading(experiment),
        "about": findings.about,
        "drawings": [] if picture is None else [picture],
        "header": tables.header(findings),
        "rows": tables.rows(findings),
        "verdicts": [_cells(v) for v in findings.verdicts],
        "note": "" if findings.is_whole else "Not all of its runs are finished.",
    }


# What a page explains before it shows anything, as (what it is about, text).
GLOSSARY = (
    (
        "Sets",
        "“Top-KAST 80/50” has a forward sparsity of 80 % and a backward sparsity of 50 %. A is the set of "
        "weights that the network uses, here 20 % of them. B contains A and is the set that is trained, here "
        "50 %. The rest is C, the reservoir. B∖A is trained but not used yet: that is exploration. A refresh "
        "chooses A again and an exchange chooses B again, both by magnitude. The paper does both at once, "
        "every N steps. “Static” keeps one random mask instead.",
    ),
    (
        "Verdicts",
        "A claim “holds” or “does not hold” if the difference is larger than the noise between seeds. We "
        "compare seeds in pairs and test at 95 %, one-sided. Otherwise the claim is “within noise”. One seed "
        "does not show the noise: “for one seed” only says how that seed came out. A claim is “not learned”, "
        "and not counted, if its networks have learned too little to be compared: the dense one misses a "
        "bar, or a row is much worse than when its learning rate was looked for.",
    ),
    (
        "Numbers",
        "Each comparison has the mean difference and how far it may be off. A positive difference supports "
        "the claim. “1 allowed” means that a loss of up to 1 still counts as comparable. Bytes are those of "
        "weights, gradients, optimizer state, reservoir, sets and Plans (what kernels derive from the sets). "
        "Activations are not included.",
    ),
)

_HEAD = (
    "# Results",
    "`topkast reproduce --document` writes this page. It has the tables and figures of the Top-KAST paper, "
    "with our numbers beside the paper's.",
    "Our runs fit a small machine: other networks, other data and far fewer steps. Compare the order of the "
    "methods, not the numbers.",
    *(f"**{title}.** {text}" for title, text in GLOSSARY),
    "**Times.** Each table comes with the training time of all its runs, without evaluation. Runs of one row "
    "may have shared the machine with different runs than those of the next. So only the tables about cost "
    "have a time for each row.",
    "**Rates.** Each method has its own learning rate at each sparsity. All were looked for in the same way, "
    "on validation data. The column “rate” has the one that was used; each scale ends with all that were "
    "tried.",
)


def document_head() -> str:
    """What stands before the first scale."""
    return "\n\n".join(map(wrapped, _HEAD)) + "\n"


# Whose rows were run to be compared by time.
_ABOUT_TIME = ("equal-images", "equal-text")


def write_document(by_scale: Mapping[str, Sequence[Findings]], out: Path) -> Path:
    """Writes the page, and its figures into a folder of its name beside it.

    Args:
        by_scale: Scale → findings; shown are those that have at least one seed of every row.
        out: The page.

    Raises:
        ValueError: There is no result at all.
    """
    if not any(_is_there(f) for findings in by_scale.values() for f in findings):
        raise ValueError("there is no finished table to write about: run `topkast reproduce all` first")
    folder = out.parent / out.stem
    parts = [document_head()]
    for name, findings in by_scale.items():
        shown = [f for f in findings if _is_there(f)]
        if shown:
            parts.append(_scale(name, shown, folder))
    replace(out, "\n".join(parts).encode())
    return out


def _is_there(findings: Findings) -> bool:
    """Whether every row has a result: a table that merely shares some with another says nothing."""
    return all(row.label in findings.groups for row in findings.experiment.rows)


def _scale(name: str, shown: Sequence[Findings], folder: Path) -> str:
    pictures = {f.experiment.name: drawing(f) for f in figures.drawable(shown)}
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures.values():
        replace(folder / f"{name}-{picture.name}.svg", picture.svg)
    lines = [
        f"## Scale “{name}”",
        "",
        wrapped(f"{_upper(shown[0].scale.about)}. Machine: {_machines(shown)}."),
        "",
        wrapped(verdict_counts(shown)),
        "",
        "| claim | verdict | numbers |",
        "|---|---|---|",
    ]
    for findings in shown:
        for verdict in findings.verdicts:
            cells = (f"{verdict.claim.words} ({verdict.claim.place})", verdict.verdict, verdict.numbers)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for findings in shown:
        lines += ["", *_section(findings, name, folder, findings.experiment.name in pictures)]
    return "\n".join([*lines, *_rates(name)]) + "\n"


def _rates(scale: str) -> list[str]:
    """What the search for learning rates has tried at a scale, as a section; nothing if there was none."""
    found = {
        key.removeprefix(f"{scale}: "): rate for key, rate in known().items() if key.startswith(f"{scale}: ")
    }
    if not found:
        return []
    about = (
        "Each method has its own rate at each forward sparsity. Below is what the last evaluation on "
        "validation data gave for each rate that was tried, with one seed. The best is in bold."
    )
    lines = ["", "### Learning rates", "", wrapped(about), "", "| what | rates tried |", "|---|---|"]
    for what, rate in found.items():
        tried = [
            f"**{lr}: {_short(quality)}**" if float(lr) == rate.lr else f"{lr}: {_short(quality)}"
            for lr, quality in rate.tried.items()
        ]
        lines.append(f"| {what} | {', '.join(tried)} |")
    return lines


def _short(quality: float | None) -> str:
    return "failed" if quality is None else f"{quality:.4g}"


def _machines(shown: Sequence[Findings]) -> str:
    """Where runs were trained: processors, with the instructions that our kernels used."""
    found = {
        (run.environment.get("cpu") or "unknown", run.environment.get("isa") or "unknown")
        for findings in shown
        for group in findings.groups.values()
        for run in group.runs.values()
    }
    return listed([f"{cpu} ({isa})" for cpu, isa in sorted(found)])


def _section(findings: Findings, scale: str, folder: Path, has_picture: bool) -> list[str]:
    experiment = findings.experiment
    runs = [run for found in findings.groups.values() for run in found.runs.values()]
    spent = duration(sum(run.seconds_per_step * run.last.step for run in runs))
    seeds = {seed for found in findings.groups.values() for seed in found.runs}
    note = "" if findings.is_whole else " Not all of its runs are finished."
    command = f"topkast reproduce {experiment.name} --scale {scale} --seeds {len(findings.seeds)}"
    ran = f"{counted(len(runs), 'run')} with {counted(len(seeds), 'seed')}"
    lines = [
        f"### {_heading(experiment)}",
        "",
        wrapped(findings.about),
        "",
        wrapped(f"{ran} trained for {spent} in all.{note} Command: `{command}`"),
        "",
    ]
    if has_picture:
        lines += [f"![{experiment.title}]({folder.name}/{scale}-{experiment.name}.svg)", ""]
    return [*lines, tables.markdown(findings, has_times=experiment.name in _ABOUT_TIME).rstrip()]


def _heading(experiment: Experiment) -> str:
    return f"{_upper(experiment.place)}: {experiment.title}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


_COLUMNS = 100
_KEPT = "\N{WORD JOINER}"


def wrapped(paragraph: str) -> str:
    """In lines of at most 100 columns; inline code, and a number with its per cent, stay on one line."""
    kept = re.sub(r"`[^`]*`|\d %", lambda found: found[0].replace(" ", _KEPT), paragraph)
    lines = textwrap.wrap(kept, _COLUMNS, break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines).replace(_KEPT, " ")


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
