"""Between a loader and the loop over it: batches on their way to a device, one ahead.

While training computes on one batch, the next one is copied and converted on a stream of its own.
All this happens below the accounts of a loop, so that nothing is counted before it is handed out:
a state, the failures and an error of the loader come at the same batch as without a device.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import torch

from sharedds.loader.conversion import Conversion, self_moving
from sharedds.loader.failures import Delivery
from sharedds.workers.delivery import tensors_of

__all__ = ["Ahead", "AtOnce", "Stage", "Streams"]

_AHEAD = 1

Fetch = Callable[[], Any]


class Streams(Protocol):
    """What is needed of an accelerator: a stream beside the one on which training runs."""

    @property
    def device(self) -> torch.device:
        """The device, with its number."""
        ...

    def beside(self) -> contextlib.AbstractContextManager[Any]:
        """Put work on the stream beside; the context gives that stream."""
        ...

    def current(self) -> Any:
        """Return the stream on which this thread computes."""
        ...

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Let nobody reuse the memory of a tensor before ``stream`` has come to where it is now."""
        ...


class Stage(Protocol):
    """What a batch goes through between the loader and the loop over it."""

    @property
    def held(self) -> int:
        """How many batches were fetched and are not handed out."""
        ...

    def take(self, fetch: Fetch) -> tuple[Any, Any]:
        """Return what is handed out next, and the batch in it as it was loaded.

        Args:
            fetch: Gets what the loader has next, or raises. It is not kept: it leads back to the
                loop, which must be gone as soon as it is left.
        """
        ...


class AtOnce:
    """Moves each batch when its turn comes.

    Args:
        conversion: What becomes of a batch.
        device: Where it goes.
    """

    held = 0

    def __init__(self, conversion: Conversion, device: torch.device) -> None:
        self._conversion = conversion
        self._device = device

    def take(self, fetch: Fetch) -> tuple[Any, Any]:
        """Return what is handed out next, and the batch in it as it was loaded."""
        data = fetch()
        loaded = _batch_in(data)
        return _with_batch(data, self._conversion(loaded, self._device)), loaded


@dataclasses.dataclass(frozen=True, slots=True)
class _Fetched:
    """A batch on its way, or what came in its place.

    Args:
        data: What the loader gave.
        moved: The batch on the device.
        event: After the work that makes it, on the stream beside; None: nothing is done yet.
        error: Raised by the loader or on the way.
    """

    data: Any = None
    moved: Any = None
    event: Any = None
    error: Exception | None = None


class Ahead:
    """Has a batch on its way to the device while the one before is trained on.

    What the loader raises in advance is kept until its turn. Ctrl-C is not, and loses no batch that
    has come.

    Args:
        conversion: What becomes of a batch.
        streams: Where that happens.
    """

    def __init__(self, conversion: Conversion, streams: Streams) -> None:
        self._conversion = conversion
        self._streams = streams
        self._fetched: collections.deque[_Fetched] = collections.deque()
        self._read: collections.deque[tuple[Any, Any]] = collections.deque()

    @property
    def held(self) -> int:
        """How many batches were fetched and are not handed out."""
        return len(self._fetched)

    def take(self, fetch: Fetch) -> tuple[Any, Any]:
        """Return what is handed out next, and the batch in it as it was loaded."""
        fetched = self._fetched
        while len(fetched) <= _AHEAD and not (fetched and fetched[-1].error):
            self._fetch(fetch)
        try:
            taken = self._hand_out(fetched[0])
        except Exception:
            fetched.popleft()
            raise
        fetched.popleft()
        return taken

    def _fetch(self, fetch: Fetch) -> None:
        fetched, count = self._fetched, len(self._fetched)
        try:
            fetched.append(_Fetched(fetch()))  # stays, to be moved at its turn, if Ctrl-C comes now
            fetched[-1] = self._send(fetched[-1].data)
        except Exception as error:
            _set_aside(error)
            if len(fetched) > count:
                fetched.pop()
            fetched.append(_Fetched(error=error))

    def _send(self, data: Any) -> _Fetched:
        batch = _batch_in(data)
        if not all(map(_waits_for_none, tensors_of(batch))):
            return _Fetched(data)
        if not all(map(_shows_tensors, self_moving(batch))):
            return _Fetched(data)
        with self._streams.beside() as side:
            moved = self._conversion(batch, self._streams.device)
            return _Fetched(data, moved, side.record_event())

    def _hand_out(self, first: _Fetched) -> tuple[Any, Any]:
        if first.error is not None:
            raise first.error
        loaded, moved, device = _batch_in(first.data), first.moved, self._streams.device
        while self._read and self._read[0][0].query():
            self._read.popleft()
        if first.event is None:
            moved = self._conversion(loaded, device)
        else:
            stream = self._streams.current()
            stream.wait_event(first.event)
            for tensor in tensors_of(moved):
                if tensor.device == device:
                    self._streams.keep(tensor, stream)
            # Whoever owns the memory that is read gets it back once it was read.
            self._read.append((first.event, loaded))
        return _with_batch(first.data, moved), loaded


def _waits_for_none(tensor: torch.Tensor) -> bool:
    """Whether any stream may work on a tensor at once: not if it was computed on a device."""
    return tensor.device.type == "cpu" and tensor.layout == torch.strided


def _shows_tensors(part: Any) -> bool:
    """Whether the memory of an object that moves itself can be kept: its tensors are found."""
    return next(tensors_of(part), None) is not None


def _set_aside(error: BaseException) -> None:
    """Make notes of the tracebacks of an error that is kept.

    Their frames lead back to the loop, so that it would live on, with its workers, when it is left.
    """
    chain = [error]
    for each in chain:
        if each.__traceback__ is not None and not isinstance(each, StopIteration):
            lines = "".join(traceback.format_tb(each.__traceback__))
            each.add_note(f"raised when this batch was fetched, one ahead:\n{lines.rstrip()}")
        each.__traceback__ = None
        more = (each.__cause__, each.__context__)
        chain += [other for other in more if other is not None and other not in chain]


def _batch_in(data: Any) -> Any:
    return data.batch if isinstance(data, Delivery) else data


def _with_batch(data: Any, batch: Any) -> Any:
    return dataclasses.replace(data, batch=batch) if isinstance(data, Delivery) else batch
