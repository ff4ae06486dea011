"""Hugging Face: a callback for `Trainer`, and sparse models in folders beside their config."""

from topkast.integrations.huggingface.callback import TopKASTCallback
from topkast.integrations.huggingface.pretrained import from_pretrained, save_pretrained

__all__ = ["TopKASTCallback", "from_pretrained", "save_pretrained"]
