"""A slide of a store as a small picture: as it is, and with its tissue and patches on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from sharedds.errors import SampleKeyError, StoreFormatError
from sharedds.ingest.exports.panels import Panel, to_grey
from sharedds.store import ChunkedArray, Store
from sharedds.text import printable

__all__ = ["holds_slides", "slide_panel"]

_MOST = 16 << 20  # pixels of a level that is read for a thumbnail; of larger ones the cells' means
_ENDS = (0.5, 99.5)  # per cent of the values between which other dtypes are spread
_LEAST_TISSUE = 0.5
_TINT = np.array([40, 200, 120], np.float32)
_PATCH = (255, 150, 40)
_GAP = 6
_SMALLEST = 4  # pixels: outlines of smaller patches would cover what they show

Values = npt.NDArray[Any]


def holds_slides(source: Store) -> bool:
    """Return whether a store was packed from slides."""
    blocks = {field.name for field in source.header.fields if field.kind == "blocks"}
    return source.attrs.get("kind") == "slide" and "image" in blocks


def slide_panel(source: Store, index: int, side: int) -> Panel:
    """Draw one slide, twice: as it is; and with its tissue tinted and patches outlined.

    Patches are those of a grid of two tiles each that have at least half of tissue.

    Args:
        source: A store of slides.
        index: The slide.
        side: Pixels: each of the two pictures is at most this wide and high.

    Raises:
        StoreFormatError: It is no slide.
        CorruptDataError: A tile fails its checksum.
    """
    image = source.array(index, "image")
    if image.ndim not in (3, 4) or 0 in image.shape:
        raise StoreFormatError(
            f"{source.path}: sample {index} has the shape {image.shape}; a slide has 3 axes, or 4",
            path=source.path,
            sample=index,
            field="image",
        )
    height, width = image.shape[-3:-1]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    plain = Image.fromarray(_shown(source, index, image, side)).resize(size, Image.Resampling.BOX)
    marked, share = _marked(source, index, plain, (height, width))
    sheet = Image.new("RGB", (2 * side + _GAP, side), (26, 26, 28))
    for number, part in enumerate((plain, marked)):
        left = number * (side + _GAP) + (side - part.width) // 2
        sheet.paste(part, (left, (side - part.height) // 2))
    mpp = image.attrs.get("mpp")
    fine = f", {mpp[1]:.4g} micrometres a pixel" if isinstance(mpp, list) and len(mpp) == 2 else ""
    levels = f"{len(image.levels)} level{'s' * (len(image.levels) > 1)}"
    tissue = "tissue not known" if share is None else f"{share:.0%} tissue"
    lines = (
        printable(source.key(index)),
        f"{width:,} x {height:,} pixels{fine}; {levels}; {tissue}",
    )
    return Panel(sheet, lines)


def _shown(source: Store, index: int, image: ChunkedArray, side: int) -> npt.NDArray[np.uint8]:
    """Return a picture of about the size that is shown, or larger."""
    fitting = [n for n, shape in enumerate(image.levels) if max(shape[-3:-1]) >= side] or [0]
    level = image.level(fitting[-1])
    if math.prod(level.shape[-3:-1]) <= _MOST:
        values = level[level.shape[0] // 2] if level.ndim == 4 else level[...]
    else:
        values = source.array(index, "mean")[...]
    if image.attrs.get("is_rgb") and values.dtype == np.uint8:
        return np.ascontiguousarray(values[..., :3])
    return _coloured(values)


def _coloured(values: Values) -> npt.NDArray[np.uint8]:
    """Return up to three channels as colours, each spread over its own range."""
    out = np.zeros((*values.shape[:2], 3), np.uint8)
    channels = values.shape[2]
    for channel in range(min(3, channels)):
        plane = values[..., channel]
        known = plane[np.isfinite(plane)] if plane.dtype.kind == "f" else plane
        low, high = np.percentile(known, _ENDS) if known.size else (0.0, 1.0)
        grey = to_grey(plane, float(low), float(high))
        out[..., channel] = grey
        if channels == 1:
            out[..., 1] = out[..., 2] = grey
    return out


def _marked(
    source: Store, index: int, plain: Image.Image, shape: tuple[int, int]
) -> tuple[Image.Image, float | None]:
    """Return the picture with tissue and patches on it, and the share of tissue."""
    try:
        counts = source.array(index, "tissue")
    except SampleKeyError:
        return plain, None
    cell = int(counts.attrs.get("cell", 1))
    values = counts[...]
    share = values.sum(dtype=np.int64) / (shape[0] * shape[1])
    rows, columns = values.shape
    inside = np.outer(_sides(shape[0], cell), _sides(shape[1], cell))  # pixels of each cell
    full = (values >= _LEAST_TISSUE * inside).astype(np.uint8) * 255
    scale = plain.width / shape[1]
    whole = max(1, round(columns * cell * scale)), max(1, round(rows * cell * scale))
    mask = np.asarray(Image.fromarray(full).resize(whole, Image.Resampling.NEAREST))
    mask = mask[: plain.height, : plain.width] > 0
    pixels = np.asarray(plain).astype(np.float32)
    covered = pixels[: mask.shape[0], : mask.shape[1]]
    covered[mask] = covered[mask] * 0.65 + _TINT * 0.35
    marked = Image.fromarray(pixels.astype(np.uint8))
    tile = min(source.array(index, "image").chunk[-3:-1])
    _outline(marked, values, cell, step=max(1, 2 * tile // cell), scale=scale)
    return marked, float(share)


def _sides(size: int, cell: int) -> npt.NDArray[np.int64]:
    """Return how many pixels of the slide each cell has along an axis."""
    return np.minimum(cell, size - cell * np.arange(-(-size // cell)))


def _outline(picture: Image.Image, counts: Values, cell: int, *, step: int, scale: float) -> None:
    side = step * cell * scale
    if side < _SMALLEST:
        return
    draw = ImageDraw.Draw(picture)
    down = np.add.reduceat(counts, np.arange(0, len(counts), step), axis=0, dtype=np.int64)
    sums = np.add.reduceat(down, np.arange(0, counts.shape[1], step), axis=1)
    for row, column in np.argwhere(sums >= _LEAST_TISSUE * (step * cell) ** 2):
        left, top = column * side, row * side
        draw.rectangle((left, top, left + side - 1, top + side - 1), outline=_PATCH)
