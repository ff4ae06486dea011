"""FLOPs of a model: the dense total is torch's own count, the sparse one follows the densities."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import topkast
from topkast.cost.flops import dense_flops, flops
from topkast.cost.parameters import parameters
from topkast.models import MLP, Decoder, ResNet50

METHOD = topkast.TopKAST(0.8, 0.5)


class Attention(nn.Module):
    """Self-attention, then attention to what it was given."""

    def __init__(self, need_weights: bool = True) -> None:
        super().__init__()
        self.enter = nn.Linear(8, 16)
        self.first = nn.MultiheadAttention(16, 4, batch_first=True)
        self.second = nn.MultiheadAttention(16, 4, kdim=8, vdim=8, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> dict[str, Any]:
        h = self.enter(x)
        h = h + self.first(h, h, h, need_weights=self.need_weights)[0]
        return {"y": (self.second(h, x, x, need_weights=self.need_weights)[0], 3)}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.block = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.block(self.block(self.embedding(ids))))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 16, 3, padding="same", dilation=2, bias=False),
        nn.Conv2d(16, 16, 3, stride=(2, 1), padding=(2, 0), padding_mode="circular"),
        nn.Flatten(2),
        nn.Conv1d(16, 8, 4, padding="valid"),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


def initialised(model: nn.Module, example: Any) -> nn.Module:
    model(example)
    return model


CASES: dict[str, Any] = {
    "mlp": lambda: (MLP([20, 64, 32, 5]), torch.randn(7, 20)),
    "three dimensions": lambda: (nn.Sequential(nn.Linear(20, 6), nn.Linear(6, 3)), torch.randn(2, 7, 20)),
    "cnn": lambda: (initialised(cnn(), torch.randn(2, 3, 24, 20)), torch.randn(2, 3, 24, 20)),
    "conv3d": lambda: (nn.Sequential(nn.Conv3d(2, 4, 3), nn.Conv3d(4, 2, 2)), torch.randn(2, 2, 6, 7, 8)),
    "unbatched": lambda: (nn.Sequential(nn.Conv1d(2, 4, 3)), torch.randn(2, 9)),
    "decoder": lambda: (Decoder(32, 16, 2, 4, 12), torch.randint(32, (3, 12))),
    "attention": lambda: (Attention(), torch.randn(2, 6, 8)),
    "fused attention": lambda: (Attention(need_weights=False), torch.randn(2, 6, 8)),
    "encoder": lambda: (nn.TransformerEncoderLayer(16, 4, 32), torch.randn(5, 2, 16)),
    "tied": lambda: (Tied(), torch.randint(32, (3, 5))),
    "resnet": lambda: (ResNet50(10, stages=(1, 1), width=8), torch.randn(2, 3, 32, 32)),
}


def counted_by_torch(model: nn.Module, example: Tensor) -> tuple[int, int]:
    """Forward and total. Without fused attention, of which torch's counter knows nothing on the CPU."""
    model = copy.deepcopy(model)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        y = model(example)
        forward = counter.get_total_flops()
        (y["y"][0] if isinstance(y, dict) else y).sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("keep_dense", [(), ("first", "last")], ids=["all sparse", "ends dense"])
def test_the_dense_cost_is_what_torch_counts_on_the_dense_twin(case: str, keep_dense: Any) -> None:
    model, example = CASES[case]()
    expected = counted_by_torch(model, example)
    dense = dense_flops(model, example)
    assert (dense.dense_forward, dense.dense_total) == expected
    assert (dense.forward, dense.total) == expected
    if not (keep_dense and case in ("unbatched", "three dimensions", "conv3d", "tied")):
        handle = topkast.sparsify(model, METHOD, keep_dense=keep_dense)
        sparse = flops(model, handle.weights, example)
        assert (sparse.dense_forward, sparse.dense_total) == expected
        assert {x.name for x in sparse.layers} == {x.name for x in dense.layers}
        assert sparse.at(dict.fromkeys(handle.weights, (1.0, 1.0))) == dense
        assert sparse.total < dense.total


def test_resnet50_costs_what_torch_counts() -> None:
    with torch.device("meta"):
        model, example = ResNet50(), torch.empty(2, 3, 64, 64)
    expected = counted_by_torch(model, example)
    dense = dense_flops(model, example)
    assert (dense.forward, dense.total) == expected
    handle = topkast.sparsify(model, METHOD, reservoir="implicit", engine="masked")
    sparse = flops(model, handle.weights, torch.zeros(2, 3, 64, 64))
    assert (sparse.dense_forward, sparse.dense_total) == expected
    assert len(sparse.layers) == 54


def test_groups_cost_their_multiply_adds_where_torch_counts_too_many() -> None:
    model, example = (
        nn.Sequential(nn.Conv2d(8, 16, 3, groups=4, stride=2, padding=1)),
        torch.randn(2, 8, 9, 9),
    )
    forward, total = counted_by_torch(model, example)
    dense = dense_flops(model, example)
    assert dense.forward == forward == 2 * 2 * 25 * 16 * 2 * 9
    assert dense.weight_grad == forward
    # torch's formula for the weight gradient has all input channels in place of those of a group.
    assert total - forward == 4 * dense.weight_grad


def test_each_pass_costs_its_set() -> None:
    model = MLP([20, 64, 5])
    handle = topkast.sparsify(model, METHOD)
    count = flops(model, handle.weights, torch.randn(7, 20))
    for layer, weight in zip(count.layers, handle.weights.values(), strict=True):
        assert layer.forward == 2 * 7 * weight.counts.forward
        assert layer.weight_grad == 2 * 7 * weight.counts.backward
    assert count.layers[0].dense_input_grad == 0
    assert count.layers[1].input_grad == count.layers[1].forward


def test_inputs_that_want_a_gradient_and_frozen_weights_are_told_apart() -> None:
    model = MLP([20, 64, 5])
    handle = topkast.sparsify(model, METHOD, skip=["2"])
    model[0].weight.requires_grad_(False)
    count = flops(model, handle.weights, torch.randn(7, 20, requires_grad=True))
    first, last = count.layers
    assert (first.dense_input_grad, first.dense_weight_grad) == (first.dense_forward, 0)
    assert (last.input_grad, last.weight_grad) == (last.dense_forward, last.dense_forward)
    model.requires_grad_(False)
    frozen = flops(model, handle.weights, torch.randn(7, 20))
    assert frozen.total == frozen.forward > 0


def test_after_exploration_the_weight_gradient_costs_the_forward_set() -> None:
    model = MLP([20, 64, 5])
    handle = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5, explore_until=1))
    example = torch.randn(7, 20)
    before = flops(model, handle.weights, example)
    optimizer = handle.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    model(example).sum().backward()
    optimizer.step()
    after = flops(model, handle.weights, example)
    assert before.layers[1].weight_grad_density == 0.5
    assert after.layers[1].weight_grad_density == after.layers[1].forward_density == pytest.approx(0.2)


def assert_same_state(model: nn.Module, before: dict[str, Any]) -> None:
    after = state_of(model)
    assert after["modules"] == before["modules"]
    torch.testing.assert_close(after["tensors"], before["tensors"], rtol=0, atol=0)


def state_of(model: nn.Module) -> dict[str, Any]:
    """Objects, versions and contents."""
    states = model.state_dict(keep_vars=True)
    grads = {f"{k} grad": p.grad for k, p in model.named_parameters() if p.grad is not None}
    objects = [(id(t), t._version) for t in (*states.values(), *grads.values())]
    modules = [(id(m), m.training, sorted(m.__dict__), len(m._forward_hooks)) for m in model.modules()]
    tensors = {k: t.detach().clone() for k, t in {**states, **grads}.items()}
    return {
        "modules": [*modules, *objects, torch.nn.modules.module._global_forward_hooks.copy()],
        "tensors": {**tensors, "random": torch.get_rng_state()},
    }


@pytest.mark.parametrize("case", ["cnn", "attention", "encoder", "tied", "resnet"])
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(case: str, training: bool) -> None:
    model, example = CASES[case]()
    handle = topkast.sparsify(
        model, METHOD, skip=lambda name, _: name.startswith(("first", "3", "self_attn"))
    )
    model.train(training)
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    before = state_of(model)
    flops(model, handle.weights, example)
    assert_same_state(model, before)


def test_also_when_the_model_fails() -> None:
    model = MLP([20, 64, 5])
    handle = topkast.sparsify(model, METHOD, skip=["0"])
    good, bad = torch.randn(7, 20), torch.randn(7, 21)
    before = state_of(model)
    with pytest.raises(ValueError, match="last dimension must be 20, got input of shape") as error:
        flops(model, handle.weights, bad)
    assert "`example`" in error.value.__notes__[0]
    assert_same_state(model, before)
    assert flops(model, handle.weights, good).total > 0


def test_arguments_come_by_position_or_by_name_under_no_grad_too() -> None:
    attention = nn.MultiheadAttention(16, 4)
    x = torch.randn(5, 2, 16)
    with torch.no_grad():
        count = dense_flops(attention, {"query": x, "key": x, "value": x})
    assert dense_flops(attention, (x, x, x)) == count
    assert [layer.name for layer in count.layers] == ["q_proj", "k_proj", "v_proj", "out_proj"]
    assert count.weight_grad > 0
    assert count.other_backward == 2 * count.other_forward > 0


def test_a_parameter_may_be_what_a_layer_is_called_with() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.randn(3, 8))
            self.layer = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.query) @ x

    (layer,) = (count := dense_flops(Learned(), torch.randn(4, 5))).layers
    assert layer.dense_input_grad == layer.dense_forward == 2 * 3 * 8 * 4
    assert count.other_forward == count.other_backward == 2 * 3 * 4 * 5


def test_a_list_as_example_is_refused() -> None:
    with pytest.raises(TypeError, match="`example` must be what the model is called with.* got list"):
        dense_flops(MLP([20, 5]), [torch.randn(7, 20)])  # pyright: ignore[reportArgumentType]


def test_a_lazy_model_is_refused_before_it_is_changed() -> None:
    with pytest.raises(ValueError, match="'0.weight' is not initialised yet"):
        dense_flops(nn.Sequential(nn.LazyLinear(3)), torch.randn(2, 4))


def test_dense_flops_is_for_dense_models() -> None:
    model = MLP([20, 5])
    topkast.sparsify(model, METHOD)
    with pytest.raises(ValueError, match="`model` must be dense, but '0' is"):
        dense_flops(model, torch.randn(2, 20))


@pytest.mark.parametrize("case", ["mlp", "cnn", "decoder", "attention", "fused attention"])
def test_nothing_need_exist_to_be_counted(case: str) -> None:
    model, example = CASES[case]()
    expected = dense_flops(model, example)
    assert dense_flops(model.to("meta"), example.to("meta")) == expected


def test_layers_of_hugging_face_count() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=4)
    model, ids = transformers.GPT2LMHeadModel(config), torch.randint(40, (2, 12))
    dense = dense_flops(model, {"input_ids": ids, "use_cache": False})
    twin = copy.deepcopy(model)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        twin(input_ids=ids, use_cache=False).logits.sum().backward()
    assert dense.total == counter.get_total_flops()
    handle = topkast.sparsify(model, METHOD)
    sparse = flops(model, handle.weights, {"input_ids": ids, "labels": ids})
    assert sparse.dense_total == dense.total
    assert sparse.layers[0].name == "transformer.wte"
    assert sparse.layers[0].dense_forward == 2 * 24 * 40 * 16


def test_a_weight_used_as_a_matrix_by_the_model_itself_counts() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 16)

        def forward(self, ids: Tensor) -> Tensor:
            return F.linear(self.embedding(ids), self.embedding.weight)

    model, ids = Net(), torch.randint(32, (3, 5))
    expected = counted_by_torch(model, ids)
    handle = topkast.sparsify(model, METHOD)
    count = flops(model, handle.weights, ids)
    assert (count.dense_forward, count.dense_total) == expected
    assert count.layers[0].forward == 2 * 15 * handle.weights["embedding"].counts.forward


def test_parameters_in_use() -> None:
    model = Tied()
    total = sum(p.numel() for p in model.parameters())
    handle = topkast.sparsify(model, METHOD, skip=["block"])
    count = parameters(model, handle.weights)
    assert count.dense == total
    assert count.rest == 16 * 16 + 16
    assert count.used == count.rest + round(0.2 * 32 * 16)


def test_the_handle_counts_a_step_and_a_run() -> None:
    model = MLP([20, 64, 5])
    handle = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5, explore_until=30))
    example = torch.randn(7, 20)
    step = handle.flops(example)
    assert step == flops(model, handle.weights, example)
    assert handle.flops(example, steps=1) == step
    run = handle.flops(example, steps=100)
    assert run.forward == 100 * step.forward
    assert run.dense_total == 100 * step.dense_total
    sizes = [w.counts for w in handle.weights.values()]
    assert run.weight_grad == sum(2 * 7 * (30 * c.backward + 70 * c.forward) for c in sizes)


def test_steps_are_at_least_one() -> None:
    handle = topkast.sparsify(MLP([20, 64, 5]), METHOD)
    with pytest.raises(ValueError, match="`steps` must be at least 1, got 0"):
        handle.flops(torch.randn(7, 20), steps=0)
    with pytest.raises(TypeError, match=r"`steps` must be a whole number of steps, got 1\.5"):
        handle.flops(torch.randn(7, 20), steps=1.5)  # pyright: ignore[reportArgumentType]
