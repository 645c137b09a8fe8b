"""Where a writer works: beside others, in folders of others, and under odd names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import forked, python, started
from stores import write

from sharedds.errors import (
    IncompleteStoreError,
    OptionError,
    SourceError,
    StoreBusyError,
    StoreExistsError,
    StoreFormatError,
)
from sharedds.handles import absolute_path, map_file
from sharedds.store import Store, StoreWriter, holds_store, is_partial

FORK_IS_FINE = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def listing(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder and what is in them."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("resume", [None, "work"])
@pytest.mark.parametrize(
    "files",
    [
        {"notes.txt": "mine"},
        {"state.json": '{"step": 5}'},
        {"state.json": "", "spool": "mine", "data.lmdb": "mine", "lock": "mine"},
        {"spool": "mine"},
    ],
    ids=["notes", "state", "names like ours", "spool"],
)
def test_a_working_folder_of_somebody_else_is_refused(
    tmp_path: Path, files: dict[str, str], resume: str | None
) -> None:
    """A folder that only has the name of ours is left as it is, and named."""
    folder = tmp_path / "x.lmdb.partial"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    before = listing(folder)
    with pytest.raises(StoreExistsError, match=r"x\.lmdb\.partial is in the way"):
        StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume=resume)
    assert listing(folder) == before
    assert not is_partial(folder)


@pytest.mark.parametrize("files", [[], ["lock"], ["lock", "state.json.new"]])
def test_what_a_killed_writer_left_is_ours(tmp_path: Path, files: list[str]) -> None:
    """A folder that a writer made and did not come to mark is taken, and goes."""
    folder = tmp_path / "x.lmdb.partial"
    folder.mkdir()
    for name in files:
        (folder / name).touch()
    write(tmp_path / "x.lmdb", 1)
    assert os.listdir(tmp_path) == ["x.lmdb"]


def test_files_of_others_that_come_later_stay(tmp_path: Path) -> None:
    """Only what a writer made is removed."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}):
        (tmp_path / "x.lmdb.partial" / "notes.txt").write_text("mine")
    assert os.listdir(tmp_path / "x.lmdb.partial") == ["notes.txt"]


def test_an_unfinished_store_is_known_by_its_mark(tmp_path: Path) -> None:
    """Not by a file that happens to be called state.json."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}):
        assert is_partial(tmp_path / "x.lmdb.partial")
        with pytest.raises(IncompleteStoreError):
            Store(tmp_path / "x.lmdb.partial")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "state.json").write_text("{}")
    assert not is_partial(tmp_path / "photos")
    assert not is_partial(tmp_path / "nothing")
    with pytest.raises(StoreFormatError, match="a folder without a store") as caught:
        Store(tmp_path / "photos")
    assert not isinstance(caught.value, IncompleteStoreError)


def test_a_store_in_a_folder_is_known_by_how_it_begins(tmp_path: Path) -> None:
    """A data.mdb of another kind is no store, and is named."""
    path = write(tmp_path / "x.lmdb", 1)
    for name, text in (("good", path.read_bytes()), ("text", b"hello " * 2000), ("short", b"x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.mdb").write_bytes(text)
        assert holds_store(tmp_path / name) == (name == "good")
        if name != "good":
            with pytest.raises(StoreFormatError, match=rf"{name}/data\.mdb"):
                Store(tmp_path / name)
    os.mkfifo(tmp_path / "data.mdb")
    assert not holds_store(tmp_path)
    assert not holds_store(path)
    assert len(Store(tmp_path / "good")) == 1


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    """The second one, in this process or another, is told; it takes over when the first died."""
    path = tmp_path / "x.lmdb"
    code = """
        import sys
        from sharedds.store import StoreWriter
        writer = StoreWriter(sys.argv[1], schema={"x": "int64"}, resume="w")
        print("writing", flush=True)
        sys.stdin.read()
    """
    with started(code, path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        for resume in ("w", None):
            with pytest.raises(StoreBusyError, match="is being written by another process"):
                StoreWriter(path, schema={"x": "int64"}, resume=resume)
        process.kill()
        process.communicate()
    with StoreWriter(path, schema={"x": "int64"}, resume="w") as writer:
        writer.add({"x": 1})
    assert len(Store(path)) == 1


@FORK_IS_FINE
def test_a_writer_in_this_process_is_not_called_another(tmp_path: Path) -> None:
    """Who waits for himself waits for ever, so the error says whose writer it is."""
    path = tmp_path / "x.lmdb"

    def second(whose: str) -> None:
        with pytest.raises(StoreBusyError, match=whose):
            StoreWriter(path, schema={"x": "int64"})

    with StoreWriter(path, schema={"x": "int64"}):
        second("another writer in this process")
        assert forked(lambda: second("another process")) == 0


@pytest.mark.parametrize("name", ["x\udcff.lmdb", b"x\xff.lmdb", "\udcff/x.lmdb"])
def test_a_path_that_is_not_utf8_is_refused(tmp_path: Path, name: Any) -> None:
    """LMDB cannot be told such a path; nothing is made."""
    folder: Any = os.fsencode(tmp_path) if isinstance(name, bytes) else str(tmp_path)
    with pytest.raises(OptionError, match="UTF-8"):
        StoreWriter(os.path.join(folder, name), schema={"x": "int64"})
    assert os.listdir(tmp_path) == []


def test_a_store_under_any_name_is_read(tmp_path: Path) -> None:
    """Reading needs no LMDB, so a name that is not UTF-8 is as good as any."""
    path = write(tmp_path / "x.lmdb", 2)
    odd = os.path.join(os.fsencode(tmp_path), b"x\xff.lmdb")
    shutil.move(path, os.fsdecode(odd))
    assert len(Store(os.fsdecode(odd))) == 2
    assert len(Store(odd)) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [Store, absolute_path, map_file])
@pytest.mark.parametrize("path", [None, 7, "a\0b", ["x"]])
def test_what_is_no_path_is_an_error_of_ours(call: Callable[[Any], Any], path: Any) -> None:
    """Another type, or a zero byte."""
    with pytest.raises(OptionError, match="path"):
        call(path)


def test_a_writer_wants_a_path(tmp_path: Path) -> None:
    """Nothing is made of what is none."""
    for path in (None, f"{tmp_path}/a\0b"):
        with pytest.raises(OptionError, match="path"):
            StoreWriter(path, schema={"x": "int64"})  # type: ignore[arg-type]


def test_a_deleted_current_folder_is_named(tmp_path: Path) -> None:
    """A relative path leads nowhere from there, an absolute one still does."""
    code = """
        import os, sys
        from sharedds.errors import SourceError
        from sharedds.store import Store
        os.mkdir("gone"), os.chdir("gone"), os.rmdir("../gone")
        assert len(Store(sys.argv[1])) == 1
        try:
            Store("x.lmdb")
        except SourceError as error:
            print(error)
    """
    path = write(tmp_path / "x.lmdb", 1)
    done = python(f"import os, sys; os.chdir({str(tmp_path)!r})\n" + _dedent(code), path)
    assert "x.lmdb: the current folder was deleted" in done.stdout
    assert issubclass(SourceError, OSError)


def _dedent(code: str) -> str:
    return "\n".join(line[8:] for line in code.splitlines())
