"""Hugging Face datasets: ``Dataset.from_generator`` with an Image column, an Arrow file on disk.

Pixels go into a binary column. With several processes by its own ``num_proc``, which cuts the lists
of ``gen_kwargs``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-not-found]
from sources import measure, samples


def _generate(files: list[tuple[str, int]], work: str) -> Iterator[dict[str, Any]]:
    for data, label in samples(files, work):
        image = data if work == "pixels" else {"bytes": data, "path": None}
        yield {"image": image, "label": label}


def write(files: list[tuple[str, int]], folder: Path, work: str, processes: int) -> None:
    """Write a dataset."""
    datasets.disable_progress_bars()
    image = datasets.Value("binary") if work == "pixels" else datasets.Image()
    datasets.Dataset.from_generator(
        _generate,
        features=datasets.Features({"image": image, "label": datasets.Value("int64")}),
        cache_dir=str(folder),
        gen_kwargs={"files": files, "work": work},
        num_proc=processes if processes > 1 else None,
    )


if __name__ == "__main__":
    measure(write)
