"""FFCV: its own file, threads, and decoders compiled by numba.

It encodes every image anew as JPEG of quality 90, as large as it is, or keeps the pixels of raw
ones. Its resize does not filter. Raw: the scale is fixed so that the part is 224 of 256 pixels.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from harness.figures import SIDE, WORKERS
from reading import Task, need, run

fields, rgb = need("ffcv.fields"), need("ffcv.fields.rgb_image")
loader, transforms, basics = (
    need("ffcv.loader"),
    need("ffcv.transforms"),
    need("ffcv.fields.basics"),
)
writer, images = need("ffcv.writer"), need("PIL.Image")


class Dataset:
    """What its writer wants: pairs by number."""

    def __init__(self, task: Task) -> None:
        self.raw = task.raw
        self.samples = list(task.samples())

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self.samples[index]
        if self.raw:
            return image, label
        return np.asarray(images.open(io.BytesIO(image)).convert("RGB")), label


def prepare(task: Task) -> None:
    """Write its file."""
    how = {"write_mode": "raw"} if task.raw else {"write_mode": "jpg", "jpeg_quality": 90}
    image = fields.RGBImageField(**how)
    target = writer.DatasetWriter(
        str(task.folder / "data.beton"),
        {"image": image, "label": fields.IntField()},
        num_workers=WORKERS,
    )
    target.from_indexed_dataset(Dataset(task))


def batches(task: Task) -> Any:
    """Make the loader."""
    part = {"scale": ((SIDE / 256) ** 2,) * 2, "ratio": (1.0, 1.0)} if task.raw else {}
    return loader.Loader(
        str(task.folder / "data.beton"),
        batch_size=task.batch,
        num_workers=WORKERS,
        order=loader.OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={
            "image": [
                rgb.RandomResizedCropRGBImageDecoder((SIDE, SIDE), **part),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.ToTorchImage(),
            ],
            "label": [basics.IntDecoder(), transforms.ToTensor(), transforms.Squeeze()],
        },
    )


if __name__ == "__main__":
    run(batches, prepare)
