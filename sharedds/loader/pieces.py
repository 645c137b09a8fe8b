"""A batch that several threads make: each a range of its samples, in memory for the whole batch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from sharedds.datasets.offers import Empty, LoadBatch
from sharedds.datasets.rows import BatchMemory, UnevenError, joined
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
            except UnevenError:
                self._threads, self._crew = 1, None
        return self._part(indices, keys, self._empty)

    def _in_parts(self, crew: Crew, indices: Sequence[int], keys: Sequence[SampleKey]) -> Any:
        bounds = ranges(len(indices), crew.count)
        memory = BatchMemory(self._empty, len(indices))
        tasks = [
            functools.partial(self._part, indices[own], keys[own], memory.of(own)) for own in bounds
        ]
        try:
            parts = crew.run(tasks)
        except Exception:
            if memory.is_uneven:  # which the dataset may have wrapped in an error of its own
                raise UnevenError from None
            raise
        return joined(parts, bounds, memory)

    def _part(self, indices: Sequence[int], keys: Sequence[SampleKey], empty: Empty) -> Any:
        with using_keys(keys):
            return self._load(indices, empty)
