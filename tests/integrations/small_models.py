"""Small networks of Hugging Face, from configs alone: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable

from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)


def gpt2(dropout: float = 0.1) -> PreTrainedModel:
    """Transposed layers (Conv1D), an output tied to the embedding, dropout."""
    sizes = {"vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(**sizes, **drops, bos_token_id=0, eos_token_id=0))


def bert() -> PreTrainedModel:
    """An output tied to the embedding, its bias tied as well."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForMaskedLM(BertConfig(vocab_size=256, max_position_embeddings=32, **sizes))


def llama() -> PreTrainedModel:
    """Grouped attention, a gated MLP, rotary positions, an output of its own."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=256, num_key_value_heads=2, max_position_embeddings=32, **sizes)
    )


MODELS: dict[str, Callable[[], PreTrainedModel]] = {"gpt2": gpt2, "bert": bert, "llama": llama}
