"""What `topkast reproduce` says of claims, in words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from topkast.reproduce.catalogue import EXPERIMENTS
from topkast.reproduce.claims import FAILS, HOLDS, NOISE, NOT_LEARNED, OPEN, Claim, Verdict
from topkast.reproduce.experiment import Experiment, Findings
from topkast.reproduce.pages import document_head, verdict_counts, wrapped
from topkast.reproduce.scales import SCALES, SMALL, TINY


def findings(*verdicts: str) -> Findings:
    claim = Claim("It is so.", "ours", lambda groups: [])
    judged = tuple(Verdict(claim, verdict, ()) for verdict in verdicts)
    return Findings(Experiment(name="a", rows=()), TINY, range(3), {}, judged)


def test_what_is_true_of_one_scale_is_said_of_that_one() -> None:
    experiment = Experiment(name="a", rows=(), about="Of all.", at_scale={"tiny": "Of tiny."})
    words = [Findings(experiment, scale, range(3), {}, ()).about for scale in (TINY, SMALL)]
    assert words == ["Of all. Of tiny.", "Of all."]


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)
def test_what_is_said_of_a_scale_is_said_of_one_that_is_there(experiment: Experiment) -> None:
    assert set(experiment.at_scale) <= set(SCALES)


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ((), "There is no claim here."),
        ((HOLDS,), "Of 1 claim 1 holds."),
        ((HOLDS, HOLDS, FAILS), "Of 3 claims 2 hold and 1 does not hold."),
        ((HOLDS, NOISE, OPEN), "Of 3 claims 1 holds, 1 is within noise and 1 could not be judged."),
        (
            (HOLDS, *[NOT_LEARNED] * 3),
            "Of 1 claim 1 holds. 3 more are not counted: their networks have not learned.",
        ),
        (
            (HOLDS, NOT_LEARNED),
            "Of 1 claim 1 holds. 1 more is not counted: its networks have not learned.",
        ),
        ((NOT_LEARNED,), "1 claim is not counted: its networks have not learned."),
        ((NOT_LEARNED,) * 2, "2 claims are not counted: their networks have not learned."),
    ],
)
def test_claims_on_networks_that_have_not_learned_are_counted_apart(
    verdicts: tuple[str, ...], sentence: str
) -> None:
    assert verdict_counts([findings(*verdicts)]) == sentence


def test_a_paragraph_is_wrapped_but_not_within_code_or_before_per_cent() -> None:
    code = "`topkast reproduce figure-2a --scale tiny --seeds 3`"
    lines = wrapped(f"{'word ' * 15}{code} {'word ' * 19}90 % of it").split("\n")
    assert lines[0] == " ".join(["word"] * 15)
    assert lines[1].startswith(code)
    assert [len(line) <= 100 for line in lines] == [True] * 3
    assert not any(line.startswith("%") for line in wrapped("a " * 48 + "12 % of it").split("\n"))
    assert wrapped("always-sparse " * 20).count("always-sparse") == 20


PAGE = Path(__file__).resolve().parents[2] / "docs/results.md"


def test_the_page_of_results_begins_as_it_is_written_now() -> None:
    assert PAGE.read_text().startswith(document_head() + "\n## Scale “")


def test_the_page_of_results_has_the_words_that_are_written_now() -> None:
    _, *parts = re.split(r"^## Scale “(\w+)”$", PAGE.read_text(), flags=re.MULTILINE)
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        shown = re.findall(r"`topkast reproduce (\S+) --scale", text)
        assert shown
        for experiment in map(EXPERIMENTS.__getitem__, shown):
            words = wrapped(Findings(experiment, SCALES[name], range(3), {}, ()).about)
            assert f": {experiment.title}\n\n{words}\n\n" in text
            assert all(f"\n| {claim.words} (" in text for claim in experiment.claims)


def test_readme_counts_the_claims_as_the_page_does() -> None:
    tiny = PAGE.read_text().split("## Scale “tiny”")[1]
    (sentence,) = re.findall(r"^Of (\d+ claims [^.]*)\.", tiny, flags=re.MULTILINE)
    readme = " ".join((PAGE.parents[1] / "README.md").read_text().split())
    assert f"of {' '.join(sentence.split())}" in readme
