"""One slide on its way into a store: its tiles to the spool, then everything as a sample."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError, MissingExtraError, SharedDSError
from sharedds.ingest.executor import run_in_order
from sharedds.ingest.slides.levels import Made, Place, TileMaker, array_meta, encoded_tile
from sharedds.ingest.slides.recipe import SlidePlan, SlideRecipe
from sharedds.ingest.slides.shapes import Shapes
from sharedds.ingest.slides.spool import TileSpool
from sharedds.slides.source import SlideFile, SlideHeader, SlideReader
from sharedds.store import ArrayValue, EncodedArray

__all__ = ["SlideWork", "fill_spool", "sample_of", "stored_share"]

_MOST_BAD = 0.5  # of the tiles of level 0: with more, the slide is refused
_LISTED = 100  # bad tiles that are named in the store
_NAMED = 20  # and in a report
_SAMPLED = 12  # tiles of a slide that are encoded for an estimate

Values = npt.NDArray[Any]


@dataclass(slots=True, kw_only=True)
class SlideWork:
    """A slide and what is to be made of it.

    Attributes:
        file: The slide.
        plan: How it is stored.
        recipe: How tiles are encoded.
        shapes: Regions drawn on it; None without a file of them.
        classes: Names of the classes of all slides.
        labelled: Whether the store has labels.
        remarks: What a person should be told of the tiles, found while they are made.
    """

    file: SlideFile
    plan: SlidePlan
    recipe: SlideRecipe
    shapes: Shapes | None
    classes: tuple[str, ...]
    labelled: bool
    remarks: list[str] = field(default_factory=list)


def fill_spool(
    work: SlideWork,
    reader: SlideReader,
    spool: TileSpool,
    *,
    workers: int,
    raises: bool,
    advance: Callable[[int, int], object],
) -> None:
    """Make the tiles that are not in the spool yet, level by level.

    Args:
        work: The slide.
        reader: Its open file.
        spool: Takes the tiles; those of an interrupted run are in it.
        workers: Threads.
        raises: Whether a bad tile ends it; else it becomes one that is not there.
        advance: Called with tiles and bytes that were written.

    Raises:
        DecodeError: A bad tile, or too many of them; the text has level, row and column.
        StorageFullError: No room; what is there stays.
    """
    maker = TileMaker(
        reader=reader,
        header=work.file.header,
        plan=work.plan,
        recipe=work.recipe,
        spool=spool,
        shapes=work.shapes,
        classes=work.classes,
    )
    advance(len(spool), 0)
    if spool.bad and raises:
        raise DecodeError(
            f"an earlier run, which skipped bad tiles, could not read {len(spool.bad):,} of its "
            "tiles; the same call tells the first of them"
        )
    if spool.bad:
        work.remarks.append(
            f"an earlier run could not read {len(spool.bad):,} of its tiles, which are left out"
        )
    first = 0
    limit = int(_MOST_BAD * work.plan.levels[0].tiles * len(work.plan.planes))
    for number, level in enumerate(work.plan.levels):
        count = level.tiles * len(work.plan.planes)
        start = max(0, len(spool) - first)
        if start < count:
            items = _items(maker, number, start)
            with contextlib.closing(run_in_order(_pair(maker), items, workers=workers)) as results:
                for place, made in results:
                    _take(work, spool, place, made, raises=raises)
                    advance(1, len(made.data))
                    if len(spool.bad) > limit:
                        raise DecodeError(
                            f"more than half of its tiles cannot be read; the first: "
                            f"{work.remarks[0] if work.remarks else made.error}"
                        )
        first += count


def _pair(maker: TileMaker) -> Callable[[tuple[Place, Values | None]], tuple[Place, Made]]:
    def make(work: tuple[Place, Values | None]) -> tuple[Place, Made]:
        return work[0], maker.make(work)

    return make


def _take(work: SlideWork, spool: TileSpool, place: Place, made: Made, *, raises: bool) -> None:
    if made.error is not None:
        if raises:
            raise made.error
        if len(work.remarks) < _NAMED:
            work.remarks.append(
                f"level {place.level}, row {place.row}, column {place.column} is left out: "
                f"{made.error}"
            )
    figures = made.figures
    if made.error is not None and not place.level and place.plane == work.plan.indexed:
        figures = _nothing(work, place)
    spool.append(made.data, figures, is_bad=made.error is not None)


def _items(
    maker: TileMaker, number: int, start: int
) -> Iterator[tuple[tuple[Place, Values | None], int]]:
    """Yield the tiles of a level that are to be made, each with what it costs in bytes."""
    plan, header = maker.plan, maker.header
    level = plan.levels[number]
    cost = level.tile[0] * level.tile[1] * header.channels * header.dtype.itemsize
    rows, columns = level.grid
    by_rows = level.source is not None and not level.keeps and _is_by_rows(header, level.source)
    for at, place in enumerate(
        Place(number, plane, row, column)
        for plane in range(0 if by_rows else len(plan.planes))
        for row in range(rows)
        for column in range(columns)
    ):
        if at >= start:
            yield (place, None), (2 if level.source is not None else 5) * cost
    if not by_rows:
        return
    width = level.tile[1]
    for row, strip in enumerate(maker.reader.rows(level.tile[0])):
        for column in range(columns):
            if row * columns + column >= start:
                part = strip[:, column * width : (column + 1) * width].copy()
                yield (Place(number, 0, row, column), part), 2 * cost


def _is_by_rows(header: SlideHeader, level: int) -> bool:
    """Return whether a level is read from top to bottom: it has no tiles."""
    return (
        not level
        and header.planes == 1
        and (header.is_sequential or header.levels[level].tile is None)
    )


def stored_share(file: SlideFile, plan: SlidePlan, recipe: SlideRecipe) -> float | None:
    """Return what share of the bytes of the pixels is stored, by some tiles of level 0.

    None where the slide cannot be read in places, or none of these tiles can be read.
    """
    header, level = file.header, plan.levels[0]
    if _is_by_rows(header, 0):
        return None
    count = min(_SAMPLED, level.tiles)
    read = stored = 0
    try:
        with file.open() as reader:
            for number in range(count):
                row, column = divmod((2 * number + 1) * level.tiles // (2 * count), level.grid[1])
                y, x = row * level.tile[0], column * level.tile[1]
                with contextlib.suppress(DecodeError):
                    pixels = reader.read(
                        0,
                        y=y,
                        x=x,
                        height=min(level.tile[0], level.shape[0] - y),
                        width=min(level.tile[1], level.shape[1] - x),
                        plane=plan.planes[plan.indexed],
                    )
                    read += pixels.nbytes
                    stored += len(encoded_tile(pixels, plan.codec, recipe))
    except MissingExtraError:
        raise
    except SharedDSError:  # told when it is packed
        return None
    return stored / read if read else None


def _nothing(work: SlideWork, place: Place) -> bytes:
    """Return the figures of a tile that could not be read: there is nothing on it."""
    level, cell = work.plan.levels[0], work.plan.cell
    height = min(level.tile[0], level.shape[0] - place.row * level.tile[0])
    width = min(level.tile[1], level.shape[1] - place.column * level.tile[1])
    cells = -(-height // cell) * -(-width // cell)
    header = work.file.header
    mean = header.channels * (1 if header.dtype == np.uint8 else 4)
    labels = 2 * len(work.classes) if work.shapes is not None else 0
    return bytes(cells * (2 + mean + 4 + labels))


def sample_of(work: SlideWork, reader: SlideReader, spool: TileSpool) -> dict[str, Any]:
    """Return the sample that is written, when all tiles are in the spool.

    Raises:
        DecodeError: A picture beside the levels cannot be read.
    """
    header, plan = work.file.header, work.plan
    attrs = _attrs(work, spool)
    meta = array_meta(plan, header, attrs)
    blocks = (
        (number, index) for number, level in enumerate(meta.levels) for index in range(level.blocks)
    )
    tiles = ((level, index, spool.tile(at)) for at, (level, index) in enumerate(blocks))
    index = _index(work, spool)
    cell = {"cell": plan.cell}
    sample: dict[str, Any] = {
        "image": EncodedArray(meta, tiles),
        "tissue": ArrayValue(index["tissue"], attrs=cell),
        "mean": ArrayValue(index["mean"], attrs=cell),
        "sharpness": ArrayValue(index["sharpness"], attrs=cell),
        "size": np.array(plan.levels[0].shape, np.int64),
    }
    if work.labelled:
        labels = index.get("label")
        named = {**cell, "classes": list(work.classes)}
        sample["label"] = None if labels is None else ArrayValue(labels, attrs=named)
    for name in work.recipe.associated:
        known = name in header.associated
        sample[f"associated_{name}"] = reader.associated(name) if known else None
    return sample


def _attrs(work: SlideWork, spool: TileSpool) -> dict[str, Any]:
    """Return what is kept with the picture."""
    header, plan = work.file.header, work.plan
    attrs: dict[str, Any] = {
        **header.attrs,
        "format": header.format,
        "is_rgb": header.is_rgb,
        "downsamples": [level.downsample for level in plan.levels],
    }
    attrs.pop("missing", None)
    if header.mpp is not None:
        attrs["mpp"] = [float(side) for side in header.mpp]
    if header.magnification is not None:
        attrs["magnification"] = header.magnification
    if header.background is not None:
        whole = header.dtype.kind in "iu"
        attrs["background"] = [round(n) if whole else float(n) for n in header.background]
    if header.channel_names:
        attrs["channels"] = list(header.channel_names)
    missing: dict[str, int] = {}
    places, first = [], 0
    bad = set(spool.bad)
    for number, level in enumerate(plan.levels):
        count = level.tiles * len(plan.planes)
        absent = sum(not spool.size(first + at) for at in range(count))
        if absent:
            missing[str(number)] = absent
        here = sorted((n - first) % level.tiles for n in bad if first <= n < first + count)
        places += [[number, *divmod(at, level.grid[1])] for at in here]
        first += count
    if missing:
        attrs["missing"] = missing
    if places:
        attrs["bad"] = places[:_LISTED]
    return attrs


def _index(work: SlideWork, spool: TileSpool) -> dict[str, Values]:
    """Put the figures of the tiles together to those of the slide."""
    header, plan = work.file.header, work.plan
    level, cell = plan.levels[0], plan.cell
    rows, columns = (-(-side // cell) for side in level.shape)
    kind = np.dtype(np.uint8 if header.dtype == np.uint8 else np.float32)
    found: dict[str, Values] = {
        "tissue": np.zeros((rows, columns), np.uint16),
        "mean": np.zeros((rows, columns, header.channels), kind),
        "sharpness": np.zeros((rows, columns), np.float32),
    }
    if work.shapes is not None:
        found["label"] = np.zeros((rows, columns, len(work.classes)), np.uint16)
    first = plan.indexed * level.tiles
    down, across = level.tile[0] // cell, level.tile[1] // cell
    for at in range(level.tiles):
        row, column = divmod(at, level.grid[1])
        place = (
            slice(row * down, min((row + 1) * down, rows)),
            slice(column * across, min((column + 1) * across, columns)),
        )
        figures, start = spool.figures(first + at), 0
        for values in found.values():
            part = values[place]
            part[...] = np.frombuffer(figures, values.dtype, part.size, start).reshape(part.shape)
            start += part.nbytes
    return found
