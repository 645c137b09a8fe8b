"""How a batch gets from a worker to the trainer, also where room or descriptors are short.

torch puts every tensor of a batch into a new file in ``/dev/shm`` and sends its descriptor. There,
writing into a file that the system has no room for kills the writer (SIGBUS), and each tensor that
the user keeps costs a descriptor. Here tensors lie in buffers that both sides keep mapped
(:mod:`sharedds.workers.lending`), and what is sent says where. Room is reserved before it is
written to; what does not fit travels through the pipe instead, slower but whole. The trainer copies
tensors out of shared memory once descriptors run short. Small tensors always travel by value: to
make a file, to hand over its descriptor and to map it takes longer than to copy them.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from sharedds.host.descriptors import open_files_limit
from sharedds.host.shared import SHARED_MEMORY, SharedMemoryRoom, shared_memory_room
from sharedds.host.system import megabytes
from sharedds.workers.buffers import SMALL, by_descriptor, shared_memory_of_worker
from sharedds.workers.lending import Buffers, Sending
from sharedds.workers.mapped import Notice, in_buffer, opened
from sharedds.workers.segments import address_of

__all__ = [
    "DescriptorKeeper",
    "InlineBatch",
    "deliverable",
    "tensors_of",
]


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


def deliverable(batch: Any) -> Any:
    """In a worker: return what is to be sent for a batch.

    Returns:
        The batch with its tensors in shared memory; or what becomes the batch when it is unpickled,
        with the small ones by value; or an InlineBatch where there is no room.
    """
    if not by_descriptor():
        return batch
    buffers = memory.buffers if (memory := shared_memory_of_worker()) is not None else None
    is_used = buffers is not None and buffers.end_batch()
    tensors = [*tensors_of(batch)]
    large = [each for each in tensors if not _goes_by_value(each)]
    # What torch sends in its own way must not lie in a buffer, nor must what shares its memory.
    special = {address_of(each) for each in large if _is_plain(each) and not _is_ordinary(each)}
    moved: dict[int, torch.UntypedStorage] = {}
    sent: dict[int, Sending] = {}
    for tensor in large:
        if not _is_plain(tensor) or not tensor.nbytes or _is_shared(tensor):
            continue
        lends = buffers is not None and address_of(tensor) not in special
        if lends and _is_sending(tensor, buffers, sent):
            continue
        _move(tensor, moved, lends=lends)
        if not (_is_shared(tensor) or _is_sending(tensor, buffers, sent)):
            needed = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
            data = pickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL)
            return InlineBatch(data, needed, shared_memory_room())
    has_news = buffers is not None and buffers.has_news
    # With `is_used` alone a buffer was taken and no tensor was found in it: one may hide where only
    # pickling looks. That is done here, not at some moment by the queue's thread, so that the next
    # batch finds the buffer free.
    if len(large) == len(tensors) and not (sent or is_used or has_news):
        return batch
    pickled = _pickled(batch, sent)
    if pickled is None:  # the queue will find the same, and say what it is
        return batch
    return _Pickled(pickled, buffers.lend(sent.values()) if buffers is not None else None)


def _is_sending(tensor: torch.Tensor, buffers: Buffers | None, sent: dict[int, Sending]) -> bool:
    """Note where a tensor lies if that is in a buffer that can be sent."""
    address = address_of(tensor)
    if buffers is not None and address not in sent:
        sending = buffers.sending(address)
        if sending is not None:
            sent[address] = sending
    return address in sent


def _move(tensor: torch.Tensor, moved: dict[int, torch.UntypedStorage], *, lends: bool) -> None:
    """Move a tensor to shared memory, to private memory where there is no room."""
    storage = tensor.untyped_storage()
    with torch.no_grad():
        if storage.nbytes() > 2 * tensor.nbytes:  # a view of what is larger, which stays
            shared = _new_memory(tensor.nbytes, lends=lends)
            compact = torch.empty(0, dtype=tensor.dtype).set_(shared).view(tensor.shape)
            compact.copy_(tensor)
            offset, stride = 0, compact.stride()
        else:
            place = storage.data_ptr()
            if place not in moved:
                moved[place] = _new_memory(storage.nbytes(), lends=lends)
                moved[place].copy_(storage)
            shared, offset, stride = moved[place], int(tensor.storage_offset()), tensor.stride()
        tensor.set_(shared, offset, tensor.size(), stride)


def _new_memory(size: int, *, lends: bool) -> torch.UntypedStorage:
    memory = shared_memory_of_worker()
    if memory is None:
        make: Callable[[int], torch.UntypedStorage] = torch.UntypedStorage._new_shared
        return make(size)
    return memory.of_buffers(size) if lends else memory.reserved(size)


# --- in a worker: by value -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pickled:
    """Becomes the batch by being sent."""

    data: bytes
    notice: Notice | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.notice is None:
            return pickle.loads, (self.data,)
        return opened, (self.notice, self.data)


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


class _BatchPickler(ForkingPickler):
    """Pickles as queues do, but small tensors with what is in them, others with where they lie.

    Tensors that share their memory still do when they arrive.

    Args:
        file: To write to.
        sent: Memory that is lent, by address.
    """

    def __init__(self, file: io.BytesIO, sent: Mapping[int, Sending]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        # Not changed in place: some versions of Python keep one table for all picklers.
        self.dispatch_table = {**self.dispatch_table, torch.Tensor: self._reduce}
        self._storages: dict[int, _Bytes] = {}
        self._sent = sent

    def forget(self) -> None:
        """Let go of what was pickled: the table leads back here, so this would keep it for long."""
        self.clear_memo()
        self._storages.clear()
        self._sent = {}

    def _reduce(self, tensor: torch.Tensor) -> Any:
        if not _goes_by_value(tensor):
            lent = self._sent.get(address_of(tensor)) if _is_ordinary(tensor) else None
            if lent is None:
                return reduce_tensor(tensor)  # type: ignore[no-untyped-call]
            offset = int(tensor.storage_offset())
            return _tensor_of, (lent, tensor.dtype, offset, tensor.shape, tensor.stride())
        offset, stride = int(tensor.storage_offset()), tensor.stride()
        storage = tensor.untyped_storage()
        if storage.nbytes() > SMALL or _is_lazy(tensor):  # a view of what is larger, which stays
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


def _is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its values, shape and strides, and nothing else that would be lost."""
    if type(tensor) is not torch.Tensor or not _is_plain(tensor):
        return False
    return not (tensor.requires_grad or tensor.is_quantized or tensor.__dict__)


def _goes_by_value(tensor: torch.Tensor) -> bool:
    """Whether to send a tensor by value: it is small, and there is nothing special about it."""
    if not _is_ordinary(tensor) or tensor.nbytes == 0:
        return False
    if _is_lazy(tensor):
        return True
    if tensor.nbytes > SMALL:
        return False
    storage = tensor.untyped_storage().nbytes()
    return storage <= SMALL or storage > 2 * tensor.nbytes


def _pickled(batch: Any, sent: Mapping[int, Sending]) -> bytes | None:
    file = io.BytesIO()
    pickler = _BatchPickler(file, sent)
    try:
        pickler.dump(batch)
    except Exception:
        return None
    finally:
        pickler.forget()
    return file.getvalue()


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
    if not _is_plain(tensor) or not (_is_shared(tensor) or in_buffer(tensor)):
        return
    storage = tensor.untyped_storage()
    place = storage.data_ptr()
    if place not in copies:
        private = torch.UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
        copies[place] = private.copy_(storage)
    with torch.no_grad():
        tensor.set_(copies[place], tensor.storage_offset(), tensor.size(), tensor.stride())
