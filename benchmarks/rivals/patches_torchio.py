"""Patches by TorchIO: a ``Queue`` filled by a ``LabelSampler``. The variant is the ending of files.

Its sampler draws no voxel within half a patch of the border. The queue holds a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.patches import BATCH_CASES, PER_CASE, Pass
from patching import Work, run
from reading import need

tio = need("torchio")


def reader(work: Work) -> Pass:
    """Make the queue and its loader."""
    subjects = [
        tio.Subject(image=tio.ScalarImage(files["image"]), label=tio.LabelMap(files["label"]))
        for files in work.task.pairs(work.variant)
    ]
    queue = tio.Queue(
        tio.SubjectsDataset(subjects),
        max_length=work.task.cases * PER_CASE,
        samples_per_volume=PER_CASE,
        sampler=tio.data.LabelSampler(work.task.patch, "label"),
        num_workers=work.workers,
    )
    loader = tio.SubjectsLoader(queue, batch_size=BATCH_CASES * PER_CASE, num_workers=0)

    def one_pass() -> Iterator[tuple[Any, Any]]:
        for batch in loader:
            yield batch["image"][tio.DATA].float(), batch["label"][tio.DATA]

    return one_pass


def places(work: Work) -> list[Path]:
    """What is read."""
    return [work.task.folder / work.variant]


if __name__ == "__main__":
    run(reader, places)
