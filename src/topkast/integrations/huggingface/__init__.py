"""Hugging Face: a callback for `Trainer`, and sparse models in folders beside their config."""

try:
    from topkast.integrations.huggingface.callback import TopKASTCallback
    from topkast.integrations.huggingface.pretrained import from_pretrained, save_pretrained
except ImportError as error:
    raise ImportError(
        f"topkast.integrations.huggingface needs transformers and accelerate ({error}): "
        "pip install 'topkast[huggingface]'"
    ) from error

__all__ = ["TopKASTCallback", "from_pretrained", "save_pretrained"]
