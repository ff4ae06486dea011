"""Which rectangle of a photograph a network sees: at random for training, the middle for evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
