"""A loader whose batches are on a device: bytes travel, and become there what training takes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sharedds.errors import OptionError
from sharedds.handles import unsent
from sharedds.host.accelerator import accelerator
from sharedds.loader.ahead import Ahead, AtOnce, Stage, Streams
from sharedds.loader.conversion import Conversion
from sharedds.loader.replay import Replay

__all__ = ["DeviceLoader", "SideStream", "find_device"]

#: Where work can go on beside that of training. Elsewhere (CPU, MPS) there is one queue of work,
#: so that nothing is gained by moving a batch before its turn.
_WITH_STREAMS = ("cuda", "xpu")
_ANYWHERE = ("cpu", "meta")


def find_device(device: str | int | torch.device) -> torch.device:
    """Return the device that is meant, if this process has it; starts nothing there.

    Args:
        device: "cuda", "cuda:1", "mps", "cpu", a ``torch.device``, or the number of a device of
            the accelerator. Without a number it is the current one of the thread that iterates.

    Raises:
        OptionError: No device, or one that is not there; the text says what is.
    """
    found = accelerator()
    kind = found.kind if found is not None else "cuda"
    try:
        if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
            raise TypeError("a name, a number or a torch.device is expected")
        wanted = torch.device(f"{kind}:{device}" if isinstance(device, int) else device)
    except (TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise OptionError(f"device={device!r} is none: {reason}; {_there_is()}") from error
    if wanted.type in _ANYWHERE:
        return torch.device(wanted.type)
    if found is None or wanted.type != found.kind or (wanted.index or 0) >= found.count:
        raise OptionError(f"device={str(device)!r} is not there: {_there_is()}")
    return wanted


def _there_is() -> str:
    found = accelerator()
    if found is None:
        return "this process has no accelerator, only 'cpu'"
    last = f" to '{found.kind}:{found.count - 1}'" if found.count > 1 else ""
    name = f" ({found.name})" if found.name else ""
    return f"this process has '{found.kind}:0'{last}{name} and 'cpu'"


# --- streams -------------------------------------------------------------------------------------


def _with_number(device: torch.device) -> torch.device:
    """The device itself; without a number, the current one of this thread."""
    index: Any = device.index  # None without a number, whatever the stubs say
    if index is None:
        index = torch.accelerator.current_device_index()
    return torch.device(device.type, index)


class SideStream:
    """The streams of torch's accelerator, and one beside them.

    It serves all loops over a loader on this device: memory belongs to the stream for which it was
    allocated, so a new stream for each epoch would take memory of its own.

    Args:
        device: Where; without a number, the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = _with_number(device)
        self._side = torch.Stream(self._device)

    @property
    def device(self) -> torch.device:
        """The device, with its number."""
        return self._device

    @contextlib.contextmanager
    def beside(self) -> Iterator[torch.Stream]:
        """Put work of this thread on the stream beside; the context gives that stream."""
        before, index = self.current(), torch.accelerator.current_device_index()
        torch.accelerator.set_stream(self._side)
        try:
            yield self._side
        finally:
            torch.accelerator.set_stream(before)  # which also makes its device the current one
            torch.accelerator.set_device_index(index)

    def current(self) -> torch.Stream:
        """Return the stream on which this thread computes on the device."""
        return torch.accelerator.current_stream(self._device)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Let nobody reuse the memory of a tensor before ``stream`` has come to where it is now."""
        tensor.record_stream(stream)


# --- the loader ----------------------------------------------------------------------------------


class _Loop(Iterator[Any]):
    """A pass that begins when its first batch is asked for.

    Frameworks call ``iter()`` on what is no DataLoader only to see whether they can; that must cost
    no epoch, nor start workers.

    Args:
        begin: Begins it.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin
        self._begun: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._begun is None:
            self._begun = self._begin()
        return next(self._begun)


class DeviceLoader:
    """A loader whose batches are on a device; made by ``loader.to(device)``.

    A loop over it is a loop over the loader, with the same epochs, states, failures and figures.
    What else is asked of it (``state_dict``, ``set_epoch``, ``plan``, ``stats``) the loader
    answers; both count the batches that were handed out here.

    On CUDA and XPU one batch is ahead: it is copied, without waiting where the loader pins, and
    converted on a stream of its own while training computes. The stream on which training runs
    waits for it, on the device; Python does not. So two batches are loaded before the first is
    handed out, and the device holds one batch more.

    Args:
        loader: Where the batches come from: a ``PlannedLoader``.
        device: Where they go.
        conversion: What becomes of them.
        streams: Instead of those of torch's accelerator.

    Attributes:
        device: Where the batches are.
    """

    _streams = unsent[Streams]()

    def __init__(
        self,
        loader: Any,
        device: torch.device,
        conversion: Conversion,
        *,
        streams: Streams | None = None,
    ) -> None:
        self.device = device
        self._loader = loader
        self._conversion = conversion
        self._streams = streams

    def __len__(self) -> int:
        """Return how many batches of this rank a whole epoch has."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Return a loop that begins the next epoch, or goes on in it, with its first batch."""
        return _Loop(functools.partial(self._loader._begin, self._stage))

    def _stage(self) -> Stage:
        if self.device.type in _WITH_STREAMS:
            here = _with_number(self.device)
            if self._streams is None or self._streams.device != here:
                self._streams = SideStream(here)
        if self._streams is None:
            return AtOnce(self._conversion, self.device)
        return Ahead(self._conversion, self._streams)

    def replay(self, n: int) -> Replay:
        """As ``loader.replay(n)``: ``n`` batches, which stay on the device; training alone is left.

        Args:
            n: How many batches to load; they are kept in the memory of the device.

        Raises:
            OptionError: Not a whole number from 1.
        """
        there = self._loader.replay(n)
        moved = (self._conversion(batch, self.device) for batch in there)
        return Replay(moved, there.count, there.length)

    def __getattr__(self, name: str) -> Any:
        """What else is asked of a loader is asked of it."""
        if name.startswith("_"):
            raise AttributeError(f"DeviceLoader has no attribute {name!r}")
        return getattr(self._loader, name)

    def __repr__(self) -> str:
        return f"<DeviceLoader on {self.device} of {self._loader!r}>"
