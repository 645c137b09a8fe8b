"""Files without a name that other processes reach."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import lmdb
import pytest
from processes import (
    METHODS,
    descriptors,
    in_process,
    left_in_shared_memory,
    python,
    shared_memory_names,
    started,
    unmeasured,
)

from sharedds.errors import (
    SourceError,
    StorageFullError,
    StoreError,
)
from sharedds.handles import (
    SharedFile,
    anonymous_file,
    storage_errors,
)

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


def shared(data: bytes) -> SharedFile:
    """Return a shared file of these bytes."""
    file = anonymous_file()
    file.write(data)
    return SharedFile(file)


def content(file: SharedFile) -> tuple[int, bytes]:
    """Return the process and what it reads."""
    return os.getpid(), bytes(file.view[:3])


@pytest.mark.parametrize("size", [0, 3, 10_000_000])
def test_a_shared_file_pickles_to_the_same_size_whatever_it_holds(size: int) -> None:
    """Its pickle says where the bytes are, not what they are."""
    file = shared(b"x" * size)
    assert len(pickle.dumps(file)) < 200
    assert bytes(pickle.loads(pickle.dumps(file)).view) == b"x" * size


@pytest.mark.parametrize("method", METHODS)
def test_a_shared_file_reaches_other_processes(method: str) -> None:
    """Processes of all kinds read it."""
    pid, data = in_process(method, content, shared(b"abcdef"))
    assert data == b"abc"
    assert pid != os.getpid()


def test_a_shared_file_leaves_with_its_last_user() -> None:
    """The number of open files returns to where it was."""
    before = descriptors()
    file = shared(b"abc")
    again = pickle.loads(pickle.dumps(file))
    assert descriptors() > before
    del file, again
    assert descriptors() == before


def test_a_shared_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing appears in the temporary folder or in /dev/shm."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = shared_memory_names()
    file = shared(b"abc")
    assert os.listdir(tmp_path) == []
    assert not left_in_shared_memory(before)
    assert file.size == 3


def test_a_killed_creator_leaves_nothing(tmp_path: Path) -> None:
    """A kill -9 in the middle of building, and after it, leaves no file; a named one would stay."""
    before = shared_memory_names()
    process = started(
        """
        import os, sys, tempfile
        tempfile.tempdir = sys.argv[1]
        from sharedds.handles import SharedFile, anonymous_file
        named = tempfile.NamedTemporaryFile(prefix="naive-")
        half = anonymous_file(); half.write(b"x" * 100_000); half.flush()
        whole = anonymous_file(); whole.write(b"x" * 100_000); whole = SharedFile(whole)
        print("ready", flush=True)
        sys.stdin.read()
        """,
        tmp_path,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert [name[:6] for name in os.listdir(tmp_path)] == ["naive-"]
    assert not left_in_shared_memory(before)


def test_a_creator_that_is_gone_is_a_clear_error() -> None:
    """Unpickling after the creator ended says what may be the reason, and what to do."""
    done = python(
        """
        import pickle
        from sharedds.handles import SharedFile, anonymous_file
        file = anonymous_file()
        file.write(b"abc")
        print(pickle.dumps(SharedFile(file)).hex())
        """
    )
    with pytest.raises(SourceError, match=r"made by process \d+ cannot.*ended.*hidepid.*build"):
        pickle.loads(bytes.fromhex(done.stdout))


CLOSED = """
    import ctypes, multiprocessing, os, pickle, sys
    from concurrent.futures import ProcessPoolExecutor
    from sharedds.errors import SourceError
    from sharedds.handles import SharedFile, anonymous_file
    def read(files):
        return [bytes(file.view) for file in files]
    def work(files, results):
        results.put(read(files) + read([pickle.loads(pickle.dumps(files[0]))]))
    if __name__ == "__main__":
        prctl = ctypes.CDLL(None).prctl
        if os.geteuid() == 0 and len(sys.argv) == 2:
            prctl(24, 19, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_PTRACE: with the next program
            os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
        prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        files = []
        for number in range(3):
            file = anonymous_file()
            file.write(b"abc%d" % number)
            files += [SharedFile(file)] * 2
        context = multiprocessing.get_context(sys.argv[1])
        results = context.Queue()
        workers = [context.Process(target=work, args=(files, results)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            assert results.get(timeout=60)[:-1] == read(files)
            worker.join()
        pool = ProcessPoolExecutor(1, mp_context=context)
        try:
            pool.submit(read, files).result(timeout=60)
        except SourceError as error:
            print(error)
        except Exception as error:
            print(error.__cause__)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_none_may_look_into_reaches_its_workers(tmp_path: Path, method: str) -> None:
    """As after setuid(): workers are given the open file as they start; later is too late."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(CLOSED))
    done = subprocess.run(
        [sys.executable, str(script), method],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=unmeasured(),
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be reached (Permission denied)" in done.stdout + done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_more_files_than_can_be_sent_reach_a_worker(method: str) -> None:
    """A fork server takes 256 descriptors at once; the rest is reached through the creator."""
    files = [shared(b"%d" % number) for number in range(300)]
    context: Any = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    worker = context.Process(target=send_all, args=(files + files[:3], sender))
    worker.start()
    assert receiver.recv() == [b"%d" % number for number in (*range(300), 0, 1, 2)]
    worker.join()


def send_all(files: list[SharedFile], sender: Any) -> None:
    """Send what is in the files."""
    sender.send([bytes(file.view) for file in files])


def test_another_file_in_its_place_is_noticed() -> None:
    """When the number of a descriptor was given to another file, that one is not read."""
    file = shared(b"abc")
    text = pickle.dumps(file)
    number = file._descriptor
    reader, writer = os.pipe()
    spare = os.dup(number)
    os.dup2(reader, number)  # a pipe: to open it could wait for ever
    try:
        with pytest.raises(SourceError, match="another file took its place"):
            pickle.loads(text)
    finally:
        os.dup2(spare, number)
        for descriptor in (reader, writer, spare):
            os.close(descriptor)


@pytest.fixture
def without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A system without /proc, where files need names; return its temporary folder."""
    real = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/proc/self/fd" and real(path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_without_proc_the_name_goes_with_the_creator(without_proc: Path) -> None:
    """Where a file needs a name, it has one as long as its creator has the file."""
    file = shared(b"abc")
    assert len(os.listdir(without_proc)) == 1
    again = pickle.loads(pickle.dumps(file))
    assert bytes(again.view) == b"abc"
    del again
    gc.collect()
    assert len(os.listdir(without_proc)) == 1
    del file
    gc.collect()
    assert os.listdir(without_proc) == []


def test_without_proc_names_of_killed_creators_are_swept(without_proc: Path) -> None:
    """The next user removes what a killed process left, and nothing else."""
    (without_proc / "sharedds-999999999-abc").touch()
    (without_proc / f"sharedds-{os.getpid()}-abc").touch()
    (without_proc / "sharedds-notes.txt").touch()
    anonymous_file().close()
    names = {name.split("-")[1] for name in os.listdir(without_proc)}
    assert names == {str(os.getpid()), "notes.txt"}


def test_without_unnamed_files_one_is_made_and_unlinked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file system that knows no files without a name serves as well."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "_O_TMPFILE_WORKS", False)
    file = shared(b"abc")
    assert os.listdir(tmp_path) == []
    assert bytes(pickle.loads(pickle.dumps(file)).view) == b"abc"


def test_no_temporary_folder_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A temporary folder that is not there is named."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match="TMPDIR"):
        anonymous_file()


def test_storage_errors_leave_other_errors_alone(tmp_path: Path) -> None:
    """Only what means "no room" is turned into another error, which tells the room there is."""
    with pytest.raises(PermissionError), storage_errors("here"):
        raise PermissionError
    with (
        pytest.raises(StorageFullError, match=r"here.*1,234 more.*[\d,]+ bytes are free"),
        storage_errors("here", needed=lambda: 1234),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(StorageFullError), storage_errors(str(tmp_path)):
        raise lmdb.Error("mdb_txn_commit: No space left on device")
    with pytest.raises(StoreError, match="MDB_BAD_TXN"), storage_errors(str(tmp_path)):
        raise lmdb.Error("MDB_BAD_TXN")
