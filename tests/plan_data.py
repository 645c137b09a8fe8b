"""Datasets of which a plan knows more or less, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

__all__ = ["Arrays", "Told"]


class Arrays(Dataset[Any]):
    """Samples of so many float32, and their number; it counts what is asked of it here."""

    def __init__(self, count: int = 40, floats: int = 25_000, bad: int = 0) -> None:
        self.count = count
        self.floats = floats
        self.bad = bad
        self.calls = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        if index < self.bad:
            raise ValueError(f"{index} is bad")
        return torch.full((self.floats,), float(index)), index


class Told(Arrays):
    """Tells how large its samples are."""

    sample_nbytes: Any = 100_008
