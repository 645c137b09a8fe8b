"""COCO: pictures in a folder, and one JSON file with boxes, classes, outlines and captions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sharedds.doors.reading import file_facts, listed, reading, within
from sharedds.doors.stream import TWICE, Contents, Item, Keys
from sharedds.errors import DecodeError, OptionError, SourceError
from sharedds.text import printable

__all__ = ["Coco", "find_annotations"]

_MAX_JSON = 4 << 30
_HEAD = 4096
_MAX_PLACE = float(np.finfo(np.float32).max)
_WORDS = (b'"images"', b'"annotations"', b'"categories"', b'"licenses"', b'"info"')
_MORE = ("segmentation", "keypoints", "caption")


class _Picture(msgspec.Struct):
    id: int
    file_name: str
    width: int = 0
    height: int = 0


class _Category(msgspec.Struct):
    id: int
    name: str


class _Annotation(msgspec.Struct):
    image_id: int
    category_id: int = -1
    bbox: tuple[float, float, float, float] | None = None
    iscrowd: int = 0
    area: float = 0.0
    segmentation: msgspec.Raw = msgspec.Raw()
    keypoints: msgspec.Raw = msgspec.Raw()
    caption: msgspec.Raw = msgspec.Raw()


class _File(msgspec.Struct):
    images: list[_Picture]
    annotations: list[_Annotation] = []
    categories: list[_Category] = []


def find_annotations(root: str) -> list[str]:
    """Return the JSON files of annotations in a folder, or in its folder ``annotations``."""
    found: list[str] = []
    for folder in (root, os.path.join(root, "annotations")):
        if os.path.isdir(folder):
            found += [path for path in listed(folder, ".json") if _looks_right(path)]
    return found


def _looks_right(path: str) -> bool:
    with reading(path), open(path, "rb") as file:
        head = file.read(_HEAD)
    words = sum(word in head for word in _WORDS)
    return head.lstrip().startswith(b"{") and words > 0 and b'"chunks"' not in head


class Coco:
    """Pictures with boxes.

    Args:
        root: The JSON file, or a folder with it or with a folder ``annotations``.
        images: The folder of the pictures; by default looked for beside.
        split: A part of the name of the JSON file, where there are several.
        classes: Names in the order of the numbers that the store shall have.
    """

    format = "coco"

    def __init__(
        self,
        root: str,
        *,
        images: str | None = None,
        split: str | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.root = root
        self._path = _choose(root, split)
        self._images = images
        self._classes = None if classes is None else tuple(classes)
        self._file = _File([])
        self._keys = Keys()
        self._order: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._starts: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        self._numbers: dict[int, int] = {}
        self._more: tuple[str, ...] = ()
        self._boxed = False

    def look(self, advance: Callable[[int], object]) -> Contents:
        """Read the annotations; all of them are kept, sorted by picture."""
        self._file = file = _load(self._path)
        self._numbers, names = self._number()
        self._sort()
        for picture in file.images:
            self._keys.see(picture.file_name)
        advance(len(file.images))
        folder = self._folder()
        self._images = folder
        given = file.annotations
        self._boxed = any(annotation.bbox is not None for annotation in given)
        self._more = tuple(n for n in _MORE if any(bytes(getattr(a, n)) for a in given))
        fields = {"image_id": "int64"}
        if self._boxed:
            fields |= {
                "boxes": "array:float32",
                "box_labels": "array:int64",
                "box_areas": "array:float32",
                "box_crowd": "array:uint8",
            }
        fields |= {f"{name}s" if name == "caption" else name: "json" for name in self._more}
        some = [within(folder, picture.file_name) for picture in file.images[:100]]
        sizes = [os.path.getsize(path) for path in some if path and os.path.isfile(path)]
        return Contents(
            pictures=("image",),
            fields=fields,
            classes=names or None,
            samples=len(file.images),
            nbytes=sum(sizes) * len(file.images) // max(1, len(sizes)),
            files=(file_facts(self._path),),
            attrs={
                "boxes": "x1, y1, x2, y2 in pixels of the stored picture",
                "category_ids": list(self._numbers),
            }
            if self._boxed
            else {},
        )

    def items(self) -> Iterator[Item]:
        """Yield the pictures in the order of the file."""
        self._keys.start()
        for number, picture in enumerate(self._file.images):
            yield self._item(number, picture)

    def _item(self, number: int, picture: _Picture) -> Item:
        key = picture.file_name
        path = within(self._images or "", key)
        if path is None:
            return Item(key=key, reason=f"lies outside {printable(self._images or '')}")
        if self._keys.again(key):
            return Item(key=key, reason=TWICE)
        try:
            size = os.stat(path).st_size
        except OSError as error:
            return Item(key=key, reason=f"cannot be read ({error.strerror})")
        chosen = self._order[self._starts[number] : self._starts[number + 1]].tolist()
        given = [self._file.annotations[at] for at in chosen]
        values: dict[str, Any] = {"image_id": picture.id}
        if self._boxed:
            boxed = [a for a in given if a.bbox is not None]
            unknown = [a.category_id for a in boxed if a.category_id not in self._numbers]
            if unknown:
                return Item(key=key, reason=f"a box of the category {unknown[0]}, which is none")
            try:
                values |= self._boxes(boxed)
            except ValueError as error:
                return Item(key=key, reason=str(error))
        for name in self._more:
            field = f"{name}s" if name == "caption" else name
            raw = [bytes(getattr(a, name)) for a in given]
            try:
                values[field] = [msgspec.json.decode(text) if text else None for text in raw]
            except (msgspec.MsgspecError, RecursionError) as error:
                return Item(key=key, reason=f"{name}: {error}")
        return Item(key=key, pictures={"image": path}, values=values, nbytes=size)

    def _boxes(self, boxed: Sequence[_Annotation]) -> dict[str, Any]:
        boxes = np.array([a.bbox for a in boxed], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        areas = np.array([a.area for a in boxed], np.float64)
        if max(np.abs(boxes).max(initial=0), np.abs(areas).max(initial=0)) > _MAX_PLACE:
            raise ValueError("a box beyond all pictures")
        return {
            "boxes": boxes.astype(np.float32),
            "box_labels": np.array([self._numbers[a.category_id] for a in boxed], np.int64),
            "box_areas": areas.astype(np.float32),
            "box_crowd": np.array([bool(a.iscrowd) for a in boxed], np.uint8),
        }

    def _number(self) -> tuple[dict[int, int], tuple[str, ...]]:
        """Return the number of each category, and the names by number."""
        known = sorted(self._file.categories, key=lambda category: category.id)
        names = tuple(category.name for category in known)
        if len(set(names)) != len(names) or len({c.id for c in known}) != len(known):
            raise DecodeError(
                f"{printable(self._path)}: two categories have one id or one name", path=self._path
            )
        if self._classes is None:
            return {category.id: number for number, category in enumerate(known)}, names
        at = {name: number for number, name in enumerate(self._classes)}
        missing = [name for name in names if name not in at]
        if missing:
            raise OptionError(
                f"{printable(self._path)}: the category {missing[0]!r} is not among the classes "
                f"{list(self._classes[:5])}"
            )
        return {category.id: at[category.name] for category in known}, self._classes

    def _sort(self) -> None:
        """Put the annotations of each picture together, in the order of the file."""
        pictures = {picture.id: number for number, picture in enumerate(self._file.images)}
        if len(pictures) != len(self._file.images):
            raise DecodeError(
                f"{printable(self._path)}: two images have the same id", path=self._path
            )
        owner = np.array([pictures.get(a.image_id, -1) for a in self._file.annotations], np.int64)
        if np.any(owner < 0):
            first = self._file.annotations[int(np.argmin(owner))].image_id
            raise DecodeError(
                f"{printable(self._path)}: an annotation of the image {first}, which is not there",
                path=self._path,
            )
        self._order = np.argsort(owner, kind="stable")
        self._starts = np.searchsorted(owner[self._order], np.arange(len(pictures) + 1))

    def _folder(self) -> str:
        """Return the folder that file names are relative to: where the first of them is."""
        if self._images is not None:
            return self._images
        base = os.path.dirname(self._path)
        top = os.path.dirname(base) if os.path.basename(base) == "annotations" else base
        stem = os.path.splitext(os.path.basename(self._path))[0].rpartition("_")[2]
        names = [stem, os.path.join("images", stem), "images", "", "train", "val", "test"]
        folders = [os.path.join(top, name) for name in names]
        for picture in self._file.images[:20]:
            for folder in folders:
                path = within(folder, picture.file_name)
                if path is not None and os.path.isfile(path):
                    return folder
        raise SourceError(
            f"{printable(self._path)}: its pictures are not found beside it; say where they are "
            "with images= (--images)",
            path=self._path,
        )


def _choose(root: str, split: str | None) -> str:
    if not os.path.isdir(root):
        return root
    found = find_annotations(root)
    named = [path for path in found if split is None or split in os.path.basename(path)]
    if len(named) == 1:
        return named[0]
    names = ", ".join(printable(os.path.basename(path)) for path in found[:8])
    raise OptionError(
        f"{printable(root)}: annotations are in {names or 'no file'}; name one of them as the "
        "source, or a part of its name with split= (--split)",
        path=root,
    )


def _load(path: str) -> _File:
    with reading(path), open(path, "rb") as file:
        data = file.read(_MAX_JSON + 1)
    if len(data) > _MAX_JSON:
        raise DecodeError(f"{printable(path)}: over 4 GiB of JSON", path=path)
    try:
        return msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise DecodeError(
            f"{printable(path)}: not annotations as COCO has them ({error})", path=path
        ) from error
