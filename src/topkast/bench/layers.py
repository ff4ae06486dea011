"""One layer at one pair of sparsities: every contender is checked, then all are timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from topkast.bench import contenders
from topkast.bench.contenders import Contender, Work
from topkast.bench.peers import Peer
from topkast.bench.ratios import Pair, ideal, show_pair
from topkast.bench.timing import Timing, time_in_turns

# Long enough for the threads of another OpenMP runtime to stop spinning, see `time_in_turns`.
_PAUSE_WITH_PEERS = 0.005


@dataclass(frozen=True)
class Case:
    """A dense layer and an input for it.

    Attributes:
        name: For tables.
        build: Makes the layer.
        shape: Of the input.
        sizes: What the name says, as numbers, for the JSON file.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """Times of all contenders of one case at one pair, "dense" among them.

    Attributes:
        case: What was measured.
        pair: At which sparsities.
        timings: By contender.
        engines: Which engine of ours computed a contender.
        left_out: Who was not timed and where → why.
    """

    case: Case
    pair: Pair
    timings: dict[str, Timing]
    engines: dict[str, str]
    left_out: dict[str, str]

    def ratio(self, name: str) -> float:
        """How many times faster than dense."""
        return self.timings["dense"].ratio_to(self.timings[name])

    def rows(self) -> list[dict[str, object]]:
        """One record per contender."""
        return [
            {
                "case": self.case.name,
                **self.case.sizes,
                "forward_sparsity": self.pair[0],
                "backward_sparsity": self.pair[1],
                "contender": name,
                "engine": self.engines.get(name),
                "seconds": timing.median,
                "seconds_low": timing.low,
                "seconds_high": timing.high,
                "ratio": self.ratio(name),
                "ideal": ideal(self.pair),
            }
            for name, timing in self.timings.items()
        ]


def measure(
    case: Case, pair: Pair, engines: Sequence[str], peers: Sequence[Peer] = (), *, repeats: int
) -> Measurement:
    """Checks and times dense, our engines, and the peers (which need both sparsities to be equal).

    Raises:
        WrongResult: One of our engines is wrong. A peer that is wrong, or fails, is left out with the reason:
            it must not cost the figures of the others.
    """
    torch.manual_seed(0)
    layer = case.build()
    work = Work.of(layer, case.shape)
    where = f"{case.name}, {show_pair(pair)}"
    alpha, backward_mask = contenders.alpha_layer(layer, pair)
    expected = contenders.expect(alpha, backward_mask, work)
    field_of: dict[str, Contender] = {"dense": contenders.dense(layer)}
    for engine in engines:
        contender = contenders.ours(layer, pair, engine)
        contenders.check(contender, expected, work, where)
        field_of[engine] = contender
    left_out: dict[str, str] = {}
    for peer in peers:
        try:
            contender = peer.build(alpha, pair)
            contenders.check(contender, expected, work, where)
            field_of[peer.name] = contender
        except Exception as error:  # whatever another library raises
            left_out[f"{peer.name} at {where}"] = str(error) or type(error).__name__
    runs = {name: partial(work.run, c.module) for name, c in field_of.items()}
    timings = time_in_turns(runs, repeats, pause=_PAUSE_WITH_PEERS if peers else 0.0)
    chosen = {name: c.engine() for name, c in field_of.items() if c.engine is not None}
    return Measurement(case, pair, timings, chosen, left_out)
