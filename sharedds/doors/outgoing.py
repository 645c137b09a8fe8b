"""What is in a store, sample by sample, as other formats take it: stored bytes and plain values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedds.codecs import encode_image, sniff
from sharedds.doors.stream import DESCRIBING
from sharedds.errors import OptionError, SampleKeyError
from sharedds.ingest.exports.folder import inside
from sharedds.store import Store
from sharedds.store.layout import FieldSpec

__all__ = ["PICTURE_ENDINGS", "Leaving", "Outgoing"]

PICTURE_ENDINGS = {
    "jpeg": ("jpg", "jpeg", "jpe", "jfif"),
    "png": ("png",),
    "webp": ("webp",),
    "gif": ("gif",),
    "bmp": ("bmp", "dib"),
    "tiff": ("tif", "tiff"),
}
_ALL_ENDINGS = frozenset(ending for endings in PICTURE_ENDINGS.values() for ending in endings)


@dataclass(frozen=True, slots=True)
class Leaving:
    """One sample on its way out.

    Attributes:
        index: Its number in the store.
        name: Its key as a path that stays in a folder; without a key, its number.
        pictures: Of each picture field the bytes of a file, or None.
        values: Of each other field: numbers, text, bytes, arrays, and what JSON holds.
    """

    index: int
    name: str
    pictures: dict[str, bytes | None]
    values: dict[str, Any]

    @property
    def stem(self) -> str:
        """The name without the ending of a picture."""
        stem, ending = os.path.splitext(self.name)
        return stem if ending[1:].lower() in _ALL_ENDINGS else self.name

    def ending(self, field: str) -> str:
        """Return the ending of the file of a picture field: as its key has it, where that fits."""
        known = PICTURE_ENDINGS.get(sniff(self.pictures[field] or b""), ("bin",))
        own = os.path.splitext(self.name)[1][1:]
        return own if field == "image" and own.lower() in known else known[0]


class Outgoing:
    """A store of pictures to be written in another format.

    Args:
        store: The store.

    Attributes:
        pictures: Names of picture fields, ``image`` first.
        values: The other fields; what only describes the stored pictures is left out.
        classes: Names of the labels.

    Raises:
        OptionError: It holds arrays in blocks: volumes or slides.
        SampleKeyError: It holds no pictures.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        packed = store.attrs.get("kind") == "images" and "recipe" in store.attrs
        fields = [f for f in store.header.fields if not (packed and f.name in DESCRIBING)]
        blocks = [field.name for field in fields if field.kind == "blocks"]
        if blocks:
            raise OptionError(
                f"{store.path}: the field {blocks[0]!r} holds volumes or slides, which only go to "
                "a folder (--to folder)",
                path=store.path,
            )
        shown = [field.name for field in fields if _is_picture(field)]
        if not shown:
            raise SampleKeyError(f"{store.path}: no field holds pictures", path=store.path)
        self.pictures = tuple(sorted(shown, key=lambda name: name != "image"))
        self.values = tuple(field for field in fields if field.name not in shown)
        self._coded = {field.name for field in fields if field.kind == "image"}
        self.classes = None if store.classes is None else tuple(store.classes)

    def __len__(self) -> int:
        return len(self.store)

    def class_lines(self) -> bytes | None:
        """Return the names of the classes, one a line; None where there are none.

        Raises:
            OptionError: One has a line break, and the numbers behind it would get other names.
        """
        if self.classes is None:
            return None
        broken = [name for name in self.classes if "\n" in name or "\r" in name]
        if broken:
            raise OptionError(
                f"{self.store.path}: the class {broken[0]!r} has a line break, and classes.txt has "
                "one name a line; rename it, or export to parquet",
                path=self.store.path,
            )
        return "".join(f"{name}\n" for name in self.classes).encode("utf-8", "surrogateescape")

    def samples(self) -> Iterator[Leaving]:
        """Yield all samples, each checked against its checksums.

        Raises:
            CorruptDataError: A value is damaged.
            StoreFormatError: A key would lead out of a folder.
        """
        for index in range(len(self.store)):
            yield Leaving(
                index=index,
                name=self.name(index),
                pictures={name: self._picture(name, index) for name in self.pictures},
                values={f.name: self.store.value(f.name, index) for f in self.values},
            )

    def name(self, index: int) -> str:
        """Return the name of a sample."""
        if not self.store.header.keyed:
            return f"{index:08d}"
        return os.fsdecode(inside(self.store, index))

    def formats(self, field: str) -> set[str]:
        """Return the formats of all pictures of a field."""
        found = set()
        for index in range(len(self.store)):
            data = self._picture(field, index)
            found.add("" if data is None else sniff(data))
        return found

    def _picture(self, field: str, index: int) -> bytes | None:
        if field not in self._coded:
            return encode_image(self.store.value(field, index), "png")
        try:
            return bytes(self.store.read(field, index))
        except SampleKeyError:
            return None


def _is_picture(field: FieldSpec) -> bool:
    """Whether a field is of pictures: coded, or pixels of one size."""
    if field.kind == "image":
        return True
    pixels = field.kind == "column" and np.dtype(field.dtype) in (np.uint8, np.uint16)
    return pixels and len(field.shape) == 3 and field.shape[2] in (1, 3, 4)
