"""Raw images in one mapped file, a batch read at once, in torch's ``DataLoader``.

``numpy``: a memmap and a loop of slices. ``tensordict``: its ``MemoryMappedTensor``, one gather for
a batch, then the slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from harness.boxes import cut
from harness.figures import SIDE
from reading import Task, need, run, torch_batches

torch = need("torch")


def prepare(task: Task) -> None:
    """Write the tensor of tensordict."""
    tensordict = need("tensordict")
    images, labels = task.arrays()
    tensordict.MemoryMappedTensor.from_tensor(
        torch.from_numpy(np.array(images)), filename=str(task.folder / "images.memmap")
    )
    torch.save((tuple(images.shape), torch.from_numpy(labels)), task.folder / "labels.pt")


class Dataset:
    """Whole batches."""

    def __init__(self, task: Task) -> None:
        self.images: Any
        if task.variant == "numpy":
            self.images, labels = task.arrays()
            self.labels = torch.from_numpy(labels)
        else:
            shape, self.labels = torch.load(task.folder / "labels.pt")
            self.images = need("tensordict").MemoryMappedTensor.from_filename(
                task.folder / "images.memmap", dtype=torch.uint8, shape=torch.Size(shape)
            )
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return images (n, 224, 224, 3) and labels of a batch."""
        out = np.empty((len(indices), SIDE, SIDE, 3), np.uint8)
        if isinstance(self.images, np.ndarray):
            parts = (self.images[index] for index in indices)
        else:
            parts = iter(self.images[torch.tensor(indices)].numpy())
        for slot, image in zip(out, parts, strict=True):
            slot[...] = cut(image, self.rng)
        return torch.from_numpy(out), self.labels[list(indices)]


def _as_it_is(batch: Any) -> Any:
    return batch


def batches(task: Task) -> Any:
    """Make the loader."""
    return torch_batches(torch, Dataset(task), task, collate_fn=_as_it_is)


if __name__ == "__main__":
    run(batches, prepare)
