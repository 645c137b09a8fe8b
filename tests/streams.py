"""Datasets with random transforms, and streams of batches to compare, for tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from sharedds.loader import PlannedLoader, build_loader

__all__ = ["Augmented", "Draws", "as_list", "fork", "same", "stream"]

Sample = tuple[torch.Tensor, int]


class RandomCrop:
    """A crop at a place that torch draws."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Crop 12 x 12 to 8 x 8."""
        top, left = (int(torch.randint(0, 5, (1,))) for _ in range(2))
        return image[:, top : top + 8, left : left + 8]


class RandomFlip:
    """A flip that Python's generator decides."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Flip left and right, or do not."""
        return image.flip(-1) if random.random() < 0.5 else image


class ColorJitter:
    """A factor that NumPy draws for each channel."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Change the brightness."""
        factor = torch.from_numpy(np.random.uniform(0.5, 1.5, (3, 1, 1)))  # noqa: NPY002
        return (image * factor).to(torch.float32)


class Augmented(Dataset[Sample]):
    """Pictures of noise, cropped, flipped and jittered by the global generators."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.transforms: list[Callable[[torch.Tensor], torch.Tensor]] = [
            RandomCrop(),
            RandomFlip(),
            ColorJitter(),
        ]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        noise = np.random.default_rng(index).integers(0, 256, (3, 12, 12))
        image = torch.from_numpy(noise)
        for transform in self.transforms:
            image = transform(image)
        return image, index


class Draws(Dataset[tuple[float, ...]]):
    """The number of each sample, then a draw of random, NumPy and torch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[float, ...]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        drawn = (random.random(), np.random.random(), torch.rand((), dtype=torch.float64))  # noqa: NPY002
        return float(index), *(float(value) for value in drawn)


def as_list(samples: list[Any]) -> list[Any]:
    """Collate nothing."""
    return samples


def stream(loader: Iterable[Any], epochs: int = 1) -> list[list[Any]]:
    """Return the batches of some epochs."""
    return [list(loader) for _ in range(epochs)]


def same(one: Any, other: Any) -> bool:
    """Whether two nested structures are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(same(a, b) for a, b in pairs)
    return bool(one == other)


def fork(dataset: Any, **options: Any) -> PlannedLoader[Any]:
    """A loader whose workers, if it has any, are forked: they start at once."""
    if options.get("num_workers") and options.get("engine") != "thread":
        options.setdefault("start_method", "fork")
    options.setdefault("num_workers", 0)
    return build_loader(dataset, **options)
