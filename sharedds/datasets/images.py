"""Images from a store, or straight from a folder: one tensor and one label for each number."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from sharedds.codecs import DEFAULT_MAX_PIXELS, decode, probe
from sharedds.datasets.indexed import IndexedDataset
from sharedds.datasets.randomness import making_sample, with_keys
from sharedds.datasets.sources import FolderImages, ImageSource, StoreImages, is_image_folder
from sharedds.errors import ClassMismatchError, DecodeError, OptionError, SharedDSError
from sharedds.folder import ClassLevel
from sharedds.handles import per_process
from sharedds.packed import MappedArray, PackedStrings

__all__ = ["ImageDataset"]

_LOOKED_AT = 100  # pictures that may be bad before the first good one decides the depth


class ImageDataset(IndexedDataset[Any]):
    """Images of a packed store, or of a folder as it is.

    ``dataset[i]`` is ``(image, label)``, or the image alone where there are no labels. Without a
    ``transform`` the image is a tensor (C, H, W), uint8, upright by its EXIF orientation. Memory in
    a worker does not depend on the number of images, and a pickle is a few kilobytes.

    Args:
        source: A store made by :func:`sharedds.pack`, any store with a field ``image``, or a
            folder.
        transform: Called with the tensor (C, H, W); what it returns is the image.
        target_transform: Called with the label: a class number, or whatever the field ``label`` of
            a store of your own holds.
        mode: ``"RGB"``, ``"L"``, ``"RGBA"``; ``"keep"`` for the channels as stored; ``"index"`` for
            palette indices or grey values untouched (masks).
        depth: ``"8"``, ``"16"`` or ``"keep"`` (each picture as it is). ``"auto"``: all take the
            depth of the first one, 8 bits scaled up without loss, 16 bits scaled down linearly
            over 0..65535 with one warning (bad files do not count).
        background: Shows through transparent pixels when the mode has no alpha.
        classes: Class names, or another dataset, that fix the numbering: labels are renumbered by
            name. Give the training set to the test set and they agree.
        class_level: For a folder: which part of the path is the class, see
            :func:`sharedds.folder.scan`.
        include_hidden: For a folder: also files and folders whose name begins with a dot.
        max_pixels: Larger pictures are refused before decoding; None for no limit.

    Raises:
        StoreNotFoundError, StoreFormatError: The store cannot be opened.
        SourceError: The folder cannot be listed, or holds no image.
        ClassMismatchError: A class of this dataset is not among ``classes``.
        OptionError: An option is out of range.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        mode: Literal["RGB", "L", "RGBA", "keep", "index"] = "RGB",
        depth: Literal["auto", "keep", "8", "16"] = "auto",
        background: tuple[int, int, int] = (255, 255, 255),
        classes: Iterable[str] | ImageDataset | None = None,
        class_level: ClassLevel = "auto",
        include_hidden: bool = False,
        max_pixels: int | None = DEFAULT_MAX_PIXELS,
    ) -> None:
        if mode not in ("RGB", "L", "RGBA", "keep", "index"):
            raise OptionError(f"mode {mode!r}: one of RGB, L, RGBA, keep, index")
        if depth not in ("auto", "keep", "8", "16"):
            raise OptionError(f"depth {depth!r}: one of auto, keep, 8, 16")
        self.transform = transform
        self.target_transform = target_transform
        self._mode, self._depth, self._background = mode, depth, background
        self._max_pixels = max_pixels
        self._source: ImageSource
        if is_image_folder(source):
            self._source = FolderImages(source, class_level, include_hidden=include_hidden)
        else:
            self._source = StoreImages(source)
        self._renumber: MappedArray | None = None
        self._names: PackedStrings | None = None
        if classes is not None:
            self._take_classes(classes)

    def _take_classes(self, classes: Iterable[str] | ImageDataset) -> None:
        wanted = classes.classes if isinstance(classes, ImageDataset) else tuple(classes)
        own = self._source.class_names()
        if own is None or wanted is None:
            raise ClassMismatchError(
                f"{self._source.path}: classes= renumbers labels by class name, and there are none "
                f"in {'this dataset' if own is None else 'the other one'}",
                path=self._source.path,
            )
        number = {name: i for i, name in enumerate(wanted)}
        unknown = [name for name in own if name not in number]
        if unknown:
            raise ClassMismatchError(
                f"{self._source.path}: classes {unknown[:8]} are unknown; this dataset has "
                f"{_shown(own)}, classes= has {_shown(wanted)}",
                path=self._source.path,
            )
        self._renumber = MappedArray.build(np.array([number[name] for name in own], np.int64))
        self._names = PackedStrings.build(wanted)

    def _count(self) -> int:
        return len(self._source)

    def _content(self) -> str:
        return self._source.digest()

    @property
    def storage_path(self) -> str:
        """Where the images are: a store or a folder; a loader looks what kind of storage it is."""
        return self._source.path

    @per_process
    def classes(self) -> tuple[str, ...] | None:
        """Class names by number; None without classes."""
        return tuple(self._names) if self._names is not None else self._source.class_names()

    def key(self, index: SupportsIndex) -> str:
        """Return the name of an image: its path in the folder it came from."""
        return self._source.name(self._position(index))

    def label(self, index: SupportsIndex) -> Any:
        """Return the label of an image without reading the image; None without labels."""
        return self._label(self._position(index))

    def _label(self, position: int) -> Any:
        label = self._source.label(position)
        if self._renumber is None:
            return label
        if not 0 <= label < len(self._renumber):
            raise ClassMismatchError(
                f"{self._source.path}: sample {position} has label {label}, there are "
                f"{len(self._renumber)} classes",
                path=self._source.path,
                sample=position,
                field="label",
            )
        return int(self._renumber.array[label])

    @per_process
    def _target_depth(self) -> Literal["keep", "8", "16"]:
        if self._depth != "auto":
            return self._depth
        if self._mode in ("keep", "index") or len(self._source) == 0:
            return "keep"
        for position in range(min(len(self._source), _LOOKED_AT)):
            try:
                stored = self._source.stored(position)
                bits = 8 if isinstance(stored, np.ndarray) else probe(stored, max_pixels=None).bits
            except SharedDSError:  # a bad file decides nothing; it is reported when it is read
                continue
            return "8" if bits <= 8 else "16" if bits <= 16 else "keep"
        return "8"

    @per_process
    def _warned(self) -> list[bool]:
        return []

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return image ``index`` and its label.

        Raises:
            SampleIndexError: There is no such image.
            DecodeError, CorruptDataError, SourceError: It cannot be read; the text names it.
        """
        position = self._position(index)
        image: Any = torch.from_numpy(self._pixels(position)).permute(2, 0, 1)
        try:
            with making_sample():
                if self.transform is not None:
                    image = self.transform(image)
                label: Any = self._label(position)
                if label is None:
                    return image
                if self.target_transform is not None:
                    label = self.target_transform(label)
                return image, label
        except Exception as error:
            error.add_note(f"while transforming sample {index} ({self._source.name(position)!r})")
            raise

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples; all are asked of the disk before the first one is decoded."""
        self.advise(indices)
        samples = []
        for index, context in zip(indices, with_keys(len(indices)), strict=True):
            with context:
                samples.append(self[index])
        return samples

    def advise(self, indices: Sequence[SupportsIndex]) -> None:
        """Ask the disk for several images, without waiting."""
        self._source.advise([self._position(index) for index in indices])

    def _pixels(self, position: int) -> npt.NDArray[Any]:
        source = self._source
        depth = self._target_depth
        data = source.stored(position)
        try:
            if isinstance(data, np.ndarray):
                return _as_mode(data, self._mode)
            pixels = decode(
                data,
                mode=self._mode,
                depth="keep" if depth == "8" and self._depth == "auto" else depth,
                background=self._background,
                orientation=source.orientation(position),
                max_pixels=self._max_pixels,
            )
            if depth == "8" and pixels.dtype == np.uint16:
                pixels = self._scaled_down(pixels, position)
            return pixels
        except DecodeError as error:
            name = os.path.join(source.path, source.name(position))
            raise type(error)(
                f"{name}: sample {position}: {error}", path=name, sample=position, field="image"
            ) from error

    def _scaled_down(self, pixels: npt.NDArray[np.uint16], position: int) -> npt.NDArray[np.uint8]:
        if not self._warned:
            self._warned.append(True)
            warnings.warn(
                f"{self._source.name(position)!r} has 16 bits where the first has 8: scaled "
                "over 0..65535 to 8 bits; choose depth='16', 'keep' or '8' to decide yourself",
                stacklevel=4,
            )
        return ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)

    def __repr__(self) -> str:
        return f"ImageDataset({self._source.path!r}, {len(self)} images, mode={self._mode!r})"


def _as_mode(pixels: npt.NDArray[np.uint8], mode: str) -> npt.NDArray[np.uint8]:
    """Give stored pixels the channels of a mode where nothing has to be computed."""
    channels = pixels.shape[2]
    if mode == "keep" or (mode in ("L", "index") and channels == 1):
        return pixels
    if channels == {"RGB": 3, "RGBA": 4}.get(mode):
        return pixels
    if mode == "RGB" and channels == 1:
        return np.repeat(pixels, 3, axis=2)
    raise DecodeError(f"raw pixels with {channels} channels cannot be read as mode {mode!r}")


def _shown(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > 8 else ""
    return "{" + ", ".join(f"{name!r}: {i}" for i, name in enumerate(names[:8])) + more + "}"
