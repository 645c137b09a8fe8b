"""Transforms of MONAI, TorchIO, albumentations and torchvision draw the same for any workers."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sharedds

pytestmark = pytest.mark.filterwarnings("ignore")
COUNT = 11


class Transformed(sharedds.LazyDataset[dict[str, Any]]):
    """Pictures or volumes of noise, with a transform of somebody else's."""

    def __init__(self, shape: tuple[int, ...], transform: Callable[[Any], Any]) -> None:
        super().__init__([str(i) for i in range(COUNT)])
        self.shape = shape
        self.transform = transform

    def load(self, item: str) -> dict[str, Any]:
        """Return what the transform made of the noise (float32), and the number."""
        noise = np.random.default_rng(int(item)).random(self.shape, dtype=np.float32)
        made = torch.as_tensor(np.asarray(self.transform(noise)))
        return {"x": made.float(), "index": int(item)}


def monai() -> tuple[tuple[int, ...], Callable[[Any], Any]]:
    """A random crop, flip and noise of MONAI."""
    there = pytest.importorskip("monai.transforms", reason="scripts/frameworks installs MONAI")
    chain = there.Compose(
        [
            there.RandSpatialCrop((6, 6, 6), random_size=False),
            there.RandFlip(prob=0.5, spatial_axis=0),
            there.RandGaussianNoise(prob=0.8),
        ]
    )
    return (1, 8, 8, 8), lambda noise: chain(noise)


def torchio() -> tuple[tuple[int, ...], Callable[[Any], Any]]:
    """A random affine, flip and noise of TorchIO."""
    there = pytest.importorskip("torchio", reason="scripts/frameworks installs TorchIO")
    chain = there.Compose([there.RandomFlip(axes=(0, 1)), there.RandomNoise()])
    return (1, 8, 8, 8), lambda noise: chain(torch.from_numpy(noise))


def albumentations() -> tuple[tuple[int, ...], Callable[[Any], Any]]:
    """A random crop, flip and brightness of albumentations."""
    there = pytest.importorskip("albumentations", reason="scripts/frameworks installs it")
    chain = there.Compose(
        [there.RandomCrop(6, 6), there.HorizontalFlip(), there.RandomBrightnessContrast(p=0.8)]
    )
    return (8, 8, 3), lambda noise: chain(image=noise)["image"]


def torchvision() -> tuple[tuple[int, ...], Callable[[Any], Any]]:
    """A random crop, flip and jitter of torchvision, version 2."""
    if importlib.util.find_spec("torchvision") is None:
        beside = Path(sys.prefix, "beside")
        if not beside.is_dir():
            pytest.skip("scripts/frameworks installs torchvision")
        sys.path.append(str(beside))
        # Its compiled operators need torch with CUDA; transforms do not use them.
        library: Any = vars(torch.library)["Library"]("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
    v2 = importlib.import_module("torchvision.transforms.v2")
    chain = v2.Compose(
        [v2.RandomCrop(6), v2.RandomHorizontalFlip(), v2.ColorJitter(brightness=0.5)]
    )
    return (3, 8, 8), lambda noise: chain(torch.from_numpy(noise))


_kept: list[Any] = []


def trained(loader: Any) -> tuple[list[Any], list[Any]]:
    """Train on two epochs; return what came, and the weights."""
    torch.manual_seed(0)
    layer = torch.nn.LazyLinear(1)
    layer(next(iter(loader))["x"].flatten(1))
    loader.set_epoch(0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    seen: list[Any] = []
    for _ in range(2):
        for batch in loader:
            layer(batch["x"].flatten(1)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append((batch["index"].tolist(), batch["x"]))
    return seen, [weight.tolist() for weight in layer.parameters()]


@pytest.mark.parametrize("made", [monai, torchio, albumentations, torchvision])
def test_training_is_the_same_for_any_workers(made: Any) -> None:
    """Each sample once in an epoch; what transforms draw follows the sample, not the worker."""
    shape, transform = made()
    runs = []
    # What torchvision needs here was declared in this process alone.
    start = "fork" if made is torchvision else None
    for workers in (0, 2):
        dataset = Transformed(shape, transform)
        loader = sharedds.build_loader(
            dataset,
            batch_size=4,
            shuffle=True,
            seed=7,
            num_workers=workers,
            start_method=start if workers else None,
        )
        runs.append(trained(loader))
    (one, weights), (other, others) = runs
    assert sorted(i for numbers, _ in one[:3] for i in numbers) == list(range(COUNT))
    assert [numbers for numbers, _ in one] == [numbers for numbers, _ in other]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(one, other, strict=True))
    assert weights == others
    first = {i: x for numbers, batch in one[:3] for i, x in zip(numbers, batch, strict=True)}
    second = {i: x for numbers, batch in one[3:] for i, x in zip(numbers, batch, strict=True)}
    assert any(not torch.equal(first[i], second[i]) for i in first)  # anew in each epoch
