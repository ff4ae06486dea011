from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import topkast
from topkast.convert.recipe import follow_recipe, recipe


class Net(nn.Module):
    """Something of everything, nested."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)) for _ in range(2)]
        )
        self.memory = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).mean((2, 3))
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.memory(h.unsqueeze(1))[0].squeeze(1))


METHOD = topkast.TopKAST(0.8, 0.5)
ALL = ["stem.0", "blocks.0.0", "blocks.0.2", "blocks.1.0", "blocks.1.2", "head"]


def test_every_nested_layer_is_found_and_the_rest_is_reported() -> None:
    model = Net()
    dense = sum(p.numel() for p in model.parameters())
    sparse = topkast.sparsify(model, METHOD)
    assert list(sparse.layers) == ALL
    assert sparse.left_dense == {"memory": "LSTM has no sparse counterpart"}
    table = str(sparse)
    assert "left dense: memory (LSTM has no sparse counterpart)" in table
    assert all(name in table for name in ALL)
    in_use = sum(w.counts.forward for w in sparse.weights.values())
    rest = dense - sum(w.numel() for w in sparse.weights.values())
    assert f"model: {in_use + rest:,} parameters in use of {dense:,}" in table
    model(torch.randn(2, 3, 5, 5)).sum().backward()


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        (["stem", "head"], ["blocks.0.0", "blocks.0.2", "blocks.1.0", "blocks.1.2"]),
        (["blocks.*.0"], ["stem.0", "blocks.0.2", "blocks.1.2", "head"]),
        ("blocks", ["stem.0", "head"]),
        (lambda name, layer: isinstance(layer, nn.Linear), ["stem.0"]),
    ],
)
def test_skip_takes_names_globs_modules_and_callables(skip: Any, left: list[str]) -> None:
    sparse = topkast.sparsify(Net(), METHOD, skip=skip)
    assert list(sparse.layers) == left
    assert set(sparse.left_dense) == {*ALL, "memory"} - set(left)


def test_first_and_last_dense_is_one_argument() -> None:
    sparse = topkast.sparsify(Net(), METHOD, keep_dense=("first", "last"))
    assert list(sparse.layers) == ALL[1:-1]
    assert sparse.left_dense["stem.0"] == "keep_dense: first layer"
    assert sparse.left_dense["head"] == "keep_dense: last layer"


def test_a_tied_weight_stays_dense_if_any_of_its_layers_does() -> None:
    model = nn.ModuleDict({"emb": nn.Embedding(9, 6), "mid": nn.Linear(6, 6), "out": nn.Linear(6, 9)})
    model["out"].weight = model["emb"].weight
    sparse = topkast.sparsify(model, METHOD, keep_dense="embeddings")
    assert list(sparse.layers) == ["mid"]
    assert sparse.left_dense == {"emb": "keep_dense: embedding", "out": "shares its weight with emb"}
    assert model["out"].weight is model["emb"].weight


def test_the_last_layer_is_the_last_in_the_model_even_if_its_weight_is_that_of_the_first() -> None:
    model = nn.ModuleDict({"emb": nn.Embedding(9, 6), "mid": nn.Linear(6, 6), "out": nn.Linear(6, 9)})
    model["out"].weight = model["emb"].weight
    sparse = topkast.sparsify(model, METHOD, keep_dense="last")
    assert list(sparse.layers) == ["mid"]
    assert sparse.left_dense == {"emb": "shares its weight with out", "out": "keep_dense: last layer"}


def test_first_and_last_of_a_tied_model_are_both_named() -> None:
    model = nn.ModuleDict(
        {"a": nn.Linear(6, 6), "b": nn.Linear(6, 6), "again": nn.Linear(6, 6), "c": nn.Linear(6, 6)}
    )
    model["again"].weight = model["a"].weight
    sparse = topkast.sparsify(model, METHOD, keep_dense=("first", "last"))
    assert list(sparse.layers) == ["b"]
    assert sparse.left_dense == {
        "a": "keep_dense: first layer",
        "again": "shares its weight with a",
        "c": "keep_dense: last layer",
    }


def test_the_last_layer_of_a_model_that_ends_in_attention_is_its_output_projection() -> None:
    model = nn.ModuleDict({"emb": nn.Embedding(9, 8), "attention": nn.MultiheadAttention(8, 2)})
    sparse = topkast.sparsify(model, METHOD, keep_dense=("first", "last"))
    assert sparse.left_dense == {
        "emb": "keep_dense: first layer",
        "attention.out_proj": "keep_dense: last layer",
    }
    tied = nn.ModuleDict({"emb": nn.Embedding(9, 8), "attention": nn.MultiheadAttention(8, 2)})
    tied["head"] = nn.Linear(8, 9)
    tied["head"].weight = tied["emb"].weight
    sparse = topkast.sparsify(tied, METHOD, keep_dense="last")
    assert list(sparse.layers) == [f"attention.{part}_proj" for part in ("q", "k", "v", "out")]


def test_a_last_layer_that_is_dense_anyway_is_the_last_layer() -> None:
    model = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6), "c": nn.Linear(6, 6)})
    model.register_parameter("table", model["c"].weight)
    sparse = topkast.sparsify(model, METHOD, keep_dense="last")
    assert list(sparse.layers) == ["a", "b"]
    assert sparse.left_dense["c"] == "its weight is also table"


def test_a_weight_that_something_else_holds_stays_dense() -> None:
    class Holder(nn.Module):
        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.table = weight

    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    model = nn.ModuleDict({"first": first, "second": second, "holder": Holder(second.weight)})
    sparse = topkast.sparsify(model, METHOD)
    assert list(sparse.layers) == ["first"]
    assert sparse.left_dense["second"] == "its weight is also holder.table"
    assert model["holder"].table is second.weight


def test_layers_that_cannot_be_sparse_are_left_dense_with_the_reason() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    class Renamed(nn.Linear):
        pass

    model = nn.ModuleDict(
        {
            "fine": nn.Linear(6, 6),
            "renamed": Renamed(6, 6),
            "scaled": Scaled(6, 6),
            "normed": parametrizations.weight_norm(nn.Linear(6, 6)),
            "lazy": nn.LazyLinear(6),
            "clipped": nn.Embedding(6, 6, max_norm=1.0),
            "coo": nn.Embedding(6, 6, sparse=True),
            "up": nn.ConvTranspose2d(2, 2, 3),
            "bag": nn.EmbeddingBag(6, 6),
            "gru": nn.GRU(6, 6),
        }
    )
    sparse = topkast.sparsify(model, METHOD)
    assert list(sparse.layers) == ["fine", "renamed"]
    assert sparse.left_dense == {
        "scaled": "Scaled has a forward of its own",
        "normed": "its weight is parametrized",
        "lazy": "its weight is not initialised yet (run one batch first)",
        "clipped": "max_norm rewrites rows during the forward pass",
        "coo": "sparse=True asks for gradients of sparse layout",
        "up": "ConvTranspose2d has no sparse counterpart",
        "bag": "EmbeddingBag has no sparse counterpart",
        "gru": "GRU has no sparse counterpart",
    }


def test_a_model_with_a_matrix_of_its_own_is_looked_through_all_the_same() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.zeros(7, 6))
            self.inner = nn.Linear(6, 6)

    model = Positions()
    model.deeper = Positions()
    sparse = topkast.sparsify(model, METHOD)
    assert list(sparse.layers) == ["inner", "deeper.inner"]
    assert sparse.left_dense == {
        "position": "a Parameter of Positions itself",
        "deeper.position": "a Parameter of Positions itself",
    }


def test_an_eighty_percent_model_can_have_exactly_a_fifth_of_all_parameters() -> None:
    """The paper's counting: 277 M → 55 M, biases, norms and embeddings included."""
    model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 100))
    dense = sum(p.numel() for p in model.parameters())
    sparse = topkast.sparsify(model, topkast.TopKAST(0.8, 0.5), budget="model")
    rest = sum(p.numel() for n, p in model.named_parameters() if not n.endswith("values"))
    assert rest + sum(w.counts.forward for w in sparse.weights.values()) == round(0.2 * dense)
    assert rest + sum(w.counts.backward for w in sparse.weights.values()) == round(0.5 * dense)


def test_engines_that_cannot_do_a_layer_fall_back_and_say_so() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Conv3d(1, 2, 3), nn.Linear(4, 4))
    sparse = topkast.sparsify(model, METHOD, engine="csr")
    assert [w.engine for w in sparse.weights.values()] == ["masked", "masked", "csr"]
    assert "other engine: 0 uses masked: csr has no grouped convolution" in str(sparse)
    assert "other engine: 1 uses masked: csr has no 3-D convolution" in str(sparse)


FROZEN = "frozen (requires_grad=False); unfreeze it before sparsify to make it sparse"


def test_frozen_weights_are_left_dense_and_listed() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Embedding(9, 6)
            self.embedding, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)
            self.attention = nn.MultiheadAttention(6, 2)
            self.trained = nn.Linear(6, 6)
            self.head.weight = self.embedding.weight
            for frozen in (self.position, self.embedding, self.attention.in_proj_weight):
                frozen.requires_grad_(False)

    model = Frozen()
    before = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    sparse = topkast.sparsify(model, METHOD)
    assert list(sparse.layers) == ["attention.out_proj", "trained"]
    projections = [f"attention.{name}_proj" for name in "qkv"]
    assert sparse.left_dense == dict.fromkeys(["position", "embedding", "head", *projections], FROZEN)
    assert f"left dense: position ({FROZEN})" in str(sparse)
    assert model.head.weight is model.embedding.weight
    packed = torch.cat([model.attention.get_submodule(f"{n}_proj").weight for n in "qkv"])
    after = {"attention.in_proj_weight": packed, **dict(model.named_parameters())}
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not any(after[name].requires_grad for name in before)


def test_a_frozen_layer_may_be_named_by_skip_and_be_the_first() -> None:
    model = nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6), nn.Linear(6, 6))
    sparse = topkast.sparsify(model, METHOD, skip=["0"])
    assert sparse.left_dense == {"0": "skip: 0"}
    model = nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6), nn.Linear(6, 6))
    assert list(topkast.sparsify(model, METHOD, keep_dense="first").layers) == ["1", "2"]


def test_a_model_that_is_all_frozen_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no layer is left to make sparse: 0: frozen .*unfreeze it before"):
        topkast.sparsify(nn.Sequential(nn.Linear(6, 6)).requires_grad_(False), METHOD)


def test_a_recipe_makes_frozen_layers_sparse_that_it_has_as_sparse() -> None:
    """As in checkpoints of models that were frozen after `sparsify`."""
    written = recipe(topkast.sparsify(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), METHOD))
    model = nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6))
    sparse = follow_recipe(model, written)
    assert list(sparse.layers) == ["0", "1"]
    assert [w.values.requires_grad for w in sparse.weights.values()] == [False, True]

    model = nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6))
    model[1].weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        follow_recipe(model, written)
    assert not model[0].weight.requires_grad


def test_a_recipe_finds_the_projections_of_attention() -> None:
    def build() -> nn.ModuleDict:
        return nn.ModuleDict({"attention": nn.MultiheadAttention(6, 2), "last": nn.Linear(6, 6)})

    sparse = topkast.sparsify(build(), METHOD, skip=["attention.k_proj"])
    again = follow_recipe(build(), recipe(sparse))
    assert list(again.weights) == list(sparse.weights)
    again.model.load_state_dict(sparse.model.state_dict())


NAN = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
nn.init.constant_(NAN[1].weight, float("nan"))


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (nn.Sequential(nn.ReLU()), {}, ValueError, r"the model has no layer that could be sparse"),
        (nn.Sequential(nn.LSTM(3, 3)), {}, ValueError, r"no layer is left to make sparse: 0: LSTM has no"),
        (nn.Linear(3, 3), {}, ValueError, r"the model is itself a single layer.*wrap it in nn.Sequential"),
        (Net(), {"skip": ["hed"]}, ValueError, r"`skip` names 'hed', which matches no layer that could be sparse; there are 'head'"),
        (Net(), {"skip": ["stem.1"]}, ValueError, r"`skip` names 'stem.1', which matches no layer"),
        (Net(), {"keep_dense": "middle"}, ValueError, r"`keep_dense` takes 'first', 'last', 'embeddings', got 'middle'"),
        (Net(), {"engine": "cuda"}, ValueError, r"`engine` must be one of 'auto', 'masked', 'csr'.*, got 'cuda'"),
        (Net(), {"reservoir": "none"}, ValueError, r"`reservoir` must be 'stored'.*, got 'none'"),
        (Net(), {"budget": "all"}, ValueError, r"`budget` must be 'layers' or 'model', got 'all'"),
        (Net(), {"distribution": {"heads": 0.5}}, ValueError, r"`distribution` names 'heads', which matches no sparse layer"),
        (NAN, {}, ValueError, r"layer '1' has 36 weights that are not finite"),
        (nn.Sequential(nn.Linear(3, 3, device="meta")), {}, ValueError, r"layer '0' is on the meta device and has no values"),
        ("net", {}, TypeError, r"`model` must be a torch.nn.Module, got str"),
    ],
)  # fmt: skip
def test_bad_input_is_named_and_the_model_left_as_it_was(
    model: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    if not isinstance(model, nn.Module):
        with pytest.raises(error, match=message):
            topkast.sparsify(model, METHOD, **options)
        return
    modules = list(model.modules())
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(error, match=message):
        topkast.sparsify(model, METHOD, **options)
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    for key, value in model.state_dict().items():
        if not value.is_meta:
            torch.testing.assert_close(value, state[key], rtol=0, atol=0, equal_nan=True)


def test_a_method_is_an_object() -> None:
    with pytest.raises(
        TypeError, match=r"`method` must be a method such as topkast.TopKAST\(0.9, 0.8\), got 0.9"
    ):
        topkast.sparsify(Net(), 0.9)  # type: ignore[arg-type]


def test_sparsify_twice_is_refused() -> None:
    model = Net()
    topkast.sparsify(model, METHOD)
    with pytest.raises(
        RuntimeError, match=r"already sparse \(stem.0, blocks.0.0, .*use `topkast.densify` first"
    ):
        topkast.sparsify(model, METHOD)


def test_densify_wants_a_sparse_model() -> None:
    with pytest.raises(ValueError, match="the model has no sparse layer: `topkast.sparsify` was not applied"):
        topkast.densify(Net())


def test_densify_leaves_the_sparse_model_alone_and_gives_plain_layers() -> None:
    model = Net().eval()
    original = Net().state_dict()
    sparse = topkast.sparsify(model, METHOD)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    dense = topkast.densify(model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(dense(x), model(x))
    assert {type(m).__module__.split(".")[0] for m in dense.modules()} <= {"torch", "test_sparsify"}
    assert dense.state_dict().keys() == original.keys()
    dense.load_state_dict(original)  # plain again: nothing of ours checks it
    for name, layer in sparse.layers.items():
        assert not torch.equal(layer.alpha(), dense.get_submodule(name).weight)


def test_no_dense_tensor_is_saved_for_backward(engine: str) -> None:
    """Counted through torch's own hook: the input, and at most |B| numbers per layer, nothing larger."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Unflatten(1, (4, 16)), nn.Conv1d(4, 64, 9))
    sparse = topkast.sparsify(model, topkast.TopKAST(0.9, 0.8), engine=engine)
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = model(torch.randn(4, 64))
    largest_activation = 4 * 64
    allowed = max(largest_activation, *(w.counts.backward for w in sparse.weights.values()))
    assert allowed < min(w.numel() for w in sparse.weights.values())
    assert saved
    assert max(saved) <= allowed
    y.sum().backward()
    for weight in sparse.weights.values():
        assert weight.values.grad is not None
        assert weight.values.grad.shape == (weight.counts.backward,)
