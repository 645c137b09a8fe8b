"""MosaicML Streaming: ``StreamingDataset(shuffle=True)`` on local shards of the default size.

JPEG files as bytes, decoded by Pillow as its own column type does; raw images as ``ndarray``.
"""

from __future__ import annotations

from typing import Any

from augmenting import PillowCrop, tensor_raw_crop
from reading import Task, need, run, torch_batches

torch, streaming = need("torch"), need("streaming")

_Dataset: Any = streaming.StreamingDataset


def prepare(task: Task) -> None:
    """Write the shards."""
    image = "ndarray:uint8:256,256,3" if task.raw else "bytes"
    with streaming.MDSWriter(
        out=str(task.folder / "mds"), columns={"image": image, "label": "int"}
    ) as writer:
        for data, label in task.samples():
            writer.write({"image": data, "label": label})


class Dataset(_Dataset):  # type: ignore[misc]
    """Pairs of image and label."""

    def __init__(self, task: Task) -> None:
        super().__init__(local=str(task.folder / "mds"), shuffle=True, batch_size=task.batch)
        self.raw = task.raw
        self.crop = tensor_raw_crop() if task.raw else PillowCrop()

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        image = sample["image"]
        if self.raw:
            image = torch.from_numpy(image.copy()).permute(2, 0, 1)
        return self.crop(image), sample["label"]


def batches(task: Task) -> Any:
    """Make the loader."""
    return torch_batches(torch, Dataset(task), task, shuffle=False)


if __name__ == "__main__":
    run(batches, prepare, tidies=True)
