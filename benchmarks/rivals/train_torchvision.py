"""Torchvision's ``ImageFolder`` in torch's ``DataLoader``.

``pillow``: as it comes, decoded and resized by Pillow. ``v2``: ``decode_image`` and the transforms
of v2 on tensors. Both filter.
"""

from __future__ import annotations

import functools
from typing import Any

from augmenting import PillowCrop, tensor_crop
from reading import Task, need, run, torch_batches

torch, datasets, decoding = need("torch"), need("torchvision.datasets"), need("torchvision.io")


def batches(task: Task) -> Any:
    """Make the loader."""
    if task.variant == "pillow":
        dataset = datasets.ImageFolder(str(task.source), PillowCrop())
    else:
        decode = functools.partial(decoding.decode_image, mode=decoding.ImageReadMode.RGB)
        dataset = datasets.ImageFolder(str(task.source), tensor_crop(), loader=decode)
    return torch_batches(torch, dataset, task)


if __name__ == "__main__":
    run(batches)
