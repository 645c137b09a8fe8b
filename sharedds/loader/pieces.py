"""A batch that several threads make: each a range of its samples, in memory for the whole batch.

Memory that a part asks for with as many rows as it has samples is its slice of one tensor for all
parts, so that nothing is copied once they are done. What else a part returns (labels) is joined.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import torch

from sharedds.datasets.offers import Empty, LoadBatch
from sharedds.loader.crew import Crew
from sharedds.order import SampleKey, using_keys

__all__ = ["WholeMaker", "ranges"]


def ranges(count: int, parts: int) -> list[slice]:
    """Return up to ``parts`` ranges of equal length, as far as possible, none of them empty."""
    used = max(1, min(parts, count))
    ends = [count * number // used for number in range(used + 1)]
    return [slice(*pair) for pair in itertools.pairwise(ends)]


class WholeMaker:
    """Makes whole batches by ``load_batch`` of a dataset.

    Args:
        load: What to call. What it makes of a sample should not depend on the others; if it does
            (by padding to the largest), it is called for the whole batch from then on.
        empty: Gives memory.
        threads: So many make one batch.
    """

    def __init__(self, load: LoadBatch, empty: Empty, *, threads: int = 1) -> None:
        self._load = load
        self._empty = empty
        self._threads = threads
        self._crew: Crew | None = None

    def __call__(self, indices: Sequence[int], keys: Sequence[SampleKey]) -> Any:
        """Return the batch of some samples.

        Args:
            indices: Their numbers.
            keys: Their keys, to be in hand.

        Raises:
            Exception: What the first part that failed has raised.
        """
        if self._threads > 1 and len(indices) > 1:
            if self._crew is None or not self._crew.is_here:
                self._crew = Crew(self._threads)
            try:
                return self._in_parts(self._crew, indices, keys)
            except _UnevenError:
                self._threads, self._crew = 1, None
        return self._part(indices, keys, self._empty)

    def _in_parts(self, crew: Crew, indices: Sequence[int], keys: Sequence[SampleKey]) -> Any:
        bounds = ranges(len(indices), crew.count)
        memory = _Memory(self._empty, len(indices))
        tasks = [
            functools.partial(self._part, indices[own], keys[own], memory.of(own)) for own in bounds
        ]
        try:
            parts = crew.run(tasks)
        except Exception:
            if memory.is_uneven:  # which the dataset may have wrapped in an error of its own
                raise _UnevenError from None
            raise
        return _joined(parts, bounds, memory)

    def _part(self, indices: Sequence[int], keys: Sequence[SampleKey], empty: Empty) -> Any:
        with using_keys(keys):
            return self._load(indices, empty)


class _UnevenError(Exception):
    """What the parts returned does not make one batch."""


class _Memory:
    """Tensors for a whole batch, of which each part gets its rows."""

    def __init__(self, empty: Empty, count: int) -> None:
        self._empty = empty
        self._count = count
        self._lock = threading.Lock()
        self._asked: list[tuple[Any, ...]] = []
        self.tensors: list[torch.Tensor] = []
        self.is_uneven = False

    def of(self, own: slice) -> Empty:
        """Return the function that one part asks for memory; all ask in the same order."""
        numbers = itertools.count()

        def empty(
            shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
        ) -> torch.Tensor:
            if not shape or shape[0] != own.stop - own.start:  # not for the samples
                layout = torch.channels_last if channels_last else torch.contiguous_format
                return torch.empty(shape, dtype=dtype, memory_format=layout)
            rest = tuple(shape[1:])
            return self._whole(next(numbers), rest, dtype, channels_last=channels_last)[own]

        return empty

    def _whole(
        self, number: int, rest: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool
    ) -> torch.Tensor:
        asked = (rest, dtype, channels_last)
        with self._lock:
            if number == len(self._asked):
                shape = (self._count, *rest)
                self.tensors.append(self._empty(shape, dtype, channels_last=channels_last))
                self._asked.append(asked)
            if self._asked[number] != asked:
                self.is_uneven = True
                raise _UnevenError
            return self.tensors[number]


def _joined(parts: list[Any], bounds: list[slice], memory: _Memory) -> Any:
    """Join the parts of a batch, which are nested as ``default_collate`` nests them."""
    first = parts[0]
    kind = type(first)
    if any(type(part) is not kind for part in parts):
        raise _UnevenError
    if isinstance(first, torch.Tensor):
        for whole in memory.tensors:
            if all(_is_same(part, whole[own]) for part, own in zip(parts, bounds, strict=True)):
                return whole
        rows = {(part.shape[1:], part.dtype) for part in parts}
        if first.ndim == 0 or len(rows) > 1:
            raise _UnevenError
        return torch.cat(parts)
    if isinstance(first, dict):
        if any(part.keys() != first.keys() for part in parts):
            raise _UnevenError
        fields = {name: _joined([part[name] for part in parts], bounds, memory) for name in first}
        return fields if kind is dict else kind(fields)
    if not isinstance(first, list | tuple):
        raise _UnevenError
    if all(isinstance(value, str | bytes) for value in first):  # one for each sample
        return kind(itertools.chain.from_iterable(parts))
    if any(len(part) != len(first) for part in parts):
        raise _UnevenError
    joined = [_joined(list(values), bounds, memory) for values in zip(*parts, strict=True)]
    return kind(*joined) if hasattr(first, "_fields") else kind(joined)


def _is_same(part: torch.Tensor, rows: torch.Tensor) -> bool:
    return (
        part.data_ptr() == rows.data_ptr()
        and part.shape == rows.shape
        and part.stride() == rows.stride()
        and part.dtype == rows.dtype
    )
