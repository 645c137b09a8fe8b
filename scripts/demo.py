"""Pack a folder of pictures, train a small CNN from the packed file, and say what it cost.

Without a folder it renders one: circles, squares, triangles and crosses. There is no main guard on
purpose: workers never run this file.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.nn import functional

import sharedds
from sharedds.errors import SharedDSError
from sharedds.memory import ProcessMemory, process_tree

SIDE = 64  # pixels of the square that the network sees
BATCH = 32
LEAST_EACH = 5  # pictures of a class from which some can be held back


class Outcome(NamedTuple):
    """What the training reached and cost."""

    accuracy: float
    images_per_second: float
    memory: list[tuple[str, float | None, float | None]]
    plan: str


def render(folder: Path, each: int = 150) -> None:
    """Draw four classes of shapes, each picture with its own colours, size, place and noise."""
    rng = np.random.default_rng(0)
    for name in ("circle", "cross", "square", "triangle"):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            width, height = (int(n) for n in rng.integers(80, 160, 2))
            back, front = (
                tuple(int(c) for c in rng.integers(*span, 3)) for span in ((0, 110), (140, 256))
            )
            picture = Image.new("RGB", (width, height), back)
            radius = int(rng.integers(20, 34))
            x, y = (
                int(rng.integers(radius, width - radius)),
                int(rng.integers(radius, height - radius)),
            )
            draw = ImageDraw.Draw(picture)
            box = (x - radius, y - radius, x + radius, y + radius)
            if name == "circle":
                draw.ellipse(box, fill=front)
            elif name == "square":
                draw.rectangle(box, fill=front)
            elif name == "triangle":
                draw.polygon(
                    [(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)],
                    fill=front,
                )
            else:
                draw.line((x - radius, y, x + radius, y), fill=front, width=radius // 2)
                draw.line((x, y - radius, x, y + radius), fill=front, width=radius // 2)
            noise = rng.normal(0, 12, (height, width, 3))
            pixels = np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.jpg", quality=90)


def square(image: torch.Tensor) -> torch.Tensor:
    """Scale the shorter side to SIDE and cut the middle: (3, H, W) to (3, SIDE, SIDE), uint8."""
    height, width = image.shape[-2:]
    scale = SIDE / min(height, width)
    size = max(SIDE, round(height * scale)), max(SIDE, round(width * scale))
    image = functional.interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
    top, left = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
    return image[:, top : top + SIDE, left : left + SIDE].contiguous()


def network(classes: int) -> nn.Module:
    """Return a small CNN for (N, 3, SIDE, SIDE)."""
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 32), (32, 64)):
        layers += [
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, classes)
    )


def accuracy(
    model: nn.Module, loader: torch.utils.data.DataLoader[tuple[torch.Tensor, torch.Tensor]]
) -> float:
    """Return the share of right answers."""
    model.eval()
    right = seen = 0
    with torch.inference_mode():
        for images, labels in loader:
            right += int((model(images.float() / 255).argmax(1) == labels).sum())
            seen += len(labels)
    return right / max(seen, 1)


def train(
    train_set: sharedds.ImageDataset, test_set: sharedds.ImageDataset, epochs: int
) -> Outcome:
    """Train for some epochs with two workers."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = sharedds.build_loader(train_set, batch_size=BATCH, shuffle=True, seed=0, num_workers=2)
    model = network(len(train_set.classes or ()))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    images_seen, started, memory = 0, time.monotonic(), []
    for epoch in range(epochs):
        model.train()
        for step, (images, labels) in enumerate(loader):
            loss = functional.cross_entropy(model(images.float() / 255), labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            images_seen += len(labels)
            if epoch == 0 and step == 0:
                started, images_seen = time.monotonic(), 0  # without the start of the workers
            if step == len(loader) // 2:
                memory = named(process_tree())
    rate = images_seen / (time.monotonic() - started)
    test = sharedds.build_loader(test_set, batch_size=BATCH, num_workers=0)
    return Outcome(accuracy(model, test), rate, memory, str(loader.plan))


def named(processes: tuple[ProcessMemory, ...]) -> list[tuple[str, float | None, float | None]]:
    """Say which process is which: the first is this one."""
    rows: list[tuple[str, float | None, float | None]] = []
    workers = 0
    for number, process in enumerate(processes):
        name = "trainer" if number == 0 else "started by Python"
        if process.name.startswith("pt_data_worker"):
            workers += 1
            name = f"worker {workers}"
        rows.append((name, process.pss, process.uss))
    return rows


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="class folders of pictures")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sharedds-demo-") as temporary:
        folder = options.folder
        if folder is None:
            folder = Path(temporary) / "shapes"
            print("No folder given: drawing 600 pictures of four shapes")
            render(folder)
        packed = Path(temporary) / "packed.lmdb"
        report = sharedds.pack(folder, packed)
        print(
            f"Packed {report.samples:,} pictures of {report.classes or 0:,} classes in "
            f"{report.seconds:.1f} s: {report.bytes / 1e6:.1f} MB; {report.failed_count} bad, "
            f"{report.left_out_count} left out"
        )
        dataset = sharedds.ImageDataset(packed, transform=square)
        if not dataset.classes:
            raise SystemExit(
                "No class folders, so there is nothing to learn; the folder was packed all right."
            )
        if len(dataset) >= LEAST_EACH * len(dataset.classes):
            train_set, test_set = dataset.split([0.8, 0.2], seed=0)
            measured = f"accuracy on {len(test_set)} pictures held back"
        else:
            train_set = test_set = dataset
            measured = "accuracy on the training pictures (too few of each class to hold any back)"
        print(f"Training for {options.epochs} epochs with 2 workers ...")
        show(train(train_set, test_set, options.epochs), measured)
    return 0


def show(outcome: Outcome, measured: str) -> None:
    """Print the table at the end."""
    print()
    print(f"  {outcome.accuracy:>9.1%}  {measured}")
    print(f"  {outcome.images_per_second:>9,.0f}  images a second while training")
    print()
    print(f"  {'process':<24}{'PSS (MB)':>10}{'USS (MB)':>10}")
    for name, pss, uss in outcome.memory:
        cells = (
            f"{value / 1e6:>10,.0f}" if value is not None else f"{'-':>10}" for value in (pss, uss)
        )
        print(f"  {name[:22]:<24}{''.join(cells)}")
    total = sum(pss or 0 for _, pss, _ in outcome.memory)
    print(f"  {'together':<24}{total / 1e6:>10,.0f}")
    print("  PSS shares out what processes have in common; USS is what a process has alone.")
    print()
    print(outcome.plan)


try:
    sys.exit(main())
except SharedDSError as error:
    sys.exit(f"Error: {error}")
