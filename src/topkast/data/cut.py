"""A rectangle of an image as a square of bytes, decoding no more of it than that needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from topkast.data.crops import Box
from topkast.data.pillow import pillow

if TYPE_CHECKING:
    from PIL.Image import Image


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
