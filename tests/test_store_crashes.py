"""Writers that are killed, run out of room, or meet one another."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import shutil
import signal
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from processes import OF_TESTS, mounted, python, started
from stores import HEAD, SCHEMA, cut_small, everything, key_of, sample, write

import sharedds.store.behind
import sharedds.store.partial
import sharedds.store.writer
from sharedds.errors import SourceError, StorageFullError, StoreError, StoreExistsError
from sharedds.handles import map_file
from sharedds.store import Field, Store, StoreWriter, verify
from sharedds.store.behind import WriteBehind
from sharedds.store.lock import FolderLock
from sharedds.store.partial import Partial
from sharedds.store.spool import SpoolLog

FORK_IS_FINE = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


COUNT = 12


def write_on(path: Path, *, force: bool = False) -> None:
    """Write the twelve samples, from where an earlier run was."""
    options: dict[str, Any] = {"schema": SCHEMA, "resume": "work", "force": force}
    with StoreWriter(path, **options) as writer:
        for number in range(len(writer), COUNT):
            writer.add(sample(number), key=key_of(number))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """What an undisturbed run makes."""
    path = tmp_path_factory.mktemp("whole") / "whole.lmdb"
    write_on(path)
    return Store(path)


@pytest.fixture
def quick() -> Iterator[Path]:
    """A folder in memory where there is one: a sync costs nothing there."""
    with tempfile.TemporaryDirectory(
        prefix=OF_TESTS, dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as name:
        yield Path(name)


@pytest.fixture
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit after a few samples, in small segments, in transactions of little room."""
    cut_small(monkeypatch)
    monkeypatch.setattr(sharedds.store.partial, "_STEP", (4 << 20) + 30_000)


#: The steps that change something on disk; a kill comes before or after any of them.
STEPS: list[tuple[Any, str]] = [
    (Partial, "_end"),
    (Partial, "_rename"),
    (Partial, "_remove_files"),
    (Partial, "_choose_work"),
    (SpoolLog, "write_frame"),
    (FolderLock, "remove"),
    (sharedds.store.partial, "sync_folder"),
    (os, "unlink"),
    (os, "replace"),
]


def with_ticks(patch: pytest.MonkeyPatch, tick: Callable[[], None]) -> None:
    """Call ``tick`` before and after each step."""

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            tick()
            result = function(*arguments, **options)
            tick()
            return result

        return wrapper

    for owner, name in STEPS:
        patch.setattr(owner, name, around(getattr(owner, name)))


def ticks_of(work: Callable[[], None]) -> int:
    """Return how often an undisturbed run could be killed."""
    ticks: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        with_ticks(patch, lambda: ticks.append(1))
        work()
    return len(ticks)


def killed_at(tick: int, work: Callable[[], None]) -> bool:
    """Run work in a fork that kills itself at this tick; return whether it came so far."""
    pid = os.fork()
    if pid == 0:
        left = iter(range(tick - 1, -1, -1))

        def count() -> None:
            if next(left, -1) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            with_ticks(pytest.MonkeyPatch(), count)
            work()
            status = 0
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@FORK_IS_FINE
@pytest.mark.usefixtures("small_commits")
def test_a_kill_at_any_step_loses_nothing(quick: Path, whole: Store) -> None:
    """Nothing or all under the final name; the same work then ends with the same content."""
    ticks = ticks_of(lambda: write_on(quick / "x.lmdb"))
    assert ticks > 100
    resumed = set()
    # every one of the first and last, where files come and go; every fifth of the commits between
    for tick in (*range(1, 40), *range(40, ticks - 40, 5), *range(ticks - 40, ticks + 1)):
        folder = quick / str(tick)
        folder.mkdir()
        path = folder / "x.lmdb"
        assert killed_at(tick, functools.partial(write_on, path))
        if path.exists():
            assert Store(path).digest == whole.digest
            with pytest.raises(StoreExistsError):
                write_on(path)
            published = map_file(path)
            content = bytes(published.view)
            write_on(path, force=True)  # its folder may be there still, linked to the file
            assert bytes(published.view) == content
        else:
            writer = StoreWriter(path, schema=SCHEMA, resume="work")
            resumed.add(len(writer))
            writer.abort()
            write_on(path)
        assert Store(path).digest == whole.digest
        assert os.listdir(folder) == ["x.lmdb"]
        shutil.rmtree(folder)
    assert resumed == {0, 4, 8, 12}


@FORK_IS_FINE
@pytest.mark.usefixtures("small_commits")
def test_kill_after_kill_still_ends(quick: Path, whole: Store) -> None:
    """A run that is killed again and again gets there."""
    path = quick / "x.lmdb"
    chosen = random.Random(0)
    for _ in range(200):
        if not killed_at(chosen.randrange(10, 400), lambda: write_on(path, force=True)):
            break
    assert Store(path).digest == whole.digest
    assert verify(path, untrusted=True).ok
    assert os.listdir(quick) == ["x.lmdb"]


LARGE = """
    import sys, time
    sys.path.insert(0, sys.argv[2])
    import sharedds.store.writer
    from sharedds.store import StoreWriter
    from stores import HEAD
    sharedds.store.writer._COMMIT = 1 << 20
    schema = {"x": "keep", "n": "int64"}
    with StoreWriter(sys.argv[1], schema=schema, resume="large", force=True) as writer:
        print(len(writer), flush=True)
        for number in range(len(writer), 300):
            data = HEAD + number.to_bytes(4, "big") * 25_000
            writer.add({"x": data, "n": number}, key=str(number))
            time.sleep(0.002)
"""


def test_a_kill_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    """Killed from outside, wherever it is, three times; then it ends as an undisturbed run."""
    python(LARGE, tmp_path / "whole.lmdb", Path(__file__).parent)
    chosen, done = random.Random(1), []
    for _ in range(3):
        with started(LARGE, tmp_path / "x.lmdb", Path(__file__).parent) as process:
            assert process.stdout is not None
            done.append(int(process.stdout.readline()))
            time.sleep(chosen.uniform(0.1, 0.3))
            process.kill()
            process.communicate()
        assert not (tmp_path / "x.lmdb").exists()
    finished = python(LARGE, tmp_path / "x.lmdb", Path(__file__).parent)
    done.append(int(finished.stdout))
    assert done == sorted(done)
    assert done[-1] > 0
    assert Store(tmp_path / "x.lmdb").digest == Store(tmp_path / "whole.lmdb").digest
    assert sorted(os.listdir(tmp_path)) == ["whole.lmdb", "x.lmdb"]


def test_a_forced_write_replaces_in_one_step(tmp_path: Path) -> None:
    """A reader keeps what it has open; until the end the old file is there, after it the new."""
    path = write(tmp_path / "x.lmdb", 6)
    reader = Store(path)
    wanted = everything(reader)
    seen = set()
    with StoreWriter(path, schema={"x": "int64"}, force=True) as writer:
        for number in range(3):
            seen.add(Store(path).digest)
            writer.add({"x": number})
    assert seen == {reader.digest}
    assert len(Store(path)) == 3
    assert everything(reader) == wanted
    assert os.listdir(tmp_path) == ["x.lmdb"]


def test_a_failed_forced_write_keeps_the_old_file(tmp_path: Path) -> None:
    """Whatever ends it before its end."""
    path = write(tmp_path / "x.lmdb", 2)
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), StoreWriter(path, schema=SCHEMA, force=True):
        raise ZeroDivisionError
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.lmdb"]


FILL = f"HEAD = bytes.fromhex({HEAD.hex()!r})\n" + textwrap.dedent("""
    import os, resource, sys
    from sharedds.errors import StorageFullError
    from sharedds.store import StoreWriter
    if sys.argv[2] != "0":
        limit = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    kind = {"chunks": "keep", "rows": "bytes", "long rows": "uint8[50000]"}[sys.argv[4]]
    resume = sys.argv[3] or None
    try:
        with StoreWriter(sys.argv[1], schema={"x": kind}, resume=resume, force=True) as writer:
            print(len(writer))
            for number in range(len(writer), 400):
                data = (HEAD + number.to_bytes(2, "big") * 25_000)[:50_000]
                if kind == "uint8[50000]":
                    data = __import__("numpy").frombuffer(data, "u1")
                writer.add({"x": data})
    except StorageFullError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
""")


@pytest.mark.parametrize("kind", ["chunks", "rows", "long rows"])
@pytest.mark.parametrize("resume", ["", "work"])
def test_a_size_limit_is_a_clear_error(tmp_path: Path, resume: str, kind: str) -> None:
    """No signal; path, bytes needed and free; nothing under the final name; later it succeeds."""
    path = tmp_path / "x.lmdb"
    done = python(FILL, path, str(5 << 20), resume, kind, ok=False)
    assert done.returncode == 3, done.stderr
    text = done.stderr
    assert f"{path}: no room to write" in text
    assert "more bytes are needed" in text
    assert "bytes are free" in text
    assert os.listdir(tmp_path) == (["x.lmdb.partial"] if resume else [])
    assert (f"kept in {path}.partial" in text) == bool(resume)
    python(FILL, path, "0", resume, kind)
    assert len(Store(path)) == 400
    assert verify(path).ok
    assert os.listdir(tmp_path) == ["x.lmdb"]


@pytest.mark.parametrize("kind", ["chunks", "rows"])
def test_a_full_disk_is_a_clear_error(tmp_path: Path, kind: str) -> None:
    """On a file system of 8 MiB; with more room the same command goes on and ends."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "old.lmdb").touch()
    done = mounted(
        """
        mount -t tmpfs -o size=8m tmpfs "$1/disk"
        set +e
        "$2" -W error -c "$3" "$1/disk/x.lmdb" 0 work "$4"
        echo "status $?"
        ls "$1/disk"
        set -e
        mount -o remount,size=128m "$1/disk"
        "$2" -W error -c "$3" "$1/disk/x.lmdb" 0 work "$4"
        ls "$1/disk"
        """,
        tmp_path,
        sys.executable,
        FILL,
        kind,
    )
    assert done.returncode == 0, done.stderr
    first, status, listing, second, end = done.stdout.split("\n")[:5]
    assert (first, status, listing) == ("0", "status 3", "x.lmdb.partial")
    assert int(second) >= 0
    assert end == "x.lmdb"
    assert "disk/x.lmdb: no room to write" in done.stderr
    assert "more bytes are needed" in done.stderr


def test_a_writer_that_ran_out_of_room_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going on after it could leave a hole; the writer takes nothing more."""
    cut_small(monkeypatch)
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "keep"})

    def full(*_: Any) -> None:
        raise lmdb.Error("mdb_put: No space left on device")

    monkeypatch.setattr(Partial, "_begin", full)
    with pytest.raises(StorageFullError):
        for _ in range(100_000):  # written behind: told when one of the next comes
            writer.add({"x": HEAD + bytes(100)})
    monkeypatch.undo()
    with pytest.raises(Exception, match="closed"):
        writer.add({"x": HEAD + bytes(100)})
    writer.abort()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["add", "keys"])
def test_an_error_that_nobody_listened_to_comes_again_at_the_end(
    quick: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Silence would be taken for a store; said once, and of the same kind."""
    cut_small(monkeypatch)
    for limit in ("_BATCH", "_IDLE_BATCH", "_WAITING"):
        monkeypatch.setattr(sharedds.store.behind, limit, 1)
    with (
        pytest.raises(StorageFullError, match=r"x\.lmdb: nothing was published.*room") as caught,
        StoreWriter(quick / "x.lmdb", schema={"x": "keep"}, resume="work") as writer,
    ):
        full_once(monkeypatch, "put_all")
        for _ in range(3):
            with contextlib.suppress(StoreError):
                writer.add({"x": HEAD + bytes(100)})
                if call == "keys":
                    writer.keys()
    assert isinstance(caught.value.__cause__, StorageFullError)
    writer.close()
    assert os.listdir(quick) == ["x.lmdb.partial"]


def test_an_error_of_another_kind_is_told_at_the_end_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has closed the writer, and whoever caught it."""
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"})

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt("now")

    monkeypatch.setattr(writer, "_accept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.add({"x": 1})
    with pytest.raises(StoreError, match=r"nothing was published.*KeyboardInterrupt: now"):
        writer.close()


def test_a_body_that_raises_is_told_of_by_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes between it and the caller, nor after abort()."""
    with (
        pytest.raises(StorageFullError, match=r"^no room$"),
        StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}) as writer,
    ):
        full_once(monkeypatch, "commit")
        writer.add({"x": 1})
        writer._behind.commit(samples=1, entries=0)
        writer.keys()
    writer.close()
    other = StoreWriter(tmp_path / "y.lmdb", schema={"x": "int64"})
    monkeypatch.setattr(other, "_accept", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        other.add({"x": 1})
    other.abort()
    other.close()


def test_an_error_of_the_end_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing again, as cleaning up does, adds nothing."""
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"})
    writer.add({"x": 1})
    full_once(monkeypatch, "commit")
    with pytest.raises(StorageFullError):
        writer.close()
    writer.close()


def full_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have the first call of a method of :class:`Partial` find no room, and no other."""
    real, left = getattr(Partial, name), [StorageFullError("no room")]

    def wrapper(*arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(Partial, name, wrapper)


@pytest.mark.parametrize("resume", [None, "work"])
@pytest.mark.parametrize("name", ["commit", "put_all"])
def test_keys_that_find_no_room_close_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, resume: str | None
) -> None:
    """Whoever is told of a failure, nothing more is taken, and no short store is published."""
    cut_small(monkeypatch)
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume=resume)
    full_once(monkeypatch, name)
    writer.add({"x": 1}, key="1")
    with pytest.raises(StorageFullError, match="no room"):
        writer.keys()
    for call in (lambda: writer.add({"x": 2}, key="2"), writer.keys):
        with pytest.raises(StoreError, match="closed"):
            call()
    with pytest.raises(StorageFullError, match="nothing was published"):
        writer.close()
    assert os.listdir(tmp_path) == (["x.lmdb.partial"] if resume else [])


class Torn:
    """An array whose second block cannot be read."""

    shape, dtype = (20, 100), np.dtype(np.uint8)

    def __getitem__(self, place: Any) -> Any:
        """Return the first block, noise, which no codec makes small."""
        if place[0].start:
            raise SourceError("torn")
        return np.random.default_rng(0).integers(0, 256, (10, 100), np.uint8)


def test_no_room_while_a_refused_sample_is_taken_back_closes_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunks that went ahead would lie under the next sample, and be read as its own."""
    for limit in ("_BATCH", "_IDLE_BATCH", "_WAITING"):  # all goes ahead at once, and is waited for
        monkeypatch.setattr(sharedds.store.behind, limit, 1)
    schema = {"x": Field("raw", chunk=(10, 100))}
    writer = StoreWriter(tmp_path / "x.lmdb", schema=schema)
    full_once(monkeypatch, "put_all")
    with pytest.raises(StorageFullError, match="no room"):
        writer.add({"x": Torn()})
    with pytest.raises(StoreError, match="closed"):
        writer.add({"x": np.zeros((20, 100), np.uint8)})
    with pytest.raises(StorageFullError, match="nothing was published"):
        writer.close()
    assert os.listdir(tmp_path) == []


def test_a_failure_is_raised_again_whoever_was_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who asks later must not take silence for success."""
    partial = Partial(str(tmp_path / "x.lmdb"), state=None, columns=(), force=False)
    behind = WriteBehind(partial)
    full_once(monkeypatch, "commit")
    for samples in (1, 2):
        behind.commit(samples=samples, entries=0)
        with pytest.raises(StorageFullError, match="no room"):
            behind.drain()
    behind.stop()
    partial.discard()


@pytest.mark.parametrize("resume", [None, "work"])
def test_a_store_that_lacks_samples_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: str | None
) -> None:
    """Should a commit be lost without a word, the end sees it; with resume the work goes on."""
    cut_small(monkeypatch)
    options: dict[str, Any] = {"schema": {"x": "int64"}, "resume": resume}
    writer = StoreWriter(tmp_path / "x.lmdb", **options)
    writer.add({"x": 1})
    writer._behind.drain()
    with monkeypatch.context() as patch:
        patch.setattr(Partial, "commit", lambda self, **_: None)
        writer.add({"x": 2})
        with pytest.raises(StoreError, match=r"2 samples .* were added, but 1 .* are written"):
            writer.close()
    assert os.listdir(tmp_path) == (["x.lmdb.partial"] if resume else [])
    with StoreWriter(tmp_path / "x.lmdb", **options) as writer:
        assert len(writer) == (1 if resume else 0)


def test_nothing_is_written_after_a_failure(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that were handed over behind the one that failed leave no hole when work goes on."""
    cut_small(monkeypatch)
    path = quick / "x.lmdb"
    real, more, failed = SpoolLog.write_frame, threading.Event(), threading.Event()

    def full_once(log: SpoolLog, frame: dict[str, bytearray]) -> int:
        if log.length and not failed.is_set():
            more.wait(10)  # until more has been handed over
            failed.set()
            raise OSError(errno.ENOSPC, "No space left on device", "spool")
        return real(log, frame)

    monkeypatch.setattr(SpoolLog, "write_frame", full_once)
    writer = StoreWriter(path, schema=SCHEMA, resume="work")
    for number in range(40):
        writer.add(sample(number), key=key_of(number))
    more.set()
    writer._behind._thread.submit(lambda: None).result()  # all of it has had its turn
    with pytest.raises(StorageFullError):
        writer.close()
    with StoreWriter(path, schema=SCHEMA, resume="work") as writer:
        assert 0 < len(writer) < 40
        for number in range(len(writer), 40):
            writer.add(sample(number), key=key_of(number))
    store = Store(path)
    assert [store.key(number) for number in range(40)] == [key_of(n) for n in range(40)]
    verify(path)
