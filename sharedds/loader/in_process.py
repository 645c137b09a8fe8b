"""torch's iterator without workers, without what it does for each batch and nobody asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

__all__ = ["InProcessIterator"]

#: A label for a profiler takes a quarter of what a batch of free samples does.
_autograd: Any = torch.autograd
_is_profiled = _autograd._profiler_enabled


class InProcessIterator(_SingleProcessDataLoaderIter):
    """Makes batches where they are used.

    Args:
        loader: A :class:`~sharedds.loader.seen.LoaderView`.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._batches: Any = self._sampler_iter
        self._reader: Any = self._dataset
        self._collate: Any = self._collate_fn

    def __next__(self) -> Any:
        if _is_profiled():
            return super().__next__()
        return self._next_data()

    def _next_data(self) -> Any:
        batch = next(self._batches)
        if self._auto_collation:
            data = self._collate(self._reader.__getitems__(batch), self._reader.kinds)
        else:
            data = self._collate(self._reader[batch])
        if self._pin_memory:
            data = pin_memory(data, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return data
