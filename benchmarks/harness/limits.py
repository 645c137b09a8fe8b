"""What the machine allows: two processes that do nothing but the picture work, bytes in memory.

No loader, no batches between processes, no store. Decoding is simplejpeg's; resizing is torch's,
antialiased, as in training.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch

from harness.boxes import cut, random_box
from harness.figures import BATCH, RATE, SIDE, WORKERS
from harness.files import read_all

__all__ = ["crop_only", "decode_and_crop", "decode_only"]

_WARM = 16
#: Does the work of one image, given its number within the part of one process.
_Work = Callable[[int], object]


def decode_only(pictures: Path) -> dict[str, float]:
    """Decode every picture of a folder, whole."""

    def prepare(files: Sequence[Path]) -> _Work:
        data = [path.read_bytes() for path in files]
        return lambda number: simplejpeg.decode_jpeg(data[number])

    return _in_processes(prepare, read_all(pictures))


def decode_and_crop(pictures: Path) -> dict[str, float]:
    """Decode every picture, take a random part of it, resize it and flip it, into a batch."""

    def prepare(files: Sequence[Path]) -> _Work:
        torch.set_num_threads(1)
        data = [path.read_bytes() for path in files]
        batch = _empty_batch()
        rng = np.random.default_rng(0)

        def work(number: int) -> None:
            pixels = torch.from_numpy(simplejpeg.decode_jpeg(data[number])).permute(2, 0, 1)
            top, left, height, width = random_box(pixels.shape[1], pixels.shape[2], rng)
            part = pixels[None, :, top : top + height, left : left + width]
            part = part.contiguous(memory_format=torch.channels_last)
            small = torch.nn.functional.interpolate(
                part, (SIDE, SIDE), mode="bilinear", antialias=True
            )[0]
            batch[number % BATCH] = small.flip(2) if rng.random() < 0.5 else small

        return work

    return _in_processes(prepare, read_all(pictures))


def crop_only(images: Path) -> dict[str, float]:
    """Take a random part of each raw image of ``images.npy``, and flip it, into a batch."""

    def prepare(numbers: Sequence[int]) -> _Work:
        pixels = np.load(images, mmap_mode="r")
        batch = np.zeros((BATCH, SIDE, SIDE, 3), np.uint8)
        rng = np.random.default_rng(0)
        order = rng.permutation(np.asarray(numbers))

        def work(number: int) -> None:
            batch[number % BATCH] = cut(pixels[order[number]], rng)

        return work

    read_all(images.parent)
    return _in_processes(prepare, range(len(np.load(images, mmap_mode="r"))))


def _empty_batch() -> torch.Tensor:
    batch = torch.zeros((BATCH, 3, SIDE, SIDE), dtype=torch.uint8)
    return batch.contiguous(memory_format=torch.channels_last)


def _in_processes(prepare: Callable[[Any], _Work], items: Sequence[Any]) -> dict[str, float]:
    """Share the items out to processes that begin together, and add up how fast each is."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(WORKERS)
    rates: Any = context.SimpleQueue()

    def part(number: int) -> None:
        own = items[number::WORKERS]
        work = prepare(own)
        for item in range(min(_WARM, len(own))):
            work(item)
        together.wait(120)  # not for ever: the other one may have failed
        started = time.perf_counter()
        for item in range(len(own)):
            work(item)
        rates.put(len(own) / (time.perf_counter() - started))

    processes = [context.Process(target=part, args=(number,)) for number in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a process ended with {process.exitcode}")
    return {RATE: sum(rates.get() for _ in processes)}
