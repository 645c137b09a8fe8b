"""Directories of TIFF and BigTIFF files: tags with their values, nothing of which is trusted.

Values are read when they are asked for, and never more bytes than the file has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError, SourceError
from sharedds.handles import read_at
from sharedds.slides.limits import MAX_DIRECTORIES, MAX_TEXT

__all__ = ["Directory", "Numbers", "TiffSource", "is_tiff", "read_directories"]

_DTYPES = {1: "u1", 3: "u2", 4: "u4", 6: "i1", 8: "i2", 9: "i4", 11: "f4", 12: "f8", 13: "u4",
           16: "u8", 17: "i8", 18: "u8"}  # fmt: skip
_SIZES = {
    2: 1,
    5: 8,
    7: 1,
    10: 8,
    **{kind: np.dtype(code).itemsize for kind, code in _DTYPES.items()},
}
_WHOLE = {1, 3, 4, 13, 16, 18}  # types of counts and offsets
_FRACTIONS = {5: "u4", 10: "i4"}
_MAX_ENTRIES = 4096
_SUB_DIRECTORIES = 330


def is_tiff(head: bytes) -> bool:
    """Return whether a file that begins so says that it is TIFF or BigTIFF."""
    return head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


@dataclass(frozen=True, slots=True)
class TiffSource:
    """An open TIFF file.

    Attributes:
        path: For errors.
        descriptor: Open for reading; several threads may use it.
        size: Bytes of the file.
    """

    path: str
    descriptor: int
    size: int

    def read(self, at: int, length: int) -> bytes:
        """Return bytes that lie inside the file.

        Raises:
            DecodeError: They do not.
            SourceError: The file cannot be read, or was cut short meanwhile.
        """
        if at + length > self.size:
            raise DecodeError(
                f"{self.path}: is cut short: {at + length:,} bytes are expected, {self.size:,} "
                "found; copy it anew",
                path=self.path,
            )
        try:
            data = read_at(self.descriptor, length, at)
        except OSError as error:
            raise SourceError(
                f"{self.path}: cannot be read ({error.strerror})", path=self.path
            ) from error
        if len(data) < length:
            raise SourceError(
                f"{self.path}: changed while it was read: it was cut short; replace files by a "
                "rename, never in place",
                path=self.path,
            )
        return data


@dataclass(frozen=True, slots=True)
class Numbers:
    """Where the numbers of an entry lie, so that long ones are read when they are needed.

    Attributes:
        at: Byte of the file.
        count: How many there are.
        dtype: With byte order.
    """

    at: int
    count: int
    dtype: str

    def read(self, source: TiffSource, count: int | None = None) -> npt.NDArray[Any]:
        """Return the first ``count`` of them (None: all), in native byte order."""
        dtype = np.dtype(self.dtype)
        count = self.count if count is None else min(count, self.count)
        data = source.read(self.at, count * dtype.itemsize)
        return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: int
    count: int
    at: int  # of the value itself


class Directory:
    """One directory: a page, or a picture below it.

    Attributes:
        index: Counted from 0 along the chain of pages; those below have that of their page.
        below: Directories that it names as its own.
    """

    def __init__(
        self, source: TiffSource, order: str, entries: dict[int, _Entry], number: int
    ) -> None:
        self.index = number
        self.below: tuple[Directory, ...] = ()
        self.order = order
        self._source = source
        self._entries = entries

    def __contains__(self, tag: int) -> bool:
        return tag in self._entries

    def where(self, tag: int) -> Numbers | None:
        """Return where the counts or offsets of an entry lie; None where there is none.

        Raises:
            DecodeError: They are something else than whole numbers, or past the end of the file.
        """
        entry = self._entries.get(tag)
        if entry is None or not entry.count:
            return None
        if entry.kind not in _WHOLE:
            raise self._damaged(f"entry {tag} has type {entry.kind}")
        dtype = np.dtype(self.order + _DTYPES[entry.kind])
        self._require(tag, entry)
        return Numbers(entry.at, entry.count, dtype.str)

    def numbers(self, tag: int, most: int = 65_536) -> tuple[int, ...]:
        """Return the first whole numbers of an entry; none where it is not there."""
        where = self.where(tag)
        return () if where is None else tuple(where.read(self._source, most).tolist())

    def number(self, tag: int, default: int = 0) -> int:
        """Return the first number of an entry."""
        return (self.numbers(tag, 1) or (default,))[0]

    def reals(self, tag: int) -> tuple[float, ...]:
        """Return up to 16 numbers of any type; a fraction over 0 is nan."""
        entry = self._entries.get(tag)
        if entry is None or not entry.count:
            return ()
        count = min(entry.count, 16)
        code = _FRACTIONS.get(entry.kind)
        if code is None and entry.kind not in _DTYPES:
            return ()
        self._require(tag, entry)
        dtype = np.dtype(self.order + (code or _DTYPES[entry.kind]))
        length = count * dtype.itemsize * (2 if code else 1)
        values = np.frombuffer(self._source.read(entry.at, length), dtype).astype(np.float64)
        if code:
            below = values[1::2]
            values = np.divide(values[::2], below, out=np.full(count, np.nan), where=below != 0)
        return tuple(values.tolist())

    def data(self, tag: int) -> bytes:
        """Return the bytes of an entry; none where it is not there.

        Raises:
            DecodeError: They are past the end of the file, or more than any text may take.
        """
        entry = self._entries.get(tag)
        if entry is None or entry.kind not in (1, 2, 6, 7):
            return b""
        if entry.count > MAX_TEXT:
            raise self._damaged(f"entry {tag} has {entry.count:,} bytes; {MAX_TEXT:,} is the most")
        self._require(tag, entry)
        return self._source.read(entry.at, entry.count)

    def text(self, tag: int) -> str:
        """Return the text of an entry, up to its first zero byte."""
        data = self.data(tag).partition(b"\0")[0]
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.decode("latin-1")

    def _require(self, tag: int, entry: _Entry) -> None:
        end = entry.at + entry.count * _SIZES[entry.kind]
        if end > self._source.size:
            raise self._damaged(
                f"entry {tag} claims {entry.count:,} values and ends at byte {end:,}, there are "
                f"{self._source.size:,}"
            )

    def _damaged(self, what: str) -> DecodeError:
        path = self._source.path
        return DecodeError(f"{path}: TIFF is damaged: page {self.index}: {what}", path=path)


def read_directories(source: TiffSource) -> list[Directory]:
    """Return the directories of a file along their chain, each with those below it.

    Raises:
        DecodeError: It is no TIFF, or the chain is damaged or leads past the end of the file.
        SourceError: It cannot be read.
    """
    head = source.read(0, min(16, source.size))
    if not is_tiff(head) or len(head) < 8:
        raise DecodeError(f"{source.path}: is no TIFF file", path=source.path)
    order = "<" if head[:2] == b"II" else ">"
    big = head[2:4] in (b"+\0", b"\0+")
    if big and (len(head) < 16 or struct.unpack_from(order + "HH", head, 4) != (8, 0)):
        raise DecodeError(f"{source.path}: BigTIFF is damaged: its header", path=source.path)
    (first,) = struct.unpack_from(order + ("Q" if big else "I"), head, 8 if big else 4)
    walk = _Walk(source, order, big)
    pages = list(walk.chain(first))
    if not pages:
        raise DecodeError(f"{source.path}: TIFF without a page", path=source.path)
    for page in pages:
        # Some writers link those below one page with those below the next: no chain is followed.
        page.below = tuple(walk.one(at, page.index) for at in page.numbers(_SUB_DIRECTORIES))
    return pages


class _Walk:
    def __init__(self, source: TiffSource, order: str, big: bool) -> None:
        self._source, self._order, self._big = source, order, big
        self._seen: set[int] = set()

    def chain(self, at: int) -> Iterator[Directory]:
        """Yield directories until the chain ends."""
        count = 0
        while at:
            self._require_new(at)
            entries, at = self._entries(at)
            yield Directory(self._source, self._order, entries, count)
            count += 1

    def one(self, at: int, number: int) -> Directory:
        """Return a directory below a page."""
        self._require_new(at)
        return Directory(self._source, self._order, self._entries(at)[0], number)

    def _require_new(self, at: int) -> None:
        if at in self._seen or len(self._seen) >= MAX_DIRECTORIES:
            what = "leads back to itself" if at in self._seen else "is endless"
            raise DecodeError(
                f"{self._source.path}: TIFF is damaged: the chain of its pages {what}",
                path=self._source.path,
            )
        self._seen.add(at)

    def _entries(self, at: int) -> tuple[dict[int, _Entry], int]:
        order, read = self._order, self._source.read
        start, step, inline = (8, 20, 8) if self._big else (2, 12, 4)
        pointer = "Q" if self._big else "I"
        (count,) = struct.unpack(order + ("Q" if self._big else "H"), read(at, start))
        if not 1 <= count <= _MAX_ENTRIES:
            raise DecodeError(
                f"{self._source.path}: TIFF is damaged: a page with {count} entries at byte {at:,}",
                path=self._source.path,
            )
        table = read(at + start, count * step)
        entries: dict[int, _Entry] = {}
        for row in range(count):
            tag, kind, number = struct.unpack_from(order + "HH" + pointer, table, row * step)
            size = _SIZES.get(kind)
            if size is None:
                continue  # of a type that a reader has to pass over
            place = at + start + row * step + step - inline
            if number * size > inline:
                (place,) = struct.unpack_from(order + pointer, table, (row + 1) * step - inline)
            entries.setdefault(tag, _Entry(kind, number, place))
        end = at + start + count * step
        if end + inline > self._source.size:
            return entries, 0  # some writers leave out the mark of the last page
        (following,) = struct.unpack(order + pointer, read(end, inline))
        return entries, following
