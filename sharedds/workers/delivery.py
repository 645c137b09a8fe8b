"""How a batch gets from a worker to the trainer where room or descriptors are short.

torch puts every tensor of a batch into a new file in ``/dev/shm`` and sends its descriptor. There,
writing into a file that the system has no room for kills the writer (SIGBUS), and each tensor that
the user keeps costs a descriptor. Here a worker reserves the room before it writes; what does not
fit travels through the pipe instead, slower but whole. The trainer copies tensors out of shared
memory once descriptors run short. Small tensors always travel by value: to make a file, to hand
over its descriptor and to map it takes longer than to copy them.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import reduce_tensor

from sharedds.host.descriptors import open_files_limit
from sharedds.host.shared import SHARED_MEMORY, SharedMemoryRoom, shared_memory_room
from sharedds.host.system import megabytes

__all__ = [
    "DescriptorKeeper",
    "InlineBatch",
    "deliverable",
    "guard_shared_memory",
    "tensors_of",
]

#: What is left for others in /dev/shm (communication between ranks): at most this many bytes.
_MARGIN = 16 << 20
#: Storages of at most so many bytes travel by value; beyond that, pipes are slower.
_SMALL = 1 << 15


def tensors_of(obj: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers, and in the attributes of other objects."""
    waiting = [obj]
    seen: set[int] = set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, (str, bytes, int, float, type(None), type)) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, Mapping):
            waiting.extend(part.values())
        elif isinstance(part, (list, tuple)):
            waiting.extend(part)
        elif hasattr(part, "__dict__") and not callable(part):
            waiting.append(vars(part))


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided


def _is_shared(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def _new_shared(size: int) -> torch.UntypedStorage:
    """Memory to share, reserved where :func:`guard_shared_memory` was called; else private."""
    make = getattr(torch.UntypedStorage._new_shared, "whatever_size", None)
    storage: torch.UntypedStorage
    storage = (make or torch.UntypedStorage._new_shared)(size)
    return storage


# --- in a worker ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InlineBatch:
    """A batch as pickled bytes, because ``/dev/shm`` had no room for it.

    Args:
        pickled: The batch, tensors by value.
        needed: Bytes of its tensors.
        room: What ``/dev/shm`` had.
    """

    pickled: bytes = field(repr=False)
    needed: int
    room: SharedMemoryRoom | None

    def open(self) -> Any:
        """Return the batch."""
        return pickle.loads(self.pickled)  # noqa: S301 - from our own worker process

    def __str__(self) -> str:
        return (
            f"{SHARED_MEMORY} is too small for the batches of the workers: one takes "
            f"{megabytes(self.needed)} ({self.needed:,} bytes), and {self.room} is what it has. "
            "Such batches now travel through a pipe, which is slower. Give the container more "
            "(docker run --shm-size=8g), or use fewer workers, a smaller prefetch_factor or batch"
        )


def guard_shared_memory() -> None:
    """In a worker: reserve room in shared memory before it is written to.

    Memory that torch asks for is private where there is no room, which :func:`deliverable` notices;
    so is what will travel by value.
    """
    if sys.platform != "linux":
        return
    original: Callable[..., torch.UntypedStorage] = torch.UntypedStorage._new_shared

    def reserved(size: int, *, device: Any = "cpu") -> torch.UntypedStorage:
        on_cpu = torch.device(device).type == "cpu"
        if not on_cpu or size == 0 or not _goes_by_descriptor():
            return original(size, device=device)
        if _has_room(size):
            # Newer versions of torch reserve it as well, and raise a RuntimeError.
            with contextlib.suppress(OSError, RuntimeError):
                storage = original(size, device=device)
                descriptor, _ = storage._share_fd_cpu_()
                os.posix_fallocate(descriptor, 0, size)
                return storage
        return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]

    def reserved_if_large(size: int, *, device: Any = "cpu") -> torch.UntypedStorage:
        if 0 < size <= _SMALL and _goes_by_descriptor() and torch.device(device).type == "cpu":
            return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
        return reserved(size, device=device)

    reserved_if_large.whatever_size = reserved  # type: ignore[attr-defined]
    torch.UntypedStorage._new_shared = reserved_if_large  # type: ignore[method-assign]


def _goes_by_descriptor() -> bool:
    return bool(get_sharing_strategy() == "file_descriptor")  # type: ignore[no-untyped-call]


def _has_room(size: int) -> bool:
    room = shared_memory_room()
    return room is None or room.free - min(_MARGIN, room.total // 16) >= size


def deliverable(batch: Any) -> Any:
    """In a worker: return what is to be sent for a batch.

    Returns:
        The batch with its tensors in shared memory; or what becomes the batch when it is unpickled,
        with the small ones by value; or an InlineBatch where there is no room.
    """
    if sys.platform != "linux" or not _goes_by_descriptor():
        return batch
    moved: dict[int, torch.UntypedStorage] = {}
    has_small = False
    for tensor in tensors_of(batch):
        if _goes_by_value(tensor):
            has_small = True
            continue
        if not _is_plain(tensor) or _is_shared(tensor):
            continue
        if not _move(tensor, moved):
            needed = sum(tensor.untyped_storage().nbytes() for tensor in tensors_of(batch))
            data = pickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL)
            return InlineBatch(data, needed, shared_memory_room())
    return _pickled(batch) if has_small else batch


def _move(tensor: torch.Tensor, moved: dict[int, torch.UntypedStorage]) -> bool:
    """Move a tensor to shared memory; False where there is no room."""
    if tensor.nbytes == 0:
        return True
    storage = tensor.untyped_storage()
    with torch.no_grad():
        if storage.nbytes() > 2 * tensor.nbytes:  # a view of what is larger, which stays
            shared = _new_shared(tensor.nbytes)
            compact = torch.empty(0, dtype=tensor.dtype).set_(shared).view(tensor.shape)
            compact.copy_(tensor)
            offset, stride = 0, compact.stride()
        else:
            place = storage.data_ptr()
            if place not in moved:
                moved[place] = _new_shared(storage.nbytes())
                moved[place].copy_(storage)
            shared, offset, stride = moved[place], int(tensor.storage_offset()), tensor.stride()
        if not shared.is_shared():
            return False
        tensor.set_(shared, offset, tensor.size(), stride)
    return True


# --- in a worker: by value -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pickled:
    """Becomes the batch by being sent."""

    data: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.data,)


class _Bytes:
    """Becomes a storage by being sent."""

    __slots__ = ("_storage",)

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        view = torch.empty(0, dtype=torch.uint8).set_(self._storage)
        return _storage_of, (bytearray(view.numpy().data),)


def _storage_of(data: bytearray) -> torch.UntypedStorage:
    # Copied once more: memory of torch's own is aligned, and can be resized.
    return torch.frombuffer(data, dtype=torch.uint8).clone().untyped_storage()


def _tensor_of(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, size: Any, stride: Any
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)


class _SmallByValue(ForkingPickler):
    """Pickles as queues do, but small tensors with what is in them.

    Tensors that share their memory still do when they arrive.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        # Not changed in place: some versions of Python keep one table for all picklers.
        self.dispatch_table = {**self.dispatch_table, torch.Tensor: self._reduce}
        self._storages: dict[int, _Bytes] = {}

    def forget(self) -> None:
        """Let go of what was pickled: the table leads back here, so this would keep it for long."""
        self.clear_memo()
        self._storages.clear()

    def _reduce(self, tensor: torch.Tensor) -> Any:
        if not _goes_by_value(tensor):
            return reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        offset, stride = int(tensor.storage_offset()), tensor.stride()
        storage = tensor.untyped_storage()
        if storage.nbytes() > _SMALL or _is_lazy(tensor):  # a view of what is larger, which stays
            tensor = tensor.resolve_conj().resolve_neg()
            tensor = tensor.clone(memory_format=torch.contiguous_format)
            offset, stride, storage = 0, tensor.stride(), tensor.untyped_storage()
        place = storage.data_ptr()
        if place not in self._storages:
            self._storages[place] = _Bytes(storage)
        return _tensor_of, (self._storages[place], tensor.dtype, offset, tensor.shape, stride)


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether its memory holds the conjugates or negatives, which torch forgets to send."""
    return tensor.is_conj() or tensor.is_neg()


def _goes_by_value(tensor: torch.Tensor) -> bool:
    """Whether to send a tensor by value: it is small, and there is nothing special about it."""
    if type(tensor) is not torch.Tensor or not _is_plain(tensor) or tensor.nbytes == 0:
        return False
    if tensor.requires_grad or tensor.is_quantized or tensor.__dict__:
        return False
    if _is_lazy(tensor):
        return True
    if tensor.nbytes > _SMALL:
        return False
    storage = tensor.untyped_storage().nbytes()
    return storage <= _SMALL or storage > 2 * tensor.nbytes


def _pickled(batch: Any) -> Any:
    file = io.BytesIO()
    pickler = _SmallByValue(file)
    try:
        pickler.dump(batch)
    except Exception:  # the queue will find the same, and say what it is
        return batch
    finally:
        pickler.forget()
    return _Pickled(file.getvalue())


# --- in the trainer ------------------------------------------------------------------------------


@dataclass(slots=True)
class DescriptorKeeper:
    """Copies batches out of shared memory once half of the descriptors are taken.

    Args:
        limit: Open files allowed.
    """

    limit: int | None = field(default_factory=open_files_limit)
    is_short: bool = False
    _until_count: int = 0
    _is_told: bool = False

    def keep(self, batch: Any) -> bool:
        """Copy the tensors of a batch if descriptors are short.

        Returns:
            Whether this is the first batch that is copied.
        """
        self._until_count -= 1
        if self.limit is None or self.limit <= 0:
            return False
        if self._until_count <= 0:
            try:
                taken = len(os.listdir("/proc/self/fd"))
            except OSError:
                return False
            self.is_short = taken > self.limit // 2
            # No batch has hundreds of tensors: there is time until half of the rest is gone.
            rest = max(0, self.limit // 2 - taken)
            self._until_count = 1 if self.is_short else rest // 32
        if self.is_short:
            copies: dict[int, torch.UntypedStorage] = {}
            for tensor in tensors_of(batch):
                _copy_out(tensor, copies)
        is_first = self.is_short and not self._is_told
        self._is_told |= is_first
        return is_first


def _copy_out(tensor: torch.Tensor, copies: dict[int, torch.UntypedStorage]) -> None:
    if not _is_plain(tensor) or not _is_shared(tensor):
        return
    storage = tensor.untyped_storage()
    place = storage.data_ptr()
    if place not in copies:
        private = torch.UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
        copies[place] = private.copy_(storage)
    with torch.no_grad():
        tensor.set_(copies[place], tensor.storage_offset(), tensor.size(), tensor.stride())
