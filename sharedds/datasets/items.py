"""Items of a dataset in one mapped file: text, bytes and small records, as they were."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash

from sharedds.datasets.records import Records
from sharedds.errors import SchemaError
from sharedds.packed import (
    MappedArray,
    MappedArrayBuilder,
    PackedStrings,
    PackedStringsBuilder,
    encode_text,
)

__all__ = ["PackedItems"]

_TEXT, _BYTES, _RECORD = range(3)


class PackedItems:
    """Items by number; a path reads as text. O(1) to pickle. Make them with :meth:`build`.

    All items are of one kind as a rule; only where kinds are mixed is there one byte more for each.

    Attributes:
        digest: Hex digits that change when an item does.
    """

    def __init__(
        self, strings: PackedStrings, kind: int, kinds: MappedArray | None, records: Records
    ) -> None:
        self._strings = strings
        self._kind = kind
        self._kinds = kinds
        self._records = records
        mixed = "" if kinds is None else xxhash.xxh3_64_hexdigest(kinds.array.data)
        classes = " ".join(known.__qualname__ for known in records.classes)
        text = f"{strings.digest} {kind} {mixed} {classes}"
        self.digest = xxhash.xxh3_64_hexdigest(text.encode())

    @classmethod
    def build(cls, items: Iterable[Any]) -> PackedItems:
        """Build from any iterable, read once as a stream; no list is kept.

        Raises:
            SchemaError: Something else than plain values; the text says which item.
            StorageFullError: The temporary folder is full.
        """
        strings, records = PackedStringsBuilder(), Records()
        kinds: MappedArrayBuilder | None = None
        usual: int | None = None
        for number, item in enumerate(items):
            try:
                kind, data = _encoded(item, records)
            except SchemaError as error:
                raise SchemaError(f"item {number}: {error}", sample=number) from error
            strings.append(data)
            if usual is None:
                usual = kind
            if kinds is None and kind != usual:
                kinds = MappedArrayBuilder(np.uint8)
                for _ in range(number):
                    kinds.append(usual)
            if kinds is not None:
                kinds.append(kind)
        return cls(
            strings.finish(),
            _TEXT if usual is None else usual,
            None if kinds is None else kinds.finish(),
            records,
        )

    def __len__(self) -> int:
        return len(self._strings)

    def __getitem__(self, position: int) -> Any:
        kind = self._kind if self._kinds is None else self._kinds.array[position]
        if kind == _TEXT:
            return self._strings[position]
        data = self._strings.bytes(position)
        return data if kind == _BYTES else self._records.decode(data)


def _encoded(item: Any, records: Records) -> tuple[int, bytes]:
    if isinstance(item, bytes):
        return _BYTES, item
    if isinstance(item, (str, os.PathLike)):
        return _TEXT, encode_text(item)
    return _RECORD, records.encode(item)
