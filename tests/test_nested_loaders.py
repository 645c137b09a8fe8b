"""A loader that is iterated where another loader makes its samples: its batches are batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from sharedds import build_loader


class Inner(Dataset[Any]):
    """A picture and its number."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 128, 128), float(index)), index


class Outer(Dataset[Any]):
    """Each sample is the mean of what a loader of its own gives."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        found = []
        for images, numbers in build_loader(Inner(), batch_size=4, **self.options):
            assert isinstance(images, torch.Tensor)
            found.append(float((images.mean(dim=(1, 2, 3)) - numbers).abs().max()))
        return torch.tensor(found)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "engine": "thread"}])
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_loader_inside_a_worker_hands_out_batches(
    options: dict[str, Any], start_method: str
) -> None:
    """They are for code in that worker, and go no further; those of the outer one are sent."""
    outer = build_loader(Outer(**options), batch_size=2, num_workers=1, start_method=start_method)
    batches = list(outer)
    assert len(batches) == 4
    assert all(torch.equal(batch, torch.zeros(2, 2)) for batch in batches)
