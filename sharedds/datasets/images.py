"""Images from a store, or straight from a folder: one tensor and one label for each number."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from sharedds.cache import DecodedCache
from sharedds.codecs import DEFAULT_MAX_PIXELS
from sharedds.datasets.indexed import IndexedDataset
from sharedds.datasets.kept import parse_cache_size, picture_cache
from sharedds.datasets.offers import Empty
from sharedds.datasets.pictures import Pictures, by_itself
from sharedds.datasets.randomness import (
    batch_uniforms,
    making_sample,
    sample_uniforms,
    with_keys,
)
from sharedds.datasets.sources import FolderImages, ImageSource, StoreImages, is_image_folder
from sharedds.datasets.stored import Options
from sharedds.errors import ClassMismatchError, OptionError, SchemaError
from sharedds.folder import ClassLevel
from sharedds.handles import per_process
from sharedds.packed import MappedArray, PackedStrings
from sharedds.views import View

__all__ = ["ImageDataset"]

_LOOKED_AT = 256


class ImageDataset(IndexedDataset[Any]):
    """Images of a packed store, or of a folder as it is.

    ``dataset[i]`` is ``(image, label)``, or the image alone where there are no labels. Without a
    ``transform`` the image is a tensor (C, H, W), uint8, upright by its EXIF orientation. Memory in
    a worker does not depend on the number of images, and a pickle is a few kilobytes.

    With a ``view`` a sample is what it shows of the picture, channels last. If that has one size
    and nothing of yours runs for each sample, loaders of this package have whole batches made at
    once (:meth:`load_batch`), equal to the bit.

    Args:
        source: A store made by :func:`sharedds.pack`, any store with a field ``image``, or a
            folder.
        view: What is shown of each picture: :class:`~sharedds.RandomResizedCrop`,
            :class:`~sharedds.RandomCrop`, :class:`~sharedds.CenterCrop`,
            :class:`~sharedds.Resize` or :class:`~sharedds.Full`. Random choices come from the key
            of the sample under a loader of this package, else from torch's global generator.
        transform: Called with the tensor (C, H, W), seen through the view; what it returns is the
            image.
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
        cache: Keep whole decoded pictures in so many bytes, once for all workers: a number, or text
            such as ``"32GiB"``. Where it is: see :class:`sharedds.cache.DecodedCache`.
            With one, a view decodes at full size. Pictures stored as pixels need none.
        cache_folder: Where the cache has a name, so that ranks of this machine share it, and later
            runs find it filled; it stays until it is deleted.

    Attributes:
        cache: Where decoded pictures are kept; None without one, or where none are decoded.

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
        view: View | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        mode: Literal["RGB", "L", "RGBA", "keep", "index"] = "RGB",
        depth: Literal["auto", "keep", "8", "16"] = "auto",
        background: tuple[int, int, int] = (255, 255, 255),
        classes: Iterable[str] | ImageDataset | None = None,
        class_level: ClassLevel = "auto",
        include_hidden: bool = False,
        max_pixels: int | None = DEFAULT_MAX_PIXELS,
        cache: int | str | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if mode not in ("RGB", "L", "RGBA", "keep", "index"):
            raise OptionError(f"mode {mode!r}: one of RGB, L, RGBA, keep, index")
        if depth not in ("auto", "keep", "8", "16"):
            raise OptionError(f"depth {depth!r}: one of auto, keep, 8, 16")
        if view is not None and not isinstance(view, View):
            raise OptionError(f"view {view!r}: a view is expected, such as CenterCrop(224)")
        if cache is None and cache_folder is not None:
            raise OptionError("cache_folder= is where a cache is: say how large, too, cache='8GiB'")
        cache_bytes = None if cache is None else parse_cache_size(cache)
        self.transform = transform
        self.target_transform = target_transform
        self._source: ImageSource
        if is_image_folder(source):
            self._source = FolderImages(source, class_level, include_hidden=include_hidden)
        else:
            self._source = StoreImages(source)
        options = Options(mode=mode, depth=depth, background=background, max_pixels=max_pixels)
        self._pictures = Pictures(self._source, options, view)
        self._kept: DecodedCache | None = None
        self.cache: DecodedCache | None = None
        if cache_bytes is not None and self._source.shape() is None:
            self._kept = picture_cache(self._pictures.stored, cache_bytes, cache_folder)
            self._pictures.stored.cache = self.cache = self._kept
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

    @property
    def view(self) -> View | None:
        """What is shown of each picture; None for all of it."""
        return self._pictures.view

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

    def _labels(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        labels = self._source.labels(positions)
        if self._renumber is None:
            return labels
        wrong = (labels < 0) | (labels >= len(self._renumber))
        if wrong.any():
            self._label(int(positions[wrong][0]))  # which says what is wrong
        renumbered: npt.NDArray[np.int64] = self._renumber.array[labels]
        return renumbered

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return image ``index`` and its label.

        Raises:
            SampleIndexError: There is no such image.
            DecodeError, CorruptDataError, SourceError: It cannot be read; the text names it.
        """
        position = self._position(index)
        image: Any = self._image(position)
        try:
            with making_sample():
                if self.transform is not None:
                    image = by_itself(self.transform(image))
                label: Any = self._label(position)
                if label is None:
                    return image
                if self.target_transform is not None:
                    label = self.target_transform(label)
                return image, label
        except Exception as error:
            error.add_note(f"while transforming sample {index} ({self._source.name(position)!r})")
            raise

    def _image(self, position: int) -> torch.Tensor:
        if self.view is None:
            return torch.from_numpy(self._pictures.whole(position)).permute(2, 0, 1)
        return self._pictures.one(position, sample_uniforms(self.view.uniforms))

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
        positions = [self._position(index) for index in indices]
        if self._kept is not None:
            self._kept.advise(positions)
            positions = self._kept.missing(positions)
        self._source.advise(positions)

    # --- whole batches

    @property
    def makes_batches(self) -> bool:
        """Whether :meth:`load_batch` makes what the samples would: all alike, without transforms.

        Labels, if there are any, are integers then.
        """
        if self.transform is not None or self._pictures.form is None:
            return False
        numbered = self._source.numbered()
        return numbered is None or (numbered and self.target_transform is None)

    @property
    def batch_form(self) -> Hashable | None:
        """Shape and dtype of images, and whether there are labels; None without whole batches."""
        form = self._pictures.form
        if form is None or not self.makes_batches:
            return None
        return form.shape, form.dtype, self._source.numbered() is not None

    def load_batch(self, indices: Sequence[int], empty: Empty) -> Any:
        """Return what torch's ``default_collate`` makes of these samples, equal to the bit.

        Args:
            indices: Numbers of the samples. Their keys are in hand, or torch's global generator
                decides what is random.
            empty: Gives the memory that images and labels are written to.

        Returns:
            ``[images (n, C, H, W), labels (n,) int64]``, or the images alone without labels.

        Raises:
            SchemaError: The samples are not all alike: see :attr:`makes_batches`.
            SampleIndexError: There is no such sample.
            DecodeError, CorruptDataError, SourceError: One cannot be read; the text names it.
        """
        form = self._pictures.form
        if form is None or not self.makes_batches:
            raise SchemaError(
                f"{self!r} makes no whole batches: its samples differ, or code runs for each"
            )
        positions = np.array([self._position(index) for index in indices], np.int64)
        count = len(positions)
        view = self.view
        uniforms = np.zeros((count, 2)) if view is None else batch_uniforms(count, view.uniforms)
        images = empty((count, *form.shape), form.dtype, channels_last=True)
        self._pictures.fill(images, positions, uniforms)
        if self._source.numbered() is None:
            return images
        labels = empty((count,), torch.int64)
        labels.numpy()[:] = self._labels(positions)
        return [images, labels]

    @property
    def sample_nbytes(self) -> int | None:
        """Bytes of one sample in a batch, where all have the same; a loader plans with it."""
        form = self._pictures.form if self.transform is None else None
        if form is None:
            return None
        return form.nbytes + (0 if self._source.numbered() is None else 8)

    @property
    def record_nbytes(self) -> int | None:
        """About how many bytes are stored for one sample; None where the file itself tells."""
        return self._source.nbytes()

    def largest_picture(self) -> tuple[int, int] | None:
        """Return (height, width), as stored, of the largest of some pictures; nothing is decoded.

        None where that is not known without reading them.
        """
        count = len(self._source)
        some = np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(np.int64)
        return self._source.largest(some) if count else None

    def __repr__(self) -> str:
        view = "" if self.view is None else f", view={self.view}"
        mode = self._pictures.stored.options.mode
        return f"ImageDataset({self._source.path!r}, {len(self)} images, mode={mode!r}{view})"


def _shown(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > 8 else ""
    return "{" + ", ".join(f"{name!r}: {i}" for i, name in enumerate(names[:8])) + more + "}"
