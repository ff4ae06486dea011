"""What a sparse ResNet-50 costs at 224 px, by distribution of the density, as the tables of docs/flops.md.

Nothing is trained and nothing is computed: the network is built on the meta device.

    python examples/resnet50_flops.py
"""

from __future__ import annotations

import torch

from topkast.core.distribution import spread
from topkast.core.sets import Counts
from topkast.cost.accounting import Flops
from topkast.cost.flops import dense_flops
from topkast.models import ResNet50

SPARSITIES = (0.8, 0.9, 0.95, 0.965, 0.98)
# Inference FLOPs of google-research/rigl's README, as shares of a dense 8.2e9.
PUBLISHED = {
    "uniform": {0.8: "0.23", 0.9: "0.13", 0.95: "0.08", 0.965: "0.07"},
    "erk": {0.8: "0.42", 0.9: "0.24", 0.95: "0.12", 0.965: "0.09"},
}


def dense_resnet50(size: int = 224) -> Flops:
    with torch.device("meta"):
        return dense_flops(ResNet50(), torch.empty(1, 3, size, size))


def counts(dense: Flops, distribution: str, sparsity: float) -> dict[str, Counts]:
    """|A| of every sparse layer: all 54 with ERK; uniform keeps the first convolution dense, as RigL does."""
    shapes = {layer.name: layer.shape for layer in dense.layers}
    if distribution == "uniform":
        del shapes["conv"]
    return spread(distribution, shapes, sparsity, sparsity)


def sparse_flops(dense: Flops, distribution: str, sparsity: float) -> Flops:
    layers = counts(dense, distribution, sparsity)
    return dense.at({name: (c.forward_density, c.backward_density) for name, c in layers.items()})


def as_rigl_counts(dense: Flops, distribution: str, sparsity: float) -> float:
    """The share of the dense forward pass by RigL's rules, which count two things more than products.

    One operation for a ReLU at each output of each layer; and the first convolution has 115x115 outputs: its
    input is padded by 3 on each side beforehand, and then taken for the input of one that pads by itself.
    """
    outputs = {x.name: x.dense_forward // (2 * x.numel) * x.shape[0] for x in dense.layers}
    scale = {"conv": 115**2 / 112**2}
    relu = sum(scale.get(name, 1) * number for name, number in outputs.items())
    sparse = sparse_flops(dense, distribution, sparsity)
    part = sum(scale.get(x.name, 1) * x.forward for x in sparse.layers)
    whole = sum(scale.get(x.name, 1) * x.dense_forward for x in dense.layers)
    return (part + relu) / (whole + relu)


def fractions_table(dense: Flops) -> str:
    """Forward and training cost of the two distributions beside the published figures."""
    lines = [
        "| sparsity | distribution | forward | by RigL's rules | published | training, M = 0 |",
        "|---|---|---|---|---|---|",
    ]
    for distribution in ("uniform", "erk"):
        for sparsity in SPARSITIES:
            flops = sparse_flops(dense, distribution, sparsity)
            rigl = as_rigl_counts(dense, distribution, sparsity)
            published = PUBLISHED[distribution].get(sparsity, "")
            lines.append(
                f"| {100 * sparsity:g} % | {distribution} | {flops.forward_fraction:.4f} | {rigl:.4f} "
                f"| {published} | {flops.training_fraction:.4f} |"
            )
    return "\n".join(lines)


def layers_table(dense: Flops) -> str:
    """Density of every layer under ERK."""
    sparsities = [s for s in SPARSITIES if s != 0.965]
    columns = [counts(dense, "erk", sparsity) for sparsity in sparsities]
    head = " | ".join(f"{100 * s:g} %" for s in sparsities)
    lines = [f"| layer | shape | {head} |", "|---|---|" + "---|" * len(columns)]
    for layer in dense.layers:
        shape = "×".join(str(size) for size in layer.shape)
        densities = " | ".join(f"{column[layer.name].forward_density:.4f}" for column in columns)
        lines.append(f"| {layer.name} | {shape} | {densities} |")
    totals = " | ".join(f"{sum(c.forward for c in column.values()):,}" for column in columns)
    numel = sum(layer.numel for layer in dense.layers)
    return "\n".join([*lines, f"| Σ\\|A\\| | {numel:,} | {totals} |"])


def main() -> None:
    dense = dense_resnet50()
    print(fractions_table(dense))
    print()
    print(layers_table(dense))


if __name__ == "__main__":
    main()
