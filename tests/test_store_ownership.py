"""Writers in several threads, in forked children, and ones that nobody closes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from processes import descriptors, forked, python
from stores import cut_small, jpeg

from sharedds.errors import StoreError
from sharedds.handles import ForkGate, open_environment
from sharedds.store import Store, StoreWriter, verify
from sharedds.store.spool import SpoolLog

FORK_IS_FINE = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
SCHEMA = {"image": "jpeg", "n": "int64", "text": "str"}


def sample(number: int) -> dict[str, Any]:
    """Return one sample."""
    return {"image": jpeg(number % 7), "n": number, "text": f"text {number}"}


def leave(writer: StoreWriter) -> None:
    """Leave a with block."""
    with writer:
        pass


def fail(writer: StoreWriter) -> None:
    """Leave a with block by an exception."""
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError


def drop(writer: StoreWriter) -> None:
    """Read what can be read, and let go of everything."""
    for name in ("_file", "_reader"):
        getattr(writer._log, name).close()
    writer.__dict__.clear()
    gc.collect()


@FORK_IS_FINE
@pytest.mark.parametrize("end", [leave, fail, StoreWriter.close, StoreWriter.abort, drop])
@pytest.mark.parametrize("resume", [None, "work"])
def test_a_forked_child_leaves_the_store_of_its_parent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Any, resume: str | None
) -> None:
    """However the child leaves, the parent's work goes on and is published whole."""
    cut_small(monkeypatch)
    path = tmp_path / "x.lmdb"
    if resume:
        with (
            pytest.raises(ZeroDivisionError),
            StoreWriter(path, schema=SCHEMA, resume=resume) as writer,
        ):
            for number in range(4):
                writer.add(sample(number), key=str(number))
            raise ZeroDivisionError
    with StoreWriter(path, schema=SCHEMA, resume=resume) as writer:
        assert len(list(writer.keys())) == len(writer)
        for number in range(len(writer), 10):
            writer.add(sample(number), key=str(number))
        assert forked(lambda: end(writer)) == 0
        assert os.path.exists(tmp_path / "x.lmdb.partial" / "data.lmdb")
        for number in range(10, 20):
            writer.add(sample(number), key=str(number))
    store = Store(path)
    assert [store[i]["text"] for i in range(20)] == [f"text {i}" for i in range(20)]
    assert verify(path).ok


@FORK_IS_FINE
def test_a_forked_child_cannot_add(tmp_path: Path) -> None:
    """It is told to write elsewhere, even if a thread of the parent was at work meanwhile."""
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"})

    def child() -> None:
        for call in (lambda: writer.add({"x": 1}), writer.keys):
            with pytest.raises(StoreError, match="belongs to the process that made it"):
                call()
        writer.close()

    with writer._lock:
        thread = threading.Thread(target=lambda: status.append(forked(child)))
        status: list[int] = []
        thread.start()
        thread.join(20)
    assert status == [0]
    writer.abort()


def test_an_exit_of_a_forked_child_harms_nothing(tmp_path: Path) -> None:
    """sys.exit() runs all that a process does at its end; the parent's store is not its own."""
    code = """
        import os, sys
        from sharedds.store import Store, StoreWriter
        with StoreWriter(sys.argv[1], schema={"x": "int64"}) as writer:
            writer.add({"x": 1})
            if os.fork() == 0:
                sys.exit(3)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
            writer.add({"x": 2})
        print(Store(sys.argv[1]).column("x")[:].tolist())
    """
    assert python(code, tmp_path / "x.lmdb").stdout == "[1, 2]\n"


def test_reading_the_log_moves_nothing_a_child_could_move_back(tmp_path: Path) -> None:
    """The file that is written to is never read from, so it holds nothing read ahead."""
    log = SpoolLog(str(tmp_path / "spool"), ["a"], 0)
    log.buffers["a"] += b"x" * 100
    log.write_frame(log.take())
    assert b"".join(log.read("a")) == b"x" * 100
    assert log._file.tell() == os.lseek(log._file.fileno(), 0, os.SEEK_CUR) == log.length
    log.close()


def test_threads_may_add_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three threads add 300 samples each; every one is there, whole, once."""
    cut_small(monkeypatch)
    monkeypatch.setattr("sharedds.store.writer._COMMIT", 20_000)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with StoreWriter(tmp_path / "x.lmdb", schema=SCHEMA) as writer:

            def work(start: int) -> None:
                for number in range(start, start + 300):
                    writer.add(sample(number), key=str(number))

            with ThreadPoolExecutor(3) as pool:
                list(pool.map(work, (0, 300, 600)))
    finally:
        sys.setswitchinterval(before)
    store = Store(tmp_path / "x.lmdb")
    assert sorted(np.asarray(store.column("n")).tolist()) == list(range(900))
    for number in range(0, 900, 7):
        found = store.index_of(str(number))
        assert store[found]["text"] == f"text {number}"
        assert bytes(store.read("image", found)) == jpeg(number % 7)
    assert verify(store.path).ok


def test_closing_waits_for_a_sample_that_is_being_added(tmp_path: Path) -> None:
    """A close in another thread publishes it whole, and nothing after it."""

    class Slow:
        shape, dtype = (4,), np.dtype(np.uint8)

        def __getitem__(self, _: Any) -> Any:
            begun.set()
            time.sleep(0.1)
            return np.arange(4, dtype=np.uint8)

    begun = threading.Event()
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "raw"})
    thread = threading.Thread(target=lambda: writer.add({"x": Slow()}))
    thread.start()
    begun.wait()
    writer.close()
    thread.join()
    assert Store(tmp_path / "x.lmdb")[0]["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("resume", [None, "work"])
def test_a_writer_that_is_never_closed_warns(tmp_path: Path, resume: str | None) -> None:
    """It names the path; without resume its folder goes, with it the work can go on."""
    before = descriptors()
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume=resume)
    writer.add({"x": 1})
    box = [writer]
    del writer
    with pytest.warns(ResourceWarning, match=r"x\.lmdb: a StoreWriter was never closed"):
        box.clear()
    assert os.listdir(tmp_path) == (["x.lmdb.partial"] if resume else [])
    assert descriptors() == before
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume=resume):
        pass


def test_a_writer_forgotten_at_the_end_of_a_program_warns(tmp_path: Path) -> None:
    """Also then its folder goes."""
    code = """
        import sys
        from sharedds.store import StoreWriter
        writer = StoreWriter(sys.argv[1], schema={"x": "int64"})
        writer.add({"x": 1})
    """
    assert "x.lmdb: a StoreWriter was never closed" in python(code, tmp_path / "x.lmdb").stderr
    assert os.listdir(tmp_path) == []


def test_work_that_could_be_resumed_can_be_given_up(tmp_path: Path) -> None:
    """``abort(keep=False)`` removes it."""
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume="work")
    writer.add({"x": 1})
    writer.abort(keep=False)
    assert os.listdir(tmp_path) == []


def ends_within(seconds: float, child: Callable[[], Any]) -> bool:
    """Fork, run a function in the child, and say whether it came to its end."""
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    end = time.monotonic() + seconds
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        time.sleep(0.002)
    return True


@FORK_IS_FINE
def test_lmdb_closed_after_a_fork_waits_for_a_thread_that_is_gone(tmp_path: Path) -> None:
    """The control: with a transaction of another thread, the child waits for ever."""
    begun, done = threading.Event(), threading.Event()
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, lock=False) as environment:

        def write() -> None:
            with environment.begin(write=True) as transaction:
                transaction.put(b"key", b"value")
                begun.set()
                done.wait()

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(write)
            begun.wait()
            assert not ends_within(1, environment.close)
            done.set()
            future.result()


@FORK_IS_FINE
def test_a_fork_beside_writers_that_begin_and_end_never_hangs(tmp_path: Path) -> None:
    """A fork waits for what another thread does in LMDB, from opening a store to sealing it."""
    stop = threading.Event()

    def write() -> int:
        count = 0
        while not stop.is_set():
            with StoreWriter(tmp_path / f"{count}.lmdb", schema={"n": "int64"}) as writer:
                writer.add({"n": count})
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(write)
        try:
            assert all(ends_within(10, lambda: None) for _ in range(60))
        finally:
            stop.set()
        written = future.result()
    assert Store(tmp_path / f"{written - 1}.lmdb")[0]["n"] == written - 1


@FORK_IS_FINE
def test_a_fork_waits_for_gates_made_while_it_waits() -> None:
    """A thread goes from one gate to a new one: the child must not meet it inside either."""
    inside, is_held = [False], threading.Event()
    first = ForkGate()

    def work() -> None:
        with first:
            is_held.set()
            time.sleep(0.2)  # the fork waits meanwhile
            second = ForkGate()
            second.lock.acquire()
            inside[0] = True
        time.sleep(0.3)
        inside[0] = False
        second.lock.release()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        is_held.wait()
        pid = os.fork()
        if pid == 0:
            os._exit(inside[0])
        assert os.waitpid(pid, 0)[1] == 0
        future.result()


@FORK_IS_FINE
def test_a_fork_beside_a_reader_of_lmdb_never_hangs(tmp_path: Path) -> None:
    """A transaction that another thread reads by is left as it is; the file stays readable."""
    path = tmp_path / "x.lmdb"
    with StoreWriter(path, schema={"n": "int64"}) as writer:
        writer.add({"n": 7})
    begun, done = threading.Event(), threading.Event()

    def read() -> None:
        with (
            open_environment(path, readonly=True, lock=False, max_dbs=3) as environment,
            environment.begin(),
        ):
            begun.set()
            done.wait()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(read)
        begun.wait()
        assert ends_within(10, lambda: Store(path)[0])
        done.set()
        future.result()


@FORK_IS_FINE
def test_threads_may_fork_at_once_beside_a_writer(tmp_path: Path) -> None:
    """Each opens again what it has closed itself."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "raw"}) as writer:
        with ThreadPoolExecutor(3) as pool:
            forks = [pool.submit(ends_within, 10, lambda: None) for _ in range(30)]
            for number in range(40):
                writer.add({"x": np.full(100_000, number)})
        assert all(fork.result() for fork in forks)
    store = Store(tmp_path / "x.lmdb")
    assert [int(store.array(i, "x")[:1][0]) for i in range(40)] == list(range(40))
