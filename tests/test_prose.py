"""README and docs are written to be read: lines of 100 columns at most, and no sentence of more than 40 words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COLUMNS = 100
WORDS = 40

_FENCE = re.compile(r"\s*(```|~~~)")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_LINK_ALONE = re.compile(r"(?:\s*(?:[-*+]|\d+[.)])\s+)?\W*!?\[[^\]]*\]\([^)]*\)\W*")
_END = re.compile(r"(?<=[.!?])[)\]\"”*_]*\s+")
# A full stop after these does not end a sentence.
_ABBREVIATION = re.compile(r"\b(?:et al|e\.g|i\.e|cf|vs|approx)\.$")


def prose(page: str) -> list[tuple[int, str]]:
    """Lines with their numbers. What is code, a table or an entry of the API is there as an empty line."""
    lines: list[tuple[int, str]] = []
    in_fence = in_indented = False
    for number, line in enumerate(page.splitlines(), 1):
        is_fence = _FENCE.match(line) is not None
        after_blank = not lines or not lines[-1][1]
        in_indented = line.startswith("    ") and (in_indented or (after_blank and not _ITEM.match(line)))
        is_prose = not (in_fence or is_fence or in_indented or line.lstrip().startswith(("|", ":::")))
        in_fence ^= is_fence
        lines.append((number, line if is_prose and line.strip() else ""))
    return lines


def too_wide(page: str) -> list[int]:
    """Numbers of lines above the width. Headings cannot be wrapped, nor can a link that is all of a line."""
    return [
        number
        for number, line in prose(page)
        if len(line) > COLUMNS and not line.startswith("#") and not _LINK_ALONE.fullmatch(line)
    ]


def sentences(page: str) -> list[tuple[int, str]]:
    """Sentences of a page, each with the number of the line its paragraph begins in.

    Headings are left out. A list item is a paragraph. Inline code is one word, a link is its text, and a
    picture is nothing: its alternative text stands in for what others see.
    """
    paragraphs: list[tuple[int, list[str]]] = []
    is_open = False
    for number, line in prose(page):
        if not line or line.startswith("#"):
            is_open = False
            continue
        if not is_open or _ITEM.match(line):
            paragraphs.append((number, []))
        paragraphs[-1][1].append(_ITEM.sub("", line, count=1).strip())
        is_open = True
    found = []
    for number, lines in paragraphs:
        pending = ""
        for part in _END.split(_plain(" ".join(lines))):
            pending = f"{pending} {part}".strip()
            if pending and not _ABBREVIATION.search(pending):
                found.append((number, pending))
                pending = ""
        if pending:
            found.append((number, pending))
    return [(number, sentence) for number, sentence in found if words(sentence)]


def _plain(paragraph: str) -> str:
    paragraph = re.sub(r"(`+).+?\1", "code", paragraph)
    paragraph = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", paragraph)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)


def words(sentence: str) -> int:
    return sum(re.search(r"\w", word) is not None for word in sentence.split())


@pytest.mark.parametrize("page", [*DOCS, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_lines_fit_the_width(page: Path) -> None:
    assert not too_wide(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    found = sentences(page.read_text(encoding="utf-8"))
    assert not [(number, text) for number, text in found if words(text) > WORDS]


@pytest.mark.parametrize(
    ("page", "numbers"),
    [
        ("word " * 20, []),
        ("word " * 21, [1]),
        ("short\n\n- " + "word " * 21, [3]),
        ("  continued " + "word " * 21, [1]),
        ("# " + "word " * 30, []),
        ("| " + "cell | " * 30, []),
        ("```sh\n" + "word " * 30 + "\n```\nshort\n" + "word " * 30, [5]),
        ("text:\n\n    " + "word " * 30 + "\n\n" + "word " * 30, [5]),
        ("text\n    " + "word " * 30, [2]),
        (f"- [a link]({'x' * 100}).", []),
        (f"![a picture]({'x' * 100})", []),
        (f"see [a link]({'x' * 100})", [1]),
    ],
)
def test_wide_lines_are_found(page: str, numbers: list[int]) -> None:
    assert too_wide(page) == numbers


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (
            "One thing. Another\none? `code` begins the third!",
            ["One thing.", "Another one?", "code begins the third!"],
        ),
        ("It is 3.4 times as fast. topkast is small.", ["It is 3.4 times as fast.", "topkast is small."]),
        ("(It is **bold.**) Next.", ["(It is **bold.", "Next."]),
        ("Gao et al. (2025) train, e.g. on text. End.", ["Gao et al. (2025) train, e.g. on text.", "End."]),
        ("See [the page. It](there.md) is long.", ["See the page.", "It is long."]),
        ("Before `a. b c` after", ["Before code after"]),
        ("# A heading. With two\n\ntext", ["text"]),
        ("An end without a stop\n\nnext", ["An end without a stop", "next"]),
        ("Items:\n- one\n  and more\n- two", ["Items:", "one and more", "two"]),
        ("1. one\n2. two", ["one", "two"]),
        ("| a table. | of cells |\n|---|---|\n\nafter", ["after"]),
        ("before\n\n```python\nx = 1. + 2\n```\n\nafter", ["before", "after"]),
        ("::: topkast.Handle\n    options:\n      members: false\n\nafter", ["after"]),
        ("![a picture.\nof two lines](x.svg)", []),
    ],
)
def test_sentences_are_found(page: str, found: list[str]) -> None:
    assert [text for _, text in sentences(page)] == found


@pytest.mark.parametrize(
    ("sentence", "count"),
    [("one two", 2), ("a — b", 2), ("A ∖ B = 90 %", 3), ("code, *emphasis* (and) 3.4×", 4), ("…", 0)],
)
def test_words_have_a_letter_or_a_digit(sentence: str, count: int) -> None:
    assert words(sentence) == count


def test_a_long_sentence_is_found_where_its_paragraph_begins() -> None:
    long = "word " * 20 + "\n" + "word " * 20 + "end."
    ((number, text),) = sentences(f"# Heading\n\n{long}\n")
    assert number == 3
    assert words(text) == 41
