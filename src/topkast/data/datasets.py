"""Files of data sets: where they are, and how they are unpacked without trusting them.

A set is at the path that was given, or in a folder of data sets named by TOPKAST_DATA.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

_PACKINGS = ("", ".gz", ".xz", ".bz2")
_OPENERS: dict[str, Callable[[Path], IO[bytes]]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}  # pyright: ignore[reportAssignmentType]
_BLOCK = 1 << 20
# What decoders raise for data that they cannot unpack; the last two are a zip's, for a version and for names.
_DAMAGE = (
    *(EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile),
    *(NotImplementedError, UnicodeDecodeError),
)


@dataclass(frozen=True)
class Packed:
    """A file to be read unpacked.

    Attributes:
        path: The file on disk.
        member: The name within it, if it is a zip.
    """

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path} ({self.member})"

    @property
    def is_plain(self) -> bool:
        """Whether the bytes on disk are the bytes that are read."""
        return self.member is None and self.path.suffix not in _OPENERS

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The unpacked bytes as a stream.

        Raises:
            ValueError: Damaged, within the `with` block too.
        """
        with damage_named(str(self)):
            if self.member is not None:
                with zipfile.ZipFile(self.path) as archive, _open_member(archive, self.member) as file:
                    yield file
            else:
                with _OPENERS.get(self.path.suffix, lambda path: path.open("rb"))(self.path) as file:
                    yield file

    def read(self, limit: int) -> bytearray:
        """At most `limit` unpacked bytes: what unpacks to more than it should takes no more memory."""
        content = bytearray()
        with self.open() as file:
            while block := file.read(min(_BLOCK, limit - len(content))):
                content += block
        return content

    def stored_sha256(self) -> str:
        """The SHA-256 of the file as it is on disk, packed."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()


def _open_member(archive: zipfile.ZipFile, member: str) -> IO[bytes]:
    try:
        return archive.open(member)
    except RuntimeError as error:  # a password, or a compression that Python does not have
        raise zipfile.BadZipFile(str(error)) from None


@contextmanager
def damage_named(what: str) -> Iterator[None]:
    """Turns what decoders raise for damaged data into one ValueError that names the file."""
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(f"{what} is damaged: {error or type(error).__name__}; get the file again") from None
    except OSError as error:
        # bz2 has no number for data that it cannot unpack; a zip that is led to before its start has EINVAL.
        if error.errno in (None, errno.EINVAL):
            raise ValueError(f"{what} is damaged: {error}; get the file again") from None
        raise


def locate(place: Path, names: Sequence[str]) -> Packed | None:
    """The first of `names` in a folder (plain or packed) or in a zip (in any folder of it), or None."""
    if place.is_dir():
        candidates = (place / (name + suffix) for name in names for suffix in _PACKINGS)
        return next((Packed(path) for path in candidates if path.is_file()), None)
    with damage_named(str(place)), zipfile.ZipFile(place) as archive:
        members = {Path(member).name: member for member in sorted(archive.namelist(), reverse=True)}
    found = next((members[name] for name in names if name in members), None)
    return None if found is None else Packed(place, found)


# ---- where a data set is -------------------------------------------------------------------------------

VARIABLE = "TOPKAST_DATA"


@dataclass(frozen=True)
class DataSet:
    """A published data set, which has to be fetched by hand.

    Attributes:
        task: What it is for: "text" or "images".
        title: For people.
        names: What it is called in a folder of data sets, in the order in which it is looked for.
        origin: Where it can be had, in words.
        shape: Of one image, (channels, height, width), where all have one and fit into memory.
    """

    task: Literal["text", "images"]
    title: str
    names: tuple[str, ...]
    origin: str
    shape: tuple[int, int, int] | None = None


# All that are known by name; whatever else wants to know something of them asks here.
DATA_SETS: dict[str, DataSet] = {
    "enwik8": DataSet(
        "text",
        "enwik8",
        ("enwik8", "enwik8.zip", "enwik8.gz", "enwik8.xz"),
        "mattmahoney.net/dc/enwik8.zip (35 MB)",
    ),
    "wikitext-2": DataSet(
        "text",
        "WikiText-2",
        ("wikitext-2", "wikitext-2-v1.zip"),
        "wikitext-2-v1.zip (4 MB), the data set of Merity et al. 2016",
    ),
    "wikitext-103": DataSet(
        "text",
        "WikiText-103",
        ("wikitext-103", "wikitext-103-v1.zip"),
        "wikitext-103-v1.zip (190 MB), the data set of Merity et al. 2016",
    ),
    "fashion-mnist": DataSet(
        "images",
        "Fashion-MNIST",
        ("fashion-mnist",),
        "github.com/zalandoresearch/fashion-mnist (31 MB): the four .gz files, in a folder",
        (1, 28, 28),
    ),
    "cifar-10": DataSet(
        "images",
        "CIFAR-10",
        ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10"),
        "www.cs.toronto.edu/~kriz/cifar.html: unpack the binary version (162 MB) or the python version",
        (3, 32, 32),
    ),
    "imagenet": DataSet(
        "images",
        "ImageNet",
        ("imagenet", "ILSVRC2012"),
        "image-net.org, after registration (ILSVRC2012, 150 GB): unpack it into train/ and val/ with a "
        "folder for each class",
    ),
}


def find_dataset(name: str, path: Path | str | None = None) -> Path:
    """The file or folder of a data set.

    Args:
        name: One of `DATA_SETS`.
        path: Where it is; without one it is looked for by its names in the folder that the environment
            variable TOPKAST_DATA gives.

    Raises:
        ValueError: A name that is not known.
        FileNotFoundError: It is not there; the message says where to get it.
    """
    if name not in DATA_SETS:
        raise ValueError(f"`name` must be one of {', '.join(DATA_SETS)}, got {name!r}")
    source = DATA_SETS[name]
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
