"""What goes wrong around shards: changes that fail half way, wrong values, an index that lies."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sharedds.errors import OptionError, SchemaError, StoreFormatError
from sharedds.handles import map_file
from sharedds.store import Store, StoreWriter, append, edit, merge, shard_index, verify
from sharedds.store.cut import Cut
from sharedds.store.joined import OpenedShards
from sharedds.store.shard_writer import ShardWriter

SCHEMA = {"n": "int64", "flag": "bool", "boxes": "array:float32"}


def values(number: int) -> dict[str, Any]:
    """Return a sample."""
    return {"n": number, "flag": True, "boxes": np.ones((number % 3, 4), np.float32)}


def single(path: Path, numbers: range) -> Path:
    """Write a store of one file."""
    with StoreWriter(path, schema=SCHEMA) as writer:
        for number in numbers:
            writer.add(values(number), key=f"k{number}")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Ten samples in shards of five."""
    merge([single(tmp_path / "single.lmdb", range(10))], tmp_path / "store", shards=2)
    return tmp_path / "store"


def test_an_append_that_ends_after_it_is_published_keeps_its_shards(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the rename of the index and the end leaves a whole store."""
    more = single(tmp_path / "more.lmdb", range(10, 13))

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shard_index, "sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        append(store, [more])
    assert len(Store(store)) == 13
    assert verify(store).ok


def test_a_shard_that_was_exchanged_is_not_appended(store: Path, tmp_path: Path) -> None:
    """A file is compared with the index of where it comes from; nothing is left over."""
    merge([single(tmp_path / "b.lmdb", range(10, 16))], tmp_path / "b", shards=2)
    os.replace(tmp_path / "b" / "shard-00000.lmdb", tmp_path / "b" / "shard-00001.lmdb")
    before = sorted(os.listdir(store))
    with pytest.raises(StoreFormatError, match=r"shard-00000.lmdb: this shard of .* is missing"):
        append(store, [tmp_path / "b"])
    assert sorted(os.listdir(store)) == before


def test_what_is_refused_behind_a_full_shard_does_not_spoil_the_rest(tmp_path: Path) -> None:
    """A shard of nothing has no keys and no shapes, and fits to no other."""
    with ShardWriter(tmp_path / "x", cut=Cut(samples=2), schema=SCHEMA) as writer:
        for number in range(2):
            writer.add(values(number), key=f"k{number}")
        with pytest.raises(SchemaError):
            writer.add(values(2) | {"n": "many"}, key="bad")
    assert [len(Store(tmp_path / "x")), verify(tmp_path / "x").ok] == [2, True]


@pytest.mark.parametrize(
    ("text", "wanted"), [("False", False), ("0", False), ("true", True), ("1", True)]
)
def test_truth_in_a_table_is_read(store: Path, text: str, wanted: bool) -> None:
    """Python holds every text but an empty one for true."""
    edit(store, [{"key": "k1", "flag": "1" if not wanted else "0"}])
    edit(store, [{"key": "k1", "flag": text}])
    assert Store(store).column("flag")[1] == wanted


def test_other_words_are_no_truth(store: Path) -> None:
    """They are refused, and named."""
    with pytest.raises(SchemaError, match="'perhaps' is no value of 'flag'"):
        edit(store, [{"key": "k1", "flag": "perhaps"}])


@pytest.mark.parametrize("row", [{"key": "k1", "new_key": ""}, "k1"], ids=["empty", "no row"])
def test_a_sample_does_not_lose_its_key(store: Path, row: Any) -> None:
    """An empty cell is no name, and a text no row."""
    with pytest.raises(OptionError):
        edit(store, [row])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_column_is_read_in_a_fork_that_met_another_thread_opening_shards(store: Path) -> None:
    """The lock that thread holds is for ever locked in the child."""
    opened = Store(store)
    assert isinstance(opened.opened, OpenedShards)
    column, lock = opened.column("n"), opened.opened._lock
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if column[:].tolist() == list(range(10)) else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0


def _larger(index: Any) -> Any:
    first = msgspec.structs.replace(index.shards[0], samples=1 << 45, bytes=1 << 50)
    total = first.samples + index.shards[1].samples
    keys = msgspec.structs.replace(index.keys, bytes=16 * total)
    return msgspec.structs.replace(index, shards=(first, index.shards[1]), samples=total, keys=keys)


def _field(**changes: Any) -> Callable[[Any], Any]:
    def change(index: Any) -> Any:
        first = msgspec.structs.replace(index.fields[0], **changes)
        return msgspec.structs.replace(index, fields=(first, *index.fields[1:]))

    return change


@pytest.mark.parametrize(
    "change",
    [_larger, _field(dtype="garbage"), _field(dtype="|O"), _field(shape=(1 << 40, -3))],
    ids=["samples", "dtype", "objects", "shape"],
)
@pytest.mark.parametrize("rows", [slice(None), slice(None, None, 2)], ids=["all", "some"])
def test_an_index_that_lies_is_refused(
    store: Path, change: Callable[[Any], Any], rows: slice
) -> None:
    """Its seal fits; nothing is allocated by what it says, and nothing else is raised."""
    index = change(shard_index.read_index(str(store)))
    sealed = msgspec.structs.replace(index, seal=shard_index._seal(index))
    (store / "shards.json").write_bytes(msgspec.json.encode(sealed))
    with pytest.raises(StoreFormatError):
        Store(store).column("n")[rows]


def test_a_shard_is_called_by_the_name_it_has_now(tmp_path: Path) -> None:
    """Not by that in the working folder, in which the same process has read it before."""
    gc.disable()
    try:
        merge([single(tmp_path / "a.lmdb", range(10))], tmp_path / "out", shards=2)
        shard = tmp_path / "out" / "shard-00000.lmdb"
        assert map_file(shard).path == str(shard)
    finally:
        gc.enable()
