"""Patches of labelled volumes for training: what is asked of all readers, and how it is timed.

A pass visits each case once and takes four patches of it. The clock runs over whole passes after
the first one; the memory of all processes is looked at only after that, so that looking costs no
speed. Needs nothing of this package: rivals run under another interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.figures import OWN, TOTAL
from harness.weigh import Scales

__all__ = [
    "BATCH_CASES",
    "DISK",
    "PER_CASE",
    "RATE",
    "Pass",
    "Task",
    "disk_megabytes",
    "read_patches",
]

PER_CASE, BATCH_CASES = 4, 2
RATE, DISK = "patches/s", "MB on disk"
_SECONDS, _QUICK_SECONDS = 6.0, 0.2
_MEMORY_SECONDS = 2.0

# Makes the batches of one pass over the cases: images and labels, (n, 1, i, j, k) each.
Pass = Callable[[], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to read.

    Args:
        folder: Where the cases are: ``nii`` and ``nii.gz``, each with ``images`` and ``labels``.
        patch: Voxels along each side of a patch.
        cases: How many there are.
        quick: Only to see that it works.
    """

    folder: Path
    patch: int
    cases: int
    quick: bool

    def pairs(self, ending: str) -> list[dict[str, str]]:
        """Return the paths of image and label of each case."""
        images = sorted((self.folder / ending / "images").iterdir())
        return [
            {"image": str(path), "label": str(path.parents[1] / "labels" / path.name)}
            for path in images
        ]


def disk_megabytes(*places: Path) -> float:
    """Return the size of files, and of all that is in folders."""
    files = [
        path
        for place in places
        for path in ([place] if place.is_file() else place.rglob("*"))
        if path.is_file()
    ]
    return sum(path.stat().st_size for path in files) / 1e6


def read_patches(task: Task, one_pass: Pass) -> dict[str, float]:
    """Read passes and return their figures.

    Raises:
        SystemExit: A patch has another shape or dtype, or no voxel of foreground; or not all came.
    """
    wanted = task.cases * PER_CASE
    _read(task, one_pass, wanted, thorough=True)
    patches, began = 0, time.perf_counter()
    least = _QUICK_SECONDS if task.quick else _SECONDS
    while (seconds := time.perf_counter() - began) < least:
        patches += _read(task, one_pass, wanted)
    scales, began = Scales(), time.perf_counter()
    while True:
        _read(task, one_pass, wanted, thorough=True)
        if task.quick or time.perf_counter() - began > _MEMORY_SECONDS:
            break
    whole, own = scales.read()
    return {RATE: patches / seconds, TOTAL: whole, OWN: own}


def _read(task: Task, one_pass: Pass, wanted: int, *, thorough: bool = False) -> int:
    count = 0
    for image, label in one_pass():
        count += _checked(task, image, label, thorough=thorough)
    if count != wanted:
        raise SystemExit(f"{count} patches came, {wanted} were expected")
    return count


def _checked(task: Task, image: Any, label: Any, *, thorough: bool) -> int:
    """Return how many patches a batch has."""
    shape = (1, *(task.patch,) * 3)
    for values in (image, label):
        if tuple(values.shape[1:]) != shape or len(values) != len(image):
            raise SystemExit(f"patches of shape {tuple(values.shape)}; (n, *{shape}) is expected")
    if str(image.dtype) != "torch.float32":
        raise SystemExit(f"images of {image.dtype}; float32 is expected")
    float(image[:, 0, 0, 0, 0].sum()), float(label[:, 0, 0, 0, 0].sum())
    if thorough and not bool((label > 0).flatten(1).any(1).all()):
        raise SystemExit("a patch without foreground; all were to have some")
    return len(image)
