"""What it costs to bring a batch from a worker process to the trainer.

A worker that has the samples at hand already does nothing but collate and send them. What it and
the trainer then compute, less what collating costs, is the transfer. CPU time is counted, so that
the two may overlap and others may use the machine.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset

from sharedds.diagnose.loading import EndlessOrder, cpu_seconds
from sharedds.loader.build import build_loader

__all__ = ["ReadySamples", "measure_transfer"]

_WARM_UP = 4  # batches
_FEWEST = 3


class ReadySamples(Dataset[Any]):
    """Samples that are in memory already.

    Args:
        samples: What there is.
    """

    def __init__(self, samples: list[Any]) -> None:
        self._count = len(samples)
        # As bytes: each tensor would take a file descriptor on its way to the worker.
        self._data = pickle.dumps(samples, pickle.HIGHEST_PROTOCOL)
        self._samples: list[Any] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        """Return one of them."""
        if self._samples is None:
            self._samples = pickle.loads(self._data)  # noqa: S301 - made above
            self._data = b""
        return self._samples[index]


def measure_transfer(
    samples: list[Any],
    *,
    collate_fn: Callable[[list[Any]], Any] | None,
    batch_size: int,
    seconds: float,
) -> float:
    """Return the CPU time, in seconds, of collating one sample and bringing it to the trainer.

    Args:
        samples: Some samples, as the dataset returned them.
        collate_fn: How batches are made of them.
        batch_size: Samples in a batch.
        seconds: How long to measure.
    """
    loader = build_loader(
        ReadySamples(samples),
        batch_size=batch_size,
        sampler=EndlessOrder(len(samples)),
        num_workers=1,
        pin_memory=False,
        collate_fn=collate_fn,
    )
    batches = iter(loader)
    for _ in range(_WARM_UP):
        next(batches)
    begin, cpu, count = time.perf_counter(), cpu_seconds(), 0
    while count < _FEWEST or time.perf_counter() - begin < seconds:
        next(batches)
        count += 1
    return (cpu_seconds() - cpu) / (count * batch_size)
