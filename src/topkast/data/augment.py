"""Small images shifted and mirrored at random, a whole batch at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Each image cut at random from itself with a black border, and every other one mirrored.

    With u, v uniform on {0, …, 2·padding}, f on {0, 1}, drawn for each image, and zero outside of x,

        y[c, i, j] = x[c, i + u − padding, j' + v − padding],   j' = j or width − 1 − j by f.

    Args:
        images: ``(count, channels, height, width)`` of any type; bytes are best, before they are normalised,
            so that the border is black and not grey.
        generator: Where all of it comes from: the same generator, the same result.
        padding: The most pixels of a shift.
    """
    if images.dim() != 4:
        raise ValueError(
            f"`images` must be (count, channels, height, width), got shape {tuple(images.shape)}"
        )
    if padding < 0:
        raise ValueError(f"`padding` must be 0 or more, got {padding}")
    count, channels, height, width = images.shape
    shifts = torch.randint(2 * padding + 1, (2, count, 1), generator=generator)
    is_flipped = torch.randint(2, (count, 1), generator=generator).bool()
    rows = shifts[0] + torch.arange(height)
    columns = shifts[1] + torch.where(is_flipped, torch.arange(width - 1, -1, -1), torch.arange(width))
    padded = F.pad(images, (padding,) * 4)
    return padded[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
