"""Where the patch of an item lies in its slide, and what it shows: found without reading pixels."""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.datasets.slide_bins import Bins, counted_bins, tissue_bins
from sharedds.datasets.slide_shares import span_of
from sharedds.datasets.slide_store import StoredSlides
from sharedds.errors import OptionError, SourceError
from sharedds.packed import MappedArray
from sharedds.patches import GridPatches, UniformPatches
from sharedds.patches.frame import Frame, to_level_0
from sharedds.patches.location import free_start
from sharedds.patches.planar import Pair, Planar
from sharedds.patches.tissue import TissuePatches, nearer, shifts
from sharedds.store.requests import is_bounded

__all__ = ["Place", "Places", "SlidePatches", "checked_patch"]

Floats = npt.NDArray[np.float64]
Shares = npt.NDArray[np.float32]
SlidePatches = TissuePatches | UniformPatches | GridPatches


@dataclass(frozen=True, slots=True)
class Place:
    """Where a patch lies.

    Attributes:
        slide: Its number.
        frame: The slide at the resolution of the patch.
        start: The first pixel of the frame, (y, x); may be negative.
        shares: What is tissue, then what each class; NaN where not known.
    """

    slide: int
    frame: Frame
    start: Pair
    shares: Shares

    @property
    def origin(self) -> Pair:
        """The pixel of level 0 in which the patch begins, (y, x)."""
        y, x = self.start
        return to_level_0(y, self.frame.factor[0]), to_level_0(x, self.frame.factor[1])


def checked_patch(patch: Any) -> SlidePatches:
    """Return patches with a size along (y, x).

    Raises:
        OptionError: They are none that a slide has.
    """
    if isinstance(patch, UniformPatches | GridPatches):
        return patch.flat()
    if isinstance(patch, TissuePatches):
        return patch
    raise OptionError(
        f"patch {patch!r}: TissuePatches, UniformPatches or GridPatches are expected for slides"
    )


class Places:
    """The patches of some slides, by number.

    A pickle of it is small, however many there are. One that is kept opens after its maker has
    ended: what went with that process is counted again.

    Args:
        source: The slides.
        patch: What they are cut to.
        slides: Which slides; None for all.
        made: What another object found out about the same.

    Raises:
        OptionError: A slide has no such level, or its pixel size is not known where one is asked
            for; or as of :func:`~sharedds.datasets.slide_bins.tissue_bins`.
    """

    def __init__(
        self,
        source: StoredSlides,
        patch: SlidePatches,
        slides: MappedArray | None,
        made: tuple[MappedArray, Bins] | None = None,
    ) -> None:
        self._source = source
        self.patch = patch
        self.chosen = slides
        sides: Any = patch.size
        self.size: Pair = sides
        self.uniforms = 2
        if isinstance(patch, TissuePatches):
            self._grid = GridPatches(patch.sides, patch.overlap)
            self.uniforms = 3 if patch.jitter else 1 if patch.balance else 0
        elif isinstance(patch, GridPatches):
            self._grid = patch
            self.uniforms = 0
        if made is None:
            self._facts = MappedArray.build(_facts_of(source, patch, self.slides))
            self.bins = self._made()
        else:
            self._facts, self.bins = made

    def _made(self) -> Bins:
        patch, slides = self.patch, self.slides
        if isinstance(patch, TissuePatches):
            return tissue_bins(self._source, patch, slides, self._frame_and_shape)
        if isinstance(patch, GridPatches):
            shapes = [(*self.frame(slide).shape, 1) for slide in slides]
            counts = patch.counts(np.array(shapes, np.int64).reshape(-1, 3)).tolist()
        else:
            counts = [patch.per_case] * len(slides)
        return counted_bins(slides, counts)

    def __reduce__(self) -> Any:
        made = pickle.dumps((self._facts, self.bins))
        return _again, (self._source, self.patch, self.chosen, made)

    @property
    def slides(self) -> list[int]:
        """Numbers of the slides."""
        numbers = range(len(self._source)) if self.chosen is None else self.chosen.array.tolist()
        return list(numbers)

    # --- slides

    def frame(self, slide: int) -> Frame:
        """Return a slide at the resolution of its patches."""
        return self._frame_and_shape(slide)[0]

    def level_0(self, slide: int) -> Pair:
        """Return the pixels of level 0 along (y, x)."""
        return self._frame_and_shape(slide)[1]

    def _frame_and_shape(self, slide: int) -> tuple[Frame, Pair]:
        h, w, fy, fx, level, down, mpp, height, width, _, _ = self._facts.array[slide].tolist()
        frame = Frame(
            shape=(int(h), int(w)), factor=(fy, fx), level=int(level), downsample=down, mpp=mpp
        )
        return frame, (int(height), int(width))

    def form(self, slide: int) -> tuple[int, int]:
        """Return how many values a pixel has, and how many planes a slide; 0 for no such axis."""
        channels, planes = self._facts.array[slide, 9:].tolist()
        return int(channels), int(planes)

    # --- patches

    def __len__(self) -> int:
        return len(self.bins)

    def locate(self, position: int) -> tuple[int, int]:
        """Return the slide of an item, and its number among those of its bin."""
        _, slide, number = self.bins.find(position)
        return slide, number

    def place(self, position: int, numbers: Floats) -> Place:
        """Return where the patch of an item lies.

        Args:
            position: Number of the item.
            numbers: (:attr:`uniforms`,) from [0, 1).
        """
        at, slide, number = self.bins.find(position)
        frame, shape = self._frame_and_shape(slide)
        h, w = self.size
        if isinstance(self.patch, UniformPatches):
            y, x, _ = free_start((*frame.shape, 1), (h, w, 1), [*numbers.tolist(), 0.0])
            return self._measured(slide, frame, shape, (y, x))
        if isinstance(self.patch, GridPatches):
            y, x, _ = self._grid.start((*frame.shape, 1), number)
            return self._measured(slide, frame, shape, (y, x))
        if self.bins.is_drawn:
            count = self.bins.candidates(at)
            number = min(int(numbers[0] * count), count - 1)
        cell, shares = self.bins.candidate(at, number)
        y, x, _ = self._grid.start((*frame.shape, 1), cell)
        if not self.patch.jitter:
            return Place(slide, frame, (y, x), shares)
        return self._moved(slide, frame, shape, (y, x), shifts(self.patch.step, numbers[1:]))

    def _moved(
        self, slide: int, frame: Frame, shape: Pair, start: Pair, shift: tuple[int, int]
    ) -> Place:
        """Return a patch moved as far as there is still tissue."""
        patch: Any = self.patch
        while True:
            y, x = (
                min(max(at + by, 0), n - p) if p <= n else at
                for at, by, n, p in zip(start, shift, frame.shape, self.size, strict=True)
            )
            place = self._measured(slide, frame, shape, (y, x))
            if shift == (0, 0) or self._shows_enough(patch, place.shares):
                return place
            shift = nearer(shift)

    def _shows_enough(self, patch: TissuePatches, shares: Shares) -> bool:
        if shares[0] < patch.min_tissue / 2:
            return False
        if patch.label is None:
            return True
        names = self._source.class_names
        number = names.index(patch.label) if isinstance(patch.label, str) else patch.label
        return bool(shares[1 + number] >= patch.min_label / 2)

    def _measured(self, slide: int, frame: Frame, shape: Pair, start: Pair) -> Place:
        """Return a patch with its shares, from the cells that it touches."""
        source = self._source
        shares = np.full(1 + len(source.class_names), np.nan, np.float32)
        spans = []
        for at, side, factor, length in zip(start, self.size, frame.factor, shape, strict=True):
            begin = to_level_0(at, factor)
            spans.append(span_of(begin, begin + side * factor, length, source.cell or 1))
        y, x = spans
        if y is None or x is None:
            return Place(slide, frame, start, shares)
        area = y.inside * x.inside
        tissue = source.cells("tissue", slide, shape)
        if tissue is not None:
            shares[0] = y.weights @ tissue[y.cells, x.cells] @ x.weights / area
        label = source.cells("label", slide, shape)
        if label is not None:
            counts = label[y.cells, x.cells].astype(np.float64)
            shares[1:] = np.tensordot(y.weights, x.weights @ counts, 1) / area
        return Place(slide, frame, start, shares)


def _facts_of(source: StoredSlides, patch: Planar, slides: list[int]) -> Floats:
    """Return the frames of slides, a row of numbers for each slide of the source.

    Raises:
        OptionError: A slide has no such resolution.
    """
    rows = np.zeros((len(source), 11))
    for slide in slides:
        facts = source.facts(slide)
        if patch.mpp is not None:
            if facts.mpp is None:
                raise OptionError(
                    f"{source.path}: slide {source.name(slide)!r} does not say how large its "
                    f"pixels are, so mpp={patch.mpp} means nothing there; take level=..., or leave "
                    "it out: slides=[...]",
                    path=source.path,
                    sample=slide,
                    key=source.name(slide),
                )
            frame = Frame.at_mpp(patch.mpp, facts.shapes, facts.downsamples, facts.mpp)
            _require_bounded(source, patch, slide, frame)
        elif patch.level < len(facts.shapes):
            frame = Frame.at_level(patch.level, facts.shapes, facts.downsamples, facts.mpp)
        else:
            raise OptionError(
                f"{source.path}: slide {source.name(slide)!r} has no level {patch.level}, it has "
                f"{len(facts.shapes)}; mpp=... is the same for all slides",
                path=source.path,
                sample=slide,
                key=source.name(slide),
            )
        rows[slide] = (
            *frame.shape,
            *frame.factor,
            frame.level,
            frame.downsample,
            frame.mpp,
            *facts.shapes[0],
            facts.channels,
            facts.planes,
        )
    return rows


def _require_bounded(source: StoredSlides, patch: Planar, slide: int, frame: Frame) -> None:
    """Refuse patches that would be averaged from more pixels than a process should hold.

    Raises:
        OptionError: They would.
    """
    sides: Any = getattr(patch, "size", (0, 0))
    strides = [factor / frame.downsample for factor in frame.factor]
    if not is_bounded(strides, sides):
        y, x = (side * stride for side, stride in zip(sides, strides, strict=True))
        raise OptionError(
            f"{source.path}: slide {source.name(slide)!r}: a patch of {sides} pixels at "
            f"mpp={patch.mpp} is {y:,.6g} x {x:,.6g} pixels of its level {frame.level}, the "
            "coarsest that is fine enough; take a smaller mpp, or leave it out: slides=[...]",
            path=source.path,
            sample=slide,
            key=source.name(slide),
        )


def _again(
    source: StoredSlides, patch: SlidePatches, chosen: MappedArray | None, stored: bytes
) -> Places:
    """Return the patches that were pickled; counted again where that cannot be reached."""
    made = None
    with contextlib.suppress(SourceError):
        made = pickle.loads(stored)  # noqa: S301 - part of the pickle that is being read
    return Places(source, patch, chosen, made)
