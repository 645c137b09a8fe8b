"""Does bringing batches to a GPU overlap with training, and what does a step cost then?

Measured: steps a second of a loop whose step is so many matrix products on the device, with batches
of uint8 pictures that are in memory already, so that loading is not what bounds it. The ways to
bring them over take turns, and the median of their rounds counts:

- ``compute``: always the same batch, on the device already; no way can be faster.
- ``plain``: what most training scripts do: ``.to(device)``, then float and normalisation there.
- ``non_blocking``: the same from pinned memory without waiting, on the stream of training.
- ``ahead``: ``loader.to(device, dtype=..., mean=..., std=...)``.

With ``--synchronise`` each step reads its loss, as many scripts do: Python then comes to the next
batch only when the device is done, and only what was sent ahead overlaps.
Kept out: starting workers, the first batches, decoding.
Reproduce: ``python benchmarks/gpu/overlap.py --device cuda``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from sharedds.errors import OptionError
from sharedds.loader import build_loader
from sharedds.loader.device import find_device

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_WARM = 4  # steps


class Noise(Dataset[Any]):
    """Pictures that are there already: each sample is one of a few."""

    def __init__(self, count: int, side: int) -> None:
        self._count = count
        self._pictures = torch.randint(0, 256, (64, 3, side, side), dtype=torch.uint8)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._pictures[index % 64], index


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--side", type=int, default=224, help="pixels of a picture")
    parser.add_argument("--steps", type=int, default=100, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--products", type=int, default=8, help="matrix products in a step")
    parser.add_argument("--width", type=int, default=8192, help="of a matrix")
    parser.add_argument("--synchronise", action="store_true", help="read the loss of each step")
    parser.add_argument("--quick", action="store_true", help="only to see that it works")
    options = parser.parse_args(arguments)
    if options.quick:
        options.batch_size, options.side, options.steps, options.rounds = 2, 8, 6, 1
        options.workers, options.products, options.width = 0, 1, 16
    return options


class Run:
    """One way after the other, on one device.

    Args:
        options: What the command line says.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._device = find_device(options.device)
        self._dtype = torch.float32 if self._device.type == "cpu" else torch.float16
        self._matrix = torch.randn(
            options.width, options.width, device=self._device, dtype=self._dtype
        )
        self._mean, self._std = (
            torch.tensor(values, device=self._device).view(1, 3, 1, 1) for values in (MEAN, STD)
        )
        self.ways: dict[str, Callable[[], Iterator[torch.Tensor]]] = {
            "compute": self._compute,
            "plain": lambda: self._on_training_stream(pinned=False),
            "non_blocking": lambda: self._on_training_stream(pinned=True),
            "ahead": self._ahead,
        }

    def _loader(self, *, pinned: bool) -> Any:
        options = self._options
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "pin_memory=True has no effect")
            return build_loader(
                Noise((options.steps + _WARM) * options.batch_size, options.side),
                batch_size=options.batch_size,
                num_workers=options.workers,
                pin_memory=pinned,
            )

    def _normalised(self, images: torch.Tensor) -> torch.Tensor:
        return ((images.float() / 255 - self._mean) / self._std).to(self._dtype)

    def _compute(self) -> Iterator[torch.Tensor]:
        images, _ = next(iter(self._loader(pinned=False)))
        ready = self._normalised(images.to(self._device))
        for _ in range(self._options.steps + _WARM):
            yield ready

    def _on_training_stream(self, *, pinned: bool) -> Iterator[torch.Tensor]:
        for images, _ in self._loader(pinned=pinned):
            yield self._normalised(images.to(self._device, non_blocking=pinned))

    def _ahead(self) -> Iterator[torch.Tensor]:
        loader = self._loader(pinned=True)
        for images, _ in loader.to(self._device, dtype=self._dtype, mean=MEAN, std=STD):
            yield images

    def rate(self, way: str) -> float:
        """Return steps a second."""
        begin, total = 0.0, torch.zeros((), device=self._device)
        for step, images in enumerate(self.ways[way]()):
            if step == _WARM:
                self._wait()
                begin = time.perf_counter()
            product = self._matrix
            for _ in range(self._options.products):
                product = (product @ self._matrix) / self._options.width
            total += images.mean().float() + product[0, 0].float()
            if self._options.synchronise:
                total.item()
        self._wait()
        return float(self._options.steps / (time.perf_counter() - begin))

    def _wait(self) -> None:
        if self._device.type not in ("cpu", "meta"):
            torch.accelerator.synchronize(self._device)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the command line says; 2 where there is no such device."""
    options = _options(arguments)
    try:
        run = Run(options)
    except OptionError as error:
        print(error, file=sys.stderr)
        return 2
    rates: dict[str, list[float]] = {way: [] for way in run.ways}
    for number in range(options.rounds):
        for way in rates if number % 2 == 0 else reversed(rates):
            rates[way].append(run.rate(way))
    size = options.batch_size * 3 * options.side**2
    kind = "each step is waited for" if options.synchronise else "steps are not waited for"
    print(f"{options.device}, torch {torch.__version__}: batches of {size / 1e6:.1f} MB, {kind}")
    for way, values in rates.items():
        shares = [own / best for own, best in zip(values, rates["compute"], strict=True)]
        print(
            f"  {way:<13} {statistics.median(values):10,.1f} steps/s"
            f" ({min(values):,.1f} to {max(values):,.1f}), "
            f"{statistics.median(shares):.0%} of compute alone"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
