"""No sample is ever seen in part: writers are killed at any moment, what is kept is compared."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_writers import PublishedFirst, fill, fill_all, hammer, made, wrong_in
from processes import METHODS

from sharedds.cache import DecodedCache

pytestmark = pytest.mark.skipif(not hasattr(os, "pwrite"), reason="needs POSIX")

COUNT, NBYTES = 400, 8_000_000


def hammering(kept: DecodedCache, seed: int) -> int:
    """Start a process that hammers a cache; return its number once it is at it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            hammer(kept, COUNT, seed, ready=writer)
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    return pid


def killed_while_filling(kept: DecodedCache, draw: random.Random) -> list[int]:
    """Let three processes hammer an empty cache and kill each at a random moment; return codes."""
    workers = [hammering(kept, draw.randrange(1000)) for _ in range(3)]
    codes = []
    for worker in workers:
        time.sleep(draw.random() * 0.01)
        os.kill(worker, signal.SIGKILL)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
    return codes


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_writers_that_are_killed_leave_no_part_of_a_sample(where: str, tmp_path: Path) -> None:
    """All that processes see is right, while they fill a cache and after they were killed."""
    draw, codes = random.Random(5), []
    for number in range(20):
        folder = tmp_path / str(number) if where == "folder" else None
        kept = DecodedCache(COUNT, NBYTES, key="x", folder=folder)
        codes += killed_while_filling(kept, draw)
        assert kept.stats().entries
        assert wrong_in(kept, COUNT) == []
        fill(kept, COUNT, 0)  # nobody holds a lock
        assert kept.stats().nbytes > NBYTES - 100_000
        assert wrong_in(kept, COUNT) == []
    assert set(codes) == {-signal.SIGKILL}  # none ended by itself, having seen a wrong one


def test_the_naive_order_of_things_is_found_out() -> None:
    """Index first: what was killed in between is seen in part."""
    draw, wrong = random.Random(5), []
    for _ in range(10):
        kept = PublishedFirst(COUNT, NBYTES, key="x")
        killed_while_filling(kept, draw)
        wrong += wrong_in(kept, COUNT)
    assert wrong


@pytest.mark.parametrize(("kind", "is_seen"), [(DecodedCache, False), (PublishedFirst, True)])
def test_a_writer_killed_half_way(kind: type[DecodedCache], is_seen: bool) -> None:
    """The naive order of things, index first, shows a sample that is not there; ours does not."""
    kept = kind(10, NBYTES, key="x")
    pid = os.fork()
    if pid == 0:
        real = kept._file.write

        def killed(offset: int, data: Any) -> bool:
            if len(data) > 1000:  # the pixels
                real(offset, bytes(data)[:1000])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(offset, data)

        kept._file.write = killed  # type: ignore[method-assign]
        kept.put(3, made(3))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert bool(wrong_in(kept, 10)) is is_seen
    assert (kept.get(3) is not None) is is_seen


@pytest.mark.parametrize("kind", [DecodedCache, PublishedFirst])
def test_a_reader_beside_a_writer_sees_all_or_nothing(kind: type[DecodedCache]) -> None:
    """Nobody is killed, and still the naive order shows half a sample."""
    kept = kind(50, NBYTES, key="x")
    is_done = threading.Event()
    wrong: list[int] = []

    def read() -> None:
        while not is_done.is_set():
            wrong.extend(wrong_in(kept, 50))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(50):
        kept.put(number, made(number))
    is_done.set()
    reader.join()
    assert bool(wrong) is (kind is PublishedFirst)


@pytest.mark.parametrize("method", METHODS)
def test_processes_that_put_the_same_samples_at_once(method: str) -> None:
    """However they were started: each sees right samples, and all are kept."""
    kept = DecodedCache(COUNT, 20_000_000, key="x")
    context: Any = multiprocessing.get_context(method)
    processes = [context.Process(target=fill_all, args=(kept, COUNT, seed)) for seed in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 3
    assert wrong_in(kept, COUNT) == []
    used = sum(64 + -(-made(number).nbytes // 64) * 64 for number in range(COUNT))
    assert kept.stats().nbytes < 1.2 * used  # few were put twice


def test_a_process_killed_while_it_takes_room_holds_nobody_up() -> None:
    """Its lock ends with it, and the room that it had not taken yet is free."""
    kept = DecodedCache(10, NBYTES, key="x")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with kept._file.locked(1):
            os.write(writer, b"x")
            signal.pause()
    os.read(reader, 1)
    assert not kept.put(0, made(0))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert kept.put(0, made(0))
    assert np.array_equal(kept.get(0), made(0))  # type: ignore[arg-type]
    os.close(reader)
    os.close(writer)
