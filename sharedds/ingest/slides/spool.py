"""Tiles of the slide at work, in one file: a killed run goes on after the last that is whole.

The file begins with what it is for. Each record has a checksum; what follows the first one that is
damaged or cut short is taken off. Records are those of the levels and tiles in order, so their
number says where to go on.
"""

from __future__ import annotations

import array
import contextlib
import os
import struct
from collections.abc import Iterable, Iterator

import xxhash

from sharedds.errors import StoreFormatError
from sharedds.handles import read_at, storage_errors

__all__ = ["TileSpool", "remove_spool", "spool_path"]

_MAGIC = b"sharedds tiles 1\n"
_RECORD = struct.Struct("<IIQ")  # bytes of the tile, bytes of its figures, checksum of both
_NOTE = struct.Struct("<B")


def spool_path(path: str) -> str:
    """Return where the tiles of the slide at work lie beside an output."""
    return f"{path}.tiles"


def remove_spool(path: str) -> None:
    """Take away what a run that was killed at its very end left beside an output."""
    place = spool_path(path)
    with contextlib.suppress(OSError):
        with open(place, "rb") as file:
            ours = file.read(len(_MAGIC)) == _MAGIC
        if ours:
            os.unlink(place)


class TileSpool:
    """Records of tiles, appended one after another.

    Args:
        path: The file.
        purpose: What the records are of; records of anything else are dropped.

    Raises:
        StorageFullError: No room.
    """

    def __init__(self, path: str, purpose: str) -> None:
        self._path = path
        self._offsets = array.array("Q")
        self._sizes = array.array("I")
        self._figures = array.array("I")
        self._bad: list[int] = []
        head = _MAGIC + xxhash.xxh3_128_digest(purpose.encode())
        with storage_errors(path):
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by close()
            self._end = self._restored(head)
            if not self._end:
                self._file.truncate(0)
                self._file.write(head)
                self._end = len(head)
            else:
                self._file.truncate(self._end)

    def __len__(self) -> int:
        """Return how many tiles are there."""
        return len(self._offsets)

    @property
    def bad(self) -> tuple[int, ...]:
        """Numbers of the tiles that could not be read."""
        return tuple(self._bad)

    def _restored(self, head: bytes) -> int:
        """Find the records that are whole; return where the last one ends, 0 for another file."""
        end = self._file.seek(0, os.SEEK_END)
        if self._at(0, len(head)) != head:
            return 0
        at = len(head)
        while at + _RECORD.size + 1 <= end:
            size, figures, checksum = _RECORD.unpack(self._at(at, _RECORD.size))
            if at + _RECORD.size + 1 + size + figures > end:
                break
            body = self._at(at + _RECORD.size, 1 + size + figures)
            if xxhash.xxh3_64_intdigest(body) != checksum:
                break
            self._note(at, size, figures, is_bad=bool(body[0]))
            at += _RECORD.size + len(body)
        return at

    def _note(self, at: int, size: int, figures: int, *, is_bad: bool) -> None:
        if is_bad:
            self._bad.append(len(self._offsets))
        self._offsets.append(at + _RECORD.size + 1)
        self._sizes.append(size)
        self._figures.append(figures)

    def append(self, tile: bytes, figures: bytes, *, is_bad: bool = False) -> None:
        """Write one more record.

        Raises:
            StorageFullError: No room; the records before stay.
        """
        body = b"".join((_NOTE.pack(is_bad), tile, figures))
        head = _RECORD.pack(len(tile), len(figures), xxhash.xxh3_64_intdigest(body))
        with storage_errors(self._path):
            data = memoryview(head + body)
            while data:  # at the end, wherever was read before
                data = data[self._file.write(data) or 0 :]
        self._note(self._end, len(tile), len(figures), is_bad=is_bad)
        self._end += len(head) + len(body)

    def tile(self, number: int) -> bytes:
        """Return a tile.

        Raises:
            StoreFormatError: The file was cut short meanwhile.
        """
        return self._read(self._offsets[number], self._sizes[number])

    def figures(self, number: int) -> bytes:
        """Return the figures of a tile."""
        return self._read(self._offsets[number] + self._sizes[number], self._figures[number])

    def size(self, number: int) -> int:
        """Return the bytes of a tile."""
        return self._sizes[number]

    def tiles(self, numbers: Iterable[int]) -> Iterator[memoryview]:
        """Yield tiles."""
        for number in numbers:
            yield memoryview(self.tile(number))

    def _read(self, at: int, size: int) -> bytes:
        data = self._at(at, size)
        if len(data) != size:
            raise StoreFormatError(
                f"{self._path}: was cut short while it was in use; start again", path=self._path
            )
        return data

    def _at(self, at: int, size: int) -> bytes:
        return read_at(self._file.fileno(), size, at)

    def close(self) -> None:
        """Close the file; it stays for a run that goes on."""
        self._file.close()

    def remove(self) -> None:
        """Close the file and take it away."""
        self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
