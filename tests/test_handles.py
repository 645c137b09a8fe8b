"""Handles that live in one process: attributes, mapped files, files without a name, LMDB."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from processes import METHODS, descriptors, in_process, python, started

from sharedds.errors import (
    OptionError,
    SourceError,
    StorageFullError,
    StoreBusyError,
    StoreError,
    StoreFormatError,
    StoreNotFoundError,
)
from sharedds.handles import (
    SharedFile,
    absolute_path,
    anonymous_file,
    map_file,
    open_environment,
    per_process,
    storage_errors,
)

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


# --- attributes of one process -------------------------------------------------------------------


class Handle:
    """Something that must not be closed by a process that did not open it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.closed_by: Path | None = None

    def __del__(self) -> None:
        if self.closed_by is not None:
            self.closed_by.write_text(f"opened by {self.pid}, closed by {os.getpid()}")


class Reader:
    """Opens a handle when asked for it."""

    calls = 0

    @per_process
    def handle(self) -> Handle:
        """A handle."""
        type(self).calls += 1
        return Handle()

    @per_process
    def number(self) -> int:
        """A number."""
        return 1

    def pids(self) -> tuple[int, int]:
        """Return who opened the handle, and who asks."""
        return self.handle.pid, os.getpid()


class Child(Reader):
    """Adds to what its parent computes."""

    @per_process
    def number(self) -> int:
        """A number."""
        return super().number + 1


class Naive:
    """Opens a handle in its constructor, as many datasets do."""

    def __init__(self) -> None:
        self.handle = Handle()

    def pids(self) -> tuple[int, int]:
        """Return who opened the handle, and who asks."""
        return self.handle.pid, os.getpid()


def test_value_is_computed_once() -> None:
    """A second look at an attribute finds the same value."""
    reader = Reader()
    assert reader.handle is reader.handle


def test_value_is_computed_when_first_used() -> None:
    """Making an object opens nothing."""
    before = Reader.calls
    Reader()
    assert Reader.calls == before


def test_objects_do_not_share_a_value() -> None:
    """Each object has a value of its own."""
    assert Reader().handle is not Reader().handle


def test_threads_at_once_get_one_value() -> None:
    """Eight threads that ask at the same moment cause one computation."""

    class Slow:
        calls = 0

        @per_process
        def value(self) -> object:
            Slow.calls += 1
            time.sleep(0.05)
            return object()

    slow, barrier, seen = Slow(), threading.Barrier(8), []

    def ask() -> None:
        barrier.wait()
        seen.append(slow.value)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (Slow.calls, len(set(map(id, seen)))) == (1, 1)


def test_two_attributes_may_need_each_other_across_threads() -> None:
    """One attribute may be computed while another one of the same object is."""

    class Both:
        @per_process
        def first(self) -> int:
            return self.second + 1

        @per_process
        def second(self) -> int:
            return 1

    assert Both().first == 2


def test_pickle_drops_the_value() -> None:
    """A value that cannot be pickled does not keep its object from being pickled."""

    class Locked:
        @per_process
        def lock(self) -> Any:
            return threading.Lock()

    with pytest.raises(TypeError):
        pickle.dumps(threading.Lock())
    reader = Reader()
    reader.handle.closed_by = None
    again = pickle.loads(pickle.dumps(reader))
    assert again.handle is not reader.handle
    assert isinstance(Locked().lock, type(threading.Lock()))


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_copy_computes_its_own(make: Callable[[Reader], Reader]) -> None:
    """A copied object does not use the value of its original, which keeps it."""
    reader = Reader()
    handle = reader.handle
    assert make(reader).handle is not handle
    assert reader.handle is handle


@pytest.mark.parametrize("method", METHODS)
def test_another_process_computes_its_own(method: str) -> None:
    """Whatever starts the process, the value was opened in it."""
    reader = Reader()
    assert reader.pids() == (os.getpid(), os.getpid())
    opened_by, asked_by = in_process(method, reader.pids)
    assert opened_by == asked_by != os.getpid()


def test_an_ordinary_attribute_is_carried_over() -> None:
    """The control of the test above: a handle from the constructor comes from another process."""
    opened_by, asked_by = in_process("spawn", Naive().pids)
    assert opened_by == os.getpid() != asked_by


def test_inheritance_works_with_super() -> None:
    """An overriding attribute can use the one it overrides, each kept under its own name."""
    child = Child()
    assert [child.number, child.number, Reader().number] == [2, 2, 1]


def test_an_exception_is_not_kept() -> None:
    """After a failure the next look tries again."""

    class Fails:
        calls = 0

        @per_process
        def value(self) -> int:
            self.calls += 1
            if self.calls == 1:
                raise OSError("not yet")
            return self.calls

    fails = Fails()
    with pytest.raises(OSError, match="not yet"):
        _ = fails.value
    assert fails.value == 2


def forked(child: Callable[[], Any]) -> int:
    """Run a function in a plain fork and return its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("touched", [True, False])
def test_an_inherited_value_is_not_closed_in_the_child(tmp_path: Path, *, touched: bool) -> None:
    """A forked child that drops the object does not close what the parent opened."""
    naive, reader = Naive(), Reader()
    naive.handle.closed_by = tmp_path / "naive"
    reader.handle.closed_by = tmp_path / "reader"
    box: list[Any] = [naive, reader]

    def drop() -> None:
        nonlocal naive, reader
        if touched:
            _ = reader.handle
            box[1].handle.closed_by = None
        del naive, reader
        box.clear()
        gc.collect()

    assert forked(drop) == 0
    naive.handle.closed_by = None
    assert (tmp_path / "naive").exists()
    assert not (tmp_path / "reader").exists()
    reader.handle.closed_by = None


def test_a_value_cannot_be_assigned() -> None:
    """Assigning says why it cannot be."""
    with pytest.raises(OptionError, match="handle is opened by each process"):
        Reader().handle = Handle()


def test_the_attribute_of_the_class_is_the_descriptor() -> None:
    """Documentation tools find the docstring."""
    assert Reader.handle.__doc__ == "A handle."


# --- mapped files --------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 10,000 bytes."""
    path = tmp_path / "file.bin"
    path.write_bytes(bytes(range(250)) * 40)
    return path


def test_one_mapping_for_all_names_of_a_file(file: Path, tmp_path: Path) -> None:
    """Path, symbolic link, hard link and relative path lead to one mapping."""
    (tmp_path / "symbolic").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    mapped = map_file(file)
    names: list[str | Path] = [tmp_path / "symbolic", tmp_path / "hard", os.path.relpath(file)]
    assert all(map_file(name) is mapped for name in names)


def test_the_mapping_ends_with_its_last_user(file: Path) -> None:
    """The number of open files returns to where it was, and not before the last user is gone."""
    before = descriptors()
    first, second = map_file(file), map_file(file)
    held = descriptors()
    del first
    assert descriptors() == held > before
    piece = second.view[10:20]
    del second
    assert bytes(piece) == bytes(range(10, 20))
    del piece
    assert descriptors() == before


def test_a_replaced_file_is_another_file(file: Path, tmp_path: Path) -> None:
    """After a rename over it, the old users keep the old bytes and new ones get the new."""
    old = map_file(file)
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").replace(file)
    assert bytes(map_file(file).view) == b"new"
    assert bytes(old.view[:3]) == b"\0\1\2"


def test_a_mapping_cannot_be_written_to(file: Path) -> None:
    """What is mapped is read-only."""
    with pytest.raises(TypeError, match="read-only"):
        map_file(file).view[0] = 1


def test_advice_may_name_anything(file: Path) -> None:
    """Ranges outside the file are passed over."""
    map_file(file).advise([(0, 10), (9_999, 1), (5, 0), (9_999, 2), (1 << 60, 1)])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_maps_anew(file: Path) -> None:
    """A child does not use the mapping of its parent, nor close it."""
    mapped = map_file(file)

    def child() -> None:
        own = map_file(file)
        if own is mapped or bytes(own.view) != bytes(mapped.view):
            raise SystemExit(1)

    assert forked(child) == 0
    assert map_file(file) is mapped


def socket_at(path: Path) -> None:
    """Make a socket with a name."""
    os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (Path.mkdir, StoreFormatError, "is a folder"),
        (os.mkfifo, StoreFormatError, "is a pipe"),
        (socket_at, StoreFormatError, "is a pipe, socket"),
        (Path.touch, StoreFormatError, "is empty"),
        (lambda path: None, StoreNotFoundError, "no such file"),
        (lambda path: path.symlink_to("nowhere"), StoreNotFoundError, "no such file"),
        (lambda path: path.symlink_to(path), SourceError, "cannot be opened"),
    ],
    ids=["folder", "pipe", "socket", "empty", "missing", "dangling", "circle"],
)
def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], Any], error: type[Exception], text: str
) -> None:
    """Each error names the path, comes at once, and nothing is created."""
    path = tmp_path / "thing"
    make(path)
    names = os.listdir(tmp_path)
    started_at = time.monotonic()
    with pytest.raises(error, match=text) as caught:
        map_file(path)
    assert str(path) in str(caught.value)
    assert caught.value.path == str(path)  # type: ignore[attr-defined]
    assert time.monotonic() - started_at < 1
    assert os.listdir(tmp_path) == names


def test_a_zero_byte_in_a_path_is_an_error_of_ours() -> None:
    """A path that no system takes is refused like any other."""
    with pytest.raises(SourceError, match="cannot be opened"):
        map_file("a\0b")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become someone else")
def test_missing_permission_is_named(file: Path) -> None:
    """A file of someone else is an error that says so."""
    for folder in (file.parent, file.parent.parent):
        folder.chmod(0o755)
    file.chmod(0o600)
    done = python(
        """
        import os, sys
        from sharedds.errors import SourceError
        from sharedds.handles import map_file
        os.setgid(65534), os.setuid(65534)
        try:
            map_file(sys.argv[1])
        except SourceError as error:
            print(error)
        """,
        file,
    )
    assert "Permission denied" in done.stdout or "Permission denied" in done.stderr


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """``~`` is the home folder."""
    monkeypatch.setenv("HOME", str(file.parent))
    assert absolute_path("~/file.bin") == str(file)
    assert map_file("~/file.bin").size == 10_000


# --- files without a name ------------------------------------------------------------------------


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


def test_a_shared_file_has_no_name() -> None:
    """Nothing appears in the temporary folder or in /dev/shm."""
    places = [tempfile.gettempdir(), "/dev/shm"]
    before = [set(os.listdir(place)) for place in places]
    file = shared(b"abc")
    assert [set(os.listdir(place)) for place in places] == before
    assert file.size == 3


def test_a_killed_creator_leaves_nothing(tmp_path: Path) -> None:
    """A kill -9 in the middle of building, and after it, leaves no file; a named one would stay."""
    before = set(os.listdir("/dev/shm"))
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
    assert set(os.listdir("/dev/shm")) == before


def test_a_creator_that_is_gone_is_a_clear_error() -> None:
    """Unpickling after the creator ended says what to do."""
    done = python(
        """
        import pickle
        from sharedds.handles import SharedFile, anonymous_file
        file = anonymous_file()
        file.write(b"abc")
        print(pickle.dumps(SharedFile(file)).hex())
        """
    )
    with pytest.raises(SourceError, match=r"made by process \d+ cannot be reached.*build"):
        pickle.loads(bytes.fromhex(done.stdout))


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


# --- LMDB environments ---------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    """An LMDB file with one entry."""
    path = tmp_path / "some.lmdb"
    with (
        lmdb.open(str(path), subdir=False, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"key", b"value")
    yield path
    assert descriptors()  # collected: nothing of the test is left open


def value_in(path: Path) -> bytes:
    """Open the file here and read the entry."""
    with (
        open_environment(path, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        return bytes(transaction.get(b"key") or b"")


def test_lmdb_refuses_a_second_open(database: Path) -> None:
    """The control: plain LMDB cannot open a file twice in a process."""
    with (
        lmdb.open(str(database), subdir=False, readonly=True, lock=False),
        pytest.raises(lmdb.Error, match="already open"),
    ):
        lmdb.open(str(database), subdir=False, readonly=True, lock=False)


def test_a_second_open_shares_the_environment(database: Path, tmp_path: Path) -> None:
    """By any name, all users have one environment, open until the last one leaves."""
    (tmp_path / "link").symlink_to(database)
    before = descriptors()
    with open_environment(database, readonly=True, lock=False) as first:
        with open_environment(tmp_path / "link", readonly=True, lock=False) as second:
            assert first is second
        assert first.begin().get(b"key") == b"value"
    assert descriptors() == before


def test_other_options_are_refused(database: Path) -> None:
    """One environment cannot be open in two ways."""
    with (
        open_environment(database, readonly=True, lock=False),
        pytest.raises(StoreBusyError, match="in another way"),
        open_environment(database, readonly=True, lock=False, readahead=False),
    ):
        pass


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_plain_lmdb_cannot_open_after_a_fork(database: Path) -> None:
    """The control: a child inherits the refusal of its parent."""

    def child() -> None:
        lmdb.open(str(database), subdir=False, readonly=True, lock=False)

    with lmdb.open(str(database), subdir=False, readonly=True, lock=False):
        assert forked(child) == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_child_opens_what_its_parent_has_open(database: Path, method: str) -> None:
    """A process started while the file is open here opens it for itself."""
    with open_environment(database, readonly=True, lock=False) as environment:
        assert in_process(method, value_in, database) == b"value"
        assert environment.begin().get(b"key") == b"value"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_write_harms_nothing(database: Path) -> None:
    """A child that ends while the parent writes does not disturb the transaction."""
    with (
        open_environment(database, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"other", b"1")
        assert forked(gc.collect) == 0
        transaction.put(b"third", b"2")
    with open_environment(database, lock=False) as environment:
        assert environment.stat()["entries"] == 3


def test_errors_of_lmdb_are_ours(tmp_path: Path) -> None:
    """What LMDB cannot open is an error of the tree, with the path, and nothing is created."""
    (tmp_path / "text").write_text("no database " * 1000)
    with pytest.raises(StoreFormatError, match="text: LMDB cannot open it"):
        value_in(tmp_path / "text")
    with pytest.raises(StoreNotFoundError, match="missing"):
        value_in(tmp_path / "missing")
    with (
        pytest.raises(StoreNotFoundError, match="nowhere"),
        open_environment(tmp_path / "nowhere" / "file", lock=False),
    ):
        pass
    with pytest.raises(SourceError, match="cannot be opened"):
        value_in(tmp_path / "text" / "below")
    assert os.listdir(tmp_path) == ["text"]
