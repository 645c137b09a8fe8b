"""An append-only log beside an unfinished store: the rows of its columns, a frame for each commit.

Columns must lie in one piece in the finished file, but arrive row by row. Until then their bytes
wait here. A frame is synced before the commit it belongs to, and the commit records the length of
the log; so after a crash the log is cut back to what the last commit knew.
"""

from __future__ import annotations

import contextlib
import os
import struct
from array import array
from collections.abc import Iterator, Sequence

from sharedds.errors import StoreFormatError

__all__ = ["SpoolLog"]

_COPY = 1 << 20


class SpoolLog:
    """The rows of several columns, appended together.

    Args:
        path: The log file, made when missing.
        columns: Their names; the order is part of the file.
        length: Where the last commit ended; anything beyond is cut off.

    Attributes:
        buffers: Bytes of each column that wait for the next frame; append to them.
        length: Of the log.

    Raises:
        StoreFormatError: The log does not fit ``length``.
    """

    def __init__(self, path: str, columns: Sequence[str], length: int) -> None:
        self.path = path
        self.buffers = {name: bytearray() for name in columns}
        self.length = 0
        self._names = tuple(columns)
        self._head = struct.Struct(f"<{len(columns)}Q")
        # Of each frame, where its bytes begin and how many each column has. Plain numbers: a large
        # store has a frame for every few megabytes.
        self._frames = array("Q")
        self._file = open(path, "r+b" if os.path.exists(path) else "w+b")  # noqa: SIM115
        # Read apart: a forked child that closes a file it has read ahead in moves its position,
        # which it shares with the parent.
        self._reader = open(path, "rb", buffering=0)  # noqa: SIM115
        try:
            self._read_frames(length)
        except BaseException:
            self.close()
            raise

    def _read_frames(self, length: int) -> None:
        if os.fstat(self._file.fileno()).st_size < length:
            raise StoreFormatError(f"{self.path}: the log is shorter than {length}", path=self.path)
        self._file.truncate(length)
        while self.length < length:
            head = self._read_at(self.length, self._head.size)
            sizes = self._head.unpack(head) if len(head) == self._head.size else (0,)
            end = self.length + self._head.size + sum(sizes)
            if not any(sizes) or end > length:
                raise StoreFormatError(
                    f"{self.path}: the log is damaged at byte {self.length}", path=self.path
                )
            self._note(sizes)

    def _note(self, sizes: Sequence[int]) -> None:
        """Remember a frame that the log has now."""
        start = self.length + self._head.size
        self._frames.extend((start, *sizes))
        self.length = start + sum(sizes)

    def _spans(self, name: str, *, backwards: bool = False) -> Iterator[tuple[int, int]]:
        """Yield where the bytes of a column begin in each frame, and how many there are."""
        index, width = self._names.index(name), 1 + len(self._names)
        starts = range(0, len(self._frames), width)
        for at in reversed(starts) if backwards else starts:
            before = self._frames[at : at + 1 + index]
            yield sum(before), self._frames[at + 1 + index]

    def _read_at(self, offset: int, size: int) -> bytes:
        self._reader.seek(offset)
        return self._reader.read(size)

    def take(self) -> dict[str, bytearray]:
        """Return what waits for the next frame, and wait with it no longer."""
        frame, self.buffers = self.buffers, {name: bytearray() for name in self._names}
        return frame

    def write_frame(self, frame: dict[str, bytearray]) -> int:
        """Write a frame, synced; return the length of the log.

        Raises:
            OSError: No room; the log is as long as before.
        """
        sizes = tuple(len(frame[name]) for name in self._names)
        if sum(sizes):
            self._file.seek(self.length)
            self._file.write(self._head.pack(*sizes))
            for name in self._names:
                self._file.write(frame[name])
            self._file.flush()
            os.fsync(self._file.fileno())
            self._note(sizes)
        return self.length

    def read(self, name: str) -> Iterator[bytes]:
        """Yield all bytes of one column, in order, in pieces of bounded size."""
        for at, left in self._spans(name):
            while left:
                data = self._read_at(at, min(left, _COPY))
                if not data:
                    raise StoreFormatError(f"{self.path}: the log ends early", path=self.path)
                yield data
                at += len(data)
                left -= len(data)

    def size(self, name: str) -> int:
        """Return the bytes of one column in the log."""
        return sum(length for _, length in self._spans(name))

    def last(self, name: str, count: int) -> bytes:
        """Return the last ``count`` bytes of a column."""
        tail = b""
        for at, size in self._spans(name, backwards=True):
            length = min(size, count - len(tail))
            tail = self._read_at(at + size - length, length) + tail
            if len(tail) == count:
                break
        return tail

    def strings(self, name: str) -> Iterator[bytes]:
        """Yield the packed strings of two columns, the text and where each one ends."""
        text, pieces = bytearray(), self.read(name)
        rest, start = b"", None
        for piece in self.read(f"{name}@ends"):
            data = rest + piece
            whole = len(data) - len(data) % 8
            rest = data[whole:]
            for (end,) in struct.iter_unpack("<Q", data[:whole]):
                if start is not None:
                    while len(text) < end - start:
                        text += next(pieces)
                    yield bytes(text[: end - start])
                    del text[: end - start]
                start = end

    def close(self) -> None:
        """Close the file; what waits is lost."""
        self._reader.close()
        with contextlib.suppress(OSError):  # what a full disk refused is refused again
            self._file.close()
