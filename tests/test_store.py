"""Reading a store: every kind of field, keys, what is refused, the file itself."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from stores import SCHEMA, everything, jpeg, key_of, opened_file, png, sample, write

from sharedds.errors import (
    SampleIndexError,
    SampleKeyError,
    SchemaError,
)
from sharedds.store import Store, StoreWriter, info, verify
from sharedds.store.layout import CHUNK_KEY


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of twelve samples with fields of every kind."""
    return write(tmp_path_factory.mktemp("stores") / "all.lmdb")


@pytest.fixture(scope="module")
def store(path: Path) -> Store:
    """The same, opened."""
    return Store(path)


@pytest.mark.parametrize("field", ["photo", "mask", "file"])
def test_images_keep_their_bytes(store: Store, field: str) -> None:
    """What is stored is the file, byte for byte, or None."""
    for number in range(len(store)):
        expected = sample(number)[field]
        if expected is None:
            assert store.value(field, number) is None
        else:
            assert bytes(store.read(field, number)) == expected
            assert store.value(field, number).dtype == np.uint8


@pytest.mark.parametrize("field", ["plain", "packed", "boxes", "pixels", "weight"])
def test_arrays_keep_their_numbers(store: Store, field: str) -> None:
    """Values, shape and dtype of each, empty ones included."""
    for number in range(len(store)):
        expected = np.asarray(sample(number)[field])
        found = store.value(field, number)
        assert found.shape == expected.shape
        assert np.array_equal(found, expected)
        if field != "weight":
            assert found.dtype == expected.dtype


def test_volumes_keep_levels_and_attributes(store: Store) -> None:
    """An array with more than its numbers."""
    expected = sample(5)["volume"]
    array = store.array(5, "volume")
    assert np.array_equal(array[:], expected.data)
    assert np.array_equal(array.level(1)[:], expected.levels[0])
    assert (array.chunk, array.attrs) == ((4, 5, 6), {"slope": 2, "intercept": -5.5})
    assert store.value("volume", 4) is None


@pytest.mark.parametrize("field", ["label", "flag", "caption", "blob", "extra"])
def test_plain_values_keep_type_and_value(store: Store, field: str) -> None:
    """Numbers, bool, text with odd characters, bytes and JSON."""
    for number in range(len(store)):
        expected = sample(number)[field]
        found = store.value(field, number)
        assert found == expected
        assert type(found) is type(expected)


def test_a_sample_is_a_dict_of_its_fields(store: Store) -> None:
    """All fields, in the order of the schema."""
    assert list(store[3]) == list(store.fields) == list(SCHEMA)


def test_numbers_count_from_both_ends(store: Store) -> None:
    """-1 is the last sample, wherever a number is taken."""
    assert store[-1]["label"] == sample(11)["label"]
    assert store.key(-12) == key_of(0)
    assert bytes(store.read("photo", -2)) == jpeg(10)
    assert store.array(-1, "volume").shape == (10, 9, 8)


@pytest.mark.parametrize("index", [12, -13, 1 << 70])
def test_a_sample_that_is_not_there_is_refused(store: Store, index: int) -> None:
    """The error says how many there are."""
    for use in (store.__getitem__, store.key, lambda i: store.read("photo", i)):
        with pytest.raises(SampleIndexError, match=f"no sample {index}, there are 12"):
            use(index)


def test_a_number_is_a_whole_number(store: Store) -> None:
    """1.0 is none."""
    assert store[np.int16(1)]["label"] == -4
    with pytest.raises(SchemaError, match="whole number"):
        store[1.0]  # type: ignore[index]


def test_a_field_that_is_not_there_is_refused(store: Store) -> None:
    """The error lists the fields there are."""
    for use in (
        lambda: store.value("x", 0),
        lambda: store.read("x", 0),
        lambda: store.array(0, "x"),
    ):
        with pytest.raises(SampleKeyError, match=r"'x'; fields: photo \(jpeg\), mask \(png\)"):
            use()


def test_many_are_read_in_the_order_asked_for(store: Store) -> None:
    """Also twice the same, from both ends."""
    wanted = [7, 0, -1, 7, 3]
    assert [bytes(v) for v in store.read_many("photo", wanted)] == [jpeg(i % 12) for i in wanted]
    assert store.read_many("photo", np.array([], np.int64)) == []  # type: ignore[arg-type]
    store.advise("label", [0])  # nothing to fetch; no error either


def test_advice_names_the_bytes_that_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is asked for the very ranges where the values lie, in file order."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(opened_file(store).file, "advise", asked.extend)
    store.advise("photo", [9, 2, 5])
    view = opened_file(store).file.view
    assert [bytes(view[at : at + size]) for at, size in asked] == [jpeg(2), jpeg(5), jpeg(9)]


def test_what_is_read_is_a_view(store: Store) -> None:
    """Bytes are not copied, and cannot be changed."""
    data = store.read("photo", 0)
    assert data.obj is opened_file(store).file.view.obj
    assert data.readonly


def test_attributes_and_classes_come_back(store: Store) -> None:
    """What the writer was given for the whole store."""
    assert store.attrs == {"root": "/src"}
    assert store.classes is not None
    assert list(store.classes) == ["a", "b\udcfe"]


def test_a_key_leads_to_its_sample(store: Store) -> None:
    """By text, bytes or path."""
    for number in range(12):
        assert store.index_of(key_of(number)) == number
        assert store.index_of(key_of(number).encode()) == number
        assert store.index_of(Path(key_of(number))) == number


@pytest.mark.parametrize("key", ["", "x", "folder/é001", b"\xff", "folder/é001.jpg "])
def test_a_key_that_is_not_there_is_refused(store: Store, key: Any) -> None:
    """Nothing near it is taken for it."""
    with pytest.raises(SampleKeyError, match="no sample with the key"):
        store.index_of(key)


def test_without_keys_the_number_is_the_key(tmp_path: Path) -> None:
    """Both ways."""
    store = Store(write(tmp_path / "x.lmdb", 3, keyed=False))
    assert [store.index_of(store.key(i)) for i in range(3)] == [0, 1, 2]
    for key in ("3", "-1", "01", "²", "9" * 30):
        with pytest.raises(SampleKeyError):
            store.index_of(key)


def test_keys_may_be_longer_than_lmdb_allows(tmp_path: Path) -> None:
    """Paths beyond 511 bytes that share their first 600; the naive key is refused by LMDB."""
    keys = ["d" * 600 + "/1.jpg", "d" * 600 + "/2.jpg", "n" * 251, ""]
    with (
        lmdb.open(str(tmp_path / "naive"), subdir=False) as environment,
        environment.begin(write=True) as transaction,
        pytest.raises(lmdb.BadValsizeError),
    ):
        transaction.put(keys[0].encode(), b"")
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}) as writer:
        for number, key in enumerate(keys):
            writer.add({"x": number}, key=key)
    store = Store(tmp_path / "x.lmdb")
    assert [store[store.index_of(key)]["x"] for key in keys] == [0, 1, 2, 3]
    assert [store.key(i) for i in range(4)] == keys


def test_equal_keys_are_refused(tmp_path: Path) -> None:
    """Nothing is published, nothing stays, and the error names both samples."""
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume="work")
    for number, key in enumerate(["a", "b", "c", "b"]):
        writer.add({"x": number}, key=key)
    with pytest.raises(SchemaError, match="samples 1 and 3 have the same key 'b'"):
        writer.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("keys", [["a", None], [None, "a"]])
def test_all_samples_have_keys_or_none(tmp_path: Path, keys: list[str | None]) -> None:
    """The second sample does as the first."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}) as writer:
        writer.add({"x": 1}, key=keys[0])
        with pytest.raises(SchemaError, match="to every sample or to none"):
            writer.add({"x": 2}, key=keys[1])


def test_plain_lmdb_reads_the_file(path: Path, store: Store) -> None:
    """Three databases; keys in order; the values are the pure bytes."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=3) as environment:
        with environment.begin() as transaction:
            assert [bytes(k) for k in transaction.cursor().iternext(values=False)] == [
                b"chunks", b"columns", b"header",
            ]  # fmt: skip
        chunks = environment.open_db(b"chunks", create=False)
        with environment.begin(chunks) as transaction:
            found = {CHUNK_KEY.unpack(key): bytes(value) for key, value in transaction.cursor()}
    assert len(found) == store.header.entries
    assert found[7, 0, 0, 0] == jpeg(7)
    assert found[7, 1, 0, 0] == png(7)
    assert {key[2:] for key in found if key[:2] == (5, 3)} == {
        *((0, n) for n in range(3 * 2 * 2)),
        *((1, n) for n in range(2)),
    }


def test_a_store_pickles_to_a_few_bytes(store: Store) -> None:
    """Before it was used and after."""
    fresh = Store(store.path)
    assert len(pickle.dumps(fresh)) < 500
    _ = store[0]
    assert len(pickle.dumps(store)) < 500
    assert everything(pickle.loads(pickle.dumps(store))) == everything(store)


def test_a_good_store_verifies(path: Path, store: Store) -> None:
    """All values are counted, and their bytes."""
    for untrusted in (False, True):
        report = verify(path, untrusted=untrusted, progress=False)
        assert report.ok
        assert report.to_json()["ok"] is True
        assert (report.samples, report.entries) == (12, store.header.entries)
        assert report.bytes > 12 * 40 * 40 * 3


def test_info_tells_the_fields(path: Path) -> None:
    """Values and bytes of each field."""
    fields = {field.name: field for field in info(path).fields}
    assert list(fields) == list(SCHEMA)
    assert fields["mask"].values == 8
    assert fields["photo"].bytes == sum(len(jpeg(i)) for i in range(12))
    assert fields["label"].bytes == 12 * 8
