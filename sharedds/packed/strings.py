"""Strings and paths in one mapped file; what the paths of a folder share is kept once.

Each item names a *model*, another string of the same folder that is stored in full, and keeps only
what lies between the bytes it shares with the model at its beginning and at its end. A thousand
``train/n01440764/n01440764_10026.JPEG`` keep ``10026``. Items need no order, and any one of them is
put together from two places of the file.

Layout: records, models, the start of each record relative to that of its block of 64 (16, 32 or 64
bits), the start of each block, the start of each model. A record is the number of its model (24
bits), two lengths (8 bits), and the bytes in between.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, SupportsIndex

import numpy as np
import xxhash

from sharedds.handles import SharedFile, per_process
from sharedds.packed.files import Appender, check_index, encode_text, let_go

__all__ = ["PackedStrings", "PackedStringsBuilder"]

_BLOCK = 64  # items; a power of two
_HEADER = 5  # bytes of a record before what is its own
_MOST = (1 << 24) - 1  # models
_MOST_FOLDERS = 1 << 15  # remembered while building, so that this takes constant memory
_MOST_WAITING = 1 << 20  # bytes of items
_LONG = 1 << 10  # bytes; no path, and too much to be kept twice
_NO_MODEL = (bytes(3), b"")

# The starts of records in the narrowest of these.
_WIDTHS: tuple[tuple[int, Literal["H", "I", "Q"], type[np.unsignedinteger[Any]]], ...]
_WIDTHS = ((1 << 16, "H", np.uint16), (1 << 32, "I", np.uint32), (1 << 64, "Q", np.uint64))


class _Models:
    """Chooses the model of each item, remembering a bounded number of folders."""

    def __init__(self) -> None:
        self._bytes = Appender()
        self._starts = Appender()
        self._count = 0
        self._end = 0
        self._add(b"")
        self._latest = _NO_MODEL
        self._by_folder: dict[bytes, tuple[bytes, bytes] | None] = {}

    def _add(self, item: bytes) -> tuple[bytes, bytes]:
        self._starts.write(self._end.to_bytes(8, "little"))
        self._bytes.write(item)
        self._end += len(item)
        self._count += 1
        return (self._count - 1).to_bytes(3, "little"), item

    def choose(self, item: bytes, position: int) -> tuple[bytes, bytes]:
        """Return the number (little-endian) and the bytes of the model of an item."""
        if len(item) > _LONG:
            return _NO_MODEL
        folder = item[: item.rfind(b"/") + 1]
        known = self._by_folder
        if (model := known.get(folder)) is not None:
            return model
        # A folder gets a model of its own when its second file comes, since many have only one;
        # and whatever the folders, models stay few.
        if (folder in known or not position) and self._count <= min(16 + position // 8, _MOST):
            self._latest = known[folder] = self._add(item)
        else:
            if len(known) >= _MOST_FOLDERS:
                known.clear()
            known[folder] = None
        return self._latest

    def finish(self, data: Appender, starts: Appender) -> int:
        """Move the models to the end of ``data`` and their starts to ``starts``; count them."""
        self._starts.write(self._end.to_bytes(8, "little"))
        data.copy_from(self._bytes)
        starts.copy_from(self._starts)
        return self._count


class PackedStringsBuilder:
    """Builds :class:`PackedStrings` from a stream, in constant memory."""

    def __init__(self) -> None:
        self._records = Appender()
        self._starts = Appender()  # within the block, 64 bits each until the widest is known
        self._blocks = Appender()
        self._models = _Models()
        self._digest = xxhash.xxh3_128()
        self._pending: list[bytes] = []
        self._waiting = 0  # bytes
        self._widest = 0
        self._block = 0
        self._end = 0
        self._count = 0

    def append(self, item: str | bytes | os.PathLike[Any]) -> None:
        """Append one string, bytes or path."""
        data = encode_text(item)
        self._pending.append(data)
        self._waiting += len(data)
        if len(self._pending) == _BLOCK or self._waiting > _MOST_WAITING:
            self._write_pending()

    def _write_pending(self) -> None:
        items, self._pending, self._waiting = self._pending, [], 0
        choose, records, starts = self._models.choose, [], array("Q")
        end, block = self._end, self._block
        for position, item in enumerate(items, self._count):
            if not position % _BLOCK:
                block = end
                self._blocks.write(block.to_bytes(8, "little"))
            number, model = choose(item, position)
            before, after = _shared(model, item)
            record = number + bytes((before, after)) + item[before : len(item) - after]
            records.append(record)
            starts.append(end - block)
            end += len(record)
        self._records.write(b"".join(records))
        self._starts.write(starts)
        self._digest.update(array("Q", map(len, items)))
        self._digest.update(b"".join(items))
        self._end, self._block = end, block
        self._widest = max(self._widest, end - block, *starts)  # a block may have ended on the way
        self._count += len(items)

    def finish(self) -> PackedStrings:
        """Return the finished strings; the builder cannot be used any more."""
        self._write_pending()
        if not self._count % _BLOCK:  # what follows the last item begins a block
            self._block = self._end
            self._blocks.write(self._end.to_bytes(8, "little"))
        self._starts.write((self._end - self._block).to_bytes(8, "little"))
        data, model_starts = self._records, Appender()
        models = self._models.finish(data, model_starts)
        code, dtype = next((c, d) for most, c, d in _WIDTHS if self._widest < most)
        places = [_aligned(data)]
        self._starts.flush()
        self._starts.file.seek(0)
        while rows := self._starts.file.read(8 << 16):
            data.write(np.frombuffer(rows, "<u8").astype(dtype).tobytes())
        self._starts.file.close()
        for column in (self._blocks, model_starts):
            places.append(_aligned(data))
            data.copy_from(column)
        data.flush()
        return PackedStrings(
            SharedFile(data.file),
            self._count,
            _Places(self._end, models, code, *places),
            self._digest.hexdigest(),
        )


def _aligned(data: Appender) -> int:
    data.flush()
    data.write(bytes(-data.size % 8))
    data.flush()
    return data.size


def _shared(model: bytes, item: bytes) -> tuple[int, int]:
    """Return how many bytes two strings share at the beginning, and of the rest at the end."""
    least = min(len(model), len(item))
    length = min(least, 255)
    # As numbers, they differ first where their difference (xor) has its highest bit.
    differ = int.from_bytes(model[:length], "big") ^ int.from_bytes(item[:length], "big")
    before = length - (differ.bit_length() + 7) // 8
    length = min(least - before, 255)
    if not length:
        return before, 0
    differ = int.from_bytes(model[-length:], "little") ^ int.from_bytes(item[-length:], "little")
    return before, length - (differ.bit_length() + 7) // 8


class _Places(NamedTuple):
    """Where the parts of the file begin, in bytes."""

    models: int
    model_count: int
    code: Literal["H", "I", "Q"]  # of the starts of records, as in ``struct``
    starts: int
    blocks: int
    model_starts: int


class PackedStrings:
    """Strings or paths in one mapped file; reads like a sequence of ``str``.

    Undecodable bytes of file names come back as surrogate escapes. What the paths of one folder
    have in common is kept once. Make one with :meth:`build`.

    Attributes:
        digest: 32 hex digits of all items in their order; equal for equal items.

    Example:
        >>> names = PackedStrings.build(f"{i:04d}.jpg" for i in range(1000))
        >>> len(names), names[7], names[-1]
        (1000, '0007.jpg', '0999.jpg')
    """

    def __init__(self, file: SharedFile, count: int, places: _Places, digest: str) -> None:
        self._file = file
        self._count = count
        self._places = places
        self.digest = digest

    @classmethod
    def build(cls, items: Iterable[str | bytes | os.PathLike[Any]]) -> PackedStrings:
        """Build from any iterable, read once as a stream; no list is kept.

        Raises:
            SchemaError: An item that is neither text, bytes nor a path.
            StorageFullError: The temporary folder is full.
        """
        builder = PackedStringsBuilder()
        for item in items:
            builder.append(item)
        return builder.finish()

    @per_process
    def _views(self) -> tuple[memoryview, memoryview, memoryview, memoryview, memoryview]:
        view, at = self._file.view, self._places
        size = {"H": 2, "I": 4, "Q": 8}[at.code]
        rows = self._count + 1
        blocks = -(-rows // _BLOCK)
        return (
            view,
            view[at.starts : at.starts + size * rows].cast(at.code),
            view[at.blocks : at.blocks + 8 * blocks].cast("Q"),
            view[at.models : at.starts],
            view[at.model_starts : at.model_starts + 8 * (at.model_count + 1)].cast("Q"),
        )

    def bytes(self, index: SupportsIndex) -> bytes:
        """Return item ``index`` as bytes."""
        if type(index) is int and 0 <= index < self._count:
            position = index
        else:
            position = check_index(index, self._count)
        data, starts, blocks, models, model_starts = self._views
        following = position + 1
        start = blocks[position // _BLOCK] + starts[position]
        record = data[start : blocks[following // _BLOCK] + starts[following]].tobytes()
        before, after = record[3], record[4]
        if not before and not after:
            return record[_HEADER:]
        number = record[0] | record[1] << 8 | record[2] << 16
        model, end = model_starts[number], model_starts[number + 1]
        return b"".join(
            (models[model : model + before], record[_HEADER:], models[end - after : end])
        )

    def release(self) -> None:
        """Let go of the pages that were read; they are back when they are read again."""
        let_go(self._file.view)

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self._file.size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: SupportsIndex) -> str:
        return self.bytes(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(self._count))

    def __repr__(self) -> str:
        return f"PackedStrings({self._count} strings, {self._file.size} bytes)"
