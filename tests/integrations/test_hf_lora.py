"""peft's LoRA on sparse layers: the adapters train, the sparse base stays as it is or trains along."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from small_models import gpt2, llama
from torch import Tensor, nn
from transformers import PreTrainedModel

import topkast
from topkast.integrations.huggingface.lora import sparse_lora

# peft reads an attribute that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
METHOD = topkast.TopKAST(0.9, 0.8, refresh_every=1, exchange_every=1)
TARGETS = {"llama": ["q_proj", "down_proj"], "gpt2": ["c_attn", "c_proj"]}
IDS = torch.arange(16).view(2, 8)


@pytest.fixture(params=TARGETS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return llama() if name == "llama" else gpt2(dropout=0.0)


def adapt(name: str, **options: Any) -> tuple[topkast.Handle, nn.Module]:
    sparse = topkast.sparsify(build(name), METHOD)
    config = LoraConfig(**{"target_modules": TARGETS[name], "r": 2, "fan_in_fan_out": False, **options})
    return sparse, get_peft_model(sparse.model, sparse_lora(config))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def state_of(model: nn.Module) -> dict[str, Tensor]:
    named = {k.replace(".base_layer", ""): v.clone() for k, v in model.state_dict().items()}
    return {k: v for k, v in named.items() if "lora" not in k}


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def test_adapters_train_and_a_frozen_base_keeps_every_bit(name: str) -> None:
    sparse, model = adapt(name)
    before = state_of(sparse.model)
    assert not any(w.values.requires_grad for w in sparse.weights.values())
    losses = train(model, torch.optim.AdamW(trained(model), lr=1e-2))
    assert losses[-1] < losses[0]
    after = state_of(sparse.model)
    assert after.keys() == before.keys()
    # What "auto" finds fastest is noted at the first pass; all else is as it was.
    assert all(torch.equal(after[k], v) for k, v in before.items() if not k.endswith(".choices"))


def test_the_base_can_train_along(name: str) -> None:
    sparse, model = adapt(name)
    for weight in sparse.weights.values():
        weight.requires_grad_(True)
    sets = {n: w.indices.clone() for n, w in sparse.weights.items()}
    losses = train(model, sparse.attach(torch.optim.AdamW(trained(model), lr=1e-2)))
    assert losses[-1] < losses[0]
    assert {w.steps for w in sparse.weights.values()} == {5}
    assert any(not torch.equal(w.indices, sets[n]) for n, w in sparse.weights.items())
    for weight in sparse.weights.values():
        theta = weight.theta().abs()
        assert theta[weight.forward_mask()].min() >= theta[~weight.forward_mask()].max()


def test_adapters_are_merged_after_densify(name: str) -> None:
    _, model = adapt(name)
    train(model, torch.optim.AdamW(trained(model), lr=1e-2))
    model.eval()
    expected = model(input_ids=IDS).logits
    with pytest.raises(
        TypeError, match=r"merging changes the dense weight of layer '.*', which is sparse: `topkast.densify`"
    ):
        model.merge_and_unload()
    merged = topkast.densify(model).merge_and_unload()
    assert {type(m).__module__.split(".")[0] for m in merged.modules()} <= {"torch", "transformers"}
    torch.testing.assert_close(merged(input_ids=IDS).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, r"DoraLinearVariant computes with the dense weight of layer '.*', which is sparse"),
        ({"init_lora_weights": "pissa"}, r"init_lora_weights='pissa' starts from the dense weight of layer"),
        ({"target_modules": ["embed_tokens", "wte"]}, r"LoRA can adapt sparse Linear and Conv1D layers, got layer '.*' \(Embedding\): take it out of `target_modules`"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*tie.*:UserWarning")
def test_what_needs_a_dense_weight_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        adapt(name, **options)
