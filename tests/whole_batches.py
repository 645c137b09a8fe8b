"""Datasets that make whole batches, for tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from sharedds.errors import DecodeError
from sharedds.order import current_generator, current_keys

__all__ = ["Drawing", "Single", "Whole", "is_whole"]

_SHAPE = (3, 4, 5)


class Single(Dataset[Any]):
    """Pictures of noise, drawn from the generator of each sample, and their numbers."""

    def __init__(self, count: int = 24, bad: Sequence[int] = ()) -> None:
        self.count = count
        self.bad = frozenset(bad)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        generator = current_generator()
        assert generator is not None
        return torch.from_numpy(self.pixels(index, generator)), index

    def pixels(self, index: int, generator: np.random.Generator) -> npt.NDArray[np.uint8]:
        """The picture of a sample."""
        if index in self.bad:
            raise DecodeError(f"picture {index} is damaged")
        return generator.integers(0, 256, _SHAPE, np.uint8)


class Whole(Single):
    """The same, made as whole batches: channels are last in memory, by which they are known."""

    makes_batches = True

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Return images (N, 3, 4, 5) and numbers."""
        keys = current_keys()
        assert keys is not None
        assert [key.index for key in keys] == list(indices)
        images = empty((len(indices), *_SHAPE), torch.uint8, channels_last=True)
        for at, key in enumerate(keys):
            images[at] = torch.from_numpy(self.pixels(key.index, key.generator()))
        return [images, torch.tensor(indices)]


def is_whole(batch: Any) -> bool:
    """Whether a batch was made as a whole."""
    images = batch[0]
    return bool(images.is_contiguous(memory_format=torch.channels_last) and images.ndim == 4)


class Drawing(Whole):
    """Samples made one by one draw from the global generators, which whole batches never do."""

    def __getitem__(self, index: int) -> Any:
        image, number = super().__getitem__(index)
        return image, number, random.random(), float(torch.rand(()))

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Zeros stand for the draws."""
        made = super().load_batch(indices, empty)
        return [*made, *torch.zeros(2, len(indices), dtype=torch.float64)]
