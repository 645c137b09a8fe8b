"""Batches travel in buffers that stay mapped, and none changes that somebody can still see."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.util
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from processes import METHODS, descriptors, forked, left_in_shared_memory, shared_memory_names
from torch.utils.data import default_collate

import sharedds.workers.buffers
import sharedds.workers.lending
from sharedds.errors import MemoryBudgetError, WorkerDiedError
from sharedds.host.shared import SharedMemoryRoom, shared_memory_room
from sharedds.loader import build_loader
from sharedds.loader.budget import MemoryEstimate
from sharedds.workers.buffers import SharedMemory, empty_shared
from sharedds.workers.delivery import DescriptorKeeper, InlineBatch, deliverable
from sharedds.workers.lending import Buffers
from sharedds.workers.loans import FREE, LENT, LOST, Loans, new_loans
from sharedds.workers.mapped import MappedBuffers, in_buffer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="buffers are kept on Linux"),
]

AHEAD = 2
PATIENCE = AHEAD + 4  # batches until what is of no use goes


def is_shared(tensor: Any) -> bool:
    """Whether a tensor lies in a file of torch's own."""
    return bool(tensor.is_shared())


class Line:
    """Both ends in one process: a worker with buffers, and a trainer that maps them."""

    def __init__(self, memory: SharedMemory) -> None:
        made = new_loans(1, ahead=AHEAD)
        assert made is not None
        self.loans: Loans = made
        self.buffers = memory.buffers = Buffers(self.loans, 0)
        self.mapped = MappedBuffers(self.loans)

    def send(self, batch: Any) -> Any:
        """What arrives of a batch, for which the worker keeps nothing."""
        return pickle.loads(ForkingPickler.dumps(deliverable(batch)))

    def states(self) -> list[int]:
        """How the first buffers are lent."""
        return list(self.loans.of_worker(0)[:4])

    def fill(self, value: int, count: int = 10_000) -> Any:
        """A batch that was written straight into a buffer."""
        return self.send(empty_shared((count,), torch.int64).fill_(value))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """A line, for the length of a test."""
    memory = SharedMemory(torch.UntypedStorage._new_shared)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", memory)
    made = Line(memory)
    yield made
    made.loans.is_keeping = False
    for _ in range(2):
        made.buffers.end_batch()


# --- what is seen --------------------------------------------------------------------------------


def saved_for_backward(batch: Any) -> Any:
    """A graph that holds the batch, and nothing else that does."""
    weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
    return weight * batch.view(torch.float64)


def sum_of(held: Any) -> Any:
    """What tells whether something was written to."""
    if isinstance(held, torch.Tensor) and held.grad_fn is not None:
        saved = held.grad_fn._saved_other  # type: ignore[attr-defined]
        return int(saved.view(torch.int64).sum())
    return int(held.sum())


class Cycle:
    """Goes when the collector finds it, at any moment."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.me = self

    def sum(self) -> Any:
        """Of what it holds."""
        return self.held.sum()


def clear_weak_references() -> None:
    """As torch does now and then; older versions keep what is sent until then."""
    reductions: Any = torch.multiprocessing.reductions
    reductions.shared_cache.free_dead_references()


def seen_before(
    batch: Any, exchange: Callable[[], Any], by: Callable[[], Any] | None = None
) -> Any:
    """An array over the memory that the batch had before torch gave it other memory in place."""
    array = by() if by is not None else batch.numpy()
    assert in_buffer(batch)
    exchange()
    assert is_shared(batch)
    return array


def through_a_queue(batch: Any) -> None:
    """The thread of a queue pickles it, at some moment."""
    queue: Any = multiprocessing.get_context("fork").Queue()
    queue.put(batch)
    assert int(queue.get(timeout=20).sum()) == int(batch.sum())
    queue.close()
    queue.join_thread()


def through_a_pipe(batch: Any) -> None:
    """As :meth:`multiprocessing.Pipe` does."""
    one, other = multiprocessing.Pipe()
    one.send([batch])
    assert int(other.recv()[0].sum()) == int(batch.sum())
    one.close()
    other.close()


WAYS: dict[str, Callable[[Any], Any]] = {
    "the batch": lambda batch: batch,
    "a slice": lambda batch: batch[5:7],
    "an array": lambda batch: batch.numpy(),
    "a slice of an array": lambda batch: batch.numpy()[::100],
    "another dtype": lambda batch: batch.view(torch.uint8)[::8],
    "other strides": lambda batch: batch[:10_000].view(100, 100).T[1:],
    "a graph": saved_for_backward,
    "in a cycle": Cycle,
    "detached": lambda batch: batch.detach(),
    "its memory": lambda batch: torch.empty(0, dtype=torch.int64).set_(batch.untyped_storage()),
    "a buffer": lambda batch: np.frombuffer(memoryview(batch.numpy()), np.int64),
    "DLPack": lambda batch: np.from_dlpack(batch),
    "share_memory_": lambda batch: seen_before(batch, lambda: batch.share_memory_()),
    "share_memory_ of a view": lambda batch: seen_before(batch, lambda: batch[3:].share_memory_()),
    "sent on": lambda batch: seen_before(batch, lambda: ForkingPickler.dumps([batch])),
    "a capsule, and sent on": lambda batch: seen_before(
        batch, lambda: ForkingPickler.dumps(batch), by=lambda: np.from_dlpack(batch)
    ),
    "sent on through a queue": lambda batch: seen_before(batch, lambda: through_a_queue(batch)),
    "sent on through a pipe": lambda batch: seen_before(batch, lambda: through_a_pipe(batch)),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_stays_as_it_is(way: str, line: Line) -> None:
    """However it is held: its memory is not used again before it is gone."""
    held = WAYS[way](line.fill(7))
    before = sum_of(held)
    for step in range(3 * PATIENCE):
        line.fill(100 + step)
    assert sum_of(held) == before
    assert FREE in line.states()
    place = line.states().index(LENT)
    del held
    clear_weak_references()
    gc.collect()
    assert line.states()[place] == FREE


def test_what_was_sent_on_arrives_and_stays(line: Line) -> None:
    """It is the receiver's then; the buffer comes back when the sender has dropped the batch."""
    batch = line.fill(7)
    message = ForkingPickler.dumps(batch)
    assert line.states()[0] == LENT
    del batch
    clear_weak_references()
    assert line.states()[0] == FREE
    for step in range(PATIENCE):
        line.fill(step)
    assert int(pickle.loads(message).sum()) == 70_000


def test_a_worker_may_share_what_it_made(line: Line) -> None:
    """What it sees of the old memory stays as well."""
    mine: Any = empty_shared((10_000,), torch.int64).fill_(4)
    array = mine.numpy()
    mine.share_memory_()
    assert int(line.send([mine])[0].sum()) == 40_000
    for step in range(3 * PATIENCE):
        line.fill(step)
    assert int(array.sum()) == 40_000
    assert array.ctypes.data in line.buffers._buffers or line.states()[0] == FREE


def rounds(line: Line, seed: int) -> None:
    """Send, hold and drop batches at random, and look at all that is held after each step."""
    draw = random.Random(seed)
    held: dict[int, tuple[Any, int]] = {}
    for step in range(100):
        sizes = draw.choices((5_000, 8_000, 10_000, 10_001, 40_000), k=draw.choice((1, 1, 3)))
        parts = [empty_shared((size,), torch.int64).fill_(step) for size in sizes]
        if draw.random() < 0.2:
            parts += [torch.full((6_000,), step), torch.arange(3), torch.full((20_000,), step)[::2]]
        if draw.random() < 0.1:
            del parts  # what was made for a batch that failed
            continue
        got = line.send({"x": parts, "y": tuple(parts[:1])})
        del parts
        for part in got["x"]:
            if draw.random() < 0.3 and part.numel() > 3 and part.is_contiguous():
                way = draw.choice([*[*WAYS.values()][:4], Cycle])
                kept = way(part)
                held[len(held) + 1000 * step] = kept, sum_of(kept)
        del got, part
        for key in [key for key in held if draw.random() < 0.2]:
            del held[key]
        if draw.random() < 0.04:
            gc.collect()
        assert all(sum_of(kept) == before for kept, before in held.values()), step


@pytest.mark.parametrize("seed", range(3))
def test_nothing_changes_whatever_is_held(seed: int, line: Line) -> None:
    """By chance, over many batches of several sizes."""
    rounds(line, seed)
    assert len(line.buffers) < 60


def test_the_test_above_can_fail(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring of buffers that goes by the number of batches alone changes what is held."""

    def come_back_at_once(self: Loans, lent: Any, worker: int, slot: int) -> None:
        self.of_worker(worker)[slot] = FREE

    monkeypatch.setattr(Loans, "lend", come_back_at_once)
    original = line.send

    def send(batch: Any) -> Any:
        got = original(batch)
        line.loans.of_worker(0)[:] = FREE
        return got

    monkeypatch.setattr(line, "send", send)
    with pytest.raises(AssertionError):
        for seed in range(3):
            rounds(line, seed)


def test_the_last_of_several_tensors_counts(line: Line) -> None:
    """Tensors that share their memory still do, and share the loan."""
    whole = empty_shared((10_000,), torch.int64).fill_(1)
    got = line.send([whole, whole[10:], whole])
    del whole
    assert got[0] is got[2]
    got[0][10] = 5
    assert got[1][0] == 5
    rest = got.pop(1)
    got.clear()
    assert line.states()[0] == LENT
    del rest
    assert line.states()[0] == FREE


def test_another_thread_may_hold_and_drop_it(line: Line) -> None:
    """As the thread that pins memory does, which also opens the messages."""
    message = ForkingPickler.dumps(deliverable(empty_shared((10_000,), torch.int64).fill_(3)))
    seen, go = [], threading.Event()

    def hold() -> None:
        batch = pickle.loads(message)
        seen.append(int(batch.sum()))
        go.wait(10)
        seen.append(int(batch.sum()))

    thread = threading.Thread(target=hold)
    thread.start()
    while not seen:
        time.sleep(0.01)
    for step in range(5):
        line.fill(step)
    go.set()
    thread.join()
    assert seen == [30_000, 30_000]
    assert LENT not in line.states()


def test_a_worker_that_keeps_a_batch_keeps_its_memory(line: Line) -> None:
    """And may send it again, as a copy."""
    mine = empty_shared((10_000,), torch.int64).fill_(4)
    first = line.send([mine])[0]
    second = line.send([mine])[0]
    assert first.data_ptr() != second.data_ptr()
    del first
    for step in range(3 * PATIENCE):
        line.fill(step)
    assert (int(mine.sum()), int(second.sum())) == (40_000, 40_000)


def test_a_child_of_the_trainer_sees_no_change(line: Line) -> None:
    """It maps the same memory: what was held when it was forked is never used again."""
    batch = line.fill(6)
    asked, answer = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(asked[0], 1)
        os.write(answer[1], b"%d" % int(batch.sum()))
        os._exit(0)
    del batch
    assert line.states()[0] == LOST
    for step in range(10):
        line.fill(step)
    os.write(asked[1], b"x")
    assert os.read(answer[0], 100) == b"60000"
    os.waitpid(pid, 0)
    for end in (*asked, *answer):
        os.close(end)


def test_a_child_gives_nothing_back(line: Line) -> None:
    """When it drops what its parent still holds."""
    held = [line.fill(6)]
    assert forked(held.clear) == 0
    assert line.states()[0] == LENT


def test_a_child_of_a_worker_takes_no_buffer(line: Line) -> None:
    """It would write where its parent writes; and what it sees of its parent's stays."""
    mine = empty_shared((10_000,), torch.int64).fill_(4)
    (used,) = line.buffers._buffers.values()

    def child() -> None:
        assert line.buffers.take(80_000) is None
        assert not line.buffers.end_batch()
        assert is_shared(empty_shared((10_000,), torch.int64))

    assert forked(child) == 0
    del mine
    line.fill(1)
    assert used not in line.buffers._buffers.values()


# --- what is used again --------------------------------------------------------------------------


def test_memory_is_used_again(line: Line) -> None:
    """Two buffers serve a loop that holds one batch while it takes the next."""
    places = set()
    batch = None
    for step in range(50):
        batch = line.fill(step)
        places.add(batch.data_ptr())
    assert len(places) == len(line.mapped) == len(line.buffers) == 2


def test_smaller_batches_fit_and_larger_ones_do_not(line: Line) -> None:
    """A buffer serves for what takes most of it."""
    first = line.fill(1, 10_000).data_ptr()
    assert line.fill(2, 8_000).data_ptr() == first
    assert len(line.fill(2, 8_000).untyped_storage()) == 64_000
    assert line.fill(3, 5_000).data_ptr() != first
    assert line.fill(4, 12_000).data_ptr() != first


def test_what_was_made_for_a_batch_that_failed_is_used_again(line: Line) -> None:
    """It was never sent."""
    place = empty_shared((10_000,), torch.int64).data_ptr()
    line.send([torch.arange(3)])
    assert empty_shared((10_000,), torch.int64).data_ptr() == place
    assert len(line.buffers) == 1


def test_an_outlier_leaves_nothing_behind(line: Line) -> None:
    """Its memory is given back, on both sides, though other batches go on."""
    line.fill(0, 4_000_000)
    assert line.buffers.nbytes > 32_000_000
    for step in range(PATIENCE + 2):
        line.fill(step)
    assert line.buffers.nbytes == line.mapped.nbytes < 200_000


def test_memory_is_given_back_at_once(line: Line) -> None:
    """Before the trainer has heard of it, which may take its time over a batch."""
    line.fill(0, 4_000_000)
    file = next(iter(line.mapped._segments.values()))._bytes
    before = shared_memory_room()
    line.loans.is_keeping = False
    line.buffers.end_batch()
    after = shared_memory_room()
    assert before is not None
    assert after is not None
    assert after.free - before.free > 20_000_000
    assert not file.any()


def test_what_is_held_for_long_is_the_holders(line: Line) -> None:
    """A list of all batches: nothing is kept for them, and what is dropped goes at once."""
    held = [line.fill(step) for step in range(100)]
    assert len(line.buffers) <= PATIENCE + 2
    assert len(line.mapped) <= PATIENCE + 2
    assert [int(batch[0]) for batch in held] == list(range(100))
    taken = descriptors()
    held.clear()
    line.fill(1)
    assert descriptors() <= taken - 90


def test_a_worker_at_rest_keeps_nothing(line: Line) -> None:
    """Between epochs; what is lent stays."""
    held = line.fill(1, 20_000)
    line.fill(2)
    line.buffers.rest()
    assert len(line.buffers) == 1
    assert int(held.sum()) == 20_000
    line.fill(3)
    assert len(line.mapped) == 2


def test_at_rest_nothing_that_was_given_back_is_taken(line: Line) -> None:
    """The trainer has let go of it, and would not know where the batch is."""
    line.fill(1)
    line.buffers.end_batch()
    kept = empty_shared((20_000,), torch.int64)  # looks, and leaves the other one idle
    line.buffers.rest()
    assert not line.buffers._idle
    del kept


def small(monkeypatch: pytest.MonkeyPatch, line: Line, size: int, *, room_for_others: int) -> None:
    """Let shared memory be of a size, of which nothing is taken but buffers and so much else."""

    def room() -> SharedMemoryRoom:
        return SharedMemoryRoom(free=size - line.buffers.nbytes - room_for_others, total=size)

    for module in (sharedds.workers.buffers, sharedds.workers.lending):
        monkeypatch.setattr(module, "shared_memory_room", room)


@pytest.mark.parametrize(("others", "count"), [(0, 1_400_000), (8_000_000, 900_000)])
def test_idle_buffers_make_room(
    line: Line, monkeypatch: pytest.MonkeyPatch, others: int, count: int
) -> None:
    """Before a batch goes through the pipe; also while so little is free that nothing is kept."""
    small(monkeypatch, line, 20_000_000, room_for_others=0)
    held = [line.fill(step, 500_000) for step in range(2)]
    held.clear()
    small(monkeypatch, line, 20_000_000, room_for_others=others)
    assert len(line.buffers) == 2
    large = empty_shared((count,), torch.int64).fill_(3)
    assert line.buffers.sending(large.data_ptr()) is not None or is_shared(large)  # not private
    message = deliverable(large)
    assert not isinstance(message, InlineBatch)
    assert int(pickle.loads(ForkingPickler.dumps(message)).sum()) == 3 * count


def test_under_a_budget_nothing_is_kept(line: Line) -> None:
    """When the trainer says so, at any time: batches travel as torch sends them."""
    held = line.fill(1)
    line.fill(2)
    line.loans.is_keeping = False
    batch = line.fill(3)
    line.fill(4)
    assert batch.is_shared()
    assert (len(line.buffers), len(line.mapped)) == (0, 0)
    line.loans.is_keeping = True
    assert not line.fill(5).is_shared()
    assert (int(held[0]), int(batch[0])) == (1, 3)


def test_where_shared_memory_runs_short_nothing_is_kept(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies idle in one worker is room for another."""
    line.fill(1)
    room = SharedMemoryRoom(free=60 << 20, total=256 << 20)
    for module in (sharedds.workers.buffers, sharedds.workers.lending):
        monkeypatch.setattr(module, "shared_memory_room", lambda: room)
    assert line.fill(2).is_shared()
    assert len(line.buffers) == 0
    room = SharedMemoryRoom(free=1, total=256 << 20)
    message = deliverable(empty_shared((10_000,), torch.int64).fill_(3))
    assert isinstance(message, InlineBatch)
    assert int(message.open().sum()) == 30_000


def test_a_slot_is_not_used_while_it_is_lent(line: Line) -> None:
    """Also when the worker has let go of the buffer: what comes back late is the old one."""
    held = [line.fill(step) for step in range(PATIENCE + 3)]
    slots = {buffer.slot for buffer in line.buffers._buffers.values()}
    assert 0 not in slots
    assert line.states()[0] == LENT
    held.clear()
    assert line.states()[0] == FREE


def test_copies_are_made_where_descriptors_run_short(line: Line) -> None:
    """The buffer is given back then."""
    batch = line.fill(3)
    assert in_buffer(batch)
    assert DescriptorKeeper(limit=1).keep({"x": [batch]})
    assert not in_buffer(batch)
    assert line.states()[0] == FREE
    assert int(batch.sum()) == 30_000


# --- what is sent --------------------------------------------------------------------------------


def marked(numbers: Any) -> Any:
    """A tensor with an attribute of the user's."""
    made = numbers.clone()
    made.note = "marked"
    return made


KINDS: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: x,
    "bool": lambda x: x > 3,
    "bfloat16": lambda x: x.bfloat16(),
    "complex": lambda x: torch.complex(x, -x),
    "channels_last": lambda x: x.view(2, 3, 100, 100).to(memory_format=torch.channels_last),
    "transposed": lambda x: x.view(200, 300).T,
    "strided": lambda x: x[::2],
    "a part": lambda x: x[10:20_010],
    "expanded": lambda x: x[:1].expand(300, 300),
    "empty": lambda x: x[:0].view(0, 5),
    "scalar": lambda x: x[5],
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "sparse": lambda x: torch.eye(300).to_sparse(),
    "parameter": lambda x: torch.nn.Parameter(x.clone()),
    "marked": marked,
    "shared": lambda x: x.clone().share_memory_(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_every_kind_of_tensor_arrives(kind: str, line: Line) -> None:
    """With dtype, strides and class, several times."""
    for _ in range(3):
        got = line.send(KINDS[kind](torch.arange(60_000.0)))
        expected = KINDS[kind](torch.arange(60_000.0))
        assert (type(got), got.dtype) == (type(expected), expected.dtype)
        assert (got.layout, got.requires_grad) == (expected.layout, expected.requires_grad)
        if got.is_sparse:
            got, expected = got.to_dense(), expected.to_dense()
        assert torch.equal(got, expected)
        if kind not in ("strided", "conjugate"):  # not all of what they are a part of
            assert got.stride() == expected.stride()


def test_ordinary_and_special_tensors_over_one_memory_still_share(line: Line) -> None:
    """They go as torch sends them."""
    numbers = torch.arange(60_000.0)
    plain, special = line.send([numbers, torch.nn.Parameter(numbers)])
    with torch.no_grad():
        plain[5] = -1
    assert special[5] == -1
    assert is_shared(plain)


def test_a_batch_that_cannot_be_pickled_is_left_to_the_queue(line: Line) -> None:
    """Its memory is not taken for lent."""
    batch = [empty_shared((10_000,), torch.int64), lambda: None]
    assert deliverable(batch) is batch
    assert LENT not in line.states()


def test_tensors_are_found_inside_of_what_nobody_looks_into(line: Line) -> None:
    """Pickling finds more than a search does."""
    got = line.send({frozenset({Hidden(empty_shared((10_000,), torch.int64).fill_(2))}): 1})
    (hidden,) = next(iter(got))
    assert int(hidden.tensor.sum()) == 20_000


class Leaves:
    """A batch that is sent without its tensor, or with a copy of it."""

    def __init__(self, tensor: Any, *, copies: bool) -> None:
        self.tensor = tensor
        self.copies = copies

    def __getstate__(self) -> Any:
        return {"tensor": self.tensor.clone() if self.copies else None}


@pytest.mark.parametrize("copies", [False, True])
def test_what_a_batch_leaves_out_is_not_lent(line: Line, *, copies: bool) -> None:
    """The trainer could not give it back."""
    places = set()
    for _ in range(4):
        made = empty_shared((10_000,), torch.int64).fill_(2)
        places.add(made.data_ptr())
        got = line.send(Leaves(made, copies=copies))
        del made
        assert LENT not in line.states()
        assert got.tensor is None or int(got.tensor.sum()) == 20_000
    assert len(places) == 1


class Hidden:
    """Holds a tensor in a slot."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        return Hidden, (self.tensor,)


def test_memory_for_a_batch_has_shape_and_strides(line: Line) -> None:
    """In a worker, with a place that can be sent."""
    made = empty_shared((4, 3, 64, 64), torch.uint8, channels_last=True)
    assert made.shape == (4, 3, 64, 64)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert line.buffers.sending(made.data_ptr()) is not None
    small = empty_shared((4, 3), torch.float32)
    assert small.shape == (4, 3)
    assert not is_shared(small)


def test_outside_of_workers_memory_is_private() -> None:
    """As torch makes it."""
    for last in (False, True):
        made = empty_shared((4, 3, 64, 64), torch.uint8, channels_last=last)
        assert made.is_contiguous(
            memory_format=torch.channels_last if last else torch.contiguous_format
        )
        assert not is_shared(made)


def test_collating_writes_into_a_buffer(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch stacks straight into it, as it does into its own shared memory."""
    monkeypatch.setattr("torch.utils.data.get_worker_info", lambda: True)
    batch = default_collate([np.full((100, 100), n) for n in range(4)])
    assert line.buffers.sending(batch.data_ptr()) is not None
    assert torch.equal(line.send(batch)[:, 0, 0], torch.arange(4))


def test_systems_without_descriptors_can_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Windows, where multiprocessing cannot send any."""
    monkeypatch.delattr("multiprocessing.reduction.DupFd")
    spec = importlib.util.find_spec("sharedds.workers.lending")
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.setitem(sys.modules, spec.name, module := importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)


# --- with real workers ---------------------------------------------------------------------------


class Pictures:
    """Samples that say which they are; one may be larger than others."""

    def __init__(self, count: int = 240, large: int = -1) -> None:
        self.count = count
        self.large = large

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        side = 2000 if index == self.large else 64
        return {"image": torch.full((side, side), index, dtype=torch.int32), "label": index}


def loader(dataset: Any = None, **options: Any) -> Any:
    """A loader with two worker processes."""
    given: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "start_method": "fork"}
    given["prefetch_factor"] = AHEAD
    data: Any = dataset or Pictures()
    return build_loader(data, pin_memory=False, **given | options)


def right(batch: Any) -> bool:
    """Whether a batch holds the samples that its labels say."""
    image, label = batch["image"], batch["label"]
    return bool((image == label.view(-1, 1, 1)).all())


@pytest.mark.parametrize("method", METHODS)
def test_batches_are_the_same_and_memory_is_used_again(method: str) -> None:
    """With every start method, while every seventh batch is kept."""
    before = shared_memory_names()
    places, kept = set(), []
    for step, batch in enumerate(loader(start_method=method, timeout=60)):
        assert right(batch)
        assert batch["label"].tolist() == list(range(4 * step, 4 * step + 4))
        places.add(batch["image"].data_ptr())
        if step % 7 == 0:
            kept.append(batch)
    assert all(map(right, kept))
    assert len(places) < 40
    del kept, batch
    assert not left_in_shared_memory(before)


def test_descriptors_and_mappings_stay_as_many() -> None:
    """Over a hundred batches, and over epochs of workers that stay."""
    made = loader(Pictures(480), persistent_workers=True)
    seen = []
    for _ in range(3):
        for step, batch in enumerate(made):
            assert right(batch)
            if step % 40 == 39:
                seen.append((descriptors(), len(made._iterator._buffers)))
    assert max(seen[2:]) <= max(seen[:2])
    assert 2 <= seen[-1][1] <= 10


def test_all_batches_can_be_kept() -> None:
    """As a list, in one go."""
    batches = list(loader())
    assert len(batches) == 60
    assert all(map(right, batches))
    assert len({batch["image"].data_ptr() for batch in batches}) == 60


def test_a_loop_that_is_broken_off_can_be_begun_anew() -> None:
    """With workers that stay: what was made for nobody comes back."""
    made = loader(persistent_workers=True)
    kept = []
    for _ in range(6):
        for step, batch in enumerate(made):
            assert right(batch)
            if step == 3:
                kept.append(batch)
                break
    assert all(map(right, kept))
    assert len(made._iterator._buffers) <= 16


def test_several_loops_at_once_do_not_meet() -> None:
    """Each has buffers of its own, in one loader or two."""
    one, other = loader(), loader(Pictures(200))
    for batches in zip(one, iter(one), other, other, strict=False):
        assert all(map(right, batches))


def test_batches_outlive_their_workers() -> None:
    """Also workers that are killed."""
    iterator = iter(loader())
    kept = [next(iterator) for _ in range(3)]
    for pid in iterator._inner.worker_pids:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError):
        kept.extend(iterator)
    del iterator
    gc.collect()
    assert all(map(right, kept))


def test_large_pictures_among_small_ones_leave_nothing() -> None:
    """The memory that one took is back before the epoch is over."""
    made = loader(Pictures(240, large=21), batch_size=1)
    most = last = 0
    for batch in made:
        assert right(batch)
        last = made._running and sum(m.nbytes for m in mapped())
        most = max(most, last)
    assert most > 16_000_000
    assert last < 1_000_000


def mapped() -> list[MappedBuffers]:
    """All that this process has mapped of workers."""
    from sharedds.workers.mapped import _mapped

    return list(_mapped.values())


@pytest.mark.parametrize(
    ("mb", "planned", "keeps"),
    [(100_000, 1_000, True), (100_000, None, False), (100_000, 99_900, False), (1, 1, False)],
)
def test_a_budget_with_room_costs_no_speed(mb: int, planned: int | None, *, keeps: bool) -> None:
    """Buffers are kept where a budget is generous, and only there."""
    made = loader(Pictures(400))
    estimate = None
    if planned is not None:
        total = planned * 1_000_000
        estimate = MemoryEstimate(
            trainer=None, server=0, workers=0, in_flight=total, pinned=0, total=total
        )
    made.plan = dataclasses.replace(made.plan, max_memory=mb * 1_000_000, estimate=estimate)
    kept = []
    with contextlib.suppress(MemoryBudgetError):
        for batch in made:
            assert right(batch)
            time.sleep(0.01)
            kept.append(in_buffer(batch["image"]))
    assert any(kept[-10:]) == keeps


class Fails:
    """A sample that cannot be loaded after its batch has taken memory."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        side = 65 if index % 8 == 5 else 64
        return torch.full((side, side), index)


def test_batches_that_fail_to_collate_cost_no_buffer() -> None:
    """Their memory is used for others."""
    batches = iter(loader(Fails()))
    places = set()
    for _ in range(16):
        with contextlib.suppress(RuntimeError):
            batch = next(batches)
            assert (batch == batch[:, :1, :1]).all()
            places.add(batch.data_ptr())
    assert 1 <= len(places) <= 8


def keeps_the_last(samples: Any) -> Any:
    """A collate function that returns each of its batches twice."""
    last = vars(keeps_the_last).pop("last", None)
    if last is None:
        last = vars(keeps_the_last)["last"] = default_collate(samples)
    return last


def test_a_collate_function_may_send_a_batch_again() -> None:
    """What it keeps is not written to by the next batch."""
    batches = list(loader(collate_fn=keeps_the_last))
    assert all(map(right, batches))


def test_a_loader_in_a_forked_child_works() -> None:
    """While its parent is in the middle of a loop of its own."""
    made = loader()
    batches = iter(made)
    kept = [next(batches)]

    def child() -> None:
        assert all(right(batch) for batch in loader())
        assert right(kept[0])

    assert forked(child) == 0
    kept += batches
    assert all(map(right, kept))
