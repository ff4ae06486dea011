"""Image files through Pillow, which is an extra: missing, it is named; and so is a file it cannot read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"}


def pillow() -> Any:
    """The module `PIL.Image`."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "image files need Pillow, which is not installed: pip install 'topkast[images]'"
        ) from error
    return Image


@contextmanager
def opened(path: Path) -> Iterator[Image]:
    """An image file; what fails in the `with` block is taken for the file's fault, as pixels are read there.

    Raises:
        ValueError: The file cannot be read as an image.
    """
    module = pillow()
    try:
        with module.open(path) as image:
            yield image
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a decoder raises for a damaged file
        raise ValueError(f"{path} cannot be read as an image: {error}") from None
