"""Files as they come: plain, .gz, .xz, .bz2, or a member of a .zip; damage is named, never passed on."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SUFFIXES = ("", ".gz", ".xz", ".bz2")
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
        candidates = (place / (name + suffix) for name in names for suffix in SUFFIXES)
        return next((Packed(path) for path in candidates if path.is_file()), None)
    with damage_named(str(place)), zipfile.ZipFile(place) as archive:
        members = {Path(member).name: member for member in sorted(archive.namelist(), reverse=True)}
    found = next((members[name] for name in names if name in members), None)
    return None if found is None else Packed(place, found)
