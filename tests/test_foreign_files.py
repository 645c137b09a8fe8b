"""Files that are no stores, and all the names of those that are."""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from attacks import PAGE, damage
from stores import SCHEMA, everything, jpeg, png, sample, write

from sharedds.errors import (
    IncompleteStoreError,
    SharedDSError,
    SourceError,
    StoreChangedError,
    StoreFormatError,
    StoreNotFoundError,
)
from sharedds.store import Store, StoreWriter
from sharedds.store.layout import CHUNK_KEY


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good store of all kinds of fields, with a tree of two levels."""
    return write(tmp_path_factory.mktemp("good") / "good.lmdb", 9)


@pytest.fixture(scope="module")
def expected(good: Path) -> dict[str, Any]:
    """All that is in it."""
    return everything(Store(good))


@pytest.fixture
def path(good: Path, tmp_path: Path) -> Path:
    """A copy of the good store, to be damaged."""
    return Path(shutil.copy(good, tmp_path / "copy.lmdb"))


def foreign_lmdb(path: Path) -> None:
    """Make an LMDB file of somebody else."""
    with (
        lmdb.open(str(path), subdir=False, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"key", b"value")


def other_version(path: Path) -> None:
    """Make a store of another LMDB format version."""
    write(path, 1)
    for page in (0, PAGE):
        at = path.read_bytes().index(b"\xde\xc0\xef\xbe", page)
        damage(path, at + 4, struct.pack("<I", 9))


FOREIGN: dict[str, tuple[Callable[[Path], Any], type[SharedDSError], str]] = {
    "text": (lambda p: p.write_text("hello " * 5000), StoreFormatError, "no LMDB mark.*hello"),
    "short text": (lambda p: p.write_text("hello"), StoreFormatError, "5 bytes are too few"),
    "empty": (Path.touch, StoreFormatError, "is empty"),
    "picture": (lambda p: p.write_bytes(png(0, 200)), StoreFormatError, "no LMDB mark.*PNG"),
    "zeros": (lambda p: p.write_bytes(bytes(1 << 20)), StoreFormatError, "no LMDB mark"),
    "folder": (Path.mkdir, StoreFormatError, "a folder without a store"),
    "missing": (lambda p: None, StoreNotFoundError, "no such file; check the spelling"),
    "pipe": (os.mkfifo, StoreFormatError, "a pipe"),
    "another LMDB file": (foreign_lmdb, StoreFormatError, "but not a store of sharedds"),
    "another LMDB version": (other_version, StoreFormatError, "LMDB data format 9.*only 1"),
    "a circle of links": (lambda p: p.symlink_to(p), SourceError, "cannot be opened"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_store_is_refused(tmp_path: Path, kind: str) -> None:
    """The error tells the whole path and what was found, at once, and nothing is created."""
    make, error, text = FOREIGN[kind]
    path = tmp_path / "thing.lmdb"
    make(path)
    before = sorted(os.listdir(tmp_path))
    started = time.monotonic()
    with pytest.raises(error, match=text) as caught:
        Store(path)
    assert time.monotonic() - started < 1
    assert str(path) in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == before


def test_an_unfinished_store_says_so(tmp_path: Path) -> None:
    """The folder, the file in it, and the name it will have."""
    path = tmp_path / "x.lmdb"
    writer = StoreWriter(path, schema={"x": "int64"}, resume="work")
    writer.add({"x": 1})
    writer._partial.commit(samples=1, entries=0)
    writer.abort()
    partial = tmp_path / "x.lmdb.partial"
    for unfinished in (partial, partial / "data.lmdb"):
        with pytest.raises(IncompleteStoreError, match="run the same pack again"):
            Store(unfinished)
    with pytest.raises(StoreNotFoundError, match="holds an unfinished pack"):
        Store(path)


def test_all_spellings_open_the_same_store(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    """File or folder, with a slash, as a path, relative, below the home folder, by a link."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "folder.lmdb"
    folder.mkdir()
    shutil.copy(good, folder / "data.mdb")
    (tmp_path / "link").symlink_to(good)
    spellings: list[str | Path] = [
        good,
        str(good),
        f"{good}/",
        os.path.relpath(good),
        tmp_path / "link",
        folder,
        f"{folder}/",
        folder / "data.mdb",
        "folder.lmdb",
        "./folder.lmdb/data.mdb",
        "~/folder.lmdb",
        "~/link",
    ]
    stores = [Store(spelling) for spelling in spellings]
    monkeypatch.chdir("/")
    assert {store.digest for store in stores} == {Store(good).digest}
    assert all(bytes(store.read("photo", 0)) == jpeg(0) for store in stores)
    monkeypatch.setenv("HOME", "/nowhere")
    assert everything(stores[-1]) == expected


def test_a_store_that_was_replaced_is_noticed(path: Path) -> None:
    """An object goes on with the file it has open; one that opens anew refuses another content."""
    store = Store(path)
    closed = Store(path)
    del closed.__dict__["per_process Store.opened"]
    write(path, 2, force=True)
    assert len(store) == 9
    assert store[8]["label"] == sample(8)["label"]
    with pytest.raises(StoreChangedError, match="was replaced by another store"):
        len(closed)
    assert len(Store(path)) == 2


def test_a_store_that_was_packed_again_is_the_same(path: Path) -> None:
    """Equal content under the same name is as good as the file it was."""
    store = Store(path)
    del store.__dict__["per_process Store.opened"]
    write(path, 9, force=True)
    assert list(store[3]) == list(SCHEMA)


READS: dict[str, Callable[[Store], Any]] = {
    "read": lambda store: store.read("photo", 3),
    "read_many": lambda store: store.read_many("photo", [1, 2]),
    "advise": lambda store: store.advise("photo", [1, 2]),
    "a sample": lambda store: store[3],
    "an array": lambda store: store.array(1, "volume")[2:3],
    "a column": lambda store: store.column("label")[:],
    "a row": lambda store: store.column("pixels")[4],
    "a segment": lambda store: store.column("label").segment(0),
    "its bytes": lambda store: store.column("label").segment_bytes(0),
    "a text": lambda store: store.texts("caption")[1],
    "a key": lambda store: store.index_of(store.key(2)),
}


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("way", READS)
def test_a_store_that_was_cut_short_is_noticed(path: Path, way: str, *, used: bool) -> None:
    """Every way to read says so, where the system would kill the process."""
    store = Store(path)
    if used:
        READS[way](store)
    os.truncate(path, PAGE)
    with pytest.raises(StoreChangedError, match=r"copy\.lmdb was cut short.* 4,096 bytes"):
        READS[way](store)


def test_chunks_have_the_keys_of_the_specification(good: Path) -> None:
    """Big-endian numbers, so that the order of the keys is the order of the samples."""
    assert CHUNK_KEY.pack(1, 2, 3, 4) == bytes.fromhex("0000000000000001 02 03 00000004")
    assert CHUNK_KEY.size == 14
    assert len(Store(good)) == 9
