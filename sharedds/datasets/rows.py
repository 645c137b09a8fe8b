"""A batch that is made in ranges of its samples: memory for all of them, and what they return.

Memory that a range asks for with as many rows as it has samples is its slice of one tensor for all
ranges, so that nothing is copied once they are done. What else a range returns (labels) is joined.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, Protocol

import torch

from sharedds.errors import SchemaError

__all__ = ["BatchMemory", "Empty", "UnevenError", "joined"]


class Empty(Protocol):
    """Gives memory for a batch."""

    def __call__(
        self, shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
    ) -> torch.Tensor:
        """Return a tensor that is not initialised; (N, C, H, W) for ``channels_last``."""
        ...


class UnevenError(SchemaError):
    """What the ranges returned does not make one batch."""


class BatchMemory:
    """Tensors for a whole batch, of which each range gets its rows; for several threads at once.

    Args:
        empty: Gives the memory.
        count: Samples of the whole batch.

    Attributes:
        tensors: What was given.
        is_uneven: Whether ranges asked for memory that is not alike.
    """

    def __init__(self, empty: Empty, count: int) -> None:
        self._empty = empty
        self._count = count
        self._lock = threading.Lock()
        self._asked: list[tuple[Any, ...]] = []
        self.tensors: list[torch.Tensor] = []
        self.is_uneven = False

    def of(self, own: slice) -> Empty:
        """Return the function that one range asks for memory; all ask in the same order."""
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
                raise UnevenError
            return self.tensors[number]


def joined(parts: list[Any], bounds: list[slice], memory: BatchMemory) -> Any:
    """Join what the ranges of a batch returned, nested as ``default_collate`` nests it.

    Args:
        parts: Of each range.
        bounds: The ranges.
        memory: What they were given.

    Raises:
        UnevenError: They do not make one batch.
    """
    first = parts[0]
    kind = type(first)
    if any(type(part) is not kind for part in parts):
        raise UnevenError
    if isinstance(first, torch.Tensor):
        for whole in memory.tensors:
            if all(_is_same(part, whole[own]) for part, own in zip(parts, bounds, strict=True)):
                return whole
        rows = {(part.shape[1:], part.dtype) for part in parts}
        if first.ndim == 0 or len(rows) > 1:
            raise UnevenError
        return torch.cat(parts)
    if isinstance(first, dict):
        if any(part.keys() != first.keys() for part in parts):
            raise UnevenError
        fields = {name: joined([part[name] for part in parts], bounds, memory) for name in first}
        return fields if kind is dict else kind(fields)
    if not isinstance(first, list | tuple):
        raise UnevenError
    if all(isinstance(value, str | bytes) for value in first):  # one for each sample
        return kind(itertools.chain.from_iterable(parts))
    if any(len(part) != len(first) for part in parts):
        raise UnevenError
    values = [joined(list(each), bounds, memory) for each in zip(*parts, strict=True)]
    return kind(*values) if hasattr(first, "_fields") else kind(values)


def _is_same(part: torch.Tensor, rows: torch.Tensor) -> bool:
    return (
        part.data_ptr() == rows.data_ptr()
        and part.shape == rows.shape
        and part.stride() == rows.stride()
        and part.dtype == rows.dtype
    )
