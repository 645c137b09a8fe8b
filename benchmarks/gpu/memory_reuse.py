"""Does any batch change while training still reads it?

A batch that was made on one stream and is read on another may be overwritten in two places: pinned
memory, reused while the copy is under way; and memory of the device, reused for the batch after the
next while the stream of training is behind. Both would give wrong numbers now and then, and no
error.

Measured: batches whose pictures are all of one value, given by their labels, are let go at once
while the stream of training is kept busy, so that it reads them late; then each must still have
been what its label says. The same with every ``record_stream`` left out should find differences
(``--naive``): it shows that this test can fail. It is a matter of timing, so it may take several
runs.
Kept out: speed.
Reproduce: ``python benchmarks/gpu/memory_reuse.py --device cuda``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from sharedds.errors import OptionError
from sharedds.loader import build_loader
from sharedds.loader.conversion import Conversion
from sharedds.loader.device import DeviceLoader, SideStream, find_device


class Flat(Dataset[Any]):
    """Pictures of one value, which tells their batch."""

    def __init__(self, count: int, batch_size: int, side: int) -> None:
        self._count, self._batch_size, self._side = count, batch_size, side

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        value = (37 * (index // self._batch_size)) % 256
        return torch.full((3, self._side, self._side), value, dtype=torch.uint8), value


class Forgetful(SideStream):
    """Streams that let memory be reused too early."""

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Do nothing."""


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--side", type=int, default=224, help="pixels of a picture")
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--busy", type=int, default=4, help="matrix products before a batch is read"
    )
    parser.add_argument("--width", type=int, default=4096, help="of a matrix")
    parser.add_argument("--naive", action="store_true", help="leave out record_stream")
    parser.add_argument("--quick", action="store_true", help="only to see that it works")
    options = parser.parse_args(arguments)
    if options.quick:
        options.batch_size, options.side, options.batches, options.workers = 2, 8, 6, 0
        options.busy, options.width = 1, 16
    return options


def count_changed(options: argparse.Namespace, device: torch.device) -> int:
    """Return how many batches were not what their labels say when training read them."""
    data = Flat(options.batches * options.batch_size, options.batch_size, options.side)
    loader = build_loader(data, batch_size=options.batch_size, num_workers=options.workers)
    moved = loader.to(device, dtype=torch.float32)
    if options.naive:
        conversion = Conversion(dtype=torch.float32)
        moved = DeviceLoader(loader, device, conversion, streams=Forgetful(device))
    matrix = torch.randn(options.width, options.width, device=device)
    differences = []
    for images, labels in moved:
        product = matrix
        for _ in range(options.busy):
            product = product @ matrix / options.width
        late = images + 0 * product[0, 0].nan_to_num()
        expected = labels.float().view(-1, 1, 1, 1) / 255
        differences.append(((late - expected).abs() > 1e-6).any())
        del images, labels, late, expected
    return int(torch.stack(differences).sum())


def main(arguments: Sequence[str] | None = None) -> int:
    """Look for changed batches; 1 if there are any, 2 where there is no such device."""
    options = _options(arguments)
    try:
        device = find_device(options.device)
    except OptionError as error:
        print(error, file=sys.stderr)
        return 2
    if options.naive and device.type not in ("cuda", "xpu"):
        print("--naive needs a device with streams", file=sys.stderr)
        return 2
    changed = count_changed(options, device)
    print(f"{options.device}: {changed} of {options.batches} batches changed before they were read")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
