"""Stores in workers, for other users, and in read-only places."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from processes import METHODS, descriptors, in_process, mounted, python, started
from stores import HEAD, jpeg, key_of, opened_file

from sharedds.memory import process_memory
from sharedds.store import Store, StoreWriter

FORK_IS_FINE = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become someone else")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 60 pictures with labels."""
    path = tmp_path_factory.mktemp("stores") / "pictures.lmdb"
    with StoreWriter(path, schema={"image": "jpeg", "label": "int64"}) as writer:
        for number in range(60):
            writer.add({"image": jpeg(number), "label": number}, key=key_of(number))
    return path


def hashes(store: Store, numbers: list[int]) -> list[tuple[str, str, int, int]]:
    """Return key, SHA-256, label and the process that opened the file, of some samples."""
    found = []
    for number in numbers:
        digest = hashlib.sha256(store.read("image", number)).hexdigest()
        opener = store.__dict__["per_process Store.opened"].pid
        found.append((store.key(number), digest, int(store.column("label")[number]), opener))
    return found


def expected(numbers: list[int]) -> list[tuple[str, str, int]]:
    """Return what the first three should be."""
    return [(key_of(i), hashlib.sha256(jpeg(i)).hexdigest(), i) for i in numbers]


def test_plain_lmdb_cannot_travel(path: Path) -> None:
    """The control: an open environment cannot be pickled."""
    with (
        lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment,
        pytest.raises(TypeError, match="pickle"),
    ):
        pickle.dumps(environment)


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("method", METHODS)
def test_a_store_travels_to_workers(path: Path, method: str, *, used: bool) -> None:
    """Made here, used here or not, it reads the same there, through a handle opened there."""
    store = Store(path)
    if used:
        hashes(store, [0, 59])
    found = in_process(method, hashes, store, list(range(60)))
    assert [row[:3] for row in found] == expected(list(range(60)))
    assert os.getpid() not in {opener for *_, opener in found}


def test_nothing_is_open_until_the_first_read(path: Path) -> None:
    """What was unpickled opens no file."""
    text = pickle.dumps(Store(path))
    before = descriptors()
    store = pickle.loads(text)
    assert descriptors() == before
    assert len(store) == 60
    assert descriptors() > before


def epoch(store: Store, numbers: list[int], results: Any) -> None:
    """Read some samples in a worker that was forked; send them with the number of the process."""
    results.put((os.getpid(), numbers, hashes(store, numbers)))


@FORK_IS_FINE
def test_handles_opened_before_a_fork_are_not_used_after_it(path: Path) -> None:
    """Five epochs of two workers each: all data right, every item once, every handle its own."""
    context = multiprocessing.get_context("fork")
    store = Store(path)
    hashes(store, [0, 59])
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(60).tolist()
        results = context.SimpleQueue()
        workers = [
            context.Process(target=epoch, args=(store, order[half::2], results)) for half in (0, 1)
        ]
        for worker in workers:
            worker.start()
        seen = []
        for _ in workers:
            pid, numbers, found = results.get()
            assert [row[:3] for row in found] == expected(numbers)
            assert {opener for *_, opener in found} == {pid}
            seen += numbers
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
            worker.close()
        results.close()
        assert sorted(seen) == list(range(60))


def test_one_file_is_open_once_in_a_process(path: Path, tmp_path: Path) -> None:
    """Three stores, one of them by a link, share a mapping, until the last one is gone."""
    (tmp_path / "link.lmdb").symlink_to(path)
    before = descriptors()
    a, b, c = Store(path), Store(os.path.relpath(path)), Store(tmp_path / "link.lmdb")
    one = descriptors()
    assert opened_file(a).file is opened_file(b).file is opened_file(c).file
    wanted = expected(list(range(60)))
    del a
    with ThreadPoolExecutor(4) as pool:
        rows = pool.map(hashes, [b, c, b, c], [list(range(60))] * 4)
        assert all([row[:3] for row in found] == wanted for found in rows)
    assert descriptors() == one
    del b, c, rows
    assert descriptors() == before


def test_threads_may_open_it_at_once(path: Path) -> None:
    """Eight threads that use a fresh store at the same moment share one handle."""
    store = pickle.loads(pickle.dumps(Store(path)))
    barrier = threading.Barrier(8)

    def use() -> int:
        barrier.wait()
        return id(store.opened)

    with ThreadPoolExecutor(8) as pool:
        handles = {future.result() for future in [pool.submit(use) for _ in range(8)]}
    assert len(handles) == 1


READER = """
    import lmdb, os, sys
    environment = lmdb.open(sys.argv[1], max_readers=1, readonly=True, subdir=False)
    transaction = environment.begin()
    print("reading", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold the only slot of LMDB's reader table."""
    with started(READER, path) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"
            yield process
        finally:
            process.kill()
            process.communicate()


def test_readers_take_no_slot(path: Path, tmp_path: Path) -> None:
    """A reader table that is full, also by readers that were killed, is nothing to us."""
    copy = Path(shutil.copy(path, tmp_path / "copy.lmdb"))
    with reading(copy):
        control = python(READER, copy, ok=False)
        assert "MDB_READERS_FULL" in control.stderr
        found = in_process("spawn", hashes, Store(copy), [3, 4])
        assert [row[:3] for row in found] == expected([3, 4])
    found = in_process("forkserver", hashes, Store(copy), [5])  # its slot was left by a kill
    assert [row[:3] for row in found] == expected([5])


def test_reading_works_within_little_address_space(path: Path) -> None:
    """No map larger than the file is asked for."""
    done = python(
        """
        import resource, sys
        from sharedds.store import Store
        import psutil
        used = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
        store = Store(sys.argv[1])
        print(sum(len(store.read("image", i)) for i in range(len(store))))
        """,
        path,
    )
    assert int(done.stdout) == sum(len(jpeg(i)) for i in range(60))


@pytest.mark.memory
def test_reading_is_no_leak(tmp_path: Path) -> None:
    """The resident size rises with the file, the private memory does not; a report shows both."""
    path = tmp_path / "large.lmdb"
    noise = np.random.default_rng(0)
    with StoreWriter(path, schema={"x": "keep"}) as writer:
        for _ in range(80):
            writer.add({"x": HEAD + noise.bytes(1 << 20)})
    before, after, resident = in_process("spawn", read_all, path)
    assert resident > 60 << 20
    assert (after.private_dirty or 0) - (before.private_dirty or 0) < 10 << 20
    assert (after.file or 0) + (after.uss or 0) > 60 << 20


def read_all(path: Path) -> tuple[Any, Any, int]:
    """Read every byte; return the memory before and after, and how much the resident size rose."""
    import psutil

    store = Store(path)
    before, resident = process_memory(), psutil.Process().memory_info().rss
    for i in range(len(store)):
        store.read("x", i)
    return before, process_memory(), psutil.Process().memory_info().rss - resident


AS_NOBODY = """
    import os, sys
    from sharedds.store import Store, verify
    def read(store):
        return [bytes(store.read("image", i)) for i in range(len(store))]
    if os.geteuid() == 0 and sys.argv[2] == "nobody":
        os.setgid(65534); os.setuid(65534)
    store = Store(sys.argv[1])
    whole = read(store)
    for _ in range(2):
        worker = os.fork()
        if worker == 0:
            os._exit(read(store) != whole)
        assert os.waitpid(worker, 0)[1] == 0
    assert verify(sys.argv[1], untrusted=True).ok
    print(len(store))
"""


@needs_root
@FORK_IS_FINE
def test_a_reader_needs_no_right_to_write(path: Path) -> None:
    """Somebody else reads it, here and in workers; nothing is made, nothing changes its time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy = Path(shutil.copy(path, folder / "copy.lmdb"))
        copy.chmod(0o444)
        folder.chmod(0o555)
        before = [(p.stat().st_mtime_ns, p.stat().st_size) for p in (folder, copy)]
        control = python(
            """
            import lmdb, os, sys
            os.setgid(65534), os.setuid(65534)
            lmdb.open(sys.argv[1], subdir=False, readonly=True)
            """,
            copy,
            ok=False,
        )
        assert "Permission denied" in control.stderr
        assert python(AS_NOBODY, copy, "nobody").stdout == "60\n"
        assert os.listdir(folder) == ["copy.lmdb"]
        assert [(p.stat().st_mtime_ns, p.stat().st_size) for p in (folder, copy)] == before


@FORK_IS_FINE
def test_a_read_only_file_system_is_enough(path: Path, tmp_path: Path) -> None:
    """Reading wants to write nothing, not even a lock."""
    copy = shutil.copy(path, tmp_path / "copy.lmdb")
    done = mounted(
        """
        mount --bind "$1" "$1"
        mount -o remount,ro,bind "$1"
        ! touch "$1/file" 2>/dev/null
        "$2" -W error -c "$3" "$4" root
        """,
        tmp_path,
        sys.executable,
        textwrap.dedent(AS_NOBODY),
        copy,
    )
    assert done.stdout == "60\n", done.stderr
