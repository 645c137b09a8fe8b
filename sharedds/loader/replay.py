"""The same few batches again and again, so that training alone can be timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from sharedds.host.system import megabytes
from sharedds.loader.accounts import nbytes_of
from sharedds.workers.delivery import DescriptorKeeper

__all__ = ["Replay"]


class Replay:
    """Serves batches that were loaded once; made by ``loader.replay(n)``.

    The batches are loaded when they are first asked for, so the first loop takes longer to begin.
    Each is the same object whenever its turn comes: what training changes in place stays changed.

    Args:
        source: Where they come from; it is gone through once.
        count: How many to keep.
        length: How many to serve in each loop; None serves each of those kept once.

    Attributes: as the arguments.
    """

    def __init__(self, source: Iterable[Any], count: int, length: int | None = None) -> None:
        self._source: Iterable[Any] = source
        self.count = count
        self.length = length
        self._batches: list[Any] | None = None

    @property
    def batches(self) -> list[Any]:
        """The batches; loads them if need be."""
        if self._batches is None:
            # No descriptor and no shared memory is held for them: a limit that is always exceeded.
            keeper = DescriptorKeeper(limit=1)
            kept = []
            for batch in itertools.islice(self._source, self.count):
                keeper.keep(batch)
                kept.append(batch)
            self._batches = kept
            self._source = ()
        return self._batches

    @property
    def nbytes(self) -> int:
        """Bytes that the batches take; loads them if need be."""
        return sum(map(nbytes_of, self.batches))

    def __len__(self) -> int:
        """Return how many batches a loop gets."""
        return self.length if self.length is not None else len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        """Begin a loop over the batches, from the first one."""
        return itertools.islice(itertools.cycle(self.batches), len(self))

    def __repr__(self) -> str:
        if self._batches is None:
            return f"<Replay of {self.count} batches, not loaded yet>"
        return f"<Replay of {len(self._batches)} batches, {megabytes(self.nbytes)}>"
