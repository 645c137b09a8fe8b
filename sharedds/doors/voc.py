"""Pascal VOC: a folder of pictures, and an XML file with boxes for each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from xml.etree import ElementTree as ET

import numpy as np

from sharedds.doors.labels import LabelReader
from sharedds.doors.reading import file_facts, listed, reading, within
from sharedds.doors.stream import Contents, Item
from sharedds.errors import DecodeError, OptionError, SharedDSError
from sharedds.text import printable

__all__ = ["Voc"]

_MAX_XML = 16 << 20
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_FLAGS = ("difficult", "truncated")
_ENDINGS = ("", ".jpg", ".jpeg", ".png", ".JPEG", ".JPG")


class Voc:
    """Pictures with boxes.

    Args:
        root: A folder with ``Annotations`` and ``JPEGImages``.
        split: A list in ``ImageSets/Main``, such as ``train``; by default all that is annotated.
        classes: Names that fix the numbering; by default those that occur, sorted.
    """

    format = "voc"

    def __init__(
        self, root: str, *, split: str | None = None, classes: Sequence[str] | None = None
    ) -> None:
        self.root = root
        self._folder = os.path.join(root, "Annotations")
        self._pictures = os.path.join(root, "JPEGImages")
        self._names = self._listed(split)
        self._labels = LabelReader(classes)

    def look(self, advance: Callable[[int], object]) -> Contents:
        """Read all annotations once, for the names of the classes."""
        total = 0
        for name in self._names:
            try:
                tree = self._read(name)
            except SharedDSError:  # told when it is packed
                continue
            for thing in tree.iter("object"):
                self._labels.see(_text(thing, "name", "?"))
            total += self._size(tree, name)
            advance(1)
        self._labels.settle(self.root)
        flags = {f"box_{flag}": "array:uint8" for flag in _FLAGS}
        return Contents(
            pictures=("image",),
            fields={"boxes": "array:float32", "box_labels": "array:int64", **flags},
            classes=self._labels.classes,
            samples=len(self._names),
            nbytes=total,
            files=tuple(map(file_facts, (self._folder, self._pictures))),
            attrs={"boxes": "xmin, ymin, xmax, ymax as in the file: from 1, both ends inside"},
        )

    def items(self) -> Iterator[Item]:
        """Yield the pictures in the order of their list, or of their names."""
        for name in self._names:
            try:
                yield self._item(name)
            except (SharedDSError, ValueError, KeyError) as error:
                yield Item(key=name, reason=f"its annotations cannot be read: {error}")

    def _item(self, name: str) -> Item:
        tree = self._read(name)
        path = self._picture(tree, name)
        if path is None:
            return Item(key=name, reason=f"no picture of this name in {printable(self._pictures)}")
        things = list(tree.iter("object"))
        boxes = [[float(_text(thing, f"bndbox/{c}")) for c in _CORNERS] for thing in things]
        numbers = [self._labels.value(_text(thing, "name")) for thing in things]
        flags = {
            f"box_{flag}": np.array([_text(t, flag, "0") == "1" for t in things], np.uint8)
            for flag in _FLAGS
        }
        return Item(
            key=os.path.relpath(path, self._pictures),
            pictures={"image": path},
            values={
                "boxes": np.array(boxes, np.float32).reshape(-1, 4),
                "box_labels": np.array(numbers, np.int64),
                **flags,
            },
            nbytes=os.path.getsize(path),
        )

    def _picture(self, tree: ET.Element, name: str) -> str | None:
        for base in (_text(tree, "filename", name), name):
            for ending in _ENDINGS:
                path = within(self._pictures, base + ending)
                if path is not None and os.path.isfile(path):
                    return path
        return None

    def _size(self, tree: ET.Element, name: str) -> int:
        path = self._picture(tree, name)
        return 0 if path is None else os.path.getsize(path)

    def _read(self, name: str) -> ET.Element:
        path = within(self._folder, f"{name}.xml")
        if path is None:
            raise DecodeError("its name leads out of the folder")
        with reading(path), open(path, "rb") as file:
            data = file.read(_MAX_XML + 1)
        plain = data.replace(b"\0", b"")  # of UTF-16 too
        if len(data) > _MAX_XML or b"<!" in plain.replace(b"<!--", b""):
            raise DecodeError("too large, or with a document type, which annotations have not")
        try:
            return ET.fromstring(data)  # noqa: S314 - without entities, which were refused
        except (ET.ParseError, ValueError, LookupError) as error:
            raise DecodeError(f"damaged XML ({error})") from error

    def _listed(self, split: str | None) -> list[str]:
        if split is None:
            return [os.path.basename(path)[:-4] for path in listed(self._folder, ".xml")]
        folder = os.path.join(self.root, "ImageSets", "Main")
        path = within(folder, f"{split}.txt")
        if path is None or not os.path.isfile(path):
            there = [os.path.basename(p)[:-4] for p in listed(folder, ".txt") if "_" not in p]
            raise OptionError(
                f"split {split!r}: no such list in {printable(folder)}; it has "
                f"{', '.join(there[:8]) or 'none'}"
            )
        with reading(path), open(path, encoding="utf-8", errors="surrogateescape") as file:
            words = (line.split() for line in file)
            return list(dict.fromkeys(word[0] for word in words if word))


def _text(element: ET.Element, path: str, default: str | None = None) -> str:
    found = element.find(path)
    text = (found.text or "").strip() if found is not None else ""
    if text:
        return text
    if default is None:
        raise DecodeError(f"a {element.tag} has no {path}")
    return default
