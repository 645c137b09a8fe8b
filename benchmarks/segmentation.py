"""Does a small network learn to segment a CT from patches, and is the whole CT put together again?

Measured: the CT that ``--data`` names (``ct*.nii.gz`` with ``ct*_seg.nii.gz``; without one, a body
is drawn), with three classes: outside, body, and bone, which is what lies above 180 HU in the body.
The half on one side is packed and trained on: patches of 32 × 32 × 28 voxels, three quarters of
them around a voxel of a class and half of them mirrored, through ``build_loader`` with one worker;
a 3-D U-Net of some 35,000 parameters, plain torch, on the CPU. Then the whole CT is cut into
overlapping patches of a grid, predicted and put together by ``Aggregator(mode="gaussian")`` into a
mapped file, with the class of each voxel decided on the fly. Told are the share of voxels that are
right and the Dice score of each class, on the half that was never trained on, beside the share of
the most frequent class; seconds for all. Seeds are fixed.
Kept out: nothing. There is one CT, so the other half of the same body is no proof for other bodies.
Reproduce: ``scripts/bench segmentation --data FOLDER``; to keep the files and a picture,
``python benchmarks/segmentation.py --example FOLDER OUT``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from harness import Benchmark, Case, Context, Goal, Runs, main
from harness.labelled import BONE_FROM, read_body, write_nifti
from PIL import Image
from torch import nn

from sharedds.datasets.volumes import VolumeDataset
from sharedds.ingest.volumes.pack import pack_volumes
from sharedds.loader import build_loader
from sharedds.patches import Aggregator, ForegroundPatches, GridPatches

_NAMES = ("outside", "body", "bone")
_PATCH, _OVERLAP = (32, 32, 28), 0.5
_LOW, _HIGH, _UNIT = -250.0, 450.0, 150.0  # HU: what lies beyond is all air, all bone
_RIGHT, _MOST = "share of voxels that are right", "share of the most frequent class"
_SECONDS = "s in all"
_ZOOM = 3  # of the picture

Labels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to train.

    Args:
        epochs: Times that patches are taken.
        patches: In each of them.
        width: Channels of the first level of the network.
        workers: That make batches.
    """

    epochs: int = 12
    patches: int = 64
    width: int = 4
    workers: int = 1


class UNet(nn.Module):
    """Two steps down and up again; gives a number for each class and voxel.

    Args:
        width: Channels of the first level.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _block(1, width), _block(width, 2 * width)
        self.bottom = _block(2 * width, 6 * width)
        self.third, self.fourth = _block(8 * width, 2 * width), _block(3 * width, width)
        self.last = nn.Conv3d(width, len(_NAMES), 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return (n, classes, i, j, k) for images (n, 1, i, j, k) in HU."""
        pool, up = nn.functional.avg_pool3d, nn.functional.interpolate
        first = self.first(image.clamp(_LOW, _HIGH) / _UNIT)
        second = self.second(pool(first, 2))
        bottom = self.bottom(pool(second, 2))
        third = self.third(torch.cat([second, up(bottom, scale_factor=2.0)], 1))
        fourth = self.fourth(torch.cat([first, up(third, scale_factor=2.0)], 1))
        result: torch.Tensor = self.last(fourth)
        return result


def _block(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(before, after, 3, padding=1),
        nn.BatchNorm3d(after),
        nn.LeakyReLU(0.01),
        nn.Conv3d(after, after, 3, padding=1),
        nn.LeakyReLU(0.01),
    )


def write_halves(data: Path, folder: Path) -> None:
    """Write the CT twice, with labels: the half to train on, and the whole."""
    ct, is_body = read_body(data)
    label = is_body.astype(np.uint8)
    label[is_body & (ct > BONE_FROM)] = 2
    half = ct.shape[0] // 2
    for name, end in (("train", half), ("whole", ct.shape[0])):
        for what, values in (("images", ct.astype(np.int16)), ("labels", label)):
            path = folder / name / what / "ct.nii.gz"
            path.parent.mkdir(parents=True)
            write_nifti(path, values[:end], np.diag([3.0, 3.0, 3.0, 1.0]))


def train(store: Path, effort: Effort, tell: Callable[[str], None]) -> UNet:
    """Train on foreground patches of a store."""
    torch.manual_seed(0)
    network = UNet(effort.width)
    parameters = sum(each.numel() for each in network.parameters())
    tell(f"a U-Net of {parameters:,} parameters")
    patch = ForegroundPatches(_PATCH, fraction=0.75, per_case=4)
    dataset = VolumeDataset(store, patch=patch, transform=_mirrored)
    loader = build_loader(
        dataset, batch_size=1, sampler=[0] * (effort.patches // 4), num_workers=effort.workers
    )
    steps = effort.epochs * len(loader)
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for epoch in range(effort.epochs):
        losses = []
        for batch in loader:
            image, label = batch["image"].flatten(0, 1), batch["label"].flatten(0, 2)
            loss: Any = _loss(network(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        tell(f"epoch {epoch + 1}/{effort.epochs}: loss {np.mean(losses):.3f}")
    return network


def _loss(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return cross-entropy, and one minus the Dice score of what is less than certain."""
    odds = scores.softmax(1).movedim(1, -1).flatten(0, -2)
    truth = nn.functional.one_hot(label.flatten(), len(_NAMES)).float()
    shared, both = (odds * truth).sum(0), odds.sum(0) + truth.sum(0)
    score = (2 * shared + 1) / (both + 1)
    return nn.functional.cross_entropy(scores, label) + 1 - score.mean()


def _mirrored(image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Swap left and right half of the time: a body has both sides, and one was kept back."""
    if torch.rand(()) < 0.5:
        image, label = image.flip(1), label.flip(1)
    return image, label


def predict(network: UNet, store: Path, out: Path, *, workers: int) -> Labels:
    """Predict the only case of a store over a grid of patches, into a mapped file."""
    grid = GridPatches(_PATCH, overlap=_OVERLAP)
    dataset = VolumeDataset(store, patch=grid, padding="edge", labels=False)
    shape = VolumeDataset(store, labels=False)[0]["image"].shape[1:]
    whole = Aggregator(shape, grid, mode="gaussian", argmax=True, out=out, force=True)
    network.eval()
    with torch.inference_mode():
        for batch in build_loader(dataset, batch_size=8, num_workers=workers):
            whole.add(network(batch["image"]).softmax(1), batch["start"])
    return whole.result()


def dice(found: Labels, truth: Labels, number: int) -> float:
    """Return how well two volumes agree on a class: 0 not at all, 1 entirely."""
    mine, theirs = found == number, truth == number
    return float(2 * (mine & theirs).sum() / max(1, mine.sum() + theirs.sum()))


def draw(image: npt.NDArray[Any], truth: Labels, found: Labels, path: Path) -> None:
    """Write a picture: slices of the CT in the first row, then the labels, then what was found."""
    rows = []
    for values, top, low in ((image, 300.0, -200.0), (truth, 2.0, 0.0), (found, 2.0, 0.0)):
        grey = ((values.clip(low, top) - low) / (top - low) * 255).astype(np.uint8)
        slices = np.linspace(2, grey.shape[2] - 3, 4).astype(int)
        rows.append(np.concatenate([grey[:, :, k].T for k in slices], axis=1))
    picture = Image.fromarray(np.concatenate(rows))
    size = (picture.width * _ZOOM, picture.height * _ZOOM)
    picture.resize(size, Image.Resampling.NEAREST).save(path)


def example(
    data: Path, folder: Path, effort: Effort, tell: Callable[[str], None]
) -> Mapping[str, float]:
    """Pack, train, predict and compare; leave stores, result and picture in a folder."""
    began = time.perf_counter()
    torch.set_num_threads(2)
    write_halves(data, folder / "source")
    for name in ("train", "whole"):
        report = pack_volumes(
            folder / "source" / name, folder / f"{name}.lmdb", patch=_PATCH, progress=False
        )
        tell(f"{name}.lmdb: {report.bytes / 1e6:.1f} MB")
    network = train(folder / "train.lmdb", effort, tell)
    found = predict(network, folder / "whole.lmdb", folder / "found.npy", workers=effort.workers)
    case = VolumeDataset(folder / "whole.lmdb")[0]
    image, truth = case["image"][0].numpy(), case["label"][0].numpy().astype(np.uint8)
    draw(image, truth, found, folder / "montage.png")
    half = len(truth) // 2
    mine, theirs = found[half:], truth[half:]
    figures = {
        _RIGHT: float((mine == theirs).mean()),
        _MOST: float(np.bincount(theirs.ravel()).max() / theirs.size),
        **{f"Dice, {n}": dice(mine, theirs, at) for at, n in enumerate(_NAMES) if at},
        _SECONDS: time.perf_counter() - began,
    }
    for name, value in figures.items():
        tell(f"{name}: {value:.3f}")
    return figures


def _run(context: Context) -> Mapping[str, float]:
    effort = Effort(epochs=2, patches=4, width=2, workers=0) if context.quick else Effort()
    folder = context.work if context.quick else context.data
    return example(folder, context.scratch, effort, lambda text: print(text, file=sys.stderr))


def _better(runs: Runs) -> list[float]:
    pairs = zip(runs[_CASE][_RIGHT], runs[_CASE][_MOST], strict=True)
    return [(1 - most) / max(1 - right, 1e-9) for right, most in pairs]


_CASE = "sharedds, a 3-D U-Net"
BENCHMARK = Benchmark(
    file=__file__,
    question="Does a small network learn to segment a CT from patches?",
    cases=(Case(name=_CASE, run=_run),),
    goals=(
        Goal(
            text="voxels that the most frequent class gets wrong, over those of the network",
            values=_better,
            target=5.0,
            needs=(_CASE,),
        ),
        Goal(
            text="Dice, bone, on the half that was not trained on",
            values=lambda runs: runs[_CASE]["Dice, bone"],
            target=0.5,
            needs=(_CASE,),
        ),
        Goal(
            text="s in all",
            values=lambda runs: runs[_CASE][_SECONDS],
            target=180,
            at_least=False,
            needs=(_CASE,),
        ),
    ),
    needs_pictures=False,
    rounds=1,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--example"]:
        source, target = map(Path, sys.argv[2:])
        target.mkdir(parents=True, exist_ok=True)
        example(source, target, Effort(), print)
    else:
        main(BENCHMARK)
