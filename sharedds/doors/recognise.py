"""Which format a source has: told by its content, and by names only where content agrees."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from sharedds.doors.arrow import Parquet, SavedDataset
from sharedds.doors.coco import Coco, find_annotations
from sharedds.doors.litdata import LitData
from sharedds.doors.lmdbs import Lmdb
from sharedds.doors.mds import Mds
from sharedds.doors.reading import listed, reading
from sharedds.doors.stream import Door
from sharedds.doors.tables import Table
from sharedds.doors.tar_members import TAR_ENDINGS, expand
from sharedds.doors.tars import WebDataset
from sharedds.doors.voc import Voc
from sharedds.errors import OptionError, SourceError
from sharedds.text import printable

__all__ = ["FORMATS", "DoorFormat", "Entrance", "open_door", "recognise"]

DoorFormat: TypeAlias = Literal[
    "auto", "folder", "webdataset", "csv", "coco", "voc", "parquet", "huggingface", "mds", "lmdb",
    "litdata",
]  # fmt: skip
FORMATS: tuple[DoorFormat, ...] = get_args(DoorFormat)

_HEAD = 4096
_MAX_INDEX = 256 << 20
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")
_LMDB_MAGIC = b"\xde\xc0\xef\xbe"
_ARROW_STREAM = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """Where a source is, and what was said about it.

    Attributes:
        root: The file, folder or pattern.
        images: The folder of pictures that are named and not contained; None for beside it.
        split: Which of several.
        allow_pickle: Whether values that are pickles are read.
        classes: Names that fix the numbering.
    """

    root: str
    images: str | None = None
    split: str | None = None
    allow_pickle: bool = False
    classes: tuple[str, ...] | None = None


def recognise(root: str) -> DoorFormat:
    """Return the format of a source; ``"folder"`` for one of plain files, or where nothing is.

    Raises:
        OptionError: A file of no format that is read.
        SourceError: It cannot be read.
    """
    if os.path.isdir(root):
        return _of_folder(root)
    if not os.path.lexists(root):
        if "{" in root and all(map(os.path.isfile, shards := expand(root))):
            return "webdataset" if _of_file(shards[0]) == "webdataset" else "folder"
        return "folder"  # whose error says that there is nothing
    found = _of_file(root)
    if found is None:
        raise OptionError(
            f"{printable(root)}: a file of no format that is known here; say which with format= "
            f"(--format): {', '.join(FORMATS[2:])}",
            path=root,
        )
    return found


def _of_file(path: str) -> DoorFormat | None:
    if not os.path.isfile(path):
        return "folder"  # a socket or device: its error says so
    with reading(path), open(path, "rb") as file:
        head = file.read(_HEAD)
    if head[257:262] == b"ustar" or (head.startswith(_PACKED) and path.endswith(TAR_ENDINGS)):
        return "webdataset"
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", _ARROW_STREAM)):
        return "huggingface"
    if _LMDB_MAGIC in head[:64]:
        return "lmdb"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"{"):
        return "coco"  # which is looked at in full when it is read
    first = head.partition(b"\n")[0]
    if b"\0" not in head and any(mark in first for mark in (b",", b"\t", b";")):
        return "csv"
    return None


def _of_folder(root: str) -> DoorFormat:
    with reading(root):
        names = set(os.listdir(root))
    if "index.json" in names:
        found = _of_index(os.path.join(root, "index.json"))
        if found is not None:
            return found
    if names & {"dataset_dict.json", "state.json"} and names - {"state.json"}:
        return "huggingface"
    if "data.mdb" in names:
        return "lmdb"
    if {"Annotations", "JPEGImages"} <= names:
        return "voc"
    if find_annotations(root):
        return "coco"
    for ending, kind in ((TAR_ENDINGS, "webdataset"), ((".parquet",), "parquet")):
        files = listed(root, *ending)
        if files and _of_file(files[0]) == kind and not _has_pictures(names):
            return "webdataset" if kind == "webdataset" else "parquet"
    data = os.path.join(root, "data")  # as repositories of the Hugging Face hub have it
    if os.path.isdir(data) and (files := listed(data, ".parquet")):
        return "parquet" if _of_file(files[0]) == "parquet" else "folder"
    return "folder"


def _of_index(path: str) -> DoorFormat | None:
    with reading(path), open(path, "rb") as file:
        head = file.read(_HEAD)
    squeezed = b"".join(head.split())
    if b'"shards":' in squeezed and b'"version":' in head.replace(b" ", b""):
        return "mds"
    if squeezed.startswith(b'{"shards":'):
        return "mds"
    return "litdata" if squeezed.startswith(b'{"chunks":') or b'"chunks":' in squeezed else None


def _has_pictures(names: set[str]) -> bool:
    endings = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
    return any(name.lower().endswith(endings) for name in names)


def open_door(found: DoorFormat, entrance: Entrance) -> Door:
    """Return the reader of a source in a format.

    Raises:
        OptionError: An option that this format has no use for.
        SourceError: There is no such source.
    """
    said: dict[str, Any] = {
        "images": entrance.images,
        "split": entrance.split,
        "allow_pickle": entrance.allow_pickle,
    }
    uses = _USES.get(found, ())
    for name, value in said.items():
        if value and name not in uses:
            raise OptionError(f"{name} has no meaning for a {found} source")
    given = {name: said[name] for name in uses}
    if not os.path.lexists(entrance.root) and "{" not in entrance.root:
        raise SourceError(f"{printable(entrance.root)}: no such file", path=entrance.root)
    door: Door = _DOORS[found](entrance.root, classes=entrance.classes, **given)
    return door


_DOORS: dict[str, Any] = {
    "webdataset": WebDataset,
    "csv": Table,
    "coco": Coco,
    "voc": Voc,
    "parquet": Parquet,
    "huggingface": SavedDataset,
    "mds": Mds,
    "litdata": LitData,
    "lmdb": Lmdb,
}
_USES: dict[str, tuple[str, ...]] = {
    "csv": ("images",),
    "coco": ("images", "split"),
    "voc": ("split",),
    "parquet": ("split",),
    "huggingface": ("split",),
    "mds": ("allow_pickle",),
    "lmdb": ("split", "allow_pickle"),
    "litdata": ("allow_pickle",),
}
