"""Which items there are of which slides: in bins, of a slide or of one class of a slide.

The items of a bin stand together. Where an item is one patch of a list of candidates, they are the
bin's candidates one after another; where patches are balanced, a candidate of the bin is drawn. So
the slide of an item is known without drawing, whatever is random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.datasets.slide_shares import grid_shares
from sharedds.datasets.slide_store import StoredSlides
from sharedds.errors import OptionError
from sharedds.packed import MappedArray, RaggedArray, RaggedArrayBuilder
from sharedds.patches.frame import Frame, to_level_0
from sharedds.patches.planar import Pair
from sharedds.patches.tissue import TissuePatches

__all__ = ["Bins", "counted_bins", "tissue_bins"]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_ROUNDING = 1e-9  # of a share


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Items by number.

    Attributes:
        table: (3, n): the slide of each bin, where its items end, and where its candidates are in
            the two lists.
        numbers: For each row, the places of candidates on the grid.
        shares: For each row, what is tissue and what each class, one candidate after another.
        is_drawn: Whether a candidate is drawn for each item.
        without: Slides that have no items.
    """

    table: MappedArray
    numbers: RaggedArray | None = None
    shares: RaggedArray | None = None
    is_drawn: bool = False
    without: tuple[int, ...] = ()

    def __len__(self) -> int:
        ends = self.table.array[1]
        return int(ends[-1]) if len(ends) else 0

    def find(self, position: int) -> tuple[int, int, int]:
        """Return the bin of an item, its slide, and the number of the item in the bin."""
        table = self.table.array
        at = int(table[1].searchsorted(position, "right"))
        first = int(table[1, at - 1]) if at else 0
        return at, int(table[0, at]), position - first

    def present(self) -> Integers:
        """Return the slides of the bins that have items."""
        table = self.table.array
        found: Integers = table[0, np.diff(table[1], prepend=0) > 0]
        return found

    def slides_of(self, positions: Integers) -> Integers:
        """Return the slides of items."""
        table = self.table.array
        found: Integers = table[0, table[1].searchsorted(positions, "right")]
        return found

    def candidate(self, number: int, at: int) -> tuple[int, npt.NDArray[np.float32]]:
        """Return the place of a candidate on the grid, and its shares.

        Args:
            number: Of the bin.
            at: Of the candidate in the bin.
        """
        places, values = self._lists(number)
        each = len(values) // len(places)
        return int(places[at]), values[at * each : (at + 1) * each]

    def candidates(self, number: int) -> int:
        """Return how many candidates a bin has."""
        return len(self._lists(number)[0])

    def _lists(self, number: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        if self.numbers is None or self.shares is None:
            raise OptionError("these patches are not chosen from candidates")
        row = int(self.table.array[2, number])
        return self.numbers[row], self.shares[row]


def counted_bins(slides: Iterable[int], counts: Iterable[int]) -> Bins:
    """Return bins of slides that have so many items each."""
    numbers, each = np.array(list(slides), np.int64), np.array(list(counts), np.int64)
    return Bins(table=MappedArray.build(np.stack((numbers, np.cumsum(each), numbers))))


def tissue_bins(
    source: StoredSlides,
    patch: TissuePatches,
    slides: Iterable[int],
    frame: Callable[[int], tuple[Frame, Pair]],
) -> Bins:
    """Return bins of the candidates of slides; their maps are read, and no pixel.

    Args:
        source: The slides.
        patch: What a candidate is.
        slides: Which of them.
        frame: Gives the frame of a slide, and the shape of its level 0.

    Raises:
        OptionError: There are no maps of tissue, or no class of that name.
    """
    label = _class_of(source, patch)
    _require_maps(source, patch)
    classes = len(source.class_names)
    kinds = classes + 1 if patch.balance == "labels" else 1
    numbers = RaggedArrayBuilder(np.uint32)
    shares = RaggedArrayBuilder(np.float32)
    counts: list[list[int]] = []
    order, without = [], []
    for slide in slides:
        places, found = _candidates(source, patch, slide, *frame(slide), label)
        kind = np.zeros(len(places), np.int64)
        if patch.balance == "labels":
            kind = _largest(found[:, 1:], patch.min_label)
        for each in range(kinds):
            own = kind == each
            numbers.append(places[own])
            shares.append(found[own].astype(np.float32).ravel())
        counts.append(np.bincount(kind, minlength=kinds).tolist())
        order.append(slide)
        if not len(places):
            without.append(slide)
    bins = _bins(np.array(counts, np.int64).reshape(-1, kinds), patch.balance)
    table = [(order[at], end, at * kinds + kind) for at, kind, end in bins]
    return Bins(
        table=MappedArray.build(np.array(table, np.int64).reshape(-1, 3).T),
        numbers=numbers.finish(),
        shares=shares.finish(),
        is_drawn=patch.balance is not None,
        without=tuple(without),
    )


def _bins(counts: Integers, balance: str | None) -> Iterator[tuple[int, int, int]]:
    """Yield place of the slide, kind, and end of the items of each bin that has candidates.

    Args:
        counts: (slides, kinds), candidates.
        balance: What has as many items as its like.
    """
    total = int(counts.sum())
    if balance is None:
        ends = np.cumsum(counts[:, 0])
        yield from ((at, 0, int(ends[at])) for at in np.flatnonzero(counts[:, 0]).tolist())
    elif balance == "slides":
        present = np.flatnonzero(counts[:, 0]).tolist()
        for turn, at in enumerate(present, 1):
            yield at, 0, total * turn // len(present)
    else:
        kinds = np.flatnonzero(counts.sum(axis=0)).tolist()
        for turn, kind in enumerate(kinds):
            first, last = (total * each // len(kinds) for each in (turn, turn + 1))
            own = np.cumsum(counts[:, kind]).tolist()
            for at in np.flatnonzero(counts[:, kind]).tolist():
                yield at, kind, first + (last - first) * own[at] // own[-1]


def _candidates(
    source: StoredSlides,
    patch: TissuePatches,
    slide: int,
    frame: Frame,
    shape: Pair,
    label: int | None,
) -> tuple[npt.NDArray[np.uint32], Floats]:
    """Return the places of a slide's candidates, and (n, 1 + classes) shares."""
    grid = patch.grid(frame.shape)
    if grid.counts[0] * grid.counts[1] >= 1 << 32:
        raise OptionError(f"{patch}: slide {source.name(slide)!r} has over 2**32 places for it")
    bounds = [_bounds(grid.starts[axis], patch.sides[axis], frame.factor[axis]) for axis in (0, 1)]
    classes = len(source.class_names)
    tissue = source.cells("tissue", slide, shape)
    cells = source.cells("label", slide, shape)
    if tissue is None or (cells is None and patch.balance == "labels"):
        return np.zeros(0, np.uint32), np.zeros((0, 1 + classes))
    found = grid_shares(tissue, bounds[0], bounds[1], shape, source.cell)
    labels = np.full((*found.shape, classes), np.nan)
    if cells is not None:
        labels = grid_shares(cells, bounds[0], bounds[1], shape, source.cell)
    fits = found >= patch.min_tissue - _ROUNDING
    if label is not None:
        fits &= labels[..., label] >= patch.min_label - _ROUNDING
    places = np.flatnonzero(fits)
    together = np.concatenate((found[..., None], labels), axis=-1).reshape(-1, 1 + classes)
    return places.astype(np.uint32), together[places]


def _bounds(starts: tuple[int, ...], side: int, factor: float) -> Floats:
    begin = np.array([to_level_0(at, factor) for at in starts], np.float64)
    return np.stack((begin, begin + side * factor), axis=1)


def _largest(shares: Floats, least: float) -> Integers:
    """Return the class of each candidate; the number after the last where it has none."""
    best = shares.argmax(axis=1)
    found: Integers = np.where(shares.max(axis=1) >= least - _ROUNDING, best, shares.shape[1])
    return found


def _require_maps(source: StoredSlides, patch: TissuePatches) -> None:
    if not source.has_tissue:
        raise OptionError(
            f"{source.path}: TissuePatches asks how much tissue there is, and nobody has counted "
            "it; pack it with `sharedds pack DIR OUT --kind slide`, or take UniformPatches",
            path=source.path,
        )
    if patch.balance == "labels" and not source.class_names:
        raise OptionError(
            f"{source.path}: balance='labels' wants classes, and there are none; pack it with "
            "polygons: --annotations",
            path=source.path,
        )


def _class_of(source: StoredSlides, patch: TissuePatches) -> int | None:
    """Return the number of the class that is asked for."""
    label: Any = patch.label
    names = source.class_names
    if label is None:
        return None
    if isinstance(label, str) and label in names:
        return names.index(label)
    if isinstance(label, int) and label < len(names):
        return label
    raise OptionError(
        f"{source.path}: label={label!r}: no such class; there are "
        f"{', '.join(map(repr, names)) or 'none, it was packed without polygons'}",
        path=source.path,
    )
