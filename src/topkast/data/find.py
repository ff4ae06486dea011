"""Where a data set is: the path that was given, or a folder of data sets named by TOPKAST_DATA."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TOPKAST_DATA"


@dataclass(frozen=True)
class Source:
    """A data set that has to be fetched by hand.

    Attributes:
        names: What it is called in a folder of data sets, in the order in which it is looked for.
        origin: Where it can be had, in words.
    """

    names: tuple[str, ...]
    origin: str


SOURCES: dict[str, Source] = {
    "enwik8": Source(
        ("enwik8", "enwik8.zip", "enwik8.gz", "enwik8.xz"), "mattmahoney.net/dc/enwik8.zip (35 MB)"
    ),
    "wikitext-2": Source(
        ("wikitext-2", "wikitext-2-v1.zip"), "wikitext-2-v1.zip (4 MB), the data set of Merity et al. 2016"
    ),
    "wikitext-103": Source(
        ("wikitext-103", "wikitext-103-v1.zip"),
        "wikitext-103-v1.zip (190 MB), the data set of Merity et al. 2016",
    ),
    "fashion-mnist": Source(
        ("fashion-mnist",),
        "github.com/zalandoresearch/fashion-mnist (31 MB): the four .gz files, in a folder",
    ),
    "cifar-10": Source(
        ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10"),
        "www.cs.toronto.edu/~kriz/cifar.html: unpack the binary version (162 MB) or the python version",
    ),
    "imagenet": Source(
        ("imagenet", "ILSVRC2012"),
        "image-net.org, after registration (ILSVRC2012, 150 GB): unpack it into train/ and val/ with a "
        "folder for each class",
    ),
}


def find(name: str, path: Path | str | None = None) -> Path:
    """The file or folder of a data set.

    Args:
        name: One of `SOURCES`.
        path: Where it is; without one it is looked for by its names in the folder that the environment
            variable TOPKAST_DATA gives.

    Raises:
        ValueError: A name that is not known.
        FileNotFoundError: It is not there; the message says where to get it.
    """
    if name not in SOURCES:
        raise ValueError(f"`name` must be one of {', '.join(SOURCES)}, got {name!r}")
    source = SOURCES[name]
    if path is not None:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist; {name} can be had from {source.origin}")
        return Path(path)
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise FileNotFoundError(
            f"no path was given for {name} and {VARIABLE} is not set to a folder of data sets; "
            f"it can be had from {source.origin}"
        )
    for candidate in source.names:
        if (Path(folder) / candidate).exists():
            return Path(folder) / candidate
    raise FileNotFoundError(
        f"{VARIABLE} is {folder}, which has none of {', '.join(source.names)}; "
        f"{name} can be had from {source.origin}"
    )
