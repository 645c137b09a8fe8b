"""Files mapped once for each process, and LMDB environments opened once."""

from __future__ import annotations

import gc
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from processes import METHODS, descriptors, forked, in_process, python

from sharedds.errors import (
    SourceError,
    StoreBusyError,
    StoreChangedError,
    StoreFormatError,
    StoreNotFoundError,
)
from sharedds.handles import (
    absolute_path,
    map_file,
    open_environment,
)

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


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


def test_bytes_are_read_as_they_are_mapped(file: Path) -> None:
    """The same bytes, as a copy; nothing is left to read behind the end."""
    mapped = map_file(file)
    assert mapped.read(9_000, 500) == bytes(mapped.view[9_000:9_500])
    assert mapped.read(9_999, 10) == bytes(mapped.view[9_999:])


def test_a_file_that_was_cut_is_not_read(file: Path) -> None:
    """Not even what is left of it: whoever reads a part may go on to what is gone."""
    mapped = map_file(file)
    os.truncate(file, 9_000)
    with pytest.raises(StoreChangedError, match="was cut short"):
        mapped.read(0, 10)


def test_what_is_released_is_there_when_it_is_touched(file: Path) -> None:
    """A view stays as it was; ranges outside the file are passed over."""
    mapped = map_file(file)
    view = mapped.view[100:200]
    for offset, length in ((0, 10_000), (9_999, 1 << 60), (5, 0), (1 << 60, 1)):
        mapped.release(offset, length)
        assert bytes(view) == bytes(range(100, 200))


def test_a_walk_lets_go_of_what_it_has_passed(tmp_path: Path) -> None:
    """Of 64 MiB a sixteenth is touched, and all of it is mapped unless it is released."""
    path = tmp_path / "large.bin"
    with path.open("wb") as large:
        large.truncate(64 << 20)
    code = """
        import sys
        from sharedds.handles import Passing, map_file
        from sharedds.memory import process_memory
        file = map_file(sys.argv[1])
        sum(file.view[:: 1 << 12])  # now the system has it at hand
        file.release(0, file.size)
        before, most = process_memory().pss, 0
        passing = Passing(file)
        for at in range(0, file.size, 1 << 16):
            file.view[at]
            if sys.argv[2] == "released":
                passing.passed(at, 1)
            if at % (1 << 20) == 0:
                most = max(most, process_memory().pss - before)
        print(most)
    """
    held, released = (int(python(code, path, how).stdout) for how in ("held", "released"))
    assert held > 50_000_000
    assert released < 24_000_000


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


def test_a_file_that_was_cut_short_is_noticed(file: Path) -> None:
    """Reading what is gone kills the process; asking first is an error with both sizes."""
    code = """
        import os, sys
        from sharedds.handles import map_file
        mapped = map_file(sys.argv[1])
        os.truncate(sys.argv[1], 0)
        mapped.view[0]
    """
    mapped = map_file(file)
    mapped.require_whole()
    os.truncate(file, 20_000)
    mapped.require_whole()  # what was there is there still
    os.truncate(file, 5_000)
    with pytest.raises(StoreChangedError, match=r"file\.bin was cut short.*5,000.*10,000"):
        mapped.require_whole()
    assert python(code, file, ok=False).returncode == -signal.SIGBUS


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
