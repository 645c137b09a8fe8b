"""What the rivals' readers of patches share: their arguments and how they are measured.

Arguments: DATA FOLDER ACTION VARIANT WORKERS. ``prepare`` fills FOLDER, ``read`` reads patches of
it. The volumes lie in ``cases`` beside FOLDER, with ``task.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.files import read_all
from harness.patches import DISK, Pass, Task, disk_megabytes, read_patches
from reading import leave

__all__ = ["Work", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What to read, and how.

    Args:
        task: The patches.
        folder: The rival's own files.
        variant: Which way of several.
        workers: How many processes make patches.
    """

    task: Task
    folder: Path
    variant: str
    workers: int


def run(
    reader: Callable[[Work], Pass],
    places: Callable[[Work], list[Path]],
    prepare: Callable[[Work], None] | None = None,
) -> None:
    """Do what the arguments of the script say; print the figures.

    Args:
        reader: Makes dataset and loader, and returns what makes the batches of a pass.
        places: Files and folders that patches are read from.
        prepare: Writes the rival's own files.
    """
    _, folder, action, variant, workers = sys.argv[1:]
    beside = Path(folder).parent / "cases"
    facts = json.loads((beside / "task.json").read_text())
    task = Task(folder=beside, **facts)
    work = Work(task=task, folder=Path(folder), variant=variant, workers=int(workers))
    figures: dict[str, float] = {}
    if action == "prepare":
        if prepare is not None:
            prepare(work)
    else:
        for place in places(work):
            read_all(place)
        figures = read_patches(task, reader(work))
        figures[DISK] = disk_megabytes(*places(work))
    print(json.dumps(figures), flush=True)
    leave()
