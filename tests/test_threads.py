"""Loading with threads: order, errors and ends."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
import traceback
import weakref
from typing import Any

import pytest
import torch
from processes import python
from thread_loading import load, no_thread_left, running, wait_until
from torch.utils.data import get_worker_info

from sharedds.errors import LoaderStalledError, WorkerError
from sharedds.loader import threads
from sharedds.loader.at_exit import join_threads

__all__ = ["no_thread_left"]  # used by every test here


class Gate:
    """Holds samples back until it is opened, and counts those begun."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun: list[int] = []

    def __call__(self, index: int) -> int:
        """Make a sample, once the gate is open."""
        self.begun.append(index)
        self.opened.wait(6)
        return index


# --- batches -------------------------------------------------------------------------------------


def uneven(index: int) -> int:
    """The first sample of a batch takes longest in every other batch."""
    time.sleep(0.02 if index % 4 == 0 else 0)
    return index


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_come_in_order_whole_and_once(workers: int) -> None:
    """However long each takes, in every epoch, also the last one that is not full."""
    loader = load(uneven, 17, num_workers=workers)
    expected = [[i, i + 1] for i in range(0, 16, 2)] + [[16]]
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == expected
    assert len(loader) == 9


def test_single_samples_come_uncollated() -> None:
    """Without batches (``batch_size=None``) each sample is handed out as it is."""
    assert list(load(str, 5, batch_size=None)) == ["0", "1", "2", "3", "4"]


def test_no_more_batches_are_begun_than_asked_for() -> None:
    """``prefetch_factor`` batches for each thread; each batch taken lets one more begin."""
    gate = Gate()
    gate.opened.set()
    loader = load(gate, 100, batch_size=1, prefetch_factor=2)
    batches = iter(loader)
    wait_until(lambda: len(gate.begun) == 4)
    next(batches)
    wait_until(lambda: len(gate.begun) == 5)
    time.sleep(0.1)
    assert len(gate.begun) == 5


def test_nothing_is_sent() -> None:
    """A batch is the very object that was made: no pickle, no shared memory, no worker."""
    made: list[Any] = []

    def collate(samples: list[int]) -> Any:
        made.append(torch.tensor(samples))
        assert get_worker_info() is None
        return made[-1]

    batches = list(load(int, 4, collate_fn=collate, num_workers=1))
    assert all(batch is own for batch, own in zip(batches, made, strict=True))
    assert not batches[0].is_shared()


def test_threads_use_one_core_each_and_the_trainer_all_of_its_own() -> None:
    """Torch's number of threads is 1 in a loader thread, and as before everywhere else."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert {int(n) for batch in load(lambda _: torch.get_num_threads()) for n in batch} == {1}
        found: list[int] = []
        other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert torch.get_num_threads() == 3
        assert found == [3]
    finally:
        torch.set_num_threads(before)


def test_worker_init_fn_runs_in_each_thread() -> None:
    """Once, with the number of the thread, before its first sample."""
    names: dict[int, str] = {}

    def note(number: int) -> None:
        names[number] = threading.current_thread().name

    list(load(int, worker_init_fn=note))
    assert names == {0: "sharedds-loader-0", 1: "sharedds-loader-1"}


def test_batches_are_pinned_where_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``pin_memory`` each batch is pinned by its thread, for the trainer's device."""
    devices: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 5)
    monkeypatch.setattr(torch.accelerator, "set_device_index", devices.append)
    monkeypatch.setattr(
        threads, "pin_memory", lambda batch, device: (device, threading.current_thread().name)
    )
    batches = list(load(int, 4, pin_memory=True))
    assert {device for device, _ in batches} == {"cuda"}
    assert all(name.startswith("sharedds-loader") for _, name in batches)
    assert devices == [5, 5]


# --- errors --------------------------------------------------------------------------------------


def broken_collate(samples: list[int]) -> list[int]:
    """Fails on one batch."""
    if 4 in samples:
        raise LookupError("four")
    return samples


def test_an_error_comes_with_its_own_traceback_in_its_place() -> None:
    """The very exception, from the line that raised it; the epoch goes on after it."""
    batches = iter(load(int, 10, collate_fn=broken_collate))
    assert [next(batches), next(batches)] == [[0, 1], [2, 3]]
    with pytest.raises(LookupError, match="four") as caught:
        next(batches)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken_collate"
    assert list(batches) == [[6, 7], [8, 9]]


def test_an_error_keeps_nothing_alive() -> None:
    """It leads to no circle of references: with it, what it was raised from is gone."""
    seen: list[weakref.ref[Any]] = []

    def fail(samples: list[int]) -> Any:
        batch = torch.tensor(samples)
        seen.append(weakref.ref(batch))
        raise LookupError(samples)

    gc.collect()
    gc.disable()
    try:
        batches = iter(load(int, collate_fn=fail, num_workers=1, prefetch_factor=1))
        with contextlib.suppress(LookupError):
            next(batches)
        assert seen[0]() is None
    finally:
        gc.enable()


def stopping_collate(samples: list[int]) -> list[int]:
    """Asks an empty iterator."""
    return [next(iter([])) if 4 in samples else 1]


def test_an_epoch_is_never_cut_short_in_silence() -> None:
    """StopIteration from user code, which torch takes for the end of the epoch, is an error."""
    with pytest.raises(WorkerError, match="StopIteration"):
        list(load(int, 10, collate_fn=stopping_collate))


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_sample_that_wants_to_end_everything_is_heard(kind: type[BaseException]) -> None:
    """It does not end a thread in silence and leave the trainer waiting."""

    def leave(index: int) -> int:
        raise kind

    with pytest.raises(kind):
        next(iter(load(leave)))


def test_an_error_of_worker_init_fn_is_heard() -> None:
    """The first batch of the thread raises it."""

    def fail(number: int) -> None:
        raise LookupError(f"thread {number}")

    with pytest.raises(LookupError, match="thread 0"):
        list(load(int, num_workers=1, worker_init_fn=fail))


def test_a_stall_is_an_error_that_shows_where_threads_are() -> None:
    """After ``timeout`` seconds; this epoch is over then, and says so."""
    gate = Gate()
    loader = load(gate, 8, timeout=0.2)
    batches = iter(loader)
    with pytest.raises(LoaderStalledError, match=r"within timeout=0\.2 s") as caught:
        next(batches)
    assert "  sharedds-loader-1, making samples [" in str(caught.value)
    assert "samples [0, 1]" in str(caught.value)
    assert "self.opened.wait(6)" in str(caught.value)
    gate.opened.set()
    with pytest.raises(WorkerError, match="begin a new loop"):
        next(batches)


# --- ends ----------------------------------------------------------------------------------------


def test_threads_end_with_the_epoch() -> None:
    """Without ``persistent_workers`` none is left at its end."""
    list(load(int))
    assert not running()


def test_threads_end_when_a_loop_is_broken_off() -> None:
    """Nobody holds the iterator any more: they go after the batch in hand."""
    for _ in load(uneven, 1000):
        break
    gc.collect()
    wait_until(lambda: not running())


def test_persistent_threads_serve_every_epoch() -> None:
    """The same threads; what was under way when a loop was broken off is dropped."""
    loader = load(lambda index: (index, threading.get_ident()), 40, persistent_workers=True)
    next(iter(loader))
    epochs = [list(loader) for _ in range(2)]
    for epoch in epochs:
        assert [n for numbers, _ in epoch for n in numbers.tolist()] == list(range(40))
    idents = {ident for epoch in epochs for _, of in epoch for ident in of.tolist()}
    assert idents <= {thread.ident for thread in running()}
    assert len(running()) == 2


@pytest.mark.parametrize("persistent", [False, True])
def test_an_interrupt_ends_the_wait_and_the_threads(persistent: bool) -> None:
    """Ctrl-C while the trainer waits: it is free at once, and the next epoch is whole."""
    gate = Gate()
    loader = load(gate, 4, persistent_workers=persistent)
    batches = iter(loader)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert time.monotonic() - begun < 5
    gate.opened.set()
    wait_until(lambda: not running())
    del batches
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


SCRIPT = """
    import time, threading
    from sharedds.loader import build_loader
    class Slow:
        def __len__(self):
            return 10**6
        def __getitem__(self, index):
            time.sleep(0.01)
            return index
    batches = iter(build_loader(Slow(), num_workers=2, engine="thread", persistent_workers=True))
    next(batches)
    assert len(threading.enumerate()) == 3
    print(time.time())
"""


def test_the_interpreter_ends_at_once_in_the_middle_of_an_epoch() -> None:
    """Threads at work do not hold it up, nor bring it down."""
    done = python(SCRIPT)
    assert time.time() - float(done.stdout) < 5
    assert not done.stderr


def test_threads_that_were_never_started_are_not_waited_for() -> None:
    """Ctrl-C may come while they are made, and what runs at exit must not fail then."""
    join_threads([threading.Thread(target=print)], 0)
