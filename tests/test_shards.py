"""A folder of shards is read as one store, and says the same as a single file."""

from __future__ import annotations

import gc
import json
import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from processes import python
from stores import SCHEMA, everything, key_of, sample, write

from sharedds.errors import (
    CorruptDataError,
    OptionError,
    SampleIndexError,
    SampleKeyError,
    SchemaError,
    StoreFormatError,
)
from sharedds.store import (
    Cut,
    ShardWriter,
    Store,
    info,
    joined,
    shard_index,
    sharding_of,
    verify,
)

COUNT = 12
OPTIONS: dict[str, Any] = {
    "schema": SCHEMA | {"boxes": "array:float32"},
    "classes": ["a", "b\udcfe"],
    "attrs": {"root": "/src"},
}


def write_shards(path: Path, each: int, *, keyed: bool = True, count: int = COUNT) -> Path:
    """Write the samples of :func:`stores.write` as shards."""
    with ShardWriter(path, cut=Cut(samples=each), **OPTIONS) as writer:
        for number in range(count):
            writer.add(sample(number), key=key_of(number) if keyed else None)
    return path


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Twelve samples with fields of every kind in one file."""
    return Store(write(tmp_path_factory.mktemp("single") / "all.lmdb", COUNT))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in shards of five."""
    return write_shards(tmp_path_factory.mktemp("shards") / "all", 5)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return write_shards(tmp_path / "all", 5)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("each", [1, 5, 12, 100])
def test_the_digest_does_not_depend_on_the_cut(tmp_path: Path, each: int, keyed: bool) -> None:
    """It is that of a single file, whatever the size of the shards."""
    one = Store(write(tmp_path / "one.lmdb", COUNT, keyed=keyed))
    cut = Store(write_shards(tmp_path / "cut", each, keyed=keyed))
    assert cut.digest == one.digest


def test_an_empty_store_can_be_cut(tmp_path: Path) -> None:
    """It is one shard without samples, of the digest of an empty file."""
    one = Store(write(tmp_path / "one.lmdb", 0, **OPTIONS))
    cut = Store(write_shards(tmp_path / "cut", 3, count=0))
    assert (len(cut), cut.digest) == (0, one.digest)
    assert verify(cut.path).ok


def test_every_value_is_that_of_a_single_file(single: Store, folder: Path) -> None:
    """Samples, keys, their numbers, classes and attributes."""
    found, expected = everything(Store(folder)), everything(single)
    assert found == {name: expected[name] for name in found}
    assert len(found) > COUNT * len(SCHEMA)


@pytest.mark.parametrize("name", ["label", "weight", "pixels", "boxes@shape"])
@pytest.mark.parametrize(
    "index",
    [slice(None), slice(2, 9), slice(None, None, -2), slice(4, 4), [5, 2, 9, 2], [[1, 2], [11, 0]]],
    ids=["all", "some", "backwards", "none", "list", "square"],
)
def test_columns_go_across_shards(single: Store, folder: Path, name: str, index: Any) -> None:
    """Every way to index a column gives what a single file gives."""
    found, expected = Store(folder).column(name)[index], single.column(name)[index]
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_bytes_of_many_samples_come_in_the_order_asked_for(single: Store, folder: Path) -> None:
    """They are read shard by shard, and put back."""
    numbers = [11, 0, 5, 4, 7]
    found = [bytes(data) for data in Store(folder).read_many("photo", numbers)]
    assert found == [bytes(data) for data in single.read_many("photo", numbers)]


def test_regions_go_across_shards(single: Store, folder: Path) -> None:
    """One call may name samples of several shards."""
    wanted = [(n, 0, (1, 2, 3), (4, 4, 4)) for n in (11, 1, 6, 5)]
    found = Store(folder).read_regions("volume", wanted)
    for one, other in zip(found, single.read_regions("volume", wanted), strict=True):
        assert np.array_equal(one, other)


def test_what_is_not_there_is_told_by_the_whole(folder: Path) -> None:
    """Numbers, keys, fields and columns beyond it are the errors of a single file."""
    store = Store(folder)
    with pytest.raises(SampleIndexError, match="there are 12"):
        store.read("photo", 12)
    with pytest.raises(SampleKeyError, match="no sample with the key"):
        store.index_of("nobody")
    with pytest.raises(SampleKeyError, match="no column"):
        store.column("nothing")
    with pytest.raises(SampleIndexError, match="12 rows"):
        store.column("label")[12]


def test_a_pickle_names_the_folder_alone(folder: Path) -> None:
    """However many shards there are."""
    store = pickle.loads(pickle.dumps(Store(folder)))
    assert len(pickle.dumps(store)) < 1000
    assert store[7]["label"] == 2


def test_verify_and_info_see_one_store(single: Store, folder: Path) -> None:
    """Samples, values and classes are added up; the number of shards is told."""
    assert verify(folder, untrusted=True).ok
    found, expected = info(folder), info(single.path)
    assert found.shards == 3
    assert (found.samples, found.classes, found.content, found.digest) == (
        expected.samples,
        expected.classes,
        expected.content,
        expected.digest,
    )
    assert [(f.name, f.kind, f.values) for f in found.fields] == [
        (f.name, f.kind, f.values) for f in expected.fields
    ]


def test_a_thousand_shards_cost_nothing_until_they_are_read(tmp_path: Path) -> None:
    """No descriptor and no map when opened; a bounded number after all were read."""
    out = tmp_path / "many"
    with ShardWriter(out, cut=Cut(samples=1), schema={"data": "keep", "n": "int64"}) as writer:
        writer.add({"data": None, "n": 0}, key="0")
    seed = (out / "shard-00000.lmdb").read_bytes()
    index = msgspec.json.decode((out / "shards.json").read_bytes())
    shard = index["shards"][0]
    for number in range(1, 1000):  # a thousand names of one content: keys are of no concern here
        (out / f"shard-{number:05d}.lmdb").write_bytes(seed)
    index["shards"] = [shard | {"file": f"shard-{n:05d}.lmdb"} for n in range(1000)]
    index |= {"samples": 1000, "entries": 0, "keys": index["keys"] | {"bytes": 16_000}}
    reseal(out, index)
    found = python(
        """
        import os, sys
        from sharedds.store import Store

        def now():
            maps = open("/proc/self/maps").read().count("/shard-")
            return len(os.listdir("/proc/self/fd")), maps

        before = now()
        store = Store(sys.argv[1])
        store.header, len(store)
        opened = now()
        column = store.column("n")
        total = sum(int(column[n]) for n in range(1000))
        after = now()
        print(total, opened[0] - before[0], opened[1], after[0] - before[0], after[1])
        """,
        out,
    )
    total, opened, mapped, after, maps = map(int, found.stdout.split())
    assert (total, opened, mapped) == (0, 0, 0)
    assert after <= 2 * 128
    assert maps <= 128


def test_a_view_outlives_its_shard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that had to be closed stays mapped for as long as somebody holds a part of it."""
    monkeypatch.setattr(joined, "_OPEN", 1)
    before = mapped(folder)
    store = Store(folder)
    views = [store.read("photo", number) for number in (0, 6, 11)]
    opened = store.opened
    assert isinstance(opened, joined.OpenedShards)
    assert len(opened._open) == 1
    assert mapped(folder) - before == 3
    assert [bytes(view) for view in views] == [bytes(store.read("photo", n)) for n in (0, 6, 11)]
    del views
    assert mapped(folder) - before == 1


def mapped(folder: Path) -> int:
    """Count the shards of a folder that are mapped by this process."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count(f"{folder}/shard-")


# --- damage ---


def reseal(folder: Path, values: dict[str, Any]) -> None:
    """Write an index as one who means harm would: its checksum is right."""
    index = msgspec.convert(values | {"seal": ""}, shard_index.ShardIndex)
    sealed = msgspec.structs.replace(index, seal=shard_index._seal(index))
    (folder / "shards.json").write_bytes(msgspec.json.encode(sealed))


def test_a_missing_shard_is_named(shards: Path) -> None:
    """What the others hold can still be read."""
    (shards / "shard-00001.lmdb").unlink()
    store = Store(shards)
    assert store[0]["label"] == -5
    with pytest.raises(StoreFormatError, match=r"shard-00001\.lmdb.*missing; put back") as caught:
        store.read("photo", 6)
    assert caught.value.path == str(shards / "shard-00001.lmdb")
    assert "shard-00001" in verify(shards).problems[0].text


def test_a_shard_that_was_cut_short_is_named(shards: Path) -> None:
    """Its size is compared before it is mapped."""
    file = shards / "shard-00002.lmdb"
    os.truncate(file, file.stat().st_size - 4096)
    with pytest.raises(StoreFormatError, match=r"shard-00002\.lmdb.*cut short, or exchanged"):
        Store(shards)[11]


def test_a_shard_that_was_exchanged_is_named(shards: Path, tmp_path: Path) -> None:
    """One of equal size and other content would be wrong data without a word."""
    first, second = shards / "shard-00000.lmdb", shards / "shard-00001.lmdb"
    other = write_shards(tmp_path / "other", 5, keyed=True)
    values = msgspec.json.decode((shards / "shards.json").read_bytes())
    size = second.stat().st_size
    data = (other / first.name).read_bytes().ljust(size, b"\0")[:size]
    second.write_bytes(data)
    assert values["shards"][1]["bytes"] == size
    with pytest.raises(StoreFormatError, match=r"shard-00001\.lmdb"):
        Store(shards)[6]


def test_a_flipped_bit_is_told_with_its_number_in_the_whole(shards: Path) -> None:
    """Sample 6 of the store, which is the second of its shard."""
    data = bytes(Store(shards).read("photo", 6))
    file = shards / "shard-00001.lmdb"
    content = bytearray(file.read_bytes())
    content[content.index(data) + len(data) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptDataError, match="sample 6") as caught:
        Store(shards).read("photo", 6)
    assert (caught.value.sample, caught.value.key) == (6, key_of(6))
    problem = verify(shards).problems[0]
    assert (problem.sample, problem.field) == (6, "photo")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "index version 2, this release reads 1"),
        ({"format": "other"}, "no index of shards"),
        ({"samples": 13}, "do not add up"),
        ({"samples": -1}, "out of range"),
        ({"shards": []}, "0 shards"),
        ({"keys": None}, "keys"),
        ({"classes": -2}, "classes"),
        ({"fields": []}, "0 fields"),
    ],
    ids=["version", "format", "sum", "negative", "none", "keys", "classes", "fields"],
)
def test_an_index_that_makes_no_sense_is_refused(
    shards: Path, change: dict[str, Any], said: str
) -> None:
    """Before anything is opened by it, though its checksum is right."""
    reseal(shards, msgspec.json.decode((shards / "shards.json").read_bytes()) | change)
    with pytest.raises(StoreFormatError, match=said):
        shard_index.read_index(str(shards))


@pytest.mark.parametrize("name", ["../x.lmdb", "/etc/passwd", "a/b", "", ".hidden", "x" * 200])
def test_a_shard_outside_of_the_folder_is_refused(shards: Path, name: str) -> None:
    """An index from elsewhere must not have other files read."""
    values = msgspec.json.decode((shards / "shards.json").read_bytes())
    values["shards"][0]["file"] = name
    reseal(shards, values)
    with pytest.raises(StoreFormatError, match="no name of a file in this folder"):
        Store(shards)


def test_an_index_with_a_changed_digit_is_refused(shards: Path) -> None:
    """It has a checksum of its own."""
    text = (shards / "shards.json").read_text()
    (shards / "shards.json").write_text(text.replace('"samples":5', '"samples":4', 1))
    with pytest.raises(StoreFormatError, match="checksum"):
        Store(shards)


def test_damaged_keys_are_refused(shards: Path) -> None:
    """A key that is there must not be called unknown."""
    (file,) = shards.glob("keys-*.index")
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreFormatError, match="the keys"):
        Store(shards).index_of(key_of(3))


def test_the_index_is_that_of_version_1(tmp_path: Path) -> None:
    """Its text does not change by accident."""
    with ShardWriter(tmp_path / "x", cut=Cut(samples=2), schema={"n": "int64"}) as writer:
        for number in range(3):
            writer.add({"n": number}, key=str(number))
    found = json.loads((tmp_path / "x" / "shards.json").read_text())
    for shard in found["shards"]:
        assert shard.pop("bytes") == (tmp_path / "x" / shard["file"]).stat().st_size
    assert len(found.pop("seal")) == 16
    assert found == {
        "format": "sharedds-shards",
        "version": 1,
        "samples": 3,
        "entries": 0,
        "digest": "1682860c23d6a77c028424017b58ca62",
        "fields": [{"name": "n", "kind": "column", "dtype": "<i8"}],
        "shards": [  # each also has its bytes
            {
                "file": "shard-00000.lmdb",
                "samples": 2,
                "entries": 0,
                "digest": "9fec2dbc4d23dbd1f8de404492afdece",
            },
            {
                "file": "shard-00001.lmdb",
                "samples": 1,
                "entries": 0,
                "digest": "c592404291d8968a2b06aa442f585c59",
            },
        ],
        "one_entry_each": True,
        "keyed": True,
        "classes": -1,
        "keys": {
            "file": "keys-1682860c23d6a77c028424017b58ca62.index",
            "bytes": 48,
            "checksum": "6cb78237ef1e54fd",
        },
        "edits": None,
        "attrs": {},
    }


# --- writing ---


@pytest.mark.parametrize("stop", [0, 3, 5, 7, 11])
def test_work_goes_on_where_it_stopped(tmp_path: Path, single: Store, stop: int) -> None:
    """Also within a shard; nothing is there under the final name until the end."""
    options = OPTIONS | {"cut": Cut(samples=5), "resume": "work"}
    writer = ShardWriter(tmp_path / "x", **options)
    for number in range(stop):
        writer.add(sample(number), key=key_of(number))
    writer.abort()
    assert not (tmp_path / "x").exists()
    with ShardWriter(tmp_path / "x", **options) as writer:
        done = len(writer)
        assert done <= stop
        assert done >= stop // 5 * 5
        assert list(writer.keys()) == [key_of(n).encode() for n in range(done)]
        for number in range(done, COUNT):
            writer.add(sample(number), key=key_of(number))
    assert Store(tmp_path / "x").digest == single.digest
    assert not (tmp_path / "x.partial").exists()


def test_other_work_begins_anew(tmp_path: Path) -> None:
    """What was cut in another way is discarded."""
    writer = ShardWriter(tmp_path / "x", cut=Cut(samples=5), resume="work", **OPTIONS)
    for number in range(7):
        writer.add(sample(number), key=key_of(number))
    writer.abort()
    with ShardWriter(tmp_path / "x", cut=Cut(samples=4), resume="work", **OPTIONS) as writer:
        assert len(writer) == 0


def test_a_shard_ends_at_its_size(tmp_path: Path) -> None:
    """With the sample that makes it so large."""
    with ShardWriter(tmp_path / "y", cut=Cut(nbytes=1000), schema={"a": "raw"}) as writer:
        for _ in range(6):
            writer.add({"a": np.zeros(400, np.uint8)})
    sizes = [shard.samples for shard in shard_index.read_index(str(tmp_path / "y")).shards]
    assert sizes == [3, 3]


def test_a_key_in_two_shards_is_refused(tmp_path: Path) -> None:
    """Nothing is published, as with a single file."""
    writer = ShardWriter(tmp_path / "x", cut=Cut(samples=1), schema={"n": "int64"})
    for number in range(2):
        writer.add({"n": number}, key="same")
    with pytest.raises(SchemaError, match="samples 0 and 1 have the same key 'same'"):
        writer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shards", "size"),
    [(0, None), (True, None), (2, 5), (None, 0), (None, "much")],
    ids=["zero", "true", "both", "no bytes", "no size"],
)
def test_a_cut_that_is_none_is_refused(shards: Any, size: Any) -> None:
    """One of two options, with a sensible value."""
    with pytest.raises(OptionError):
        sharding_of(shards, size)
