"""A case of a store of volumes as a small picture: three slices, with the outlines of its labels.

Slices are shown as radiologists hang them: the patient's right is on the left, front and head are
up; in the slice from the side the face looks to the left. Pixels are square in millimetres.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from sharedds.errors import DecodeError, SampleKeyError, StoreFormatError
from sharedds.ingest.exports.panels import Panel, colour_of, to_grey
from sharedds.store import ChunkedArray, Store
from sharedds.text import printable
from sharedds.volumes.geometry import checked_affine, reorientation, spacing_of

__all__ = ["volume_panel"]

_SOFT_TISSUE = (-160.0, 240.0)  # Hounsfield units: level 40, width 400
_AIR = (-1100.0, -850.0)
_FAT = -200.0  # what is less dense is air, or lung
_ENDS = (0.5, 99.5)  # per cent of the values between which other pictures are spread
_ENOUGH = 0.25  # of the labels in a slice of the fullest block: the middle is shown if it has that
_GAP = 6
_LETTER = (150, 205, 255)

Values = npt.NDArray[Any]


class _View(NamedTuple):
    """A slice as it is hung; axes are 0 to the left, 1 to the back, 2 up (LPS)."""

    across: int  # axis the slice is cut across
    down: int  # axis that rows run along
    right: int  # axis that columns run along
    letters: tuple[str, str]  # where the left and the upper edge are


_VIEWS = (
    _View(2, 1, 0, ("R", "A")),  # axial
    _View(1, 2, 0, ("R", "S")),  # coronal
    _View(0, 2, 1, ("A", "S")),  # sagittal
)


class _Axis(NamedTuple):
    """An axis of the body: which axis of the array it is, and how it runs there."""

    axis: int
    flip: bool
    size: int
    spacing: float


def volume_panel(source: Store, index: int, side: int) -> Panel:
    """Draw one case; only blocks that slices touch are read.

    The three slices go through the middle, or, where that has few of the labels, through those of
    the block with most of them. Of several channels or moments the first is shown.

    Args:
        source: A store of volumes.
        index: The case.
        side: Pixels: the picture is at most this high and three times as wide.

    Raises:
        StoreFormatError: It is no volume, or its affine is damaged.
    """
    image = source.array(index, "image")
    lead = image.ndim - 3
    if not 0 <= lead <= 1 or 0 in image.shape:
        raise StoreFormatError(
            f"{source.path}: sample {index} has the shape {image.shape}; a volume has 3 axes, or 4",
            path=source.path,
            sample=index,
            field="image",
        )
    label = _label(source, index, image.shape[lead:])
    try:
        affine = None if image.affine is None else checked_affine(image.affine)
    except DecodeError as error:
        raise StoreFormatError(
            f"{source.path}: sample {index}: what is kept with the volume is damaged ({error})",
            path=source.path,
            sample=index,
            field="image",
        ) from error
    axes = _axes(image.shape[lead:], affine)
    at = _places(source, index, label, image.shape[lead:])
    slices = [_slice(image, axes, view, at, scaled=True) for view in _VIEWS]
    low, high, unit = _window(slices, image)
    classes = _classes(label)
    attrs = image.attrs
    negative = attrs.get("photometric") == "MONOCHROME1" and not attrs.get("inverted")
    extents = [axis.size * axis.spacing for axis in axes]
    across = sum(extents[view.right] for view in _VIEWS)
    scale = min(
        (3 * side - 2 * _GAP) / across,
        side / max(extents[view.down] for view in _VIEWS),
    )
    drawn = []
    for view, values in zip(_VIEWS, slices, strict=True):
        size = tuple(max(1, round(extents[n] * scale)) for n in (view.right, view.down))
        marks = None if label is None else _slice(label, axes, view, at, scaled=False)
        letters = view.letters if affine is not None else ("", "")
        grey = to_grey(values, low, high)
        drawn.append(_draw(255 - grey if negative else grey, marks, (size[0], size[1]), letters))
    i, j, k = image.shape[lead:]
    spacing = "" if affine is None else f", {_by(spacing_of(affine))} mm"
    more = f", first of {image.shape[0]}" if lead and image.shape[0] > 1 else ""
    where = ", ".join(f"{name} {n}" for name, n in zip("ijk", at, strict=True))
    unknown = "" if affine is not None else "; orientation unknown: axes as stored"
    lines = (
        printable(source.key(index)),
        f"{i} x {j} x {k} voxels{spacing}, {image.dtype.name}{more}",
        f"slices {where}; {_plain(low)} to {_plain(high)}{unit}{unknown}",
    )
    return Panel(_beside(drawn), lines, classes)


def _plain(value: float) -> str:
    return f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def _by(values: Sequence[float]) -> str:
    return " x ".join(f"{value:.3g}" for value in values)


def _label(source: Store, index: int, shape: tuple[int, ...]) -> ChunkedArray | None:
    if not any(field.name == "label" and field.kind == "blocks" for field in source.header.fields):
        return None
    try:
        label = source.array(index, "label")
    except SampleKeyError:  # this case has none
        return None
    return label if label.shape == shape else None


def _classes(label: ChunkedArray | None) -> tuple[int, ...]:
    ids = [] if label is None else label.attrs.get("classes")
    return tuple(n for n in ids if isinstance(n, int) and n > 0) if isinstance(ids, list) else ()


def _axes(shape: tuple[int, ...], affine: npt.NDArray[np.float64] | None) -> list[_Axis]:
    """Return the axes of the array that run to the left, to the back and up."""
    if affine is None:  # i to the right of the picture, j down; nobody knows better
        return [
            _Axis(axis, flip, shape[axis], 1.0) for axis, flip in enumerate((False, False, True))
        ]
    perm, flips = reorientation(affine, "LPS")
    spacing = spacing_of(affine)
    return [
        _Axis(axis, flip, shape[axis], spacing[axis])
        for axis, flip in zip(perm, flips, strict=True)
    ]


def _places(
    source: Store, index: int, label: ChunkedArray | None, shape: tuple[int, ...]
) -> list[int]:
    """Return through which voxel along i, j, k the slices go: the middle, or the fullest block."""
    middle = [size // 2 for size in shape]
    if label is None or "label_blocks" not in source.fields:
        return middle
    rows = np.asarray(source.value("label_blocks", index))
    each, ids = label.attrs.get("rows"), label.attrs.get("classes")
    if not isinstance(each, list) or not isinstance(ids, list) or sum(each) != len(rows):
        return middle
    rows = rows[np.repeat(np.asarray(ids) > 0, each)]
    grid = [-(-size // chunk) for size, chunk in zip(shape, label.chunk, strict=True)]
    if not len(rows) or rows[:, 0].max() >= np.prod(grid):
        return middle
    fullest = np.unravel_index(np.bincount(rows[:, 0], rows[:, 1]).argmax(), grid)
    start = [int(n) * chunk for n, chunk in zip(fullest, label.chunk, strict=True)]
    stop = [min(n + c, size) for n, c, size in zip(start, label.chunk, shape, strict=True)]
    inside = label.read(tuple(map(slice, start, stop)), scaled=False) > 0
    found = list(middle)
    for axis in range(3):
        counts = np.count_nonzero(inside, axis=tuple(n for n in range(3) if n != axis))
        across: list[Any] = [slice(None)] * 3
        across[axis] = middle[axis]
        here = np.count_nonzero(label.read(tuple(across), scaled=False) > 0)
        if here < counts.max() * _ENOUGH:
            most = np.flatnonzero(counts == counts.max())
            found[axis] = start[axis] + int(most[len(most) // 2])
    return found


def _slice(
    array: ChunkedArray, axes: list[_Axis], view: _View, at: list[int], *, scaled: bool
) -> Values:
    """Read a slice as it is hung: (rows, columns), measured values or stored ones."""
    cut = axes[view.across].axis
    region: list[Any] = [slice(None)] * 3
    region[cut] = at[cut]
    lead = (0,) * (array.ndim - 3)
    with np.errstate(over="ignore"):  # beyond 32 bits a value is infinite: white, or black
        values = array.read((*lead, *region), scaled=scaled)
    down, right = axes[view.down], axes[view.right]
    if down.axis > right.axis:
        values = values.T
    # The axis up is hung the other way round: the head is up.
    return values[:: -1 if down.flip != (view.down == 2) else 1, :: -1 if right.flip else 1]


def _window(slices: list[Values], image: ChunkedArray) -> tuple[float, float, str]:
    """Return the values that are black and white, and their unit."""
    values = np.concatenate([part.ravel() for part in slices])
    values = values[np.isfinite(values)].astype(np.float64)
    if not values.size:
        return 0.0, 1.0, ""
    if _hounsfield(values, image):
        return *_SOFT_TISSUE, " HU"
    low, high = (float(value) for value in np.percentile(values, _ENDS))
    if not high > low:
        low, high = float(values.min()), float(values.max())
    return (low, high, "") if high > low else (low - 0.5, high + 0.5, "")


def _hounsfield(values: Values, image: ChunkedArray) -> bool:
    """Return whether values are Hounsfield units, by what the file says and by what they are."""
    modality = str(image.attrs.get("modality") or "").upper()

    def share(low: float, high: float) -> float:
        return float(np.count_nonzero((values > low) & (values < high)) / values.size)

    if str(image.attrs.get("rescale_type") or "HU").upper() != "HU":
        return False
    if modality == "CT":  # though units may be others: counts of a detector, or a wrong tag
        return share(-np.inf, _FAT) > 0.001 or share(_SOFT_TISSUE[1], np.inf) < 0.25
    whole = image.dtype.kind in "iu" and float(values.max()) < 10_000
    return not modality and whole and min(share(*_AIR), share(-150, 150)) > 0.02


def _draw(
    grey: npt.NDArray[np.uint8],
    marks: Values | None,
    size: tuple[int, int],
    letters: tuple[str, str],
) -> Image.Image:
    """Draw a slice of a size in pixels, with outlines and with letters at its edges."""
    scaled = Image.fromarray(np.ascontiguousarray(grey)).resize(size, Image.Resampling.BICUBIC)
    picture = scaled.convert("RGB")
    if marks is not None:
        pixels = np.array(picture)
        _outline(pixels, marks)
        picture = Image.fromarray(pixels)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(12)
    width, height = size
    if min(size) >= 40:
        for text, place, anchor in (
            (letters[0], (3, height // 2), "lm"),
            (letters[1], (width // 2, 2), "mt"),
        ):
            draw.text(place, text, fill=_LETTER, font=font, anchor=anchor)
    return picture


def _outline(pixels: npt.NDArray[np.uint8], marks: Values) -> None:
    """Colour the outermost pixels of each label."""
    height, width = pixels.shape[:2]
    rows = (np.arange(height) + 0.5) * marks.shape[0] // height
    columns = (np.arange(width) + 0.5) * marks.shape[1] // width
    shown = marks[rows.astype(np.intp)][:, columns.astype(np.intp)]
    around = np.pad(shown, 1, mode="edge")
    edge = np.zeros(shown.shape, np.bool_)
    for down, right in ((0, 1), (2, 1), (1, 0), (1, 2)):
        edge |= around[down : down + height, right : right + width] != shown
    for class_id in np.unique(shown[edge]).tolist():
        if class_id > 0:
            pixels[edge & (shown == class_id)] = colour_of(int(class_id))


def _beside(pictures: list[Image.Image]) -> Image.Image:
    width = sum(picture.width for picture in pictures) + _GAP * (len(pictures) - 1)
    height = max(picture.height for picture in pictures)
    row = Image.new("RGB", (width, height))
    left = 0
    for picture in pictures:
        row.paste(picture, (left, (height - picture.height) // 2))
        left += picture.width + _GAP
    return row
