"""Where images come from: a packed store, or a folder as it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.codecs import probe
from sharedds.errors import OptionError, SharedDSError, SourceError
from sharedds.folder import ClassLevel, scan
from sharedds.handles import absolute_path, map_file
from sharedds.packed import PackedStrings
from sharedds.store import Store, holds_store, is_partial
from sharedds.store.layout import FieldSpec

__all__ = ["FolderImages", "ImageSource", "StoreImages", "is_image_folder"]

Integers = npt.NDArray[np.int64]


_WEIGHED = 8  # files whose sizes tell that of a record
_PROBED = 8  # files of which the headers are read


class ImageSource(Protocol):
    """Where images come from: numbered files with names and perhaps labels."""

    path: str

    def __len__(self) -> int:
        """Return the number of images."""

    def digest(self) -> str:
        """Return what changes when names or labels do."""

    def variant(self) -> str:
        """Return what pixels depend on beside what is stored and :meth:`digest` covers."""

    def name(self, position: int) -> str:
        """Return the path of an image in the folder it came from, or its key."""

    def label(self, position: int) -> Any:
        """Return the label of an image, None without labels."""

    def numbered(self) -> bool | None:
        """Whether labels are integers (of up to 64 bits, signed); None without labels."""

    def labels(self, positions: Integers) -> Integers:
        """Return the labels of several images, where they are integers."""

    def class_names(self) -> tuple[str, ...] | None:
        """Return the class names by number, None without classes."""

    def stored(self, position: int) -> memoryview | bytes | npt.NDArray[np.uint8]:
        """Return the bytes of an image file, or finished pixels (H, W, C), writable."""

    def shape(self) -> tuple[int, int, int] | None:
        """Return (H, W, C) of all images where they are finished pixels, else None."""

    def rows(self, positions: Integers) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield finished pixels (H, W, C), perhaps as views of the file; ascending is fastest."""

    def nbytes(self) -> int | None:
        """Return about how many bytes are stored for an image; None where others can tell."""

    def largest(self, positions: Integers) -> tuple[int, int] | None:
        """Return (height, width) of the largest of some images; None where it is not known."""

    def proved(self) -> bool:
        """Whether each file was once decoded whole, and is compared with its checksum since."""

    def orientation(self, position: int) -> int | None:
        """Return the orientation to undo, None to take it from the bytes."""

    def stamp(self, position: int) -> int:
        """Return what changes when an image does and :meth:`digest` does not; 0 for nothing."""

    def advise(self, positions: Sequence[int]) -> None:
        """Ask the system to fetch these images, without waiting."""

    def release(self) -> None:
        """Say that what was read is done with: its memory counts no more."""


class StoreImages:
    """Images of a store."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.store = Store(path)
        self.path = self.store.path
        self._fields = {field.name: field for field in self.store.header.fields}
        self._raw = self._holds_pixels(self._fields.get("image"))
        self._labelled = "label" in self._fields
        # Only of a packed folder is it known what such a column is for.
        packed = self.store.attrs.get("kind") == "images"
        recipe = self.store.attrs.get("recipe", {}) if packed else {}
        self._oriented = packed and self._is_number("orientation")
        self._sized = packed and self._is_number("height") and self._is_number("width")
        self._upright = recipe.get("orientation") == "ignore"
        self._proved = recipe.get("codec", "keep") != "keep" or recipe.get("check") == "decode"

    def _holds_pixels(self, image: FieldSpec | None) -> bool:
        """Whether images are finished pixels in a column, and not files to be decoded."""
        if image is not None and image.kind == "image":
            return False
        if image is not None and image.kind == "column" and image.dtype == "|u1":
            *size, channels = image.shape or (0,)
            if len(size) == 2 and channels in (1, 3, 4):
                return True
        found = ", ".join(f"{f.name}: {f.codec or f.kind}" for f in self._fields.values())
        raise OptionError(
            f"{self.path}: no field 'image' of pictures (jpeg, png, webp, keep or uint8[height, "
            f"width, channels]); it has {found}. Read it with Store, or in a LazyDataset",
            path=self.path,
            field="image",
        )

    def _is_number(self, name: str) -> bool:
        field = self._fields.get(name)
        if field is None or field.kind != "column" or field.shape:
            return False
        return np.dtype(field.dtype).kind in "iu"

    def __len__(self) -> int:
        return len(self.store)

    def digest(self) -> str:
        """Return the digest of the content."""
        return self.store.digest

    def variant(self) -> str:
        """Return which orientation is undone: attributes say so, and no digest covers these."""
        return f"upright={self._upright} oriented={self._oriented}"

    def name(self, position: int) -> str:
        """Return the key of an image."""
        return self.store.key(position)

    def label(self, position: int) -> Any:
        """Return the label of an image: its class number, or whatever the store has there."""
        return self.store.value("label", position) if self._labelled else None

    def numbered(self) -> bool | None:
        """Whether labels are integers."""
        if not self._labelled:
            return None
        return self._is_number("label") and np.can_cast(self._fields["label"].dtype, np.int64)

    def labels(self, positions: Integers) -> Integers:
        """Return the labels of several images."""
        found: Integers = self.store.column("label")[positions].astype(np.int64)
        return found

    def class_names(self) -> tuple[str, ...] | None:
        """Return the class names by number."""
        classes = self.store.classes
        return tuple(classes) if classes is not None and self._is_number("label") else None

    def stored(self, position: int) -> memoryview | npt.NDArray[np.uint8]:
        """Return what is stored of an image."""
        if not self._raw:
            return self.store.read("image", position)
        # A copy: tensors are writable, the file is not.
        pixels: npt.NDArray[np.uint8] = np.array(self.store.column("image")[position])
        return pixels

    def shape(self) -> tuple[int, int, int] | None:
        """Return (H, W, C) of finished pixels."""
        if not self._raw:
            return None
        height, width, channels = self._fields["image"].shape
        return height, width, channels

    def rows(self, positions: Integers) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield finished pixels."""
        return self.store.column("image").rows(positions)

    def nbytes(self) -> int | None:
        """Return the bytes of finished pixels."""
        return self._fields["image"].row_bytes if self._raw else None

    def largest(self, positions: Integers) -> tuple[int, int] | None:
        """Return (height, width) of the largest of some images, as packing noted them."""
        if (shape := self.shape()) is not None:
            return shape[:2]
        if not self._sized:
            return None
        heights, widths = (self.store.column(n)[positions] for n in ("height", "width"))
        at = int(np.argmax(heights.astype(np.int64) * widths))
        return int(heights[at]), int(widths[at])

    def proved(self) -> bool:
        """Whether packing decoded each file, or made it."""
        return self._proved

    def orientation(self, position: int) -> int | None:
        """Return the orientation to undo."""
        if self._upright:
            return 1
        return int(self.store.column("orientation")[position]) if self._oriented else None

    def stamp(self, position: int) -> int:
        """Return 0: a digest covers the images."""
        return 0

    def advise(self, positions: Sequence[int]) -> None:
        """Ask the system to fetch these images."""
        if self._raw:
            self.store.column("image").advise(positions)
        else:
            self.store.advise("image", positions)

    def release(self) -> None:
        """Let go of the pages of the file; finished pixels stay, since mapping takes as long."""
        if not self._raw:
            self.store.release()


class FolderImages:
    """Images of a folder, scanned once; the index is packed and mapped."""

    def __init__(
        self, path: str | os.PathLike[str], class_level: ClassLevel, *, include_hidden: bool
    ) -> None:
        index = scan(path, class_level=class_level, include_hidden=include_hidden)
        self.path = index.root
        if not len(index):
            raise SourceError(
                f"{self.path}: no image found; {index.count()} other files. Extensions that count: "
                "jpg png webp gif bmp tif, or none at all",
                path=self.path,
            )
        self._root = os.path.join(os.fsencode(index.root), b"")
        self._paths = index.paths
        self._labels = index.labels
        self._classes = None if index.classes is None else PackedStrings.build(index.classes)
        labels = b"" if index.labels is None else index.labels.array.data
        classes = "" if self._classes is None else self._classes.digest
        self._digest = f"{index.paths.digest} {xxhash.xxh3_64_hexdigest(labels)} {classes}"

    def __len__(self) -> int:
        return len(self._paths)

    def digest(self) -> str:
        """Return a hash of paths and labels; when the files were written makes no difference."""
        return self._digest

    def variant(self) -> str:
        """Return where the folder is: others may have files of the same names."""
        return os.path.realpath(self.path)

    def name(self, position: int) -> str:
        """Return the key of an image."""
        return self._paths[position]

    def label(self, position: int) -> int | None:
        """Return the class number of an image."""
        return None if self._labels is None else int(self._labels.array[position])

    def numbered(self) -> bool | None:
        """Whether labels are integers."""
        return None if self._labels is None else True

    def labels(self, positions: Integers) -> Integers:
        """Return the class numbers of several images."""
        if self._labels is None:
            raise SourceError(f"{self.path}: there are no classes", path=self.path)
        return self._labels.array[positions].astype(np.int64)

    def class_names(self) -> tuple[str, ...] | None:
        """Return the class names by number."""
        return None if self._classes is None else tuple(self._classes)

    def stored(self, position: int) -> bytes:
        """Return what is stored of an image."""
        path = self._root + self._paths.bytes(position)
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            name = os.fsdecode(path)
            raise SourceError(
                f"{name}: cannot be read ({error.strerror})", path=name, sample=position
            ) from error

    def shape(self) -> tuple[int, int, int] | None:
        """Return None: there are no finished pixels."""
        return None

    def rows(self, positions: Integers) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield nothing: there are no finished pixels."""
        return iter(())

    def nbytes(self) -> int | None:
        """Return the mean size of a few files from one end to the other."""
        some = np.linspace(0, len(self) - 1, min(len(self), _WEIGHED)).astype(int).tolist()
        sizes = [size for at in some if (size := _size(self._root + self._paths.bytes(at)))]
        return sum(sizes) // len(sizes) if sizes else None

    def largest(self, positions: Integers) -> tuple[int, int] | None:
        """Return (height, width) of the largest in the largest files, as their headers say."""
        paths = [self._root + self._paths.bytes(position) for position in positions.tolist()]
        found = []
        for path in sorted(paths, key=_size)[-_PROBED:]:
            with contextlib.suppress(SharedDSError):  # a bad file is reported when it is read
                header = probe(map_file(os.fsdecode(path)).view, max_pixels=None)
                found.append((header.height, header.width))
        return max(found, key=lambda size: size[0] * size[1], default=None)

    def proved(self) -> bool:
        """Return False: files may be damaged, or change."""
        return False

    def orientation(self, position: int) -> int | None:
        """Return the orientation to undo."""
        return None

    def stamp(self, position: int) -> int:
        """Return what changes when the file of an image is written anew.

        Also in place, with its size as it was and its time put back: for that there is ctime.
        """
        try:
            info = os.stat(self._root + self._paths.bytes(position))
        except OSError:  # the read that follows says why
            return 0
        facts = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        return xxhash.xxh3_64_intdigest(str(facts).encode())

    def advise(self, positions: Sequence[int]) -> None:
        """Ask the system to fetch these images."""
        for position in positions:
            _read_ahead(self._root + self._paths.bytes(position))

    def release(self) -> None:
        """Do nothing: files are read into memory of their own."""


def _size(path: bytes) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read_ahead(path: bytes) -> None:
    if not hasattr(os, "posix_fadvise"):
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return  # the read that follows says why
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)


def is_image_folder(source: str | os.PathLike[str]) -> bool:
    """Whether this is a folder of files, and not a store in a folder or an unfinished pack."""
    path = absolute_path(source)
    return os.path.isdir(path) and not holds_store(path) and not is_partial(path)
