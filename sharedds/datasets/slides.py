"""Slides as patches: of tissue, anywhere, or side by side."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from sharedds.datasets.kept import parse_cache_size
from sharedds.datasets.randomness import batch_uniforms, making_sample, with_keys
from sharedds.datasets.rows import Empty
from sharedds.datasets.slide_items import SlideItems
from sharedds.datasets.slide_places import Place, SlidePatches
from sharedds.datasets.slide_reading import PixelReader
from sharedds.datasets.slide_store import StoredSlides
from sharedds.errors import OptionError, SchemaError, SharedDSError
from sharedds.packed import MappedArray

__all__ = ["SlideDataset"]

Values = npt.NDArray[Any]

_NUMBERS = 4 * 8 + 4  # bytes of level, x, y, mpp and tissue


class SlideDataset(SlideItems):
    """Slides of a packed store, as patches.

    ``dataset[i]`` is a dict:

    * ``"image"``: tensor (channels, y, x), in the dtype of the slide: uint8 for most.
    * ``"slide"``: the name.
    * ``"level"``: int, the level that was read.
    * ``"x"``, ``"y"``: int, the pixel of level 0 in which the patch begins; negative where it is
      padded.
    * ``"mpp"``: float, micrometres for each pixel of the patch; NaN where not known.
    * ``"tissue"``: float32, the share of tissue; NaN where nobody has counted it.
    * ``"label"``: float32 (classes,), the share of each class, if the store has classes; NaN for a
      slide without polygons.

    Shares are those of what of the patch lies inside of the slide.

    Only the tiles that patches touch are read and decoded. What is random comes from the key of the
    sample under a loader of this package, else from torch's global generator. Where nothing of
    yours runs for each sample, loaders of this package have whole batches made at once
    (:meth:`load_batch`), equal to the bit, in which each tile is decoded once.

    Items stand slide by slide. Their number is exact, and known before anything is read:

    * :class:`~sharedds.TissuePatches`: one for each place with enough tissue. Slides without any
      are told in a warning.
    * :class:`~sharedds.UniformPatches`: ``per_case`` for each slide, each drawn.
    * :class:`~sharedds.GridPatches`: all of each slide, by rows.

    Args:
        source: A store of slides.
        patch: What an item is cut to.
        transform: Called with the image of each patch; what it returns takes its place.
        dict_transform: Called with the dict of each patch; what it returns is the item.
        plane: Which one of slides that are focus stacks.
        fill: What lies outside of a slide: a number, or one for each channel; None for the
            background that the slide's file tells, and 0 where it tells none.
        cache_tiles: Bytes that decoded tiles may take in each process; 0 keeps none. They help
            where neighbours are read one after another.
        slides: Names of the slides to use; None for all.

    Attributes:
        patch: What an item is cut to, sizes as (y, x).

    Raises:
        StoreNotFoundError, StoreFormatError: The store cannot be opened.
        SampleKeyError: It has no slide of a name.
        OptionError: It holds no slides, an option is out of range, or a slide has no such level or
            no pixel size where one is asked for; the text names it.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        patch: SlidePatches,
        transform: Callable[[Any], Any] | None = None,
        dict_transform: Callable[[dict[str, Any]], Any] | None = None,
        plane: int = 0,
        fill: float | Sequence[float] | None = None,
        cache_tiles: int | str = "64MiB",
        slides: Sequence[str] | None = None,
    ) -> None:
        found = StoredSlides(source, parse_cache_size(cache_tiles) if cache_tiles else 0)
        self._plane = _checked_plane(plane)
        self._fill = _checked_fill(fill)
        self.transform = transform
        self.dict_transform = dict_transform
        super().__init__(found, patch, slides)
        self._tell_of_empty()

    def _set_patch(self, patch: SlidePatches, slides: MappedArray | None) -> None:
        super()._set_patch(patch, slides)
        source = self._source
        kinds = set()
        for slide in self._places.slides:
            channels, planes = self._places.form(slide)
            if self._plane >= max(1, planes):
                raise OptionError(
                    f"{source.path}: slide {source.name(slide)!r} has no plane {self._plane}, it "
                    f"has {max(1, planes)}",
                    path=source.path,
                    sample=slide,
                )
            kinds.add((channels, source.store.array(slide, "image").dtype.str))
        self._kind: tuple[int, str] | None = kinds.pop() if len(kinds) == 1 else None
        self._reader = PixelReader(
            self._places.size,
            plane=self._plane,
            fill=self._fill,
            is_scaled=self.patch.mpp is not None,
        )

    # --- items

    def _drawn(self, indices: Sequence[SupportsIndex]) -> list[Place]:
        """Return where the patches of some items lie."""
        count = self._places.uniforms
        numbers = np.zeros((len(indices), 0))
        if count:
            numbers = batch_uniforms(len(indices), count, "patch")
        return [
            self._places.place(self._position(index), row)
            for index, row in zip(indices, numbers, strict=True)
        ]

    def _pixels(self, places: Sequence[Place]) -> list[Values]:
        """Return patches as (y, x, channel)."""
        forms = [self._places.form(place.slide) for place in places]
        found = self._reader.read(self._source.store, places, forms)
        self._source.store.release()
        return found

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return item ``index``.

        Raises:
            SampleIndexError: There is no such item.
            CorruptDataError: A tile is damaged; the text names it.
        """
        places = self._drawn([index])
        [pixels] = self._pixels(places)
        item = self._item(places[0], pixels)
        with making_sample():
            return self._transformed(item, index)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several items; all are read together."""
        places = self._drawn(indices)
        pixels = self._pixels(places)
        items = []
        for index, place, values, context in zip(
            indices, places, pixels, with_keys(len(indices)), strict=True
        ):
            with context:
                items.append(self._transformed(self._item(place, values), index))
        return items

    def advise(self, indices: Sequence[SupportsIndex]) -> None:
        """Ask the disk for what several items are read from, where that is known beforehand.

        Places that are drawn follow from the key of a sample. Whole batches ask for theirs.
        """
        if self._places.uniforms or self.makes_batches:
            return
        with contextlib.suppress(SharedDSError):  # told when the item is read
            places = self._drawn(indices)
            forms = [self._places.form(place.slide) for place in places]
            self._reader.advise(self._source.store, places, forms)

    def _item(self, place: Place, pixels: Values) -> dict[str, Any]:
        image = torch.from_numpy(_own(pixels)).permute(2, 0, 1)
        y, x = place.origin
        item = {
            "image": image,
            "slide": self._source.name(place.slide),
            "level": place.frame.level,
            "x": x,
            "y": y,
            "mpp": place.frame.mpp,
            "tissue": torch.tensor(place.shares[0]),
        }
        if self.class_names:
            item["label"] = torch.tensor(place.shares[1:])
        return item

    def _transformed(self, item: dict[str, Any], index: SupportsIndex) -> Any:
        try:
            if self.transform is not None:
                item["image"] = self.transform(item["image"])
            return item if self.dict_transform is None else self.dict_transform(item)
        except Exception as error:
            error.add_note(f"while transforming sample {index} ({item['slide']!r})")
            raise

    # --- whole batches

    @property
    def makes_batches(self) -> bool:
        """Whether :meth:`load_batch` makes what the items would: all alike, without transforms."""
        return self.transform is None and self.dict_transform is None and self._kind is not None

    @property
    def batch_form(self) -> Hashable | None:
        """Shapes and dtypes of an item in a batch; None without whole batches."""
        if not self.makes_batches:
            return None
        return self._places.size, self._kind, len(self.class_names)

    def load_batch(self, indices: Sequence[int], empty: Empty) -> dict[str, Any]:
        """Return what torch's ``default_collate`` makes of these items, equal to the bit.

        Args:
            indices: Numbers of the items. Their keys are in hand, or torch's global generator
                decides what is random.
            empty: Gives the memory that patches are written to.

        Returns:
            The dict of an item; tensors have an axis in front, the slides are a list.

        Raises:
            SchemaError: The items are not all alike: see :attr:`makes_batches`.
            SampleIndexError: There is no such item.
            CorruptDataError: A tile is damaged; the text names it.
        """
        kind = self._kind
        if not self.makes_batches or kind is None:
            raise SchemaError(
                f"{self!r} makes no whole batches: its items differ, or code runs for each"
            )
        places = self._drawn(indices)
        pixels = self._pixels(places)
        shape = (len(places), kind[0], *self._places.size)
        image = empty(shape, _of_torch(kind[1]), channels_last=True)
        target = image.permute(0, 2, 3, 1).numpy()
        for at, values in enumerate(pixels):
            target[at] = values
        origins = np.array([place.origin for place in places], np.int64).reshape(-1, 2)
        shares = np.stack([place.shares for place in places])
        batch: dict[str, Any] = {
            "image": image,
            "slide": [self._source.name(place.slide) for place in places],
            "level": torch.tensor([place.frame.level for place in places]),
            "x": torch.from_numpy(origins[:, 1].copy()),
            "y": torch.from_numpy(origins[:, 0].copy()),
            "mpp": torch.tensor([place.frame.mpp for place in places], dtype=torch.float64),
            "tissue": torch.from_numpy(shares[:, 0].copy()),
        }
        if self.class_names:
            batch["label"] = torch.from_numpy(shares[:, 1:].copy())
        return batch

    @property
    def sample_nbytes(self) -> int | None:
        """Bytes of one item in a batch, where all have the same; a loader plans with it."""
        if self._kind is None:
            return None
        channels, dtype = self._kind
        pixels = channels * math.prod(self._places.size) * np.dtype(dtype).itemsize
        return pixels + _NUMBERS + 4 * len(self.class_names)

    def __repr__(self) -> str:
        return f"SlideDataset({self._source.path!r}, {len(self)} items, patch={self.patch})"


def _own(pixels: Values) -> Values:
    """Return an array that may be handed out: in one piece, and nobody else's."""
    is_own = pixels.flags.writeable and pixels.flags.c_contiguous
    return pixels if is_own else np.array(pixels, order="C")


def _of_torch(dtype: str) -> torch.dtype:
    return torch.from_numpy(np.empty(0, np.dtype(dtype).newbyteorder("="))).dtype


def _checked_plane(plane: Any) -> int:
    if isinstance(plane, bool) or not hasattr(plane, "__index__") or plane.__index__() < 0:
        raise OptionError(f"plane={plane!r}: a whole number, 0 or more, is expected")
    return int(plane.__index__())


def _checked_fill(fill: Any) -> float | tuple[float, ...] | None:
    """Return what lies outside: None, a number, or several."""
    if fill is None:
        return None
    several = fill if isinstance(fill, Sequence) and not isinstance(fill, str) else (fill,)
    if any(isinstance(each, bool | str) or not hasattr(each, "__float__") for each in several):
        raise OptionError(f"fill={fill!r}: a number, or one for each channel, is expected")
    numbers = tuple(each if isinstance(each, int) else float(each) for each in several)
    return numbers if several is fill else numbers[0]
