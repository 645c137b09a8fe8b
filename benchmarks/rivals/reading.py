"""What the rivals' readers share: their task, what they need, and how they are measured.

A reader is a script with the arguments DATA FOLDER FORM ACTION VARIANT: ``prepare`` fills its
FOLDER, ``epoch`` reads one epoch of it, ``first`` waits for the first batch alone. FORM names what
lies beside FOLDER: class folders of JPEG files, or for ``raw`` the files ``images.npy`` and
``labels.npy``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from harness.epoch import Batches, batch_size, count_labels, first_figures, read_epoch
from harness.figures import WORKERS
from harness.files import read_all
from harness.weigh import tree
from sources import as_it_is, labelled_files

__all__ = ["Task", "leave", "need", "run", "torch_batches"]

_MISSING = 3
_PREFETCH = 2  # batches that a worker makes in advance: what torch does by default


def need(name: str) -> Any:
    """Import a module, or end with the word that it is not installed."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        print(f"{name} ({error})".replace("\n", " "))
        raise SystemExit(_MISSING) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to read.

    Args:
        folder: The rival's own files.
        form: photos, encoded, raw, or tiny-COUNT.
        variant: Which way of several to read.
    """

    folder: Path
    form: str
    variant: str

    @property
    def raw(self) -> bool:
        """Whether images are arrays (256, 256, 3), not JPEG files."""
        return self.form == "raw"

    @property
    def source(self) -> Path:
        """Class folders, or the folder of arrays."""
        return self.folder.parent / self.form

    @property
    def count(self) -> int:
        """Number of samples."""
        if self.form.startswith("tiny-"):
            return int(self.form.removeprefix("tiny-"))
        return int(count_labels(self.source).sum())

    @property
    def batch(self) -> int:
        """Images in a batch."""
        return batch_size(self.count)

    def arrays(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return raw images (mapped) and their labels."""
        images = np.load(self.source / "images.npy", mmap_mode="r")
        return images, np.load(self.source / "labels.npy").astype(np.int64)

    def files(self) -> list[tuple[str, int]]:
        """Return path and label of every picture, sorted."""
        return labelled_files(self.source)

    def samples(self) -> Iterator[tuple[Any, int]]:
        """Yield what to store: bytes of a JPEG file, or an array, and its label."""
        if self.raw:
            images, labels = self.arrays()
            for image, label in zip(images, labels.tolist(), strict=True):
                yield np.ascontiguousarray(image), label
        elif self.form.startswith("tiny-"):
            few = [(as_it_is(path), label) for path, label in labelled_files(self.tiny)]
            for number in range(self.count):
                yield few[number % len(few)]
        else:
            for path, label in self.files():
                yield as_it_is(path), label

    @property
    def tiny(self) -> Path:
        """The tiny pictures that are repeated as often as a tiny form says."""
        return self.folder.parent / "tiny"

    def warm(self) -> None:
        """Read everything once, so that the page cache has it."""
        own = next(self.folder.iterdir(), None) is not None
        read_all(self.folder if own else self.tiny if self.tiny.exists() else self.source)


def torch_batches(torch: Any, dataset: Any, task: Task, **more: Any) -> Batches:
    """Return torch's own loader over a dataset: shuffled, 2 workers that stay."""
    options = {
        "batch_size": task.batch,
        "shuffle": True,
        "num_workers": WORKERS,
        "prefetch_factor": _PREFETCH,
        "persistent_workers": True,
    }
    batches: Batches = torch.utils.data.DataLoader(dataset, **{**options, **more})
    return batches


def run(
    batches: Callable[[Task], Batches],
    prepare: Callable[[Task], None] | None = None,
    *,
    exact: bool = True,
    tidies: bool = False,
) -> None:
    """Do what the arguments of the script say; print the figures.

    Args:
        batches: Makes dataset and loader.
        prepare: Writes the rival's own files.
        exact: Whether each image comes exactly once in an epoch.
        tidies: Whether it must end by itself, so that it removes its shared memory.
    """
    _, folder, form, action, variant = sys.argv[1:]
    task = Task(folder=Path(folder), form=form, variant=variant)
    figures: dict[str, float] = {}
    if action == "prepare":
        if prepare is not None:
            prepare(task)
    else:
        task.warm()
        if action == "first":
            figures = first_figures(lambda: batches(task))
        else:
            figures = read_epoch(lambda: batches(task), count_labels(task.source), exact=exact)
    print(json.dumps(figures), flush=True)
    if not tidies:
        leave()


def leave() -> None:
    """End at once, and all workers: some rivals wait for theirs, or leave them behind."""
    sys.stderr.flush()
    for pid in tree()[1:]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)
