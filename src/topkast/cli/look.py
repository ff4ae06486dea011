"""`topkast look`: draws what one neuron hangs together with, or what decides a symbol."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from topkast.cli.use import add_run, load_run
from topkast.extras import load_matplotlib
from topkast.report import circuit
from topkast.text import padded


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("look", help="draw the connections inside a weight-sparse network")
    add_run(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--neuron", metavar="BLOCK.N", help="draw all that this neuron reads and writes")
    what.add_argument("--prompt", metavar="TEXT", help="draw what decides --symbol after this text")
    parser.add_argument("--symbol", metavar="C", help="symbol to explain, one byte (the likeliest)")
    parser.add_argument(
        "--most", type=int, default=8, metavar="N", help="number of parts or channels to show (8)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of the picture (RUN/look.svg)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    load_matplotlib()
    if options.most < 1:
        raise ValueError(f"--most must be at least 1, got {options.most}")
    if options.neuron is not None and options.symbol is not None:
        raise ValueError("--symbol goes with --prompt")
    trained = load_run(options)
    wiring = circuit.Wiring(trained.model)
    if trained.inputs.get("symbols") != "bytes":
        raise ValueError(f"{options.folder} does not read bytes: its symbols cannot be shown")
    if options.neuron is not None:
        graph = circuit.around(wiring, _neuron(options.neuron), options.most)
    else:
        graph = _behaviour(wiring, options)
    out = options.out or options.folder / "look.svg"
    circuit.draw(graph).savefig(out)
    print(f"picture: {out} ({len(graph.edges)} connections)")


def _neuron(text: str) -> circuit.Part:
    block, dot, index = text.partition(".")
    if not (dot and block.isdecimal() and index.isdecimal()):
        raise ValueError(f"--neuron must be a block and a number such as 1.512, got {text!r}")
    return circuit.Part(int(block), "neuron", int(index))


def _behaviour(wiring: circuit.Wiring, options: argparse.Namespace) -> circuit.Graph:
    """Says what each part does for the symbol, and gives the graph of them."""
    model = wiring.model
    prompt = list(options.prompt.encode())
    symbol = _symbol(options.symbol) if options.symbol is not None else circuit.likeliest(model, prompt)
    found = circuit.effects(model, prompt, symbol, options.most)
    chance = circuit.probability(model, prompt, symbol)
    print(f"p({circuit.show_symbol(symbol)}) = {chance:.3f} after {options.prompt!r}")
    widths = (20, 18, 22)
    print(padded(("", "bits, estimated", "bits lost without it"), widths))
    for effect in found:
        print(padded((str(effect.part), f"{effect.estimate:+.3f}", f"{effect.ablated:+.3f}"), widths))
    return circuit.behaviour(wiring, found, prompt, symbol)


def _symbol(text: str) -> int:
    symbols = text.encode()
    if len(symbols) != 1:
        raise ValueError(f"--symbol must be one byte, got {text!r}")
    return symbols[0]
