"""Decoded samples, kept once for all processes of a machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from sharedds.cache.layout import NEXT, RECORD, WORD, Layout, Record, identity_of
from sharedds.cache.named import open_named
from sharedds.cache.place import is_in_memory, memory_folder, new_file, promise
from sharedds.errors import OptionError
from sharedds.handles import SharedCounts, WritableFile, absolute_path, per_process
from sharedds.packed.files import check_index
from sharedds.text import decimal_size

__all__ = ["CacheStats", "DecodedCache"]

_HITS, _MISSES = 0, 1
_COUNTS = 1 << 20  # bytes that must be free in memory for the counts to be there
#: Who takes room waits so long for others that do, which takes them microseconds.
_PATIENCE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """How full a cache is and how often it helped.

    Attributes:
        entries: Samples that are kept.
        nbytes: Bytes taken: index and samples.
        capacity: Bytes it may take.
        hits: How often a sample was found, by all processes that have this cache from one another.
        misses: How often one was not.
    """

    entries: int
    nbytes: int
    capacity: int
    hits: int
    misses: int

    @classmethod
    def together(cls, parts: Iterable[CacheStats]) -> CacheStats | None:
        """Return the sums of several; None of none."""
        sums = [sum(values) for values in zip(*(astuple(part) for part in parts), strict=True)]
        names = (field.name for field in fields(cls))
        return cls(**dict(zip(names, sums, strict=True))) if sums else None

    @property
    def hit_rate(self) -> float | None:
        """Share of the samples asked for that were found; None before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return asdict(self) | {"hit_rate": self.hit_rate}

    def __str__(self) -> str:
        rate = "" if self.hit_rate is None else f", {self.hit_rate:.0%} of those asked for found"
        return (
            f"{self.entries:,} samples in {decimal_size(self.nbytes)} of "
            f"{decimal_size(self.capacity)}{rate}"
        )


class DecodedCache:
    """Arrays by number, kept once for all workers, and for all ranks that name the same folder.

    It is filled as it goes and never takes more than ``nbytes``; what was put first stays. Reading
    takes no lock. A sample is seen whole or not at all, whoever is killed at whatever moment; if
    two processes put the same one at once, either may be seen.

    Pickling costs O(1), as with :class:`~sharedds.handles.SharedFile`, and all processes that have
    it from one another share it. Private memory of a process does not grow with it.

    Args:
        count: Samples there are.
        nbytes: Bytes it may take: 8 for each sample there is, 64 and its bytes for each one kept.
        key: What the samples depend on: the data, and how it is decoded.
        folder: Where the file is, with a name made from ``key``: other ranks join it, later runs
            find it filled, and it stays until it is deleted. By default it has no name and goes
            with its last user; it is in memory (/dev/shm) if it takes at most three quarters of
            what is free there, of the part of this rank, and else in the temporary folder.

    Attributes:
        folder: Where the file has a name, absolute; None without one.
        in_memory: Whether what it takes is memory that the system cannot take back.

    Raises:
        OptionError: ``nbytes`` is not even enough for the index, ``folder`` is on a network file
            system, or this system has no files that can be shared like that.
        StorageFullError: There is no room for its index, or a limit forbids files of that size.
        SourceError, StoreBusyError: The folder cannot be used.
    """

    def __init__(
        self,
        count: int,
        nbytes: int,
        *,
        key: str,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if not hasattr(os, "pwrite"):
            raise OptionError("a cache of decoded samples needs Linux or another POSIX system")
        self._layout = Layout(count, nbytes)
        self._file: WritableFile
        self.folder = None if folder is None else absolute_path(folder)
        if self.folder is not None:
            self._file = open_named(self._layout, key, self.folder)
            self.in_memory = is_in_memory(self.folder)
        else:
            place = memory_folder(nbytes)
            self._file = new_file(self._layout, identity_of(key), place)
            self.in_memory = place is not None
        if self.in_memory:
            promise(self._file)
        self._counts = SharedCounts(columns=2, folder=memory_folder(_COUNTS))

    # --- reading: no lock ------------------------------------------------------------------------

    def get(self, index: SupportsIndex, *, stamp: int = 0) -> npt.NDArray[Any] | None:
        """Return a sample, a read-only view of the shared bytes; None if it is not kept.

        Args:
            index: Its number.
            stamp: What it was put with: a sample that was put with another stamp is not found.

        Raises:
            SampleIndexError: There is no such sample.
        """
        found = self._find(check_index(index, self._layout.count), stamp)
        self._counts.add(_MISSES if found is None else _HITS)
        if found is None:
            return None
        record, offset = found
        return np.ndarray(record.shape, record.dtype, self._file.view, offset + RECORD)

    def missing(self, indices: Sequence[int]) -> list[int]:
        """Return those of some samples that are not kept; this counts neither hits nor misses."""
        return [index for index in indices if self._place(index) is None]

    def advise(self, indices: Sequence[int]) -> None:
        """Ask the disk, without waiting, for those of some samples that are kept on one."""
        if not self.in_memory:
            for index in indices:
                if (place := self._place(index)) is not None:
                    self._file.advise(*place)

    def _place(self, index: SupportsIndex) -> tuple[int, int] | None:
        """Where the index says that a sample is, and about how long."""
        position = check_index(index, self._layout.count)
        if not self._file.is_whole:
            return None
        return self._layout.unpack_place(self._file.view, position)

    def _find(self, position: int, stamp: int) -> tuple[Record, int] | None:
        """What the index has of a sample, if the record that it leads to agrees."""
        place = self._place(position)
        if place is None:
            return None
        offset, _ = place
        record = Record.unpack(self._file.view[offset : offset + RECORD])
        if record is None or record.position != position or record.stamp != stamp:
            return None
        end = offset + self._layout.room_for(record.nbytes)
        return (record, offset) if end <= self._layout.nbytes else None

    # --- writing ---------------------------------------------------------------------------------

    def put(self, index: SupportsIndex, array: npt.ArrayLike, *, stamp: int = 0) -> bool:
        """Keep a sample, unless it is kept already.

        Args:
            index: Its number.
            array: Numbers in up to six dimensions; they are copied.
            stamp: Compared by :meth:`get`, 0 to 2**64 - 1: of a file, when it was changed. A sample
                kept with another one is replaced; its bytes are not used again.

        Returns:
            Whether it is kept now: False when the cache, or the disk, has no room for it.

        Raises:
            SampleIndexError: There is no such sample.
            SchemaError: It is no array of numbers.
        """
        position = check_index(index, self._layout.count)
        if self._find(position, stamp) is not None:
            return True
        data = np.asarray(array, order="C")
        record = Record.of(data, position, stamp)
        size = self._layout.room_for(record.nbytes)
        offset = self._take(size)
        if offset is None:
            return False
        write = self._file.write
        is_written = write(offset + RECORD, data.reshape(-1).view(np.uint8).data)
        if not (is_written and write(offset, record.pack())):
            self._give_back(offset, size)
            return False
        # Last of all: from now on others see it. The index has had its room from the beginning.
        return write(self._layout.entry(position), self._layout.pack_place(offset, size))

    @per_process
    def _patience(self) -> list[float]:
        return [_PATIENCE]

    def _take(self, size: int) -> int | None:
        """Take room for one record; None if there is none.

        Who is killed before it is filled has lost that room for good, and no more.
        """
        if not self._file.is_whole or not self._holds(self._next(), size):
            return None
        with self._file.locked(self._patience[0]) as is_locked:
            # A process that was stopped in here keeps others from filling the cache, not for long.
            self._patience[0] = _PATIENCE if is_locked else 0.0
            if is_locked and self._holds(offset := self._next(), size):
                self._file.write(NEXT, WORD.pack(offset + size))
                return offset
        return None

    def _give_back(self, offset: int, size: int) -> None:
        """Return room that could not be filled, unless others have taken more behind it."""
        with self._file.locked(_PATIENCE) as is_locked:
            if is_locked and self._next() == offset + size:
                self._file.write(NEXT, WORD.pack(offset))

    def _next(self) -> int:
        (offset,) = WORD.unpack_from(self._file.view, NEXT)
        return int(offset)

    def _holds(self, offset: int, size: int) -> bool:
        return self._layout.may_begin(offset) and offset + size <= self._layout.nbytes

    # --- what it costs ---------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Bytes it may take."""
        return self._layout.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes taken so far."""
        return min(self._next(), self._layout.nbytes) if self._file.is_whole else 0

    def stats(self) -> CacheStats:
        """Return how full it is and how often it helped; may be asked in any process."""
        layout = self._layout
        entries = 0
        if self._file.is_whole:
            index = np.frombuffer(self._file.view, "<u8", layout.count, layout.entry(0))
            entries = int(np.count_nonzero(index))
        hits, misses = self._counts.totals()
        return CacheStats(
            entries=entries,
            nbytes=self.nbytes,
            capacity=layout.nbytes,
            hits=hits,
            misses=misses,
        )

    def __repr__(self) -> str:
        return f"DecodedCache({self._layout.count:,} samples, {self.stats()})"
