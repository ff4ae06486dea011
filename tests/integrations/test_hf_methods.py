"""The methods of a transformers model, called on a sparse one: each is right, or says what to do instead."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import bert
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5Model,
)

import topkast
from topkast.integrations.huggingface import from_pretrained, save_pretrained

METHOD = topkast.TopKAST(0.9, 0.8)
IDS = torch.arange(8)[None]


def llama(*, tied: bool, device: str = "cpu") -> PreTrainedModel:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    with torch.device(device):
        return LlamaForCausalLM(LlamaConfig(vocab_size=97, **sizes, tie_word_embeddings=tied)).eval()


@pytest.fixture(params=["tied", "untied"])
def sparse(request: pytest.FixtureRequest) -> topkast.Handle:
    torch.manual_seed(0)
    handle = topkast.sparsify(llama(tied=request.param == "tied"), METHOD)
    for layer in handle.layers.values():
        nn.init.normal_(layer.weight.values, std=0.1)  # trained, say: no longer what any init would give
    return handle


def logits(model: nn.Module) -> Tensor:
    return model(IDS).logits.detach()


def apply_all_inits(model: PreTrainedModel) -> None:
    for module in model.modules():
        if not isinstance(module, nn.Embedding | nn.Linear) and not type(module).__name__.endswith("Norm"):
            model._init_weights(module)


NO_CHANGE: dict[str, Callable[[PreTrainedModel], object]] = {
    "tie_weights": lambda m: m.tie_weights(),
    "tie_weights of the part": lambda m: m.base_model.tie_weights(),
    "init_weights": lambda m: m.init_weights(),
    "post_init": lambda m: m.post_init(),
    "_init_weights": apply_all_inits,
    "gradient_checkpointing_enable": lambda m: m.gradient_checkpointing_enable(),
    "num_parameters": lambda m: m.num_parameters(),
    "get_memory_footprint": lambda m: m.get_memory_footprint(),
    "resize to its own size": lambda m: m.resize_token_embeddings(97),
    "resize to nothing": lambda m: m.resize_token_embeddings(),
    "set what it has": lambda m: m.set_input_embeddings(m.get_input_embeddings()),
    "generate": lambda m: m.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=0),
}


@pytest.mark.parametrize("name", NO_CHANGE)
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_methods_that_change_nothing(sparse: topkast.Handle, name: str) -> None:
    model, before = sparse.model, logits(sparse.model)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    parameters = list(model.parameters())
    NO_CHANGE[name](model)
    assert torch.equal(logits(model), before)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert dict(topkast.Handle(model, METHOD).weights) == sparse.weights  # ties are as they were


def test_a_model_from_the_meta_device_is_not_drawn_again() -> None:
    model = llama(tied=True, device="meta")
    init = {"reservoir": "implicit", "init": topkast.Normal(0.02), "initialise": model._init_weights}
    topkast.sparsify(model, METHOD, **init)
    nn.init.constant_(model.model.norm.weight, 3.0)  # trained, say
    before = logits(model)
    model.post_init()
    assert torch.equal(logits(model), before)


def test_a_layer_that_is_added_later_is_still_initialised() -> None:
    model = topkast.sparsify(llama(tied=True), METHOD).model
    model.extra = nn.Linear(6, 6)
    nn.init.constant_(model.extra.bias, 3.0)
    model.init_weights()
    assert not model.extra.bias.any()


REFUSED = {
    "resize": (lambda m: m.resize_token_embeddings(101), "layer 'model.embed_tokens' is sparse and keeps its 97 rows, got a size of 101; resize the embeddings before sparsify, or `topkast.densify`"),
    "pad": (lambda m: m.resize_token_embeddings(pad_to_multiple_of=8), "keeps its 97 rows, got a size of 104"),
    "resize the part": (lambda m: m.model.resize_token_embeddings(96), "keeps its 97 rows, got a size of 96"),
    "set input": (lambda m: m.set_input_embeddings(nn.Embedding(97, 32)), "layer 'model.embed_tokens' is sparse and keeps its place, got Embedding for it; set the input embeddings before sparsify"),
    "set output": (lambda m: m.set_output_embeddings(nn.Linear(32, 97)), "is sparse and keeps its place, got Linear for it; set the output embeddings before sparsify"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_embeddings_keep_their_size_and_place(sparse: topkast.Handle, name: str) -> None:
    before = logits(sparse.model)
    call, message = REFUSED[name]
    with pytest.raises(RuntimeError, match=re.escape(message)):
        call(sparse.model)
    assert torch.equal(logits(sparse.model), before)
    assert sparse.model.config.vocab_size == 97


def test_a_sparse_output_is_found_before_a_dense_input_is_resized() -> None:
    model = topkast.sparsify(llama(tied=False), METHOD, skip=["model.embed_tokens"]).model
    with pytest.raises(RuntimeError, match="layer 'lm_head' is sparse and keeps its 97 rows"):
        model.resize_token_embeddings(101)
    assert model.model.embed_tokens.num_embeddings == 97


def test_dense_embeddings_of_a_sparse_model_can_be_resized() -> None:
    model = topkast.sparsify(llama(tied=True), METHOD, keep_dense="embeddings").model
    model.resize_token_embeddings(101, mean_resizing=False)
    assert logits(model).shape == (1, 8, 101)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("dense", ["neither", "source", "target"])
@pytest.mark.parametrize("build", [lambda: llama(tied=True), bert], ids=["llama", "bert"])
def test_ties_that_sparsify_found_missing_are_not_made_by_halves(
    build: Callable[[], PreTrainedModel], dense: str
) -> None:
    """The config says tied, the weights are not: a checkpoint may be so."""
    model = build().eval()
    head = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone())
    ends = {"source": model.get_input_embeddings(), "target": head}
    topkast.sparsify(model, METHOD, skip=lambda _, layer: layer is ends.get(dense))
    before = logits(model)
    # To a dense target transformers itself cannot tie what is no Parameter.
    message = (
        "neither a parameter|issue with your definition"
        if dense == "target"
        else "is sparse, .*cannot be replaced"
    )
    with pytest.raises((TypeError, AttributeError, ValueError), match=message):
        model.tie_weights()
    assert torch.equal(logits(model), before)


def test_a_dense_weight_is_not_put_into_a_sparse_layer(sparse: topkast.Handle) -> None:
    layer = sparse.layers["model.layers.0.self_attn.q_proj"]
    before, weight = logits(sparse.model), layer.weight
    for new in (nn.Parameter(torch.zeros(32, 32)), None):
        with pytest.raises(TypeError, match=r"q_proj' is sparse, its weight cannot be replaced.*densify"):
            layer.weight = new
    with pytest.raises(
        TypeError, match=r"q_proj' is sparse, `weight.data` cannot be replaced: write into `weight.values"
    ):
        layer.weight.data = torch.zeros(32, 32)
    assert layer.weight is weight
    assert torch.equal(logits(sparse.model), before)


def test_freezing_by_the_weight_freezes_its_values(sparse: topkast.Handle) -> None:
    weight = sparse.layers["lm_head"].weight
    weight.requires_grad = False
    assert not weight.values.requires_grad
    assert not weight.requires_grad


def test_copies_have_guards_and_ties_of_their_own(sparse: topkast.Handle) -> None:
    model = sparse.model
    before = logits(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin.tie_weights()
        assert torch.equal(logits(twin), before)
        with pytest.raises(RuntimeError, match="keeps its 97 rows"):
            twin.resize_token_embeddings(101)
        nn.init.zeros_(twin.model.norm.weight)
        assert torch.equal(logits(model), before)


def test_a_guarded_model_is_freed_at_once() -> None:
    model = topkast.sparsify(llama(tied=True), METHOD).model
    dies = weakref.ref(model)
    gc.collect()
    gc.disable()
    try:
        del model
        assert dies() is None
    finally:
        gc.enable()


def test_a_densified_model_is_an_ordinary_one_again(sparse: topkast.Handle) -> None:
    fresh = llama(tied=sparse.model.config.tie_word_embeddings)
    dense = topkast.densify(sparse.model)
    assert vars(dense).keys() - {"_is_hf_initialized"} == vars(fresh).keys() - {"_is_hf_initialized"}
    assert dense.all_tied_weights_keys == fresh.all_tied_weights_keys
    torch.testing.assert_close(logits(dense), logits(sparse.model))
    dense.tie_weights()
    dense.resize_token_embeddings(101, mean_resizing=False)
    assert logits(dense).shape == (1, 8, 101)


def test_encoders_that_share_an_embedding_stay_tied() -> None:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    sparse = topkast.sparsify(T5Model(T5Config(vocab_size=97, **sizes)).eval(), METHOD)
    model = sparse.model
    before = model(input_ids=IDS, decoder_input_ids=IDS).last_hidden_state
    model.post_init()
    model.tie_weights()
    assert torch.equal(model(input_ids=IDS, decoder_input_ids=IDS).last_hidden_state, before)
    assert model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight is model.shared.weight


def test_bfloat16_keeps_the_sets(sparse: topkast.Handle) -> None:
    sets = {n: (w.indices.clone(), w.active.clone()) for n, w in sparse.weights.items()}
    before = logits(sparse.model)
    model = sparse.model.to(torch.bfloat16)
    assert model.dtype == torch.bfloat16
    for name, weight in sparse.weights.items():
        assert all(
            torch.equal(a, b) for a, b in zip(sets[name], (weight.indices, weight.active), strict=True)
        )
    # 8 bits of mantissa, a handful of layers deep.
    torch.testing.assert_close(logits(model).float(), before, rtol=0.1, atol=0.1 * float(before.abs().max()))


def test_saved_and_loaded_it_is_the_same_and_still_guarded(sparse: topkast.Handle, tmp_path: Path) -> None:
    before = logits(sparse.model)
    save_pretrained(sparse, tmp_path)
    again = from_pretrained(AutoModelForCausalLM, tmp_path)
    assert torch.equal(logits(again.model), before)
    assert list(again.weights) == list(sparse.weights)
    again.model.tie_weights()
    assert torch.equal(logits(again.model), before)
    with pytest.raises(RuntimeError, match="keeps its 97 rows"):
        again.model.resize_token_embeddings(101)
