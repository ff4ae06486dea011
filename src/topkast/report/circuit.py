"""What is inside a weight-sparse decoder: which parts decide a symbol, and what connects them.

A *part* is a neuron of a feed-forward part or a channel of attention. It reads some channels of the residual
stream and writes to some others; in a weight-sparse network these are few. Two parts are connected by

    Σ_c write(c)·gain(c)·read(c)

over the channels c that the first writes and the second reads, with the gain of the norm in between. The
norm's own scale is left out: it is the same for all connections at a place in the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from topkast.core.weight import SparseWeight
from topkast.models.simple import Block, Decoder
from topkast.report.drawings import BLUE, GREY, ORANGE, load_matplotlib, styled

Kind = Literal["neuron", "attention"]


@dataclass(frozen=True, order=True)
class Part:
    """A neuron or a channel of attention.

    Attributes:
        block: Counted from 0.
        kind: Attention comes before the neurons of its block.
        index: Of the neuron, or of the channel among those of all heads.
    """

    block: int
    kind: Kind
    index: int

    def __str__(self) -> str:
        return f"{self.kind} {self.block}.{self.index}"


@dataclass(frozen=True)
class Effect:
    """What a part does for a symbol.

    Attributes:
        part: Which one.
        estimate: Bits of the symbol that its activations account for, to first order: Σ a·∂log₂p/∂a.
        ablated: Bits that the symbol loses when the part's activations are set to zero: what it really does.
    """

    part: Part
    estimate: float
    ablated: float


class Wiring:
    """The weights of a sparse decoder as vectors over the residual stream's channels.

    Raises:
        ValueError: Not a decoder, or one whose layers are not sparse.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, Decoder):
            raise ValueError(f"only a decoder can be looked into, got a {type(model).__name__}")
        self.model = model
        self.width = model.position.shape[1]
        self._matrices: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for name, module in model.named_modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, SparseWeight):
                self._matrices[name] = _entries(weight)
            elif isinstance(module, nn.Linear | nn.Embedding):
                raise ValueError(
                    f"layer {name!r} is dense: in it all is connected with all. Train a sparse network, "
                    "such as `topkast train --preset weight-sparse`"
                )

    def reads(self, part: Part) -> Tensor:
        """What the part multiplies the normed residual stream by, channel by channel."""
        block = self._block(part)
        if part.kind == "neuron":
            return self._row(f"blocks.{part.block}.up", part.index) * block.norm2.weight.detach()
        value = 2 * self.width + part.index  # queries and keys come before the values
        return self._row(f"blocks.{part.block}.qkv", value) * block.norm1.weight.detach()

    def writes(self, part: Part) -> Tensor:
        """What the part adds to the residual stream, for an activation of 1."""
        self._block(part)
        layer = "down" if part.kind == "neuron" else "out"
        return self._column(f"blocks.{part.block}.{layer}", part.index)

    def symbol_writes(self, symbol: int) -> Tensor:
        """What the embedding of a symbol adds."""
        return self._row("embedding", symbol)

    def symbol_reads(self, symbol: int) -> Tensor:
        """What the logit of a symbol multiplies the stream by."""
        return self._row("head", symbol) * self.model.norm.weight.detach()

    def _block(self, part: Part) -> Block:
        blocks = self.model.blocks
        if not 0 <= part.block < len(blocks):
            raise ValueError(f"block must be 0 to {len(blocks) - 1}, got {part.block}")
        size = (4 if part.kind == "neuron" else 1) * self.width
        if not 0 <= part.index < size:
            raise ValueError(f"the {part.kind} must be 0 to {size - 1}, got {part.index}")
        block = blocks[part.block]
        assert isinstance(block, Block)
        return block

    def _row(self, layer: str, row: int) -> Tensor:
        rows, columns, values = self._matrices[layer]
        chosen = rows == row
        return torch.zeros(self.width).index_copy(0, columns[chosen], values[chosen])

    def _column(self, layer: str, column: int) -> Tensor:
        rows, columns, values = self._matrices[layer]
        chosen = columns == column
        return torch.zeros(self.width).index_copy(0, rows[chosen], values[chosen])


def _entries(weight: SparseWeight) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of A."""
    positions = weight.indices[weight.active].long().cpu()
    columns = weight.shape[1]
    return positions // columns, positions % columns, weight.values.detach()[weight.active].float().cpu()


# ---- what decides a symbol ------------------------------------------------------------------------------


def effects(model: Decoder, prompt: Sequence[int], symbol: int, most: int) -> list[Effect]:
    """The parts with the largest estimate of what they do for `symbol` after `prompt`, largest first.

    Each is then taken away in truth, since an estimate to first order can be wrong.

    Raises:
        ValueError: A prompt that is empty or longer than the window.
    """
    _check(model, prompt)
    text = torch.tensor([list(prompt)])
    found: dict[tuple[int, Kind], Tensor] = {}
    with _watched(model, found):
        bits = _bits(model, text, symbol)
    gradients = torch.autograd.grad(bits, list(found.values()))
    estimates: list[tuple[float, Part]] = []
    for (block, kind), activation, gradient in zip(found, found.values(), gradients, strict=True):
        each = (activation.detach() * gradient).sum(dim=(0, 1))
        strongest = each.abs().topk(min(most, each.numel())).indices.tolist()
        estimates += [(float(each[index]), Part(block, kind, index)) for index in strongest]
    largest = sorted(estimates, key=lambda pair: -abs(pair[0]))[:most]
    whole = float(bits.detach())
    with torch.no_grad():
        return [Effect(part, e, whole - float(_without(model, part, text, symbol))) for e, part in largest]


def likeliest(model: Decoder, prompt: Sequence[int]) -> int:
    """The symbol that the network would say next."""
    _check(model, prompt)
    with torch.no_grad():
        return int(model(torch.tensor([list(prompt)]))[0, -1].argmax())


def probability(model: Decoder, prompt: Sequence[int], symbol: int) -> float:
    """p(symbol | prompt)."""
    _check(model, prompt)
    with torch.no_grad():
        return 2 ** float(_bits(model, torch.tensor([list(prompt)]), symbol))


def _check(model: Decoder, prompt: Sequence[int]) -> None:
    if not 0 < len(prompt) <= model.window:
        raise ValueError(f"the prompt must have 1 to {model.window} symbols, got {len(prompt)}")


def _bits(model: Decoder, text: Tensor, symbol: int) -> Tensor:
    """log₂ p(symbol | text)."""
    return model(text)[0, -1].log_softmax(dim=-1)[symbol] / torch.log(torch.tensor(2.0))


@contextmanager
def _watched(model: Decoder, found: dict[tuple[int, Kind], Tensor]) -> Iterator[None]:
    """Notes what all parts do, as tensors that a gradient can be asked of."""

    def note(block: int, kind: Kind) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            kept = inputs[0] if inputs[0].requires_grad else inputs[0].detach().requires_grad_()
            found[block, kind] = kept
            return (kept,)

        return hook

    handles = []
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        handles.append(block.out.register_forward_pre_hook(note(i, "attention")))
        handles.append(block.down.register_forward_pre_hook(note(i, "neuron")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _without(model: Decoder, part: Part, text: Tensor, symbol: int) -> Tensor:
    """The same bits, with the activations of one part at zero."""
    block = model.blocks[part.block]
    assert isinstance(block, Block)
    layer = block.down if part.kind == "neuron" else block.out

    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0].index_fill(-1, torch.tensor([part.index]), 0.0),)

    handle = layer.register_forward_pre_hook(hook)
    try:
        return _bits(model, text, symbol)
    finally:
        handle.remove()


# ---- graphs and pictures --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """Nodes in columns from left to right, and what connects them.

    Attributes:
        columns: Names of the nodes.
        edges: From, to, strength; its sign decides the colour.
        title: Of the picture.
    """

    columns: list[list[str]]
    edges: list[tuple[str, str, float]]
    title: str


def show_symbol(symbol: int) -> str:
    """A byte as it can be read."""
    return repr(chr(symbol)) if 32 <= symbol < 127 else repr(bytes([symbol]))[1:]


def around(wiring: Wiring, part: Part, most: int) -> Graph:
    """One part with the channels it reads and writes, and the symbols at their ends.

    At most so many channels on each side are shown, and so many symbols: the strongest.
    """
    name = str(part)
    reads, writes = _strongest(wiring.reads(part), most), _strongest(wiring.writes(part), most)
    edges = [(f"channel {c}", name, w) for c, w in reads.items()]
    edges += [(name, f"channel {c}\u200b", w) for c, w in writes.items()]
    symbols = range(wiring.model.head.out_features)
    sources, targets = [], []
    for s in symbols:
        emits, listens = wiring.symbol_writes(s), wiring.symbol_reads(s)
        sources += [(s, f"channel {c}", float(emits[c])) for c in reads if emits[c]]
        targets += [(s, f"channel {c}\u200b", float(listens[c])) for c in writes if listens[c]]
    sources, targets = (sorted(found, key=lambda e: -abs(e[2]))[:most] for found in (sources, targets))
    edges += [(f"reads {show_symbol(s)}", channel, w) for s, channel, w in sources]
    edges += [(channel, f"says {show_symbol(s)}", w) for s, channel, w in targets]
    columns = [
        _unique(f"reads {show_symbol(s)}" for s, _, _ in sources),
        [f"channel {c}" for c in reads],
        [name],
        [f"channel {c}\u200b" for c in writes],
        _unique(f"says {show_symbol(s)}" for s, _, _ in targets),
    ]
    return Graph([column for column in columns if column], edges, f"what {name} reads and writes")


def behaviour(wiring: Wiring, found: Sequence[Effect], prompt: Sequence[int], symbol: int) -> Graph:
    """The parts that decide a symbol, the symbols of the prompt that they read, and what connects them."""
    target = f"says {show_symbol(symbol)}"
    order = sorted(effect.part for effect in found)
    inputs = {f"reads {show_symbol(s)}": wiring.symbol_writes(s) for s in dict.fromkeys(prompt)}
    reads = {str(part): wiring.reads(part) for part in order} | {target: wiring.symbol_reads(symbol)}
    writes = inputs | {str(part): wiring.writes(part) for part in order}
    places = sorted({(part.block, part.kind) for part in order})
    between = [[str(part) for part in order if (part.block, part.kind) == place] for place in places]
    stages = [list(inputs), *between, [target]]
    edges = []
    for i, column in enumerate(stages):
        later = [node for stage in stages[i + 1 :] for node in stage]
        edges += [(a, b, float(writes[a] @ reads[b])) for a in column for b in later]
    edges = [edge for edge in edges if edge[2]]
    used = {node for a, b, _ in edges for node in (a, b)}
    columns = [[node for node in stage if node in used or node == target] for stage in stages]
    return Graph([column for column in columns if column], edges, f"what decides {show_symbol(symbol)}")


def _strongest(vector: Tensor, most: int) -> dict[int, float]:
    found = [(int(c), float(vector[c])) for c in vector.nonzero().flatten()]
    return dict(sorted(found, key=lambda pair: -abs(pair[1]))[:most])


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


@styled
def draw(graph: Graph) -> Any:
    """The graph as a figure: blue is positive, orange negative.

    The strongest line of each column of nodes is the widest that begins there.
    """
    figure_type, _ = load_matplotlib()
    tallest = max(len(column) for column in graph.columns)
    figure = figure_type(
        figsize=(1.9 * len(graph.columns), 0.8 + 0.3 * tallest), layout="constrained", facecolor="white"
    )
    axes = figure.add_subplot()
    axes.axis("off")
    axes.set_title(graph.title, fontsize=10)
    places = {
        node: (x, -(i + 0.5) / len(column))
        for x, column in enumerate(graph.columns)
        for i, node in enumerate(column)
    }
    strongest: dict[float, float] = {}  # among the lines that begin in a column
    for a, _, weight in graph.edges:
        strongest[places[a][0]] = max(abs(weight), strongest.get(places[a][0], 0.0))
    for a, b, weight in graph.edges:
        (x, y), (to_x, to_y) = places[a], places[b]
        share = abs(weight) / strongest[x]
        color, width, alpha = BLUE if weight > 0 else ORANGE, 0.4 + 2.6 * share, 0.35 + 0.6 * share
        axes.plot([x, to_x], [y, to_y], color=color, lw=width, alpha=alpha, zorder=1)
    for node, (x, y) in places.items():
        axes.text(x, y, node, ha="center", va="center", fontsize=8, zorder=2,
                  bbox={"boxstyle": "round,pad=0.25", "fc": "white", "ec": GREY, "lw": 0.6})  # fmt: skip
    axes.set_xlim(-0.5, len(graph.columns) - 0.5)
    axes.set_ylim(-1, 0)
    return figure
