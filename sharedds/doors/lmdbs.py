"""LMDB files of others: pictures under any keys, pictures with texts, Caffe's Datum, pickled pairs.

They are read without liblmdb, which trusts the pages it is given: here every number is checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sharedds.codecs import IMAGE_FORMATS, sniff
from sharedds.doors.datum import read_datum
from sharedds.doors.labels import LabelReader
from sharedds.doors.outgoing import PICTURE_ENDINGS
from sharedds.doors.pickles import REFUSED, load_plain
from sharedds.doors.reading import file_facts, reading
from sharedds.doors.stream import Contents, Item
from sharedds.errors import DecodeError, OptionError, SharedDSError, SourceError
from sharedds.handles import map_file
from sharedds.store.pages import LEAF, SUBTREE, Pages, Tree
from sharedds.text import printable

__all__ = ["Lmdb"]

_SPECIAL = frozenset((b"__keys__", b"__len__", b"__meta__", b"num-samples", b"meta_info"))
_DUPLICATES, _DUPLICATE_NODE = 0x04, 0x04
_OURS = {"header", "columns", "chunks"}
_TRIED = 50
_ENDINGS = tuple(f".{end}" for endings in PICTURE_ENDINGS.values() for end in endings)


class Lmdb:
    """Pictures from an LMDB file.

    Args:
        root: The file, or the folder with ``data.mdb``.
        split: Of a file with several named databases: which.
        allow_pickle: Whether values that are pickles are read.
        classes: Names that fix the numbering, for labels that are text.
    """

    format = "lmdb"

    def __init__(
        self,
        root: str,
        *,
        split: str | None = None,
        allow_pickle: bool = False,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.root = root
        self._path = os.path.join(root, "data.mdb") if os.path.isdir(root) else root
        self._allow_pickle = allow_pickle
        self._labels = LabelReader(classes)
        with reading(self._path):
            self._file = map_file(self._path)
        try:
            self._pages = Pages(self._file.view, self._path)
            self._tree = self._choose(split)
        except SharedDSError as error:
            if isinstance(error, OptionError):
                raise
            raise DecodeError(str(error), path=self._path) from error
        self._layout = ""
        self._names = _meta_info(os.path.dirname(self._path))

    def look(self, advance: Callable[[int], object]) -> Contents:
        """Tell how values are laid out, and read the labels in them."""
        self._layout = self._tell()
        fields: dict[str, str] = {}
        count = total = 0
        for key, value in self._entries():
            if self._layout == "texts" and not key.startswith(b"image-"):
                continue
            count, total = count + 1, total + len(value)
            advance(1)
            if self._layout in ("datum", "pickle"):
                try:
                    _, label = self._parts(value)
                except (ValueError, SharedDSError):  # told when it is read
                    continue
                if label is not None:
                    self._labels.see(label)
        self._labels.settle(self.root)
        if self._labels.kind:
            fields["label"] = self._labels.kind
        if self._layout == "texts":
            fields["text"] = "str"
        notes = []
        if self._layout == "datum":
            notes.append(
                "pixels of a Datum are taken as blue, green, red, as Caffe has them, and become PNG"
            )
        return Contents(
            pictures=("image",),
            fields=fields,
            classes=self._labels.classes,
            samples=count,
            nbytes=total,
            files=(file_facts(self._path),),
            notes=notes,
            attrs={"layout": self._layout},
        )

    def items(self) -> Iterator[Item]:
        """Yield the entries in the order of their keys."""
        for key, value in self._entries():
            if self._layout != "texts":
                yield self._item(key, value)
            elif key.startswith(b"image-"):
                yield self._with_text(key, value)

    def _item(self, key: bytes, value: memoryview) -> Item:
        name = key.decode("utf-8", "surrogateescape")
        if self._layout == "pictures":
            data = bytes(value)
            return Item(key=self._named(name, data), pictures={"image": data}, nbytes=len(data))
        try:
            data, label = self._parts(value)
            values = {}
            if self._labels.kind:
                if label is None:
                    raise ValueError("no label")
                values["label"] = self._labels.value(label)
        except (ValueError, SharedDSError) as error:
            return Item(key=name, reason=str(error), nbytes=len(value))
        return Item(
            key=self._named(name, data), pictures={"image": data}, values=values, nbytes=len(data)
        )

    def _with_text(self, key: bytes, value: memoryview) -> Item:
        name = key.decode("utf-8", "surrogateescape")
        data = bytes(value)
        found = self._pages.find(self._tree, b"label-" + key.removeprefix(b"image-"))
        if found is None:
            return Item(key=name, reason="no label- of the same number")
        at, size = found
        try:
            text = bytes(self._file.view[at : at + size]).decode()
        except UnicodeDecodeError:
            return Item(key=name, reason="its label- is not UTF-8")
        pictures = {"image": data}
        return Item(
            key=self._named(name, data), pictures=pictures, values={"text": text}, nbytes=len(data)
        )

    def _named(self, name: str, data: bytes) -> str:
        """Return the key of a sample: with the ending of its picture, where it has none."""
        known = self._names.get(name)
        if known is not None:
            return known
        found = PICTURE_ENDINGS.get(sniff(data))
        return name if found is None or name.lower().endswith(_ENDINGS) else f"{name}.{found[0]}"

    def _parts(self, value: memoryview) -> tuple[bytes, Any]:
        """Return picture and label of a Datum or a pickle.

        Raises:
            ValueError, DecodeError: It is none.
        """
        if self._layout == "datum":
            datum = read_datum(value)
            return datum.picture(), datum.label
        loaded = load_plain(bytes(value))
        parts = list(loaded.values()) if isinstance(loaded, dict) else loaded
        if isinstance(parts, bytes):
            return parts, None
        if not isinstance(parts, (list, tuple)):
            what = type(loaded).__name__
            raise ValueError(f"a pickle of a {what}, not of a picture and a label")  # noqa: TRY004
        shown = [part for part in parts if isinstance(part, bytes) and sniff(part) in IMAGE_FORMATS]
        labels = [part for part in parts if isinstance(part, (int, str))]
        if len(shown) != 1:
            raise ValueError(f"a pickle of {len(shown)} pictures")
        return shown[0], labels[0] if labels else None

    def _tell(self) -> str:
        """Return how values are laid out, as the first ones show."""
        keys: list[bytes] = []
        for key, value in self._entries():
            keys.append(key)
            if sniff(bytes(value[:4096])) in IMAGE_FORMATS:
                return "texts" if self._has_text(key) else "pictures"
            if len(value) > 2 and value[0] == 0x80 and value[1] <= 5:
                if self._allow_pickle:
                    return "pickle"
                raise OptionError(f"{printable(self._path)}: {REFUSED}", path=self._path)
            try:
                read_datum(value)
                return "datum"
            except ValueError:
                pass
            if len(keys) == _TRIED:
                break
        names = ", ".join(printable(key.decode("latin-1")) for key in keys[:5])
        raise SourceError(
            f"{printable(self._path)}: no pictures among its values; keys: {names or 'none'}",
            path=self._path,
        )

    def _has_text(self, key: bytes) -> bool:
        if not key.startswith(b"image-"):
            return False
        return self._pages.find(self._tree, b"label-" + key[6:]) is not None

    def _entries(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the entries, checked; those that describe the others are passed over."""
        pages = self._pages
        try:
            for kind, at, count in pages.walk(self._tree):
                for index in range(count if kind == LEAF else 0):
                    key = pages.key(at, index)
                    flags, offset, length = pages.value(at, index)
                    if flags & _DUPLICATE_NODE:
                        raise pages.error("several values under one key")
                    if not flags & SUBTREE and key not in _SPECIAL:
                        yield key, self._file.view[offset : offset + length]
        except SharedDSError as error:
            raise DecodeError(str(error), path=self._path) from error

    def _choose(self, split: str | None) -> Tree:
        """Return the database to read: the main one, or the named one."""
        pages = self._pages
        named, plain = [], 0
        for kind, at, count in pages.walk(pages.main):
            for index in range(count if kind == LEAF else 0):
                if pages.value(at, index)[0] & SUBTREE:
                    named.append(pages.key(at, index).decode("utf-8", "surrogateescape"))
                else:
                    plain += 1
            if plain > _TRIED or len(named) > _TRIED:
                break
        if set(named) >= _OURS:
            raise OptionError(
                f"{printable(self._path)} is a store already; export it (sharedds export), or read "
                "it as it is",
                path=self._path,
            )
        wanted = split if split is not None else named[0] if len(named) == 1 and not plain else None
        if split is None and len(named) > 1:
            shown = ", ".join(map(printable, named[:8]))
            raise OptionError(
                f"{printable(self._path)} holds the databases {shown}; say which with split= "
                "(--split)",
                path=self._path,
            )
        tree = pages.main if wanted is None else pages.database(wanted)
        if tree is None:
            raise OptionError(f"{printable(self._path)}: no database {wanted!r}", path=self._path)
        if tree.flags & _DUPLICATES:
            raise pages.error("several values under one key, which no sample has")
        return tree


def _meta_info(folder: str) -> dict[str, str]:
    """Return the names that BasicSR's ``meta_info.txt`` gives to keys, where there is one."""
    path = os.path.join(folder, "meta_info.txt")
    if not os.path.isfile(path):
        return {}
    with reading(path), open(path, encoding="utf-8", errors="surrogateescape") as file:
        lines = (line.split(" (")[0].strip() for line in file)
        return {os.path.splitext(name)[0]: name for name in lines if name}
