"""Which pages of a TIFF are one picture at several resolutions, and which are something else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sharedds.errors import DecodeError
from sharedds.slides.limits import MAX_STRIP_BYTES
from sharedds.slides.pixel_size import from_density, from_length
from sharedds.slides.tiff_directory import Directory
from sharedds.slides.tiff_page import TiffPage, read_page

__all__ = ["Pages", "Plan", "downsample_of", "is_smaller", "plain_plan", "stated_size"]

_REDUCED, _MASK = 1, 4  # of NewSubfileType
_LEAST_STEP = 1.1  # pages that differ by less are no two levels
_IMAGEJ_UNIT = re.compile(r"ImageJ=.*?\nunit=([^\n]+)", re.DOTALL)
_TOLD = 12  # sizes that a text lists


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the pages of a file are.

    Attributes:
        format: As the header of the slide has it.
        levels: Finest first; of each, the pages of each plane, each with some of the channels.
        associated: Pages of other pictures that belong to the slide.
        mpp: Micrometres for each pixel, (y, x).
        magnification: Of the objective.
        channel_names: One for each channel, or none.
        remarks: What a person should be told.
    """

    format: str
    levels: tuple[tuple[tuple[TiffPage, ...], ...], ...]
    associated: Mapping[str, TiffPage] = field(default_factory=dict)
    mpp: tuple[float, float] | None = None
    magnification: float | None = None
    channel_names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class Pages:
    """The directories of a file, read as pages when they are needed.

    Attributes:
        directories: Along the chain.
        path: Of the file.
    """

    def __init__(self, directories: Sequence[Directory], path: str, size: int) -> None:
        self.directories = directories
        self.path = path
        self._size = size

    def read(self, directory: Directory) -> TiffPage | None:
        """Return a page, None where only libvips reads it; see :func:`read_page`."""
        return read_page(directory, self.path, self._size)

    def slide(self, directory: Directory) -> TiffPage | None:
        """Return the page of a level 0, None also where it is not fit to be read by regions."""
        page = self.read(directory)
        large = page is not None and not page.tiled and page.decoded_bytes > MAX_STRIP_BYTES
        return None if large else page

    def tried(self, directory: Directory, remarks: list[str]) -> TiffPage | None:
        """Return a page that is not needed, or None with a remark that it is left out."""
        try:
            page = self.read(directory)
            if page is not None:
                return page
            why = f"page {directory.index}: its compression is not read here"
        except DecodeError as error:
            why = str(error).removeprefix(f"{self.path}: ")
        remarks.append(f"left out: {why}")
        return None

    def refused(self, why: str) -> DecodeError:
        """Return the error for a file that is no slide."""
        return DecodeError(f"{self.path}: {why}", path=self.path)


def plain_plan(pages: Pages) -> Plan | None:
    """Return what a TIFF without a vendor's description holds; None where libvips has to read it.

    The first page that is neither a reduced version nor a mask is the slide. Its levels are the
    smaller pages of the same kind and proportions that are in tiles, or below it; in strips only
    where it is in strips too and they are marked as reduced. A second page of full size makes the
    file ambiguous.

    Raises:
        DecodeError: The file is ambiguous (the text lists its pages), or its page is damaged.
    """
    chain = pages.directories
    main = next((one for one in chain if not one.number(254) & (_REDUCED | _MASK)), chain[0])
    base = pages.slide(main)
    if base is None:
        return None
    remarks: list[str] = []
    levels, full, left = [base], [base], []
    for one in [*chain, *main.below]:
        if one is main or one.number(254) & _MASK:
            continue
        page = pages.tried(one, remarks)
        if page is None:
            continue
        below = any(one is other for other in main.below)
        fitting = page.tiled or below or (not base.tiled and page.subfile & _REDUCED)
        if page.shape == base.shape and not page.subfile & _REDUCED and not below:
            full.append(page)
        elif fitting and is_smaller(page, base):
            levels.append(page)
        else:
            left.append(page)
    if len(full) > 1:
        raise pages.refused(
            f"holds {len(full)} pages of {base.width} x {base.height} pixels, and nothing says "
            f"whether they are channels, planes or slides; its pages: {_sizes(chain)}; convert it "
            "to OME-TIFF, or give each slide a file of its own"
        )
    ordered = sorted(levels, key=lambda page: -page.width * page.height)
    kept = _without_doubles(ordered, left)
    if left:
        remarks.append(
            "left out: pages that are no smaller version of the first one; all pages: "
            f"{_sizes(chain)}"
        )
    return Plan(
        format="TIFF",
        levels=tuple(((page,),) for page in kept),
        mpp=stated_size(main),
        remarks=tuple(remarks),
    )


def _without_doubles(ordered: Sequence[TiffPage], left: list[TiffPage]) -> list[TiffPage]:
    kept: list[TiffPage] = []
    for page in ordered:
        if kept and page.shape == kept[-1].shape:
            left.append(page)
        else:
            kept.append(page)
    return kept


def _sizes(chain: Sequence[Directory]) -> str:
    shown = [f"{one.number(256)} x {one.number(257)}" for one in chain[:_TOLD]]
    return ", ".join(shown) + (f", and {len(chain) - _TOLD} more" if len(chain) > _TOLD else "")


def is_smaller(page: TiffPage, base: TiffPage) -> bool:
    """Return whether a page can be the same picture in fewer pixels: its kind and proportions."""
    if (page.channels, page.dtype, page.is_rgb) != (base.channels, base.dtype, base.is_rgb):
        return False
    if base.width < _LEAST_STEP * page.width and base.height < _LEAST_STEP * page.height:
        return False
    expected = base.height * page.width / base.width
    # Both sides are rounded, so the step is known to a pixel of the width.
    return abs(page.height - expected) <= 1 + page.height / page.width


def downsample_of(base: tuple[int, int], shape: tuple[int, int]) -> float:
    """Return how many pixels of level 0 one pixel of a level stands for, along an axis.

    Where both sides are those of a whole step, rounded down or up, it is that step.
    """
    steps = [whole / part for whole, part in zip(base, shape, strict=True)]
    mean = sum(steps) / len(steps)
    step = max(1, round(mean))
    if all(
        part in (whole // step, -(-whole // step)) for whole, part in zip(base, shape, strict=True)
    ):
        return float(step)
    return mean


def stated_size(directory: Directory) -> tuple[float, float] | None:
    """Return micrometres for each pixel (y, x) by a page's resolution tags; None where not said.

    ImageJ writes a unit of its own into the description.
    """
    unit = directory.number(296, 2)
    named = _IMAGEJ_UNIT.match(directory.text(270)[:4096])
    sides = []
    for tag in (283, 282):
        density = (*directory.reals(tag), 0.0)[0]
        if named and density > 0:
            sides.append(from_length(1 / density, named[1].replace("\\u00B5", "µ")))
        else:
            sides.append(from_density(density, unit))
    y, x = sides
    return None if y is None or x is None else (y, x)
