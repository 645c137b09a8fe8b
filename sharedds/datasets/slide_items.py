"""Which items there are of which slides, by number; how they are read is for those that inherit."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any, Self, SupportsIndex

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.datasets.indexed import IndexedDataset
from sharedds.datasets.slide_places import Places, SlidePatches, checked_patch
from sharedds.datasets.slide_store import StoredSlides
from sharedds.errors import SampleIndexError
from sharedds.packed import MappedArray
from sharedds.patches import TissuePatches, UniformPatches
from sharedds.patches.planar import Pair

__all__ = ["SlideItems"]

Integers = npt.NDArray[np.int64]

_NAMED = 5  # slides that a warning names


class SlideItems(IndexedDataset[Any]):
    """Items of slides.

    Args:
        source: The slides.
        patch: What an item is cut to.
        slides: Names of those that are used; None for all.

    Raises:
        OptionError: ``patch`` is something else, or a slide has no such patches.
        SampleKeyError: There is no slide of a name.
    """

    def __init__(
        self, source: StoredSlides, patch: SlidePatches, slides: Sequence[str] | None
    ) -> None:
        self._source = source
        chosen = None
        if slides is not None:
            found = [source.store.index_of(name) for name in slides]
            chosen = MappedArray.build(np.array(list(dict.fromkeys(found)), np.int64))
        self._set_patch(patch, chosen)

    def _set_patch(self, patch: SlidePatches, slides: MappedArray | None) -> None:
        self.patch = checked_patch(patch)
        self._places = Places(self._source, self.patch, slides)
        self._rows, self._rows_digest = None, ""

    def _tell_of_empty(self) -> None:
        """Warn of slides that have no items; called by what the user calls."""
        without = self._places.bins.without
        if without and isinstance(self.patch, TissuePatches):
            wanted = f"min_tissue={self.patch.min_tissue}"
            if self.patch.label is not None:
                wanted += f", label={self.patch.label!r}, min_label={self.patch.min_label}"
            if self.patch.balance == "labels":
                wanted += " (or no polygons)"
            share = f"{len(without):,} of {len(self._places.slides):,} slides"
            warnings.warn(
                f"{self._source.path}: {share} have no patch with {wanted}, and so no items: "
                f"{self._named_slides(without)}",
                stacklevel=3,
            )

    def _named_slides(self, slides: Sequence[int]) -> str:
        more = f" and {len(slides) - _NAMED:,} more" if len(slides) > _NAMED else ""
        return ", ".join(repr(self._source.name(slide)) for slide in slides[:_NAMED]) + more

    def _count(self) -> int:
        return len(self._places)

    def _content(self) -> str:
        slides = self._places.chosen
        chosen = "" if slides is None else xxhash.xxh3_64_hexdigest(slides.array.data)
        return f"{self._source.store.digest} {chosen} {self.patch}"

    @property
    def storage_path(self) -> str:
        """Where the slides are; a loader looks what kind of storage it is."""
        return self._source.path

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the numbers of ``"label"`` stand for."""
        return self._source.class_names

    # --- slides of items

    def _slides_of(self) -> Integers:
        """Return the slide of each item."""
        rows = self._rows
        positions = np.arange(self._count()) if rows is None else rows.array.astype(np.int64)
        return self._places.bins.slides_of(positions)

    def _with_items(self) -> Integers:
        """Return the numbers of the slides that have items, each once, in order."""
        found = self._places.bins.present() if self._rows is None else self._slides_of()
        numbers, first = np.unique(found, return_index=True)
        return numbers[np.argsort(first)]

    @property
    def slides(self) -> tuple[str, ...]:
        """Names of the slides that have items, in order, each once."""
        return tuple(map(self._source.name, self._with_items().tolist()))

    @property
    def groups(self) -> list[str]:
        """The slide of each item.

        Made for ``split(..., groups=dataset.groups)``, so that no slide is in two parts. Where
        several slides are of one patient, take what of a name says so.
        """
        slides = self._slides_of()
        names = {slide: self._source.name(slide) for slide in np.unique(slides).tolist()}
        return [names[slide] for slide in slides.tolist()]

    def with_label(self) -> list[int]:
        """Return the numbers of the items whose slide has polygons."""
        slides = self._slides_of()
        there = {each: self._source.has("label", each) for each in np.unique(slides).tolist()}
        return [number for number, slide in enumerate(slides.tolist()) if there[slide]]

    def _slide(self, slide: str | SupportsIndex) -> int:
        """Return the number of a slide in here.

        Raises:
            SampleKeyError, SampleIndexError: There is none.
        """
        if not isinstance(slide, str):
            return self._places.locate(self._position(slide))[0]
        number = self._source.store.index_of(slide)
        if number not in self._places.slides:
            raise SampleIndexError(f"{self!r} has nothing of slide {slide!r}", key=slide)
        return number

    def shape_of(self, slide: str | SupportsIndex) -> Pair:
        """Return the pixels of a slide along (y, x), as fine as patches are.

        Args:
            slide: Its name, or the number of one of its items.

        Raises:
            SampleKeyError, SampleIndexError: There is none.
        """
        return self._places.frame(self._slide(slide)).shape

    def downsample_of(self, slide: str | SupportsIndex) -> tuple[float, float]:
        """Return pixels of level 0 for each of those, along (y, x)."""
        return self._places.frame(self._slide(slide)).factor

    def level_0_of(self, slide: str | SupportsIndex) -> Pair:
        """Return the pixels of level 0 of a slide along (y, x)."""
        return self._places.level_0(self._slide(slide))

    def of_slide(self, slide: str) -> Self:
        """Return the items of one slide, such as all patches of a grid.

        Raises:
            SampleKeyError: There is no such slide.
            SampleIndexError: None of its items is in here.
        """
        number = self._slide(slide)
        own = np.flatnonzero(self._slides_of() == number)
        if not len(own):
            raise SampleIndexError(f"{self!r} has no items of slide {slide!r}", key=slide)
        return self.subset(own)

    def with_patch(self, patch: SlidePatches) -> Self:
        """Return a dataset of the same slides, cut in another way.

        So ``train, val = slides.split((0.8, 0.2), groups=slides.groups)`` may draw patches for
        training, and ``val.with_patch(GridPatches(...))`` covers each slide of the other part. What
        is balanced is so over the slides that are in here.

        Args:
            patch: As for the class.

        Raises:
            OptionError: As of the class.
        """
        part = copy.copy(self)
        # Of all slides: those count as well that have no items with these patches.
        chosen = self._places.chosen
        part._set_patch(
            patch, chosen if self._rows is None else MappedArray.build(self._with_items())
        )
        part._tell_of_empty()
        return part

    def key(self, index: SupportsIndex) -> str:
        """Return the slide of an item, and its number among those of the slide where it has one."""
        slide, number = self._places.locate(self._position(index))
        name = self._source.name(slide)
        is_fixed = not isinstance(self.patch, UniformPatches) and not self._places.bins.is_drawn
        return f"{name}[{number}]" if is_fixed else name

    def _named(self, index: int) -> str:
        return self._source.name(self._places.locate(self._position(index))[0])
