"""Medical volumes as patches: drawn at random, by class, by slice, or side by side."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from sharedds.datasets.kept import parse_cache_size
from sharedds.datasets.randomness import batch_uniforms, making_sample, with_keys
from sharedds.datasets.rows import Empty
from sharedds.datasets.volume_cases import StoredVolumes
from sharedds.datasets.volume_counts import PatchCounts
from sharedds.datasets.volume_cuts import (
    Cutter,
    Visit,
    WholeVolumes,
    each_patch,
    joined,
    named,
)
from sharedds.datasets.volume_files import VolumeFiles, is_volume_folder
from sharedds.datasets.volume_items import VolumeItems
from sharedds.datasets.volume_sources import VolumeSource
from sharedds.errors import OptionError, SchemaError, SharedDSError
from sharedds.patches import Location, Patches
from sharedds.patches.cutting import Padding, checked_padding

__all__ = ["VolumeDataset"]

_OTHERS = (3 + 16 + 3) * 8  # bytes of start, affine and drawn


class VolumeDataset(VolumeItems):
    """Volumes of a packed store, or of a folder of files that can be mapped, as patches.

    ``dataset[i]`` is a dict:

    * ``"image"``: tensor (channels, i, j, k), float32; the moments of a series are its channels.
    * ``"label"``: tensor (1, i, j, k), int64 by default, of the same voxels; if there is any.
    * ``"case"``: the name.
    * ``"start"``: int64 (3,), the voxel of the first element; negative where it is padded.
    * ``"affine"``: float64 (4, 4), from voxels of the patch to millimetres in RAS+; where the
      volume has none, voxels count as millimetres.
    * ``"drawn"``: int64 (3,), the voxel that the patch was cut around; -1 where none was drawn.

    With ``per_case`` above 1 all but the case have an axis in front, of the patches. For
    :class:`~sharedds.GridPatches` and :class:`~sharedds.SlicePatches` the items are the patches of
    all cases, one after another; else the cases.

    Only the parts that patches touch are read and decoded. What is random comes from the key of the
    sample under a loader of this package, else from torch's global generator. Where nothing of
    yours runs for each sample, loaders of this package have whole batches made at once
    (:meth:`load_batch`), equal to the bit.

    Args:
        source: A store of volumes, or a folder: of NIfTI (``.nii``) and ``.npy`` files that are not
            compressed, or with two folders ``images`` and ``labels`` of such, paired by name.
        patch: What an item is cut to: :class:`~sharedds.UniformPatches`,
            :class:`~sharedds.ForegroundPatches`, :class:`~sharedds.WeightedPatches`,
            :class:`~sharedds.SlicePatches`, :class:`~sharedds.GridPatches`; None for whole volumes.
        transform: Called with image and label (with the image, where there are no labels) of each
            patch; what it returns takes their place.
        dict_transform: Called with the dict of each patch; what it returns is the item.
        scaled: Whether images are what was measured, in float32: stored times slope plus intercept.
            Without they are as stored.
        labels: False leaves labels out.
        padding: What stands outside of a volume: ``"constant"``, ``"edge"`` or ``"reflect"``.
        fill: The constant, as a value of the image.
        label_fill: The constant for labels.
        label_dtype: Of labels, an integer dtype. ``"uint8"`` takes an eighth of the memory of
            int64, which is most of a batch with one channel; losses want int64, so convert on the
            device.
        cache_blocks: Bytes that decoded blocks of a store may take in each process.

    Attributes:
        patch: What an item is cut to.

    Raises:
        StoreNotFoundError, StoreFormatError: The store cannot be opened.
        SourceError: The folder cannot be listed, or holds nothing that can be mapped.
        OptionError: An option is out of range, or voxels are to be drawn by a class where nobody
            has counted them.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        patch: Patches | None = None,
        transform: Callable[..., Any] | None = None,
        dict_transform: Callable[[dict[str, Any]], Any] | None = None,
        scaled: bool = True,
        labels: bool = True,
        padding: Padding = "constant",
        fill: float = 0.0,
        label_fill: int = 0,
        label_dtype: npt.DTypeLike = np.int64,
        cache_blocks: int | str = "64MiB",
    ) -> None:
        cache_bytes = parse_cache_size(cache_blocks) if cache_blocks else 0
        cases: VolumeSource
        if is_volume_folder(source):
            cases = VolumeFiles(source)
        else:
            cases = StoredVolumes(source, cache_bytes)
        cutter = Cutter(
            patches=WholeVolumes(),
            scaled=scaled,
            labelled=labels and cases.labelled,
            padding=checked_padding(padding),
            fill=_checked_fill(fill),
            label_fill=label_fill,
            label_dtype=_checked_label(label_dtype, label_fill),
        )
        super().__init__(cases, cutter, patch)
        self.transform = transform
        self.dict_transform = dict_transform

    # --- what was not as asked for

    @property
    def counts(self) -> PatchCounts:
        """What was not as asked for since the epoch began, in all processes."""
        return self._tally.read(self._source.name)

    def end_epoch(self, epoch: int) -> None:
        """Warn, in one line, of what was not as asked for in an epoch; a loader calls this."""
        counts = self.counts
        self._tally.clear()
        if counts:
            warnings.warn(f"epoch {epoch}: {counts}", stacklevel=2)

    def _visit(self, index: SupportsIndex, uniforms: Any) -> Visit:
        case, number = self._locate(index)
        volume = self._source.open(case)
        locations = self._patches.locations(volume, number, uniforms)
        for location in locations:
            is_larger = any(p > n for p, n in zip(location.size, volume.shape, strict=True))
            if location.is_fallback or is_larger:
                self._tally.add(case, is_fallback=location.is_fallback, is_larger=is_larger)
        return Visit(volume, locations)

    def _uniforms(self, count: int) -> Any:
        """Return the numbers that the places of some items come from, (count, per_case, n)."""
        each, patches = self._patches.uniforms, self._patches.per_case
        if not each:
            return np.zeros((count, patches, 0))
        return batch_uniforms(count, patches * each, "patch").reshape(count, patches, each)

    # --- one sample

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return item ``index``.

        Raises:
            SampleIndexError: There is no such item.
            DecodeError, CorruptDataError, SourceError: It cannot be read; the text names it.
            SchemaError: Its case has no label.
        """
        visit = self._visit(index, self._uniforms(1)[0])
        several = self._patches.per_case
        arrays = self._cutter.memory((several,) if several > 1 else (), visit, _empty)
        self._cutter.fill_in(arrays, visit)
        self._source.release()
        item = named(arrays, visit.volume.name)
        if self.transform is None and self.dict_transform is None:
            return item
        try:
            with making_sample():
                if several == 1:
                    return self._transformed(item)
                return joined([self._transformed(one) for one in each_patch(item, several)])
        except Exception as error:
            error.add_note(f"while transforming sample {index} ({visit.volume.name!r})")
            raise

    def _transformed(self, item: dict[str, Any]) -> Any:
        if self.transform is not None:
            if self.labelled:
                changed = self.transform(item["image"], item["label"])
                if not isinstance(changed, tuple | list) or len(changed) != 2:
                    raise SchemaError(
                        f"transform returned {type(changed).__name__}; the image and the label are "
                        "expected"
                    )
                item["image"], item["label"] = changed
            else:
                item["image"] = self.transform(item["image"])
        return item if self.dict_transform is None else self.dict_transform(item)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several items."""
        self.advise(indices)
        samples = []
        for index, context in zip(indices, with_keys(len(indices)), strict=True):
            with context:
                samples.append(self[index])
        return samples

    def advise(self, indices: Sequence[SupportsIndex]) -> None:
        """Ask the disk for what several items are read from, where that is known beforehand.

        Places that are drawn follow from the key of a sample; :meth:`load_batch` asks for those.
        """
        if self._patches.uniforms:
            return
        nothing = np.zeros((self._patches.per_case, 0))
        for index in indices:
            case, number = self._locate(index)
            try:
                volume = self._source.open(case)
                self._advise(Visit(volume, self._patches.locations(volume, number, nothing)))
            except SharedDSError:  # told when the item is read, which may then be left out
                continue

    def _advise(self, visit: Visit) -> None:
        for location in visit.locations:
            label = self._cutter.label_location(location)
            self._source.advise(visit.volume.blocks(location, label))

    # --- whole batches

    @property
    def makes_batches(self) -> bool:
        """Whether :meth:`load_batch` makes what the items would: all alike, without transforms."""
        is_plain = self.transform is None and self.dict_transform is None
        is_alike = self._size is not None and self._channels is not None and self._cutter.scaled
        return is_plain and is_alike

    @property
    def batch_form(self) -> Hashable | None:
        """Shapes and dtypes of an item in a batch; None without whole batches."""
        if not self.makes_batches:
            return None
        return self._patches.per_case, self._part_shapes(), self._cutter.label_dtype.name

    def _part_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of image and label of a patch, as far as there are any."""
        if self._size is None or self._channels is None:
            return ()
        part = self._cutter.label_location(Location(start=(0, 0, 0), size=self._size))
        image = self._patches.image_shape(self._channels, self._size)
        return (image,) if part is None else (image, self._patches.image_shape(1, part.size))

    def load_batch(self, indices: Sequence[int], empty: Empty) -> dict[str, Any]:
        """Return what torch's ``default_collate`` makes of these items, equal to the bit.

        Args:
            indices: Numbers of the items. Their keys are in hand, or torch's global generator
                decides what is random.
            empty: Gives the memory that patches are written to.

        Returns:
            The dict of an item; arrays have an axis in front, the cases are a list.

        Raises:
            SchemaError: The items are not all alike: see :attr:`makes_batches`.
            SampleIndexError: There is no such item.
            DecodeError, CorruptDataError, SourceError: One cannot be read; the text names it.
        """
        if not self.makes_batches:
            raise SchemaError(
                f"{self!r} makes no whole batches: its items differ, or code runs for each"
            )
        uniforms = self._uniforms(len(indices))
        visits = [
            self._visit(index, numbers) for index, numbers in zip(indices, uniforms, strict=True)
        ]
        if self._patches.uniforms:  # else the loader has asked for them
            for visit in visits:
                self._advise(visit)
        several = self._patches.per_case
        lead = (len(visits), several) if several > 1 else (len(visits),)
        arrays = self._cutter.memory(lead, visits[0], empty)
        for at, visit in enumerate(visits):
            self._cutter.fill_in({name: value[at] for name, value in arrays.items()}, visit)
        self._source.release()
        return named(arrays, [visit.volume.name for visit in visits])

    @property
    def sample_nbytes(self) -> int | None:
        """Bytes of one item in a batch, where all have the same; a loader plans with it."""
        if not self.makes_batches:
            return None
        sizes = zip(self._part_shapes(), (4, self._cutter.label_dtype.itemsize), strict=False)
        values = sum(math.prod(shape) * itemsize for shape, itemsize in sizes)
        return self._patches.per_case * (values + _OTHERS)

    @property
    def record_nbytes(self) -> int | None:
        """About how many bytes are read for one item, before they are decoded."""
        if self._size is None or self._channels is None:
            return None
        return self._patches.per_case * self._channels * math.prod(self._size) * 2

    def __repr__(self) -> str:
        way = "" if self.patch is None else f", patch={self.patch}"
        return f"VolumeDataset({self._source.path!r}, {len(self)} items{way})"


def _checked_fill(fill: Any) -> float:
    if isinstance(fill, str | bool) or not hasattr(fill, "__float__"):
        raise OptionError(f"fill={fill!r}: a number is expected")
    return float(fill)


def _checked_label(dtype: npt.DTypeLike, fill: int) -> np.dtype[Any]:
    """Return the dtype of labels.

    Raises:
        OptionError: It is none of integers, or what fills the outside does not fit.
    """
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise OptionError(f"label_dtype={dtype!r}: {error}") from None
    if found.kind not in "iu":
        raise OptionError(f"label_dtype={dtype!r}: an integer dtype is expected")
    limits = np.iinfo(found)
    if isinstance(fill, bool) or not hasattr(fill, "__index__"):
        raise OptionError(f"label_fill={fill!r}: a whole number is expected")
    if not limits.min <= fill <= limits.max:
        raise OptionError(f"label_fill={fill} does not fit {found}; labels are of that dtype")
    return found


def _empty(
    shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
) -> torch.Tensor:
    """Give memory for one item."""
    return torch.empty(shape, dtype=dtype)
