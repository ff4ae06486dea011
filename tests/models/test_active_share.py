"""Activations of which only the largest are kept."""

from __future__ import annotations

import pytest
import torch

from topkast.models.simple import AbsTopK, Decoder


def test_the_largest_magnitudes_are_kept_and_get_the_gradient() -> None:
    input = torch.tensor([[3.0, -5.0, 1.0, 0.5], [0.0, 2.0, -1.0, 4.0]], requires_grad=True)
    output = AbsTopK(0.5)(input)
    assert torch.equal(output, torch.tensor([[3.0, -5.0, 0.0, 0.0], [0.0, 2.0, 0.0, 4.0]]))
    output.sum().backward()
    assert input.grad is not None
    assert torch.equal(input.grad, torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0]]))


def test_at_least_one_is_kept() -> None:
    assert int(AbsTopK(0.01)(torch.randn(7, 5)).count_nonzero()) == 7


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_outside_of_its_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"`share` must be above 0 and at most 1"):
        AbsTopK(share)


def test_a_decoder_reads_and_computes_with_a_share_of_its_activations() -> None:
    torch.manual_seed(0)
    model = Decoder(16, width=8, depth=2, num_heads=2, window=4, active_share=0.25)
    seen: dict[str, int] = {}
    for name, layer in model.named_modules():
        if name.endswith(("qkv", "up", "down")):
            layer.register_forward_pre_hook(
                lambda _, inputs, name=name: seen.update({name: int((inputs[0] != 0).sum(-1).max())})
            )
    model(torch.randint(16, (3, 4)))
    assert {name.split(".")[-1]: kept for name, kept in seen.items()} == {"qkv": 2, "up": 2, "down": 8}
    assert not any(isinstance(m, AbsTopK) for m in Decoder(16, 8, 1, 2, 4).modules())
