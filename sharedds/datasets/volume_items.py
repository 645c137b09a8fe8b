"""Which items there are of which cases: drawn for each visit, or one for each patch of a grid."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any, Self, SupportsIndex

import numpy as np
import xxhash

from sharedds.datasets.indexed import IndexedDataset
from sharedds.datasets.volume_counts import Tally
from sharedds.datasets.volume_cuts import Cutter, WholeVolumes
from sharedds.datasets.volume_sources import VolumeSource
from sharedds.errors import OptionError, SampleIndexError
from sharedds.handles import per_process
from sharedds.packed import MappedArray
from sharedds.patches import Patches
from sharedds.patches.location import Triple, triple
from sharedds.patches.sampler import Integers
from sharedds.volumes.source import Affine

__all__ = ["VolumeItems"]


class VolumeItems(IndexedDataset[Any]):
    """Items of cases, by number; how they are read is for those to say that inherit this.

    Args:
        source: The cases.
        cutter: How parts of them are read.
        patch: What an item is cut to; None for whole volumes.

    Raises:
        OptionError: ``patch`` is something else, or draws by classes that nobody has counted.
    """

    def __init__(self, source: VolumeSource, cutter: Cutter, patch: Patches | None) -> None:
        self._source = source
        self._cutter = cutter
        self._cases: MappedArray | None = None  # those of the source that are in here; None for all
        self._set_patch(patch)

    def _set_patch(self, patch: Patches | None) -> None:
        if patch is not None and not isinstance(patch, Patches):
            raise OptionError(f"patch {patch!r}: patches are expected, such as UniformPatches(96)")
        if patch is not None and patch.is_for_slides:
            raise OptionError(f"{patch}: sizes along (y, x), level and mpp are for SlideDataset")
        if patch is not None and patch.needs_label and not self._source.counted:
            raise OptionError(
                f"{self._source.path}: {type(patch).__name__} draws voxels by their class, and "
                f"nobody has counted where classes are: {self._source.advice}",
                path=self._source.path,
            )
        self.patch = patch
        self._patches: Patches = WholeVolumes() if patch is None else patch
        self._cutter = dataclasses.replace(self._cutter, patches=self._patches)
        shapes = self._shapes()
        channels = np.unique(shapes[:, 0]).tolist()
        self._channels: int | None = channels[0] if len(channels) == 1 else None
        self._size = self._patches.fixed_size
        if self._size is None and len(shapes) and (shapes == shapes[0]).all():
            self._size = self._patches.size_of(triple(shapes[0, 1:].tolist()))
        ends = self._ends
        self._total = len(shapes) if ends is None else int(ends[-1]) if len(ends) else 0
        self._rows, self._rows_digest = None, ""
        self._tally = Tally(len(self._source))

    def _shapes(self) -> Integers:
        """Return channels and voxels of each case that is in here."""
        shapes = self._source.shapes()
        return shapes if self._cases is None else shapes[self._cases.array]

    @per_process
    def _ends(self) -> Integers | None:
        """Where the items of each case end; None where cases are the items.

        Counted in each process, eight bytes a case: a pickle that was kept needs no file for it.
        """
        if not self._patches.is_indexed:
            return None
        ends: Integers = np.cumsum(self._patches.counts(self._shapes()[:, 1:]))
        return ends

    # --- what is in here

    def _count(self) -> int:
        return self._total

    def _content(self) -> str:
        chosen = "" if self._cases is None else xxhash.xxh3_64_hexdigest(self._cases.array.data)
        way = repr(self._patches) if self._patches.is_indexed else ""
        return f"{self._source.digest()} {chosen} {way}"

    @property
    def storage_path(self) -> str:
        """Where the volumes are: a store or a folder; a loader looks what kind of storage it is."""
        return self._source.path

    @property
    def labelled(self) -> bool:
        """Whether items have a label."""
        return self._cutter.labelled

    def _locate(self, index: SupportsIndex) -> tuple[int, int]:
        """Return the case of an item, by its number in the source, and the item among its own."""
        position = self._position(index)
        number = 0
        if self._ends is not None:
            ends = self._ends
            case = int(ends.searchsorted(position, "right"))
            position, number = case, position - (int(ends[case - 1]) if case else 0)
        return (position if self._cases is None else int(self._cases.array[position])), number

    def _cases_of(self, positions: Integers | None = None) -> Integers:
        """Return the case of each item."""
        if positions is None:
            rows = self._rows
            positions = np.arange(self._total) if rows is None else rows.array.astype(np.int64)
        if self._ends is not None:
            positions = self._ends.searchsorted(positions, "right").astype(np.int64)
        found: Integers = positions if self._cases is None else self._cases.array[positions]
        return found

    def _present(self) -> Integers:
        """Return the numbers of all cases that are in here, each once, in order."""
        if self._rows is None and self._cases is None:
            return np.arange(len(self._source))
        if self._rows is None and self._cases is not None:
            return self._cases.array.astype(np.int64)
        numbers, first = np.unique(self._cases_of(), return_index=True)
        return numbers[np.argsort(first)]

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the cases, in order, each once."""
        return tuple(map(self._source.name, self._present().tolist()))

    @property
    def groups(self) -> list[str]:
        """What each item belongs to, such as its patient; its case where nobody said.

        Made for ``split(..., groups=dataset.groups)``, so that no patient is in two parts.
        """
        names = {}
        for case in self._present().tolist():
            group = self._source.group(case)
            names[case] = self._source.name(case) if group is None else group
        return [names[case] for case in self._cases_of().tolist()]

    def with_label(self) -> list[int]:
        """Return the numbers of the items whose case has a label."""
        there = {case: self._source.has_label(case) for case in self._present().tolist()}
        return [number for number, case in enumerate(self._cases_of().tolist()) if there[case]]

    def _case(self, case: str | SupportsIndex) -> int:
        return self._source.find(case) if isinstance(case, str) else self._locate(case)[0]

    def shape_of(self, case: str | SupportsIndex) -> Triple:
        """Return voxels along (i, j, k) of a case.

        Args:
            case: Its name, or the number of one of its items.

        Raises:
            SampleKeyError, SampleIndexError: There is none.
        """
        return self._source.open(self._case(case)).shape

    def affine_of(self, case: str | SupportsIndex) -> Affine | None:
        """Return the (4, 4) affine of a case, from voxels to millimetres in RAS+, if it has one."""
        return self._source.open(self._case(case)).affine

    def of_case(self, case: str) -> Self:
        """Return the items of one case, such as all patches of a grid.

        What is not as asked for is counted with that of this dataset.

        Raises:
            SampleKeyError: There is no such case.
            SampleIndexError: None of its items is in here.
        """
        number = self._source.find(case)
        if self._rows is None and self._cases is None:
            first, stop = number, number + 1
            if self._ends is not None:
                first = int(self._ends[number - 1]) if number else 0
                stop = int(self._ends[number])
            return super().subset(range(first, stop))
        own = np.flatnonzero(self._cases_of() == number)
        if not len(own):
            raise SampleIndexError(f"{self!r} has no items of case {case!r}", key=case)
        return super().subset(own)

    def with_patch(self, patch: Patches | None) -> Self:
        """Return a dataset of the same cases, cut in another way.

        So ``train, val = volumes.split((0.8, 0.2))`` may draw patches for training, and
        ``val.with_patch(GridPatches(...))`` covers each case of the other part.

        Args:
            patch: As for the class.

        Raises:
            OptionError: As of the class.
        """
        part = copy.copy(self)
        if self._rows is not None:
            part._cases = MappedArray.build(self._present())
        part._set_patch(patch)
        return part

    def subset(self, indices: Iterable[SupportsIndex]) -> Self:
        """Return a dataset of these samples; see :meth:`IndexedDataset.subset`."""
        part = super().subset(indices)
        part._tally = Tally(len(self._source))  # its epochs are its own
        return part

    def key(self, index: SupportsIndex) -> str:
        """Return the case of an item, and the number of the patch where it is one of several."""
        case, number = self._locate(index)
        name = self._source.name(case)
        return f"{name}[{number}]" if self._patches.is_indexed else name

    def _named(self, index: int) -> str:
        return self._source.name(self._locate(index)[0])
