"""Writers in several threads, in forked children, and ones that nobody closes."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import descriptors, forked, python
from stores import cut_small, jpeg

from sharedds.errors import StoreError
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
