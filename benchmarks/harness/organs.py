"""A label of three classes, at several sizes, and what is asked of drawing its voxels."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.weigh import weigh

__all__ = [
    "CLASSES",
    "DRAW",
    "HELD",
    "PATCH",
    "READY",
    "draws",
    "label_path",
    "sides",
    "write_label",
]

CLASSES, PATCH = (1, 2, 3), 96
HELD = "MB held for the case"
DRAW, READY = "µs for a draw", "ms before the first draw"
_SIDES, _QUICK_SIDES = (128, 256, 512), (98, 112)
_COUNT, _QUICK_COUNT = 1000, 60
_FAR = 6.0  # standard deviations that a class may be drawn too often or too rarely
# An organ, a vessel, a lesion: middle and half axes, as shares of the side.
_PARTS = (
    (1, (0.45, 0.5, 0.5), (0.30, 0.24, 0.22)),
    (2, (0.5, 0.55, 0.5), (0.48, 0.04, 0.05)),
    (3, (0.35, 0.42, 0.6), (0.03, 0.02, 0.03)),
)

# Draws the voxel that a patch is cut around.
Draw = Callable[[], tuple[int, int, int]]


def sides(*, quick: bool) -> tuple[int, ...]:
    """Return the sides of the volumes, in voxels."""
    return _QUICK_SIDES if quick else _SIDES


def label_path(folder: Path, side: int) -> Path:
    """Return where the label of one size is."""
    return folder / str(side) / "labels" / "case.npy"


def write_label(folder: Path, side: int) -> None:
    """Write a label, uint8, and an image of nothing beside it."""
    axis = (np.arange(side, dtype=np.float32) + 0.5) / side
    label = np.zeros((side,) * 3, np.uint8)
    for number, middle, half in _PARTS:
        i, j, k = (np.square((axis - m) / h) for m, h in zip(middle, half, strict=True))
        for plane, at in enumerate(i):
            label[plane][at + j[:, None] + k < 1] = number
    for what, values in (("labels", label), ("images", np.zeros_like(label))):
        path = folder / str(side) / what / "case.npy"
        path.parent.mkdir(parents=True)
        np.save(path, values)


def draws(
    folder: Path, side: int, ready: Callable[[], Draw], *, quick: bool
) -> Mapping[str, float]:
    """Get ready for one size and draw; return the figures.

    Args:
        folder: Where the labels are.
        side: Of the volume.
        ready: Does what is done once for a case; what the drawing needs stays in memory.
        quick: Only to see that it works.

    Raises:
        SystemExit: A voxel of no class, or classes that are not equally likely.
    """
    ready()()  # what is loaded and compiled at the first time
    gc.collect()
    before = weigh()[1]
    began = time.perf_counter()
    draw = ready()
    seconds = time.perf_counter() - began
    voxels, spent = [], []
    for _ in range(_QUICK_COUNT if quick else _COUNT):
        began = time.perf_counter()
        voxels.append(draw())
        spent.append(time.perf_counter() - began)
    gc.collect()
    held = weigh()[1] - before
    label = np.load(label_path(folder, side), mmap_mode="r")
    _check([int(label[voxel]) for voxel in voxels])
    return {
        f"{side}³: {READY}": seconds * 1e3,
        f"{side}³: {DRAW}": statistics.median(spent) * 1e6,
        f"{side}³: {HELD}": max(held, 1e-3),
    }


def _check(found: list[int]) -> None:
    counts: npt.NDArray[np.int64] = np.bincount(found, minlength=max(CLASSES) + 1)
    expected = len(found) / len(CLASSES)
    far = np.abs(counts[list(CLASSES)] - expected).max() / np.sqrt(expected)
    if counts[list(CLASSES)].sum() != len(found) or far > _FAR:
        raise SystemExit(f"voxels drawn by class: {counts.tolist()}; a third each is expected")
