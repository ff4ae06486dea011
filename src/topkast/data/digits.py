"""Images that come with a pip dependency: scikit-learn's 1,797 handwritten digits, 8 × 8."""

from __future__ import annotations

import torch
from torch import Tensor


def digits(seed: int = 0) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((training images, labels), (held-out images, labels)); images in [0, 1]; a fifth is held out.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn, which is not installed: pip install 'topkast[images]'"
        ) from error
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32) / 16  # pyright: ignore[reportAttributeAccessIssue]
    labels = torch.tensor(bunch.target, dtype=torch.int64)  # pyright: ignore[reportAttributeAccessIssue]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out, train = order[: len(labels) // 5], order[len(labels) // 5 :]
    return (images[train], labels[train]), (images[held_out], labels[held_out])
