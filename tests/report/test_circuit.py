"""Looking into a sparse decoder: against dense matrices, and against parts that are really taken away."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import topkast
from topkast.cli.main import main
from topkast.models import MLP, Decoder
from topkast.report import circuit
from topkast.report.circuit import Part, Wiring

PROMPT = list(b"print(x")


def sparse_decoder() -> Decoder:
    torch.manual_seed(0)
    model = Decoder(256, width=32, depth=2, num_heads=2, window=16, active_share=0.5)
    for norm in (module for module in model.modules() if isinstance(module, nn.LayerNorm)):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    topkast.sparsify(model, topkast.TopKAST(0.9, 0.8), seed=0)
    return model.eval()


def test_vectors_are_those_of_the_matrices() -> None:
    model = sparse_decoder()
    wiring, dense = Wiring(model), topkast.densify(model)
    block = dense.blocks[1]
    neuron, channel = Part(1, "neuron", 5), Part(1, "attention", 7)
    assert torch.equal(wiring.reads(neuron), block.up.weight[5] * block.norm2.weight)
    assert torch.equal(wiring.writes(neuron), block.down.weight[:, 5])
    assert torch.equal(wiring.reads(channel), block.qkv.weight[2 * 32 + 7] * block.norm1.weight)
    assert torch.equal(wiring.writes(channel), block.out.weight[:, 7])
    assert torch.equal(wiring.symbol_writes(40), dense.embedding.weight[40])
    assert torch.equal(wiring.symbol_reads(41), dense.head.weight[41] * dense.norm.weight)


def test_effects_are_those_of_parts_that_are_taken_away() -> None:
    model = sparse_decoder()
    found = circuit.effects(model, PROMPT, ord(")"), 5)
    assert len(found) == 5
    sizes = [abs(effect.estimate) for effect in found]
    assert sizes == sorted(sizes, reverse=True)
    whole = circuit.probability(model, PROMPT, ord(")"))
    for effect in found:
        damaged = topkast.densify(model)
        block = damaged.blocks[effect.part.block]
        layer = block.down if effect.part.kind == "neuron" else block.out
        with torch.no_grad():
            layer.weight[:, effect.part.index] = 0
        lost = torch.log2(torch.tensor(whole / circuit.probability(damaged, PROMPT, ord(")"))))
        assert effect.ablated == pytest.approx(float(lost), abs=1e-4)
        assert effect.ablated == pytest.approx(effect.estimate, rel=0.5, abs=2e-3)  # to first order


def test_graphs_have_every_connection_and_its_strength() -> None:
    model = sparse_decoder()
    wiring, part = Wiring(model), Part(0, "neuron", 3)
    graph = circuit.around(wiring, part, most=1000)
    reads = wiring.reads(part)
    into = {a: w for a, b, w in graph.edges if b == str(part)}
    assert into == {f"channel {c}": float(reads[c]) for c in reads.nonzero().flatten().tolist()}
    found = circuit.effects(model, PROMPT, 41, 6)
    drawn = {(a, b): w for a, b, w in circuit.behaviour(wiring, found, PROMPT, 41).edges}
    parts = sorted(effect.part for effect in found)
    for a in parts:
        expected = float(wiring.writes(a) @ wiring.symbol_reads(41))
        assert drawn.get((str(a), "says ')'"), 0.0) == pytest.approx(expected)
        for b in parts:
            if (a.block, a.kind) < (b.block, b.kind):
                strength = float(wiring.writes(a) @ wiring.reads(b))
                assert drawn.get((str(a), str(b)), 0.0) == pytest.approx(strength)
            else:
                assert (str(a), str(b)) not in drawn


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Part(2, "neuron", 0), "block must be 0 to 1, got 2"),
        (Part(0, "neuron", 128), "the neuron must be 0 to 127, got 128"),
        (Part(0, "attention", 32), "the attention must be 0 to 31, got 32"),
    ],
)
def test_parts_that_are_not_there(part: Part, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Wiring(sparse_decoder()).reads(part)


def test_networks_and_prompts_that_cannot_be_looked_into() -> None:
    with pytest.raises(ValueError, match="only a decoder can be looked into, got a MLP"):
        Wiring(MLP([4, 4]))
    with pytest.raises(ValueError, match="'blocks.0.qkv' is dense|'embedding' is dense"):
        Wiring(Decoder(256, 32, 1, 2, 16))
    with pytest.raises(ValueError, match="the prompt must have 1 to 16 symbols, got 17"):
        circuit.effects(sparse_decoder(), [65] * 17, 41, 3)


def test_the_command_draws_a_neuron_and_a_behaviour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "text").write_bytes(b"print(x)\nif (a or b):\n" * 400)
    run = tmp_path / "run"
    sizes = ["--width=128", "--heads=2", "--steps=6", "--batch=2", "--window=16", "--reference=none"]
    sparsities = ["--forward-sparsity=0.9", "--backward-sparsity=0.8", "--anneal-from=0.5"]
    train = ["train", "--preset=weight-sparse", f"--data={tmp_path / 'text'}", f"--out={run}"]
    assert main([*train, *sizes, *sparsities]) == 0
    assert main(["look", str(run), "--neuron", "1.7"]) == 0
    assert (run / "look.svg").stat().st_size > 1000
    picture = tmp_path / "closing.png"
    assert main(["look", str(run), "--prompt", "print(x", "--symbol", ")", "--out", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "p(')') = " in printed
    assert printed.count("neuron") + printed.count("attention") >= 8
    for arguments, why in (
        (["--neuron", "1"], "--neuron must be a block and a number such as 1.512, got '1'"),
        (["--neuron", "1.7", "--symbol", "x"], "--symbol goes with --prompt"),
        (["--prompt", "x", "--symbol", "xy"], "--symbol must be one byte, got 'xy'"),
        (["--prompt", ""], "the prompt must have 1 to 16 symbols, got 0"),
        (["--prompt", "x", "--most", "0"], "--most must be at least 1, got 0"),
    ):
        assert main(["look", str(run), *arguments]) == 2
        assert why in capsys.readouterr().err
