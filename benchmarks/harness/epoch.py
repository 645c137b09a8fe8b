"""One epoch of training batches: its speed in the middle, its memory at the end, all its images.

The clock starts when three batches of each worker have come, so that none is ahead by what it made
while others started, and stops at three quarters of the epoch, before the workers run out of work.
The memory of all processes is looked at only after that, so that looking costs no speed. Needs
NumPy and nothing of this package: rivals run under another interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.figures import BATCH, FIRST, OWN, RATE, SIDE, TOTAL, WORKERS
from harness.weigh import Scales

__all__ = ["Batches", "batch_size", "count_labels", "first_figures", "read_epoch"]

_FEW = 10  # batches that an epoch has at least
_LEFT_OUT = 3  # batches of each worker before the clock starts

Counts = npt.NDArray[np.int64]
Batches = Iterable[tuple[Any, Any]]


def batch_size(samples: int) -> int:
    """Return the images in a batch: fewer where there are too few for a measurement."""
    return min(BATCH, max(1, samples // _FEW))


def count_labels(source: Path) -> Counts:
    """Return how many images each label has: of class folders, or of ``labels.npy``."""
    packed = source / "labels.npy"
    if packed.exists():
        return np.bincount(np.load(packed)).astype(np.int64)
    classes = sorted(entry for entry in source.iterdir() if entry.is_dir())
    return np.array([sum(1 for _ in folder.iterdir()) for folder in classes], np.int64)


def read_epoch(
    make: Callable[[], Batches], counts: Counts, *, workers: int = WORKERS, exact: bool = True
) -> dict[str, float]:
    """Read an epoch and return its figures.

    Args:
        make: Makes the loader and begins its epoch: batches of images, uint8, (n, 3, 224, 224) or
            (n, 224, 224, 3), and of labels (n,).
        counts: How many images of each label there are.
        workers: How many make batches.
        exact: Whether each image must come exactly once; else about as many as there are.

    Raises:
        SystemExit: The batches are of another kind, or not all images came.
    """
    total = int(counts.sum())
    batches = -(-total // batch_size(total))
    begin, end = min(_LEFT_OUT * workers, batches // 3), batches * 3 // 4
    seen = np.zeros_like(counts)
    scales: Scales | None = None
    images = before = 0
    first = began = seconds = 0.0
    started = time.perf_counter()
    for number, (pictures, labels) in enumerate(make(), 1):
        images += _checked(pictures, labels)
        seen += np.bincount(np.asarray(labels).reshape(-1), minlength=len(counts))
        if number == 1:
            first = time.perf_counter() - started
        if number == begin:
            began, before = time.perf_counter(), images
        elif number == end:
            seconds, before = time.perf_counter() - began, images - before
            scales = Scales()
    if scales is None:
        raise SystemExit(f"{images} images came, {total} were expected")
    whole, own = scales.read()
    wrong = int(np.abs(seen - counts).sum()) if exact else max(0, abs(images - total) - BATCH)
    if wrong:
        raise SystemExit(f"of {total} images {images} came, {wrong} too often or not at all")
    return {RATE: before / seconds, TOTAL: whole, OWN: own, FIRST: first}


def first_figures(make: Callable[[], Batches]) -> dict[str, float]:
    """Return the seconds from making a dataset and its loader to the first batch."""
    started = time.perf_counter()
    pictures, labels = next(iter(make()))
    seconds = time.perf_counter() - started
    _checked(pictures, labels)
    return {FIRST: seconds}


def _checked(pictures: Any, labels: Any) -> int:
    """Return how many images a batch has; touch each, so that it is known to be there."""
    shape = tuple(pictures.shape)
    known = shape[1:] in ((3, SIDE, SIDE), (SIDE, SIDE, 3))
    if not known or not str(pictures.dtype).endswith("uint8") or len(labels) != shape[0]:
        raise SystemExit(f"a batch {shape} of {pictures.dtype}, {len(labels)} labels")
    int(pictures[:, 0, 0, 0].sum())
    return int(shape[0])
