"""LitData: ``optimize``, ``StreamingDataset`` and ``StreamingDataLoader``, its JPEG serializer.

Decoded by torchvision as its serializer does, and v2 transforms on tensors, which filter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from augmenting import tensor_crop, tensor_raw_crop
from harness.figures import WORKERS
from reading import Task, need, run

torch, litdata, images = need("torch"), need("litdata"), need("PIL.Image")

_Dataset: Any = litdata.StreamingDataset


class Store:
    """Makes what is stored of one sample: the picture of Pillow is written as its file is."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.pixels = task.arrays()[0] if task.raw else None

    def __call__(self, sample: tuple[Any, int]) -> dict[str, Any]:
        """Take the path or number of a picture, and its label."""
        where, label = sample
        if self.pixels is not None:
            return {"image": torch.from_numpy(np.array(self.pixels[where])), "label": label}
        return {"image": images.open(where), "label": label}


def prepare(task: Task) -> None:
    """Write the chunks."""
    if task.raw:
        samples: list[Any] = list(enumerate(task.arrays()[1].tolist()))
    else:
        samples = task.files()
    litdata.optimize(
        fn=Store(task),
        inputs=samples,
        output_dir=str(task.folder / "chunks"),
        num_workers=WORKERS,
        chunk_bytes="64MB",
    )


class Dataset(_Dataset):  # type: ignore[misc]
    """Pairs of image and label."""

    def __init__(self, task: Task) -> None:
        # Decoding many items together, its default, is four times as slow for raw images.
        at_once = 1 if task.raw else "auto"
        super().__init__(
            str(task.folder / "chunks"), shuffle=True, drop_last=False, batch_decode=at_once
        )
        self.raw = task.raw
        self.crop = tensor_raw_crop() if task.raw else tensor_crop()

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        image = sample["image"]
        return self.crop(image.permute(2, 0, 1) if self.raw else image), sample["label"]


def batches(task: Task) -> Any:
    """Make the loader."""
    return litdata.StreamingDataLoader(
        Dataset(task), batch_size=task.batch, num_workers=WORKERS, persistent_workers=True
    )


if __name__ == "__main__":
    run(batches, prepare)
