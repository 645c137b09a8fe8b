"""A volume of clinical size, patches of it at random places, and how reading them is timed."""

from __future__ import annotations

import gc
import gzip
import json
import statistics
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.files import evict, read_all

__all__ = ["COLD", "DTYPES", "PATCHES", "SIZE", "WARM", "Reader", "Task", "make_volumes", "measure"]

DTYPES = ("int16", "float32")
PATCHES = (128, 96)
WARM, COLD = "warm", "cold"
SIZE = "MB on disk"
_SHAPE, _QUICK_SHAPE = (480, 512, 512), (40, 48, 56)
_NOISE, _SPREAD = 10.0, 400.0  # of a CT, and what float volumes are divided by, in HU
_COUNT, _COLD_COUNT = 200, 20

# Reads the patch of one size that begins at a place: an array of its own.
Reader = Callable[[tuple[int, int, int], int], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to read.

    Args:
        folder: Where the volumes are, with the places of the patches.
    """

    folder: Path

    @property
    def places(self) -> dict[str, list[list[int]]]:
        """The first voxel of each patch, for each size."""
        found: dict[str, list[list[int]]] = json.loads((self.folder / "places.json").read_text())
        return found

    def source(self, dtype: str) -> Path:
        """The volume as NumPy writes it."""
        return self.folder / f"{dtype}.npy"

    def volume(self, dtype: str) -> npt.NDArray[Any]:
        """The volume, mapped."""
        found: npt.NDArray[Any] = np.load(self.source(dtype), mmap_mode="r")
        return found


def make_volumes(data: Path, folder: Path, *, quick: bool) -> Task:
    """Write a volume as int16 and as normalised float32, and draw the places of the patches.

    Args:
        data: Where a NIfTI file of a CT is looked for; without one, a body of ellipses is drawn.
        folder: Where to write.
        quick: A tiny one.
    """
    folder.mkdir()
    shape = _QUICK_SHAPE if quick else _SHAPE
    rng = np.random.default_rng(0)
    files = sorted(data.glob("ct*.nii.gz"))
    small = _read_nifti(files[0]) if files else _drawn(rng)
    targets = {
        dtype: np.lib.format.open_memmap(folder / f"{dtype}.npy", "w+", dtype, shape)
        for dtype in DTYPES
    }
    rows = _resized(_resized(small, 1, shape[1]), 2, shape[2])
    position = np.linspace(0, len(rows) - 1, shape[0])
    for plane, at in enumerate(position):
        low = min(int(at), len(rows) - 2)
        share = np.float32(at - low)
        values = rows[low] * (1 - share) + rows[low + 1] * share
        values += rng.normal(0, _NOISE, values.shape).astype(np.float32)
        targets["int16"][plane] = np.rint(values)
        targets["float32"][plane] = values / np.float32(_SPREAD)
    for target in targets.values():
        target.flush()
    places = {
        str(size): rng.integers(0, np.array(shape) - _side(size, shape) + 1, (_COUNT, 3)).tolist()
        for size in PATCHES
    }
    (folder / "places.json").write_text(json.dumps(places))
    return Task(folder=folder)


def _side(size: int, shape: tuple[int, ...]) -> int:
    return min(size, min(shape) // 2)


def _read_nifti(path: Path) -> npt.NDArray[np.float32]:
    """Return the voxels of a little-endian int16 file without scaling, the slowest axis first."""
    data = gzip.decompress(path.read_bytes())
    shape = struct.unpack_from("<3h", data, 42)
    (start,) = struct.unpack_from("<f", data, 108)
    voxels = np.frombuffer(data, "<i2", int(np.prod(shape)), int(start))
    return voxels.reshape(shape[::-1]).astype(np.float32)


def _drawn(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return a body: tissue in air, with organs and bones."""
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in (30, 96, 112)], indexing="ij"), -1)
    body = np.full(grid.shape[:3], -1000.0, np.float32)
    body[np.square(grid / (2.0, 0.8, 0.9)).sum(-1) < 1] = 20
    for value in (-90, 60, 110, 700, 40, -600, 160, 300):
        middle, half = rng.uniform(-0.5, 0.5, 3), rng.uniform(0.1, 0.35, 3)
        body[np.square((grid - middle) / half).sum(-1) < 1] = value
    return body


def _resized(values: npt.NDArray[np.float32], axis: int, size: int) -> npt.NDArray[np.float32]:
    """Interpolate along one axis."""
    position = np.linspace(0, values.shape[axis] - 1, size)
    low = np.minimum(position.astype(np.int64), values.shape[axis] - 2)
    share = (position - low).astype(np.float32)
    share = share.reshape([-1 if each == axis else 1 for each in range(values.ndim)])
    first, second = np.take(values, low, axis), np.take(values, low + 1, axis)
    result: npt.NDArray[np.float32] = first * (1 - share) + second * share
    return result


def measure(
    task: Task,
    path: Callable[[str], Path],
    opened: Callable[[str], Reader],
    *,
    most: int = _COUNT,
    dtypes: tuple[str, ...] = DTYPES,
) -> Mapping[str, float]:
    """Time patches one by one; return the figures.

    Warm: after the whole volume was read once, by the same reader. Cold: opened anew for every
    patch, after the system has dropped the file from its cache.

    Args:
        task: What to read.
        path: The file or folder of one dtype.
        opened: Opens it.
        most: Patches of each size.
        dtypes: What this format is asked for.
    """
    figures: dict[str, float] = {}
    for dtype in dtypes:
        place = path(dtype)
        files = read_all(place)
        shape = task.volume(dtype).shape
        figures[f"{dtype}: {SIZE}"] = sum(file.stat().st_size for file in files) / 1e6
        for size, places in task.places.items():
            side = _side(int(size), shape)
            starts = [(int(i), int(j), int(k)) for i, j, k in places[:most]]
            reader = opened(dtype)
            _require_equal(task.volume(dtype), reader, starts[:3], side)
            if most == _COUNT:
                _touch_all(reader, shape, side)
            figures[f"{dtype}: ms for {size}³, {WARM}"] = _median(reader, starts, side)
            del reader
            gc.collect()  # files stay mapped as long as rings of objects wait for it
            spent = []
            for start in starts[: min(most, _COLD_COUNT)]:
                for file in files:
                    evict(file, most=0.05)
                reader = opened(dtype)
                spent.append(_timed(reader, start, side))
                del reader
                gc.collect()
            figures[f"{dtype}: ms for {size}³, {COLD}"] = statistics.median(spent)
    return figures


def _require_equal(
    truth: npt.NDArray[Any], reader: Reader, starts: list[tuple[int, int, int]], side: int
) -> None:
    """End where a reader returns other numbers than were written."""
    for start in starts:
        region = tuple(slice(s, s + side) for s in start)
        if not np.array_equal(reader(start, side), truth[region]):
            raise SystemExit(f"the patch at {start} is not what was written")


def _touch_all(reader: Reader, shape: tuple[int, ...], side: int) -> None:
    steps = [[*range(0, n - side, side), n - side] for n in shape]
    for i in steps[0]:
        for j in steps[1]:
            for k in steps[2]:
                reader((i, j, k), side)


def _timed(reader: Reader, start: tuple[int, int, int], side: int) -> float:
    started = time.perf_counter()
    reader(start, side)
    return (time.perf_counter() - started) * 1e3


def _median(reader: Reader, starts: list[tuple[int, int, int]], side: int) -> float:
    return statistics.median(_timed(reader, start, side) for start in starts)
