"""`topkast generate`: text from a trained network."""

from __future__ import annotations

import argparse
import codecs
import sys
from typing import Any

from topkast.cli.trained_options import add_run, load_run
from topkast.train.generate import generate


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
    if trained.inputs.get("symbols") != "bytes":
        raise ValueError(f"{options.folder} is a run of {trained.config.data.task}: it writes no text")
    drawn = generate(
        trained.model,
        options.prompt.encode(),
        window=trained.inputs["window"],
        length=options.length,
        temperature=options.temperature,
        top=options.top,
        seed=options.seed,
    )
    # Bytes may be half a character: shown when it is whole, or found to be none.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    sys.stdout.write(options.prompt)
    for symbol in drawn:
        sys.stdout.write(decoder.decode(bytes([symbol])))
        sys.stdout.flush()
    print(decoder.decode(b"", final=True))
