"""How large the pickle of a dataset is, which every worker of spawn and forkserver is sent.

It is measured without making it: what is written is counted and thrown away, arrays and tensors
count by their size alone, and counting ends at a limit of bytes and seconds. Unlike the rest of the
audit this runs code of the user, as starting a worker would: ``__getstate__``, ``__reduce__``.
"""

from __future__ import annotations

import io
import pickle
import time
from dataclasses import asdict, dataclass
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from sharedds.diagnose.containers import is_a, is_exactly
from sharedds.diagnose.graph import attributes
from sharedds.diagnose.prices import Pricer
from sharedds.workers.transport import ValuePickler

__all__ = ["PIPE", "PickleSize", "pickle_size"]

#: What fits into a pipe while the worker still starts, in bytes: with more, workers of a plain
#: DataLoader start one after another.
PIPE = 60_000
_MOST_BYTES = 256_000_000
_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PickleSize:
    """How large a pickle is.

    Args:
        nbytes: Its size; an estimate where it was not measured to its end.
        is_whole: Whether it was measured to its end.
        largest: The attribute that makes most of it, such as ``dataset.samples``; None if none
            does.
        largest_nbytes: What that attribute alone takes.
        error: Why the dataset cannot be pickled at all; None if it can.
        plain_error: Why a plain DataLoader could not send it, where sharedds can: it knows how to
            send lambdas and the classes of a script.
    """

    nbytes: int
    is_whole: bool = True
    largest: str | None = None
    largest_nbytes: int = 0
    error: str | None = None
    plain_error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def pickle_size(dataset: object, *, name: str = "dataset", seconds: float = 2.0) -> PickleSize:
    """Measure the pickle of a dataset, and find what makes it large or impossible.

    Args:
        dataset: The dataset.
        name: What the path begins with.
        seconds: The longest it may take, about.
    """
    ends = time.monotonic() + seconds
    whole = _measured(dataset, ends)
    if whole.error is not None:
        path, error = _culprit(dataset, name, whole.error, ends)
        return PickleSize(nbytes=whole.nbytes, is_whole=False, error=f"{path}: {error}")
    plain = _measured(dataset, ends, by_value=False)
    plain_error = None
    if plain.error is not None:
        path, error = _culprit(dataset, name, plain.error, ends, by_value=False)
        plain_error = f"{path}: {error}"
    total = whole.nbytes
    if not whole.is_whole:
        total = max(total, Pricer(seconds / 4).price(dataset).pickled)
    largest, nbytes = _largest(dataset, name, total)
    return PickleSize(
        nbytes=total,
        is_whole=whole.is_whole,
        largest=largest,
        largest_nbytes=nbytes,
        plain_error=plain_error,
    )


class _EnoughError(Exception):
    """The limit is reached."""


class _Counter(io.RawIOBase):
    """Counts what is written to it."""

    def __init__(self, ends: float) -> None:
        self.count = 0
        self._ends = ends

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = len(data) if isinstance(data, bytes) else memoryview(data).nbytes
        self.add(size)
        return size

    def add(self, size: int) -> None:
        self.count += size
        if self.count > _MOST_BYTES or time.monotonic() > self._ends:
            raise _EnoughError


class _Starting:
    """Stands for a worker that is started: locks and shared memory let nobody else have them."""

    def duplicate_for_child(self, number: int) -> int:
        """Return the number of an open file."""
        return number

    def DupFd(self, number: int) -> int:  # noqa: N802 - what multiprocessing calls it
        """Return what opens it in the worker."""
        return number


def _placeholder(*_: object) -> None:
    """Stands for an array whose bytes were counted."""


class _ByReference(ForkingPickler):
    counter: _Counter

    def reducer_override(self, obj: Any) -> Any:
        """Count arrays and tensors, which are neither copied nor moved to shared memory."""
        found = _counted(obj, self.counter)
        return NotImplemented if found is None else found


class _ByValue(ValuePickler):
    counter: _Counter

    def reducer_override(self, obj: Any) -> Any:
        found = _counted(obj, self.counter)
        return super().reducer_override(obj) if found is None else found


def _counted(obj: Any, counter: _Counter) -> Any:
    if is_a(obj, np.ndarray) and not np.ndarray.dtype.__get__(obj).hasobject:
        counter.add(np.ndarray.nbytes.__get__(obj) + 120)
        return _placeholder, ()
    if is_a(obj, torch.Tensor):
        counter.add(400)  # its values go to shared memory, or are on a device
        return _placeholder, ()
    return None


@dataclass(frozen=True, slots=True)
class _Measured:
    nbytes: int
    is_whole: bool = True
    error: str | None = None


def _measured(obj: Any, ends: float, *, by_value: bool = True) -> _Measured:
    counter = _Counter(ends)
    file: Any = counter
    pickler: Any = _ByValue(file) if by_value else _ByReference(file, pickle.HIGHEST_PROTOCOL)
    pickler.counter = counter
    before = context.get_spawning_popen()
    starting: Any = _Starting()
    context.set_spawning_popen(starting)
    try:
        pickler.dump(obj)
    except _EnoughError:
        return _Measured(counter.count, is_whole=False)
    except Exception as error:  # whatever the user's code raises
        return _Measured(counter.count, error=f"{type(error).__name__}: {error}")
    finally:
        context.set_spawning_popen(before)
    return _Measured(counter.count)


def _parts(obj: Any, path: str) -> dict[str, Any]:
    """What pickling an object pickles, if it does so in the ordinary way."""
    if is_exactly(obj, dict):
        return {f"{path}[{key!r}]": value for key, value in obj.items()} if len(obj) <= 64 else {}
    if is_exactly(obj, list, tuple):
        return {f"{path}[{i}]": value for i, value in enumerate(obj)} if len(obj) <= 64 else {}
    return {f"{path}.{name}": value for name, value in attributes(obj).items()}


def _culprit(
    obj: Any, path: str, error: str, ends: float, *, by_value: bool = True
) -> tuple[str, str]:
    """Return the innermost part that does not pickle, and why."""
    for _ in range(_DEPTH):
        for label, part in _parts(obj, path).items():
            found = _measured(part, ends, by_value=by_value)
            if found.error is not None:
                obj, path, error = part, label, found.error
                break
        else:
            break
    return path, error


def _largest(obj: Any, path: str, total: int) -> tuple[str | None, int]:
    """Return the innermost part that makes more than half of a pickle, and about its size."""
    found, nbytes = None, 0
    for _ in range(_DEPTH):
        parts = _parts(obj, path)
        sizes = {label: Pricer(0.0).price(part).pickled for label, part in parts.items()}
        label = max(sizes, key=sizes.__getitem__, default=None)
        if label is None or sizes[label] * 2 <= total:
            break
        found, nbytes = label, min(sizes[label], total)
        obj, path = parts[label], label
    return found, nbytes
