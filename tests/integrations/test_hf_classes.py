"""Classes of transformers over many families, tiny and from configs alone: sparse, trained, made dense again.

A row is a class, its inputs, and the sizes that its config does not take from `SIZES`. Of each, after two
steps: |A| and |B| are exact, A is the Top-K of θ, `densify` computes the same, `tie_weights` and `post_init`
change nothing, and what is saved and loaded is the same. Every matrix is sparse or listed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import topkast
from topkast.integrations.huggingface import from_pretrained, save_pretrained

# Names of sizes differ between families: each config takes those that it has.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size",), 64),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("num_key_value_heads",), 1),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim", "d_ff", "d_inner", "n_inner"), 24),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 32),
    **dict.fromkeys(("image_size",), 16),
    **dict.fromkeys(("patch_size",), 4),
    **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), 0),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "forced_eos_token_id"), 1),
}  # fmt: skip
METHOD = topkast.TopKAST(0.9, 0.8, refresh_every=1, exchange_every=1)
IDS = torch.arange(2, 18).view(2, 8)
IMAGES = torch.linspace(-1, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16)

TEXT = {"input_ids": IDS}
PAIR = {"input_ids": IDS, "decoder_input_ids": IDS}
IMAGE = {"pixel_values": IMAGES}
SOUND = {"input_values": torch.linspace(-1, 1, 800).view(2, 400).sin()}

CLASSES: dict[str, tuple[Mapping[str, Tensor], dict[str, Any]]] = {
    "GPT2LMHeadModel": (TEXT, {}),
    "GPTNeoForCausalLM": (TEXT, {"attention_types": [[["global"], 1]]}),
    "GPTNeoXForCausalLM": (TEXT, {}),
    "GPTJForCausalLM": (TEXT, {"rotary_dim": 4}),
    "CodeGenForCausalLM": (TEXT, {"rotary_dim": 4, "n_head": 4}),
    "OPTForCausalLM": (TEXT, {}),
    "BloomForCausalLM": (TEXT, {}),
    "LlamaForCausalLM": (TEXT, {}),
    "MistralForCausalLM": (TEXT, {}),
    "MixtralForCausalLM": (TEXT, {"num_local_experts": 2}),
    "Qwen2ForCausalLM": (TEXT, {}),
    "Qwen3ForCausalLM": (TEXT, {"head_dim": 8}),
    "GemmaForCausalLM": (TEXT, {"head_dim": 8}),
    "Gemma2ForCausalLM": (TEXT, {"head_dim": 8}),
    "PhiForCausalLM": (TEXT, {}),
    "Phi3ForCausalLM": (TEXT, {}),
    "FalconForCausalLM": (TEXT, {}),
    "MptForCausalLM": (TEXT, {}),
    "StableLmForCausalLM": (TEXT, {}),
    "OlmoForCausalLM": (TEXT, {}),
    "CohereForCausalLM": (TEXT, {}),
    "Starcoder2ForCausalLM": (TEXT, {}),
    "GraniteForCausalLM": (TEXT, {}),
    "BertForMaskedLM": (TEXT, {}),
    "RobertaForMaskedLM": (TEXT, {}),
    "DistilBertForMaskedLM": (TEXT, {}),
    "AlbertForMaskedLM": (TEXT, {}),
    "ElectraForPreTraining": (TEXT, {}),
    "DebertaV2ForMaskedLM": (TEXT, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}),
    "MPNetForMaskedLM": (TEXT, {}),
    "CamembertForSequenceClassification": (TEXT, {}),
    "ConvBertModel": (TEXT, {"head_ratio": 1}),
    "XLNetLMHeadModel": (TEXT, {}),
    "FunnelModel": (TEXT, {"block_sizes": [1], "num_decoder_layers": 1, "d_head": 8}),
    "FNetModel": (TEXT, {}),
    "T5ForConditionalGeneration": (PAIR, {"d_kv": 8}),
    "MT5ForConditionalGeneration": (PAIR, {"d_kv": 8}),
    "BartForConditionalGeneration": (PAIR, {}),
    "MBartForConditionalGeneration": (PAIR, {}),
    "PegasusForConditionalGeneration": (PAIR, {}),
    "MarianMTModel": (PAIR, {}),
    "WhisperForConditionalGeneration": ({"input_features": torch.linspace(-1, 1, 2 * 8 * 16).view(2, 8, 16), "decoder_input_ids": IDS}, {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16}),
    "ViTForImageClassification": (IMAGE, {}),
    "DeiTForImageClassification": (IMAGE, {}),
    "BeitForImageClassification": (IMAGE, {}),
    "SwinForImageClassification": (IMAGE, {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2}),
    "ConvNextForImageClassification": (IMAGE, {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}),
    "ResNetForImageClassification": (IMAGE, {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}),
    "SegformerForImageClassification": (IMAGE, {"num_encoder_blocks": 2, "hidden_sizes": [8, 16], "depths": [1, 1], "num_attention_heads": [1, 2], "patch_sizes": [7, 3], "strides": [4, 2], "sr_ratios": [2, 1], "mlp_ratios": [2, 2]}),
    "CLIPVisionModel": (IMAGE, {}),
    "CLIPTextModel": (TEXT, {}),
    "Wav2Vec2ForCTC": (SOUND, {"conv_dim": [8, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}),
    "GPTBigCodeForCausalLM": (TEXT, {}),
    "XGLMForCausalLM": (TEXT, {}),
    "Qwen3MoeForCausalLM": (TEXT, {"head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}),
    "DeepseekV3ForCausalLM": (TEXT, {"first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}),
    "LongformerModel": (TEXT, {"attention_window": [4]}),
    "BigBirdForMaskedLM": (TEXT, {"attention_type": "original_full"}),
    "SqueezeBertForMaskedLM": (TEXT, {"q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1, "intermediate_groups": 2, "output_groups": 2}),
    "NystromformerForMaskedLM": (TEXT, {"segment_means_seq_len": 8, "num_landmarks": 4}),
    "RemBertForMaskedLM": (TEXT, {"input_embedding_size": 16, "output_embedding_size": 16}),
    "ReformerModelWithLMHead": (TEXT, {"attn_layers": ["local"], "axial_pos_embds": False, "attention_head_size": 8, "feed_forward_size": 24, "is_decoder": True, "local_attn_chunk_length": 4}),
    "ProphetNetForConditionalGeneration": (PAIR, {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_encoder_attention_heads": 2, "num_decoder_attention_heads": 2, "ngram": 2}),
    "M2M100ForConditionalGeneration": (PAIR, {}),
    "SwitchTransformersForConditionalGeneration": (PAIR, {"d_kv": 8, "num_experts": 2, "num_decoder_layers": 1}),
    "RegNetForImageClassification": (IMAGE, {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8}),
    "MobileNetV2ForImageClassification": (IMAGE, {"depth_multiplier": 0.1}),
    "PoolFormerForImageClassification": (IMAGE, {"num_encoder_blocks": 1, "hidden_sizes": [8], "depths": [1], "patch_sizes": [7], "strides": [4], "padding": [2]}),
    "SiglipVisionModel": (IMAGE, {}),
    "Dinov2ForImageClassification": (IMAGE, {}),
    "HubertModel": (SOUND, {"conv_dim": [8, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}),
    "MambaForCausalLM": (TEXT, {"state_size": 4}),
    "RwkvForCausalLM": (TEXT, {"attention_hidden_size": 16, "num_hidden_layers": 2}),
    "JambaForCausalLM": (TEXT, {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 2, "use_mamba_kernels": False}),
}  # fmt: skip
# These compute with a dense weight themselves, and say so by the layer's name: "skip" is the way out.
SKIPS: dict[str, list[str]] = {
    "DebertaV2ForMaskedLM": ["deberta.encoder.rel_embeddings"],
    "MambaForCausalLM": ["*.conv1d", "*.dt_proj"],
    "ProphetNetForConditionalGeneration": ["*.ngram_embeddings"],
    "RwkvForCausalLM": ["*.attention.output", "*.feed_forward.value"],
    "JambaForCausalLM": ["*.conv1d", "*.dt_proj"],
}


def build(name: str) -> tuple[nn.Module, Mapping[str, Tensor]]:
    torch.manual_seed(0)
    inputs, own = CLASSES[name]
    cls = getattr(transformers, name)
    aliases = {a for a, known in cls.config_class.attribute_map.items() if known not in SIZES | own}
    known = {*vars(cls.config_class()), *aliases}
    config = cls.config_class(**{k: v for k, v in SIZES.items() if k in known} | own)
    return cls(config), inputs


@pytest.mark.parametrize("name", SKIPS)
def test_a_model_that_computes_with_a_dense_weight_itself_says_so(name: str) -> None:
    model, inputs = build(name)
    topkast.sparsify(model.eval(), METHOD)
    with pytest.raises((TypeError, AttributeError), match=r"(?i)sparse ?weight"):
        model(**inputs)


@torch.no_grad()
def output_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    return model(**inputs)[0]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_trains_sparse_and_is_dense_again(name: str, tmp_path: Path) -> None:
    model, inputs = build(name)
    matrices = [n for n, p in model.named_parameters(remove_duplicate=False) if p.ndim >= 2]
    sparse = topkast.sparsify(model, METHOD, skip=SKIPS.get(name))
    for matrix in matrices:
        layer = matrix.removesuffix(".weight").replace(".in_proj_weight", ".q_proj")  # attention is unpacked
        listed = any(matrix == left or matrix.startswith(f"{left}.") for left in sparse.left_dense)
        assert listed or layer in sparse.layers, matrix

    optimizer = sparse.attach(torch.optim.AdamW(model.parameters(), lr=1e-2))
    for _ in range(2):
        loss = model(**inputs)[0].square().mean()
        assert torch.isfinite(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for weight in sparse.weights.values():
        numel = math.prod(weight.shape)
        assert (weight.counts.forward, weight.counts.backward) == (
            round(0.1 * numel) or 1,
            round(0.2 * numel) or 1,
        )
        theta, mask = weight.theta().abs(), weight.forward_mask()
        assert int(mask.sum()) == weight.counts.forward
        assert int(weight.backward_mask().sum()) == weight.counts.backward
        assert theta[mask].min() >= theta[~mask].max()
        assert weight.steps == 2

    model.eval()
    expected = output_of(model, inputs)
    dense = topkast.densify(model)
    # float32 sums of at most a few hundred terms, in another order, a few layers deep.
    close = {"rtol": 1e-4, "atol": 1e-4 * float(expected.abs().max())}
    torch.testing.assert_close(output_of(dense, inputs), expected, **close)
    dense.tie_weights()
    torch.testing.assert_close(output_of(dense, inputs), expected, **close)
    model.tie_weights()
    model.post_init()
    assert torch.equal(output_of(model, inputs), expected)
    save_pretrained(sparse, tmp_path)
    again = from_pretrained(type(model), tmp_path)
    assert list(again.weights) == list(sparse.weights)
    assert torch.equal(output_of(again.model, inputs), expected)


@pytest.mark.parametrize("name", ["CLIPVisionModel", "WhisperForConditionalGeneration"])
def test_frozen_tables_and_parents_start_right_on_the_meta_device(name: str) -> None:
    """CLIP's modules initialise their children's weights, Whisper's encoder computes a frozen table."""
    with torch.device("meta"):
        model, inputs = build(name)
    init = {"init": topkast.Normal(0.02), "initialise": model._init_weights, "keep_dense": "embeddings"}
    topkast.sparsify(model, METHOD, reservoir="implicit", **init)
    assert torch.isfinite(output_of(model.eval(), inputs)).all()
    ordinary = build(name)[0]
    for path, parameter in ordinary.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(model.get_parameter(path), parameter)
    for path, buffer in ordinary.named_buffers():
        assert torch.equal(model.get_buffer(path), buffer)
