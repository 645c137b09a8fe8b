"""Files of foreign formats, read without trusting them: sizes first, and no way out of a folder."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from typing import IO, Any

from sharedds.errors import DecodeError, SharedDSError, SourceError
from sharedds.text import printable

__all__ = [
    "MAX_JSON",
    "Bounded",
    "file_facts",
    "listed",
    "offsets_of",
    "read_json",
    "reading",
    "within",
]

MAX_JSON = 1 << 30
_COUNT = struct.Struct("<I")


class Bounded:
    """A file for libraries that ask for as many bytes as a header claims: no more than there are.

    Args:
        file: Open for reading, at its start.
        size: Of the file, in bytes.
    """

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size
        self.most: int | None = None  # no more at once than this, for as long as it is set

    def read(self, count: int = -1) -> bytes:
        """Return up to ``count`` bytes; all that are left for -1."""
        left = max(0, self._size - self._file.tell())
        wanted = left if count < 0 else min(count, left)
        return self._file.read(wanted if self.most is None else min(wanted, self.most))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what goes wrong with a file into one error that names it.

    Raises:
        SourceError: It cannot be read, or not in this memory.
    """
    try:
        yield
    except SharedDSError:
        raise
    except OSError as error:
        raise SourceError(
            f"{printable(path)}: cannot be read ({error.strerror or error})", path=path
        ) from error
    except MemoryError as error:
        raise SourceError(f"{printable(path)}: not enough memory to read it", path=path) from error


def file_facts(path: str) -> tuple[str, int, int]:
    """Return (path, size in bytes, time of change in ns).

    Raises:
        SourceError: There is no such file.
    """
    with reading(path):
        facts = os.stat(path)
    return path, facts.st_size, facts.st_mtime_ns


def listed(folder: str, *endings: str) -> list[str]:
    """Return the paths of the files of a folder with one of these endings, sorted by name.

    Raises:
        SourceError: The folder cannot be listed.
    """
    with reading(folder):
        names = sorted(os.listdir(folder), key=os.fsencode)
    found = (name for name in names if name.lower().endswith(endings) and name[0] != ".")
    return [path for name in found if os.path.isfile(path := os.path.join(folder, name))]


def read_json(path: str, *, limit: int = MAX_JSON) -> Any:
    """Return what a JSON file holds.

    Raises:
        SourceError: It cannot be read.
        DecodeError: It is over ``limit`` bytes, damaged, or nested beyond reason.
    """
    with reading(path), open(path, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DecodeError(f"{printable(path)}: over {limit:,} bytes of JSON", path=path)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{printable(path)}: damaged JSON ({error})", path=path) from error


def within(root: str, name: str) -> str | None:
    """Return the path of a file that is named relative to a folder; None where it lies outside.

    A link that leads out of the folder counts as outside.
    """
    if not name or "\0" in name:
        return None
    path = os.path.normpath(os.path.join(root, name))
    real, base = os.path.realpath(path), os.path.join(os.path.realpath(root), "")
    return path if real.startswith(base) else None


def offsets_of(file: IO[bytes], path: str, *, expected: int, size: int) -> list[int]:
    """Return where the samples of a chunk begin and end: a count, and that many offsets plus one.

    Args:
        file: The chunk, at its start.
        path: Of it, for messages.
        expected: How many samples its index says it has.
        size: Bytes of the chunk.

    Raises:
        DecodeError: Count or offsets do not fit the file.
    """
    head = file.read(4)
    count = _COUNT.unpack(head)[0] if len(head) == 4 else -1
    table = 4 * (count + 1)
    if count != expected or 4 + table > size:
        raise DecodeError(
            f"{printable(path)}: damaged, or not the chunk its index means: it claims {count:,} "
            f"samples in {size:,} bytes, the index {expected:,}",
            path=path,
        )
    offsets = struct.unpack(f"<{count + 1}I", file.read(table))
    if offsets[0] < 4 + table or offsets[-1] > size or list(offsets) != sorted(offsets):
        raise DecodeError(f"{printable(path)}: damaged: offsets out of order", path=path)
    return list(offsets)
