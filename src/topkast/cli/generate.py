"""`topkast generate`: text from a trained network."""

from __future__ import annotations

import argparse
import codecs
import sys
from pathlib import Path
from typing import Any

from topkast.cli.trained_options import add_run, load_run
from topkast.data.words import EOS, Vocabulary
from topkast.train.sampling import generate
from topkast.train.text_tasks import VOCABULARY


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("generate", help="let a trained network write text")
    add_run(parser)
    parser.add_argument("--prompt", default="", metavar="TEXT", help="what it goes on from")
    parser.add_argument("--length", type=int, default=400, metavar="N", help="bytes (400)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0: the likeliest (0.8)")
    parser.add_argument("--top", type=int, metavar="K", help="draw from the K likeliest only")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same gives the same text (0)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    trained = load_run(options)
    kind = trained.inputs.get("symbols")
    if kind not in ("bytes", "words"):
        raise ValueError(f"{options.folder} is a run of {trained.config.data.task}: it writes no text")
    writer = Bytes() if kind == "bytes" else Words(_vocabulary(options.folder))
    drawn = generate(
        trained.model,
        writer.encode(options.prompt),
        window=trained.inputs["window"],
        memory=trained.inputs.get("memory"),
        length=options.length,
        temperature=options.temperature,
        top=options.top,
        seed=options.seed,
    )
    sys.stdout.write(options.prompt)
    for symbol in drawn:
        sys.stdout.write(writer.decode(symbol))
        sys.stdout.flush()
    print(writer.end())


class Bytes:
    """Bytes may be half a character: shown when it is whole, or found to be none."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def encode(self, prompt: str) -> list[int]:
        return list(prompt.encode() or b"\n")

    def decode(self, symbol: int) -> str:
        return self._decoder.decode(bytes([symbol]))

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)


class Words:
    """Words with spaces between them; a line ends with `<eos>`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def encode(self, prompt: str) -> list[int]:
        numbers = [number for part in self._vocabulary.encode([prompt]) for number in part.tolist()]
        return numbers[:-1] or numbers  # the line goes on; an empty one is what stands before its beginning

    def decode(self, symbol: int) -> str:
        word = self._vocabulary.words[symbol]
        return "\n" if word == EOS else f" {word}"

    def end(self) -> str:
        return ""


def _vocabulary(folder: Path) -> Vocabulary:
    try:
        return Vocabulary((folder / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1])
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / VOCABULARY} cannot be used: {error}") from error
