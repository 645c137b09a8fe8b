"""The index of an image folder: paths, sizes, times and labels in mapped files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Literal, get_args

from sharedds.errors import OptionError
from sharedds.folder.classes import (
    ClassNumbers,
    check_reference,
    class_name,
    decode_text,
    is_numeric_mismatch,
)
from sharedds.folder.left_out import Kind, LeftOut, LeftOutList
from sharedds.folder.names import has_extension
from sharedds.folder.rows import Rows, RowsBuilder, merge_rows
from sharedds.folder.walk import Folder, Walker
from sharedds.handles import absolute_path
from sharedds.packed import MappedArray, PackedStrings, encode_text

__all__ = ["ClassLevel", "FolderIndex", "scan"]

_NO_CLASS = "no class folder"

ClassLevel = Literal["auto", "top", "folder", "none"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FolderIndex:
    """What a scan of a folder found.

    The paths are in the order of their components, compared as bytes. The mapped members cost O(1)
    to pickle; ``classes`` and ``left_out`` are ordinary tuples.

    Attributes:
        root: The folder, absolute.
        paths: Paths relative to ``root``, with ``/``, byte for byte.
        sizes: int64 (N,), bytes.
        mtimes: int64 (N,), time of the last change in nanoseconds.
        labels: int64 (N,), class numbers; None without classes.
        classes: Class names by number; None without classes.
        class_level: ``"top"``, ``"folder"`` or ``"none"``: what ``"auto"`` became.
        empty_classes: Class folders in which no picture was found; they keep their number.
        numeric_mismatch: All class names are integers, but some class has another number.
        left_out: Everything else that was seen, with reasons.
        files: Files seen, that is entries that are not folders: those in the index and those left
            out. Hidden folders are not looked into.
        total_bytes: Sum of ``sizes``.
        fingerprint: 32 hex digits that change when a path, size, time, label or class changes.
    """

    root: str
    paths: PackedStrings
    sizes: MappedArray
    mtimes: MappedArray
    labels: MappedArray | None
    classes: tuple[str, ...] | None
    class_level: Literal["top", "folder", "none"]
    empty_classes: tuple[str, ...]
    numeric_mismatch: bool
    left_out: tuple[LeftOut, ...]
    files: int
    total_bytes: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.paths)

    def location(self, index: int) -> bytes:
        """Return the absolute path of file ``index``, ready to be opened."""
        root = os.fsencode(self.root)
        return (root if root.endswith(b"/") else root + b"/") + self.paths.bytes(index)

    def release(self) -> None:
        """Let go of the pages that were read, in a long walk now and then.

        They count as memory of the process, 25 bytes or so for each file that was passed.
        """
        self.paths.release()
        for column in (self.sizes, self.mtimes, self.labels):
            if column is not None:
                column.release()

    def has_extension(self, index: int) -> bool:
        """Whether the name of file ``index`` says it is a picture; if not, the content decides."""
        return has_extension(self.paths.bytes(index))

    def count(self, kind: Kind | None = None) -> int:
        """Return how many files (not folders) were left out, of one kind or of all."""
        return sum(
            item.count for item in self.left_out if not item.is_folder and kind in (None, item.kind)
        )


def scan(
    root: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    *,
    class_level: ClassLevel = "auto",
    classes: Iterable[str] | None = None,
    numeric_classes: bool = False,
    include_hidden: bool = False,
    progress: Callable[[int], object] | None = None,
) -> FolderIndex:
    """Index the pictures of a folder and of all folders below it, by name; no file is opened.

    A picture is a file with the extension of one, in any case, or with no extension at all: then
    the content decides when it is read. Links are followed, loops of links are not.

    Args:
        root: The folder.
        class_level: What the class of a picture is. ``"top"``: the first folder of its path;
            ``"folder"``: its whole folder (``x/s1``); ``"none"``: there are no classes;
            ``"auto"``: ``"top"`` if a file with an image extension lies in a folder below the root
            (or if no file has one: any file that counts), else ``"none"``. With ``classes`` it is
            ``"folder"`` if one of the names has a ``/``, else ``"top"``.
        classes: A reference list of class names: numbers are taken from it. Default: names are
            sorted as bytes. A ``"top"`` folder without pictures keeps its number.
        numeric_classes: Class folders are named by numbers, and these are the labels.
        include_hidden: Let files and folders count whose name starts with a dot. Such a folder
            never is a class: its files belong to the class folder around it.
        progress: Called with the number of files seen, about every 1,000 files.

    Raises:
        SourceError: The folder does not exist, is a file, or cannot be listed.
        OptionError: An option is wrong, or the names do not fit ``numeric_classes``.
        ClassMismatchError: A class folder is not in ``classes``.
        StorageFullError: The temporary folder, which holds the index, is full.
    """
    level, reference = _check_options(class_level, classes, numeric=numeric_classes)
    location = _check_root(root)
    left_out = LeftOutList()
    walker = Walker(
        os.fsencode(location), left_out=left_out, include_hidden=include_hidden, progress=progress
    )
    numbers = ClassNumbers(reference, numeric=numeric_classes)
    rows, loose, used = _collect(walker, level, numbers, left_out)
    if level == "auto":
        # Names decide, since a README in a folder must not turn the pictures beside it away.
        named = rows.named + loose.named
        level = "top" if (rows.named if named else len(rows)) else "none"
    labels: MappedArray | None = None
    names: tuple[str, ...] | None = None
    empty: tuple[str, ...] = ()
    if level == "none":
        rows = merge_rows(rows, loose)
    else:
        for path, _, _ in loose:
            left_out.add("class", _NO_CLASS, path)
        names, ranks = numbers.finish()
        labels = rows.labels if ranks is None else MappedArray.build(ranks[rows.labels.array])
        empty = tuple(decode_text(name) for name in numbers.met if name not in used)
    return FolderIndex(
        root=location,
        paths=rows.paths,
        sizes=rows.sizes,
        mtimes=rows.mtimes,
        labels=labels,
        classes=names,
        class_level=level,
        empty_classes=empty,
        numeric_mismatch=names is not None and is_numeric_mismatch(names),
        left_out=left_out.finish(),
        files=walker.files,
        total_bytes=rows.total_bytes,
        fingerprint=rows.fingerprint(labels, b"\0".join(map(encode_text, names or ()))),
    )


def _collect(
    walker: Walker, level: ClassLevel, numbers: ClassNumbers, left_out: LeftOutList
) -> tuple[Rows, Rows, set[bytes]]:
    """Walk; return the files in class folders, the others, and the classes that have files."""
    used: set[bytes] = set()
    folder: Folder | None = None
    name: bytes | None = None
    with RowsBuilder() as inside, RowsBuilder() as loose:
        for found in walker.walk():
            if isinstance(found, Folder):
                path = found.path[:-1]
                # Folders without pictures keep their number, so they are met on entering.
                if level in ("top", "auto") and b"/" not in path and class_name(path, whole=False):
                    numbers.meet(path)
                continue
            if found.folder is not folder:
                folder = found.folder
                name = class_name(folder.path[:-1], whole=level == "folder")
            if level == "none" or (level == "auto" and name is None):
                loose.append(found.path, found.size, found.mtime)
            elif name is None:
                left_out.add("class", _NO_CLASS, found.path)
            else:
                used.add(name)
                inside.append(found.path, found.size, found.mtime, numbers.meet(name))
        return inside.finish(), loose.finish(), used


def _check_options(
    class_level: ClassLevel, classes: Iterable[str] | None, *, numeric: bool
) -> tuple[ClassLevel, tuple[str, ...] | None]:
    """Check what goes together; "auto" is settled where the other options settle it."""
    reference = check_reference(classes)
    if class_level not in get_args(ClassLevel):
        choices = ", ".join(get_args(ClassLevel))
        raise OptionError(f"class_level must be one of {choices}, not {class_level!r}")
    if numeric and reference is not None:
        raise OptionError("numeric_classes and classes both number the classes; give one of them")
    if class_level == "none" and (numeric or reference is not None):
        option = "numeric_classes" if numeric else "classes"
        raise OptionError(f"class_level 'none' leaves no classes for {option}; drop one of them")
    if class_level == "auto" and reference is not None:
        class_level = "folder" if any("/" in name for name in reference) else "top"
    elif class_level == "auto" and numeric:
        class_level = "top"
    return class_level, reference


def _check_root(root: object) -> str:
    try:
        text = os.fsdecode(root)  # type: ignore[arg-type]
    except TypeError:
        raise OptionError(f"the folder must be given as a path, not {root!r}") from None
    if not text:  # would mean the current folder, which nobody asked for
        raise OptionError("the path of the folder is empty; '.' means the current folder")
    return absolute_path(text)
