"""What a network sees of an image: small ones shifted and mirrored, rectangles of photographs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from topkast.data.labelled import pillow

if TYPE_CHECKING:
    from PIL.Image import Image


# ---- small images, a whole batch at once ---------------------------------------------------------------


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


# ---- which rectangle of a photograph -------------------------------------------------------------------

Box = tuple[float, float, float, float]

SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
_TRIES = 10
NUM_DRAWS = 2 * _TRIES + 2


def random_box(width: int, height: int, draws: Sequence[float]) -> Box:
    """A rectangle of random area and shape: (left, upper, right, lower) in pixels.

    Its area is a share a of the image, uniform on [0.08, 1], and its width over its height r, uniform in its
    logarithm on [3/4, 4/3]: w = √(a·W·H·r), h = √(a·W·H / r), rounded, anywhere in the image. After ten that
    do not fit into the image it is the largest one in the middle that has an allowed shape.

    Args:
        width: W.
        height: H.
        draws: `NUM_DRAWS` numbers, uniform on [0, 1).
    """
    for i in range(_TRIES):
        area = width * height * (SCALE[0] + draws[2 * i] * (SCALE[1] - SCALE[0]))
        low, high = (math.log(ratio) for ratio in RATIO)
        ratio = math.exp(low + draws[2 * i + 1] * (high - low))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 1 <= w <= width and 1 <= h <= height:
            left, upper = int(draws[-2] * (width - w + 1)), int(draws[-1] * (height - h + 1))
            return left, upper, left + w, upper + h
    return _central(width, height, min(width, height * RATIO[1]), min(height, width / RATIO[0]))


def central_box(width: int, height: int, share: float) -> Box:
    """The square in the middle that has this share of the shorter side.

    Brought to `share`·s pixels, it is what resizing the shorter side to s and cutting out the middle would
    give, but for where between two pixels it is cut.
    """
    side = min(width, height) * share
    return _central(width, height, side, side)


def _central(width: float, height: float, w: float, h: float) -> Box:
    left, upper = (width - w) / 2, (height - h) / 2
    return left, upper, left + w, upper + h


# ---- a rectangle as a square of bytes ------------------------------------------------------------------


def cut(image: Image, box: Box, size: int, *, is_flipped: bool = False) -> np.ndarray:
    """The rectangle brought to ``(size, size, 3)``, uint8, mirrored if asked; grey and the like become RGB.

    Args:
        image: As opened, not yet decoded.
        box: In pixels of the whole image.
        size: Pixels on a side.
        is_flipped: Whether left and right change places.
    """
    module = pillow()
    width, height = image.size
    left, upper, right, lower = box
    # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for less work; the rectangle must keep as many
    # pixels as are asked for. Other formats take no notice.
    image.draft("RGB", (math.ceil(width * size / (right - left)), math.ceil(height * size / (lower - upper))))
    across, down = image.size[0] / width, image.size[1] / height
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    inside = (left * across, upper * down, min(right * across, rgb.width), min(lower * down, rgb.height))
    square = rgb.resize((size, size), module.Resampling.BILINEAR, box=inside)
    if is_flipped:
        square = square.transpose(module.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(square)
