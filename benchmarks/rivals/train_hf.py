"""Hugging Face datasets: Arrow files on disk, ``with_transform``, torch's ``DataLoader``.

JPEG files in an ``Image`` column, decoded by Pillow as it does; raw images in a binary column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from augmenting import PillowCrop, tensor_raw_crop
from reading import Task, need, run, torch_batches

torch, datasets = need("torch"), need("datasets")


def _rows(task: Task) -> Iterator[dict[str, Any]]:
    for image, label in task.samples():
        stored = image.tobytes() if task.raw else {"bytes": image, "path": None}
        yield {"image": stored, "label": label}


def prepare(task: Task) -> None:
    """Write the file."""
    datasets.disable_progress_bars()
    image = datasets.Value("binary") if task.raw else datasets.Image()
    features = datasets.Features({"image": image, "label": datasets.Value("int64")})
    made = datasets.Dataset.from_generator(
        _rows,
        features=features,
        cache_dir=str(task.folder / "cache"),
        gen_kwargs={"task": task},
        keep_in_memory=False,
    )
    names = [str(file["filename"]) for file in made.cache_files]  # it begins a new one at 500 MB
    (task.folder / "files").write_text("\n".join(names))


def batches(task: Task) -> Any:
    """Make the loader."""
    crop = tensor_raw_crop() if task.raw else PillowCrop()

    def image_of(stored: Any) -> Any:
        if not task.raw:
            return crop(stored)
        pixels = np.frombuffer(stored, np.uint8).reshape(256, 256, 3)
        return crop(torch.from_numpy(pixels.copy()).permute(2, 0, 1))

    def transform(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"image": [image_of(stored) for stored in rows["image"]], "label": rows["label"]}

    names = (task.folder / "files").read_text().splitlines()
    table = datasets.concatenate_datasets([datasets.Dataset.from_file(name) for name in names])
    loader: Any = torch_batches(torch, table.with_transform(transform), task)
    return ((batch["image"], batch["label"]) for batch in loader)


if __name__ == "__main__":
    run(batches, prepare)
