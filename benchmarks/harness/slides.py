"""Regions of a large picture at random places, and how reading them is timed."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.files import evict, read_all

__all__ = [
    "COLD",
    "OPENING",
    "REGIONS",
    "SIDES",
    "SIZE",
    "TILE",
    "WARM",
    "WAYS",
    "Reader",
    "Task",
    "measure",
]

SIDES = (224, 512)
WAYS = ("aligned", "shifted")
WARM, COLD, OPENING = "warm", "cold", "opening, cold"
SIZE = "MB on disk"
TILE = 256
REGIONS = 400  # of each kind
_COLD_COUNT, _OPENINGS = 40, 5
_LARGE = 100_000_000  # bytes: of less, what forty regions map is a large part
_FAR = 6.0  # mean difference at most, of 255: a decoder may smooth colour as it likes

# Reads the square region whose upper left pixel is (y, x): an array of its own, (h, w, 3) uint8.
Reader = Callable[[int, int, int], npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to read.

    Args:
        folder: Where the picture is, with the places of the regions.
    """

    folder: Path

    @property
    def tiled(self) -> Path:
        """A TIFF with JPEG tiles of quality 90 and levels."""
        return self.folder / "tiled.tif"

    @property
    def streamed(self) -> Path:
        """The same picture as one JPEG."""
        return self.folder / "slide.jpg"

    def places(self, side: int, way: str) -> list[tuple[int, int]]:
        """The upper left pixels (y, x) of regions of one size, on the tiles' grid or beside it."""
        found = json.loads((self.folder / "places.json").read_text())
        return [(y, x) for y, x in found[f"{side} {way}"]]

    def expected(self, side: int, way: str) -> npt.NDArray[np.uint8]:
        """What the first regions show, (n, side, side, 3)."""
        found: npt.NDArray[np.uint8] = np.load(self.folder / f"{side}-{way}.npy")
        return found


def measure(
    task: Task, place: Path, opened: Callable[[], Reader], *, most: int = REGIONS
) -> Mapping[str, float]:
    """Time regions one by one, by one handle that is kept; return the figures.

    Warm: the file is in the page cache. Cold: the file is dropped from it before each region; what
    the handle knows of it stays, in its memory or in pages that it has mapped. Opening: a handle is
    made and reads its first region, all of it cold.

    Args:
        task: What to read.
        place: The file that is read.
        opened: Opens it.
        most: Regions of each kind.
    """
    files = read_all(place)
    figures = {SIZE: _bytes(files) / 1e6}
    for side in SIDES:
        for way in WAYS:
            places = task.places(side, way)[:most]
            reader = opened()
            _require_alike(task, reader, side, way, most)
            figures[_name(side, way, WARM)] = _median(_timed(reader, at, side) for at in places)
            del reader
            if way == "shifted":
                spent = _cold(files, places, side, opened)
                figures[_name(side, way, OPENING)], figures[_name(side, way, COLD)] = spent
                read_all(place)
    return figures


def _cold(
    files: list[Path], places: list[tuple[int, int]], side: int, opened: Callable[[], Reader]
) -> tuple[float, float]:
    """Return the ms of opening with the first region, and of a region by a handle that is kept."""
    opening = []
    few = min(_OPENINGS, len(places) // 2)
    for at in places[:few]:
        reader: Reader | None = None  # what is mapped cannot be dropped
        gc.collect()  # files stay mapped as long as rings of objects wait for it
        _drop(files, most=0.05)
        begin = time.perf_counter()
        reader = opened()
        reader(at[0], at[1], side)
        opening.append((time.perf_counter() - begin) * 1e3)
    spent = []
    for at in places[few : few + _COLD_COUNT]:
        _drop(files, most=0.05 if _bytes(files) > _LARGE else 1)  # what is mapped stays
        assert reader is not None
        spent.append(_timed(reader, at, side))
    return _median(opening), _median(spent)


def _bytes(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _drop(files: list[Path], *, most: float) -> None:
    for file in files:
        evict(file, most=most)


def _name(side: int, way: str, how: str) -> str:
    return f"ms for {side}², {way}, {how}"


def _require_alike(task: Task, reader: Reader, side: int, way: str, most: int) -> None:
    pairs = zip(task.places(side, way)[:most], task.expected(side, way), strict=False)
    for (y, x), expected in pairs:
        found = reader(y, x, side)
        far = float(np.abs(found.astype(np.int16) - expected).mean())
        if found.shape != expected.shape or far > _FAR:
            raise SystemExit(f"region at y={y}, x={x} of {side}² is {far:.1f} off")


def _timed(reader: Reader, at: tuple[int, int], side: int) -> float:
    begin = time.perf_counter()
    reader(at[0], at[1], side)
    return (time.perf_counter() - begin) * 1e3


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)
